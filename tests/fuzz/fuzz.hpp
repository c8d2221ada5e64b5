// What all fuzz targets have in common.
#pragma once

#include <crumb/core/memory.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

namespace lm::fuzz {

/// Ends the run with a finding unless `condition` holds.
inline void check(bool condition, const char* what) {
    if (condition)
        return;
    std::fprintf(stderr, "fuzz: %s\n", what);
    std::abort();
}

/// A refusal says why.
inline void check_refusal(const crumb::status& s) {
    check(!s.ok() && s.message()[0] != '\0', "refused without a message");
}

/// The input at an aligned address with nothing behind it, so that a read beyond its end is noticed.
class exact_copy {
  public:
    explicit exact_copy(std::span<const std::byte> from) : size_(from.size()) {
        void* memory = nullptr;
        check(posix_memalign(&memory, crumb::alignment, size_ == 0 ? 1 : size_) == 0, "out of memory");
        data_ = static_cast<std::byte*>(memory);
        if (size_ != 0)
            std::memcpy(data_, from.data(), size_);
    }
    exact_copy(const exact_copy&) = delete;
    exact_copy& operator=(const exact_copy&) = delete;
    ~exact_copy() { std::free(data_); }
    std::span<std::byte> bytes() const noexcept { return {data_, size_}; }

  private:
    std::byte* data_ = nullptr;
    std::size_t size_;
};

/// The choices of an input: its last four bytes, which lie behind what the readers look at.
class choices {
  public:
    explicit choices(std::span<const std::byte> input) {
        for (std::size_t i = 0; i < sizeof bits_ && i < input.size(); ++i)
            bits_ = bits_ << 8 | std::to_integer<std::uint32_t>(input[input.size() - 1 - i]);
    }
    /// One of 0 .. n - 1.
    std::size_t below(std::size_t n) noexcept {
        const std::size_t chosen = bits_ % n;
        bits_ = static_cast<std::uint32_t>(bits_ / n);
        return chosen;
    }
    bool flag() noexcept { return below(2) != 0; }
    template <class T>
    auto& of(T& all) noexcept {
        return all[below(std::size(all))];
    }
    template <class T>
    T of(std::initializer_list<T> all) noexcept {
        return all.begin()[below(all.size())];
    }

  private:
    std::uint32_t bits_ = 0;
};

/// `count` floats within -1 .. 1.
inline std::vector<float> inputs(std::size_t count, std::uint32_t seed = 1) {
    std::vector<float> out(count);
    for (float& x : out) {
        seed = seed * 1664525u + 1013904223u;
        x = static_cast<float>(seed >> 8) * 0x1p-23f - 1.0f;
    }
    return out;
}

inline bool all_finite(std::span<const float> values) {
    for (const float v : values)
        if (!std::isfinite(v))
            return false;
    return true;
}

/// The same bits, or NaN in both: which NaN comes out is not promised.
inline bool same_results(std::span<const float> a, std::span<const float> b) {
    for (std::size_t i = 0; i < a.size() && i < b.size(); ++i)
        if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i]) &&
            !(std::isnan(a[i]) && std::isnan(b[i])))
            return false;
    return true;
}

/// Depends on everything that is put in, so that no read is optimized away.
inline void consume(std::uint64_t value) noexcept {
    static volatile std::uint64_t sink;
    sink = sink + value;
}
inline void consume(std::span<const std::byte> bytes) noexcept {
    std::uint64_t sum = 0;
    for (const std::byte b : bytes)
        sum += std::to_integer<std::uint64_t>(b);
    consume(sum);
}

/// What a fuzz target does with an input; every target has its own.
void run(std::span<const std::byte> input);

} // namespace lm::fuzz
