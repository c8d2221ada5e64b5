// Random numbers of tests, the same with every standard library.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>

namespace crumb_test {

/// Normal numbers by Marsaglia's polar method. std::normal_distribution takes a logarithm of long double for
/// each when clang compiles it, and that is most of an emulated test's time on AArch64.
template <class T>
class normal_numbers {
  public:
    explicit normal_numbers(T mean = 0, T deviation = 1) : mean_(mean), deviation_(deviation) {}

    T operator()(std::mt19937& random) {
        has_spare_ = !has_spare_;
        if (!has_spare_)
            return mean_ + deviation_ * spare_;
        T x, y, square;
        do {
            x = from_minus_one_to_one(random);
            y = from_minus_one_to_one(random);
            square = x * x + y * y;
        } while (square >= 1 || square == 0);
        const T factor = std::sqrt(-2 * std::log(square) / square);
        spare_ = y * factor;
        return mean_ + deviation_ * x * factor;
    }

  private:
    static T from_minus_one_to_one(std::mt19937& random) {
        return static_cast<T>(static_cast<std::int32_t>(random() >> 8) - 0x800000) * T{0x1p-23};
    }

    T mean_, deviation_, spare_ = 0;
    bool has_spare_ = false;
};

} // namespace crumb_test
