// Aligned memory, as the library wants it.
#pragma once

#include <crumb/core/memory.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <span>

namespace lm {

/// Owns zeroed bytes aligned to `crumb::alignment`.
class buffer {
  public:
    buffer() = default;
    explicit buffer(std::size_t size) : size_(crumb::round_up(size, crumb::alignment)) {
        if (size_ != 0)
            data_.reset(static_cast<std::byte*>(::operator new (size_, std::align_val_t{crumb::alignment})));
        std::fill_n(data_.get(), size_, std::byte{0});
    }
    std::span<std::byte> bytes() const noexcept { return {data_.get(), size_}; }
    template <class T>
    T* as() const noexcept {
        return reinterpret_cast<T*>(data_.get());
    }

  private:
    struct deleter {
        void operator()(std::byte* p) const noexcept {
            ::operator delete (p, std::align_val_t{crumb::alignment});
        }
    };
    std::unique_ptr<std::byte, deleter> data_;
    std::size_t size_ = 0;
};

} // namespace lm
