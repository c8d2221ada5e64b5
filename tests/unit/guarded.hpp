// Buffers next to memory that may not be touched.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <sys/mman.h>
#include <unistd.h>

namespace crumb_test {

/// Which end of a buffer lies at the page that faults.
enum class guard { after, before };

/// `size` objects flush against an inaccessible page; the rest of their pages, and at first the objects as
/// well, are filled with bytes 0xff: NaN as float or half. On destruction that rest has to be as it was.
template <class T>
class guarded {
  public:
    explicit guarded(std::size_t size, guard side = guard::after) : size_(size), side_(side) {
        page_ = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        room_ = (bytes() + page_ - 1) / page_ * page_ + page_;
        void* base = mmap(nullptr, room_ + page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base == MAP_FAILED)
            std::abort();
        base_ = static_cast<unsigned char*>(base);
        usable_ = side == guard::after ? base_ : base_ + page_;
        std::memset(usable_, poison, room_);
        if (mprotect(side == guard::after ? base_ + room_ : base_, page_, PROT_NONE) != 0)
            std::abort();
    }
    guarded(const guarded&) = delete;
    guarded& operator=(const guarded&) = delete;
    ~guarded() {
        EXPECT_TRUE(padding_intact()) << "bytes beside a buffer of " << bytes() << " bytes were written";
        munmap(base_, room_ + page_);
    }

    T* data() noexcept {
        return reinterpret_cast<T*>(side_ == guard::after ? usable_ + room_ - bytes() : usable_);
    }
    std::size_t size() const noexcept { return size_; }
    T* begin() noexcept { return data(); }
    T* end() noexcept { return data() + size_; }
    T& operator[](std::size_t i) noexcept { return data()[i]; }
    std::span<T> span() noexcept { return {data(), size_}; }

    /// Whether nothing beside the objects was written.
    bool padding_intact() noexcept {
        const auto* first = reinterpret_cast<const unsigned char*>(data());
        for (const unsigned char* p = usable_; p < first; ++p)
            if (*p != poison)
                return false;
        for (const unsigned char* p = first + bytes(); p < usable_ + room_; ++p)
            if (*p != poison)
                return false;
        return true;
    }

  private:
    static constexpr unsigned char poison = 0xff;
    std::size_t bytes() const noexcept { return size_ * sizeof(T); }
    std::size_t size_, page_ = 0, room_ = 0;
    guard side_;
    unsigned char* base_ = nullptr;
    unsigned char* usable_ = nullptr;
};

} // namespace crumb_test
