// Bytes of a cache times queries and weights that are words of 16 bits. No loops but over registers.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <class B>
struct kv_words<isa::CRUMB_THIS_ISA, B> {
    using reg = typename B::reg;
    using acc = typename B::acc;
    static constexpr std::size_t sets = B::sets;

    /// The products of registers of `by_quads`, of some sets, with some queries from channel z on.
    template <std::size_t Queries>
    static CRUMB_INLINE void multiply(const reg* quads, const std::int16_t* const* query, std::size_t z,
                                      acc* dot) noexcept {
        CRUMB_UNROLL
        for (std::size_t j = 0; j < Queries * sets; ++j)
            dot[j] = B::zero();
        CRUMB_UNROLL
        for (std::size_t q = 0; q < 4; ++q) {
            CRUMB_UNROLL
            for (std::size_t odd = 0; odd < 2; ++odd) {
                reg x[sets];
                CRUMB_UNROLL
                for (std::size_t s = 0; s < sets; ++s)
                    x[s] = odd ? B::odd(quads[4 * s + q]) : B::even(quads[4 * s + q]);
                CRUMB_UNROLL
                for (std::size_t a = 0; a < Queries; ++a) {
                    const reg y = B::load(query[a] + 4 * z + (2 * q + odd) * (B::width / 2));
                    CRUMB_UNROLL
                    for (std::size_t s = 0; s < sets; ++s)
                        B::dot(dot[a * sets + s], x[s], y);
                }
            }
        }
    }
    /// Adds two tokens, `stride` bytes apart, times the weights of some queries, `to_next` words apart.
    template <std::size_t Queries>
    static CRUMB_INLINE void add(const std::int8_t* row, std::size_t stride, const std::int16_t* weights,
                                 std::size_t to_next, acc* sum) noexcept {
        reg low, high;
        B::interleave(B::widen(row), B::widen(row + stride), low, high);
        CRUMB_UNROLL
        for (std::size_t a = 0; a < Queries; ++a) {
            const reg x = B::load_weights(weights + a * to_next);
            B::dot(sum[2 * a], low, x);
            B::dot(sum[2 * a + 1], high, x);
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
