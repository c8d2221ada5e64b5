// 16 bytes of several rows, brought beside each other. No loops.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct byte_rows<I> {
    /// Bytes i of a, b, c and d to byte 4 i and following.
    static CRUMB_INLINE void interleave(const std::int8_t* a, const std::int8_t* b, const std::int8_t* c,
                                        const std::int8_t* d, std::uint8_t* to) noexcept {
        const sixteen x[4] = {load(a), load(b), load(c), load(d)};
        const sixteen ac[2] = {low(x[0], x[2]), high(x[0], x[2])},
                      bd[2] = {low(x[1], x[3]), high(x[1], x[3])};
        const sixteen abcd[4] = {low(ac[0], bd[0]), high(ac[0], bd[0]), low(ac[1], bd[1]),
                                 high(ac[1], bd[1])};
        __builtin_memcpy(to, abcd, sizeof abcd);
    }
    /// Byte i of row j of `to` = byte j of row i of `from`, whose rows are `stride` bytes apart: 16 of 16.
    static CRUMB_INLINE void transpose(const void* from, std::size_t stride, std::int8_t (*to)[16]) noexcept {
        sixteen x[16], y[16];
        CRUMB_UNROLL
        for (std::size_t i = 0; i < 16; ++i)
            x[i] = load(static_cast<const std::uint8_t*>(from) + i * stride);
        shuffle(x, y);
        shuffle(y, x);
        shuffle(x, y);
        shuffle(y, x);
        __builtin_memcpy(to, x, sizeof x);
    }

  private:
    using sixteen [[gnu::vector_size(16)]] = std::int8_t;
    static CRUMB_INLINE sixteen load(const void* p) noexcept {
        sixteen x;
        __builtin_memcpy(&x, p, sizeof x);
        return x;
    }
    static CRUMB_INLINE sixteen low(const sixteen& s, const sixteen& t) noexcept {
        return __builtin_shufflevector(s, t, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    }
    static CRUMB_INLINE sixteen high(const sixteen& s, const sixteen& t) noexcept {
        return __builtin_shufflevector(s, t, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    /// Bytes 2 i and 2 i + 1 of y = bytes i and 128 + i of x. Four times, it transposes 16 by 16.
    static CRUMB_INLINE void shuffle(const sixteen* x, sixteen* y) noexcept {
        CRUMB_UNROLL
        for (int i = 0; i < 8; ++i) {
            y[2 * i] = low(x[i], x[i + 8]);
            y[2 * i + 1] = high(x[i], x[i + 8]);
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
