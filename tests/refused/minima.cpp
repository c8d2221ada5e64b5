// REFUSED: no kernel multiplies this format yet: its groups have minima
#include <crumb/format/packed.hpp>

struct with_minima {
    struct block {
        crumb::half d, m;
        std::int8_t q[32];
    };
    static constexpr const char* name = "with_minima";
    using scales = crumb::half_scales;
    using minima = crumb::half_scales;
    using codes = crumb::byte_codes;
    static constexpr crumb::half scale(const block& b, std::size_t = 0) noexcept { return b.d; }
    static constexpr crumb::half minimum(const block& b, std::size_t = 0) noexcept { return b.m; }
    static constexpr int code(const block& b, std::size_t i) noexcept { return b.q[i]; }
};

bool packs(std::span<const with_minima::block> blocks, std::span<std::byte> memory) {
    return crumb::pack(crumb::storage<with_minima>(blocks, 1, 32), memory).ok();
}
