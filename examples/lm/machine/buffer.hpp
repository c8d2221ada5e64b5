// Aligned memory, as the library wants it.
#pragma once

#include <crumb/core/memory.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <span>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace lm {

/// Owns zeroed bytes aligned to `crumb::alignment`.
class buffer {
  public:
    buffer() = default;
    enum contents { zeros, untouched }; ///< untouched: the system gives memory as it is used
    explicit buffer(std::size_t size, contents begin = zeros)
        : size_(crumb::round_up(size, crumb::alignment)) {
        // Reading weights from ordinary pages spends a good part of the time on translating addresses.
        const bool is_large = size_ >= huge_page;
        const std::size_t unit = is_large ? huge_page : crumb::alignment;
        size_ = crumb::round_up(size_, is_large ? page : crumb::alignment);
        if (size_ != 0)
            data_ = {static_cast<std::byte*>(::operator new(size_, std::align_val_t{unit})), {unit}};
#if defined(__linux__)
        // Where the advice is refused, ordinary pages stay.
        if (is_large)
            (void)::madvise(data_.get(), size_, MADV_HUGEPAGE);
#endif
        if (begin == zeros)
            std::fill_n(data_.get(), size_, std::byte{0});
    }
    std::span<std::byte> bytes() const noexcept { return {data_.get(), size_}; }
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

} // namespace lm
