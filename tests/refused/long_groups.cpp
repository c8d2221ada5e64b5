// REFUSED: no kernel multiplies this format yet: its groups are not of 32 inputs
#include <crumb/linear.hpp>

struct with_long_groups {
    struct block {
        crumb::half d;
        std::int8_t q[128];
    };
    static constexpr const char* name = "with_long_groups";
    using scales = crumb::group_scales<crumb::half, 128>;
    using codes = crumb::byte_codes;
    static constexpr crumb::half scale(const block& b, std::size_t = 0) noexcept { return b.d; }
    static constexpr int code(const block& b, std::size_t i) noexcept { return b.q[i]; }
};

std::size_t inputs(const crumb::linear<with_long_groups>& plan) { return plan.k(); }
