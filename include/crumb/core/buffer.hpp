// Memory as the library takes it, for programs without an allocator of their own.
#pragma once

#include <crumb/core/memory.hpp>

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#if CRUMB_OS_LINUX
#include <sys/mman.h>
#endif

namespace crumb::inline CRUMB_ABI {

/// Owns bytes aligned to `crumb::alignment`; movable. Linux: large buffers take huge pages where the system
/// grants them. Throws std::bad_alloc.
class buffer {
  public:
    /// What a new buffer holds.
    enum contents {
        zeros,
        untouched ///< anything; the system gives memory as it is used
    };

    buffer() = default;
    /// `other` is empty afterwards.
    buffer(buffer&& other) noexcept : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)) {}
    /// Frees what it had; `other` is empty afterwards.
    buffer& operator=(buffer&& other) noexcept {
        data_ = std::move(other.data_);
        size_ = std::exchange(other.size_, 0);
        return *this;
    }
    /// `size` bytes; 0: none, data() is null.
    explicit buffer(std::size_t size, contents begin = zeros) : size_(size) {
        if (size == 0)
            return;
        // Reading weights from ordinary pages spends a good part of the time on translating addresses.
        const bool is_large = size >= huge_page;
        const std::size_t unit = is_large ? huge_page : alignment;
        // Sizes that no memory has are refused by `new`, as long as rounding does not make them small.
        constexpr std::size_t most = std::numeric_limits<std::size_t>::max() / 2;
        const std::size_t room = size > most ? most : round_up(size, is_large ? page : alignment);
        data_ = {static_cast<std::byte*>(::operator new(room, std::align_val_t{unit})), {unit}};
#if CRUMB_OS_LINUX
        // Where the advice is refused, ordinary pages stay.
        if (is_large)
            (void)::madvise(data_.get(), room, MADV_HUGEPAGE);
#endif
        if (begin == zeros)
            std::fill_n(data_.get(), size, std::byte{0});
    }
    /// The first byte; as everything below, of memory that a const buffer lets its user change.
    std::byte* data() const noexcept { return data_.get(); }
    /// Bytes.
    std::size_t size() const noexcept { return size_; }
    /// All of it.
    std::span<std::byte> bytes() const noexcept { return {data_.get(), size_}; }
    /// All of it, wherever a span is asked for.
    operator std::span<std::byte>() const noexcept { return bytes(); }
    /// All of it, to be read.
    operator std::span<const std::byte>() const noexcept { return bytes(); }
    /// The first byte as the first T; there is room for size() / sizeof(T).
    template <class T>
    T* as() const noexcept {
        return reinterpret_cast<T*>(data_.get());
    }

  private:
    static constexpr std::size_t huge_page = std::size_t{2} << 20, page = 4096;
    struct deleter {
        std::size_t unit;
        void operator()(std::byte* p) const noexcept { ::operator delete(p, std::align_val_t{unit}); }
    };
    std::unique_ptr<std::byte, deleter> data_;
    std::size_t size_ = 0;
};

} // namespace crumb::inline CRUMB_ABI
