// Random numbers of tests, the same with every standard library.
#pragma once

#include <crumb/core/view.hpp>

#include <cmath>
#include <cstdint>
#include <random>

namespace crumb_test {

/// Numbers of mean 0 and deviation 1, normally distributed, by Marsaglia's polar method.
/// std::normal_distribution takes a logarithm of long double for each when clang compiles it, and that is
/// most of an emulated test's time on AArch64.
template <class T>
class normal_numbers {
  public:
    T operator()(std::mt19937& random) {
        has_spare_ = !has_spare_;
        if (!has_spare_)
            return spare_;
        T x, y, square;
        do {
            x = from_minus_one_to_one(random);
            y = from_minus_one_to_one(random);
            square = x * x + y * y;
        } while (square >= 1 || square == 0);
        const T factor = std::sqrt(-2 * std::log(square) / square);
        spare_ = y * factor;
        return x * factor;
    }

  private:
    static T from_minus_one_to_one(std::mt19937& random) {
        return static_cast<T>(static_cast<std::int32_t>(random() >> 8) - 0x800000) * T{0x1p-23};
    }

    T spare_ = 0;
    bool has_spare_ = false;
};

/// A part of 0 .. size - 1, empty ones among them, from two random numbers.
inline crumb::range part_of(std::size_t size, std::size_t a, std::size_t b) {
    a %= size + 1;
    b %= size + 1;
    return {a < b ? a : b, a < b ? b : a};
}

} // namespace crumb_test
