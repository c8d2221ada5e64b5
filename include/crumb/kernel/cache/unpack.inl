// Codes of 2, 4, 6 and 8 bits of a block of 64 tokens, one byte each. Loops: registers of tokens.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <>
struct kv_unpack<isa::CRUMB_THIS_ISA> {
    /// The codes of a row's blocks first .. last - 1, one after another.
    static CRUMB_INLINE void run(const std::uint8_t* row, int bits, std::size_t first, std::size_t last,
                                 std::uint8_t* to) noexcept {
        for (std::size_t b = first; b < last; ++b, to += kv_block_tokens) {
            switch (bits) {
            case 8:
                __builtin_memcpy(to, row + b * kv_block_tokens, kv_block_tokens);
                break;
            case 2:
                twos(row + b * 16, to);
                break;
            default:
                nibbles(row + b * 32, to);
                if (bits == 6) {
                    std::uint8_t high[kv_block_tokens];
                    twos(row + kv_part_tokens / 2 + b * 16, high);
                    for (std::size_t i = 0; i < kv_block_tokens; ++i)
                        to[i] = static_cast<std::uint8_t>(to[i] | high[i] << 4);
                }
            }
        }
    }

  private:
    static CRUMB_INLINE void nibbles(const std::uint8_t* p, std::uint8_t* out) noexcept {
        std::uint8_t x[32];
        __builtin_memcpy(x, p, 32);
        for (std::size_t i = 0; i < 32; ++i)
            out[i] = x[i] & 15;
        for (std::size_t i = 0; i < 32; ++i)
            out[i + 32] = static_cast<std::uint8_t>(x[i] >> 4);
    }
    // Eight codes at a time in a word, whatever the order of its bytes: of loops over bytes GCC makes scalar
    // code where it unrolls them.
    static CRUMB_INLINE void twos(const std::uint8_t* p, std::uint8_t* out) noexcept {
        for (std::size_t i = 0; i < 16; i += 8) {
            std::uint64_t x;
            __builtin_memcpy(&x, p + i, 8);
            CRUMB_UNROLL
            for (unsigned k = 0; k < 4; ++k) {
                const std::uint64_t codes = x >> (2 * k) & 0x0303030303030303u;
                __builtin_memcpy(out + i + 16 * k, &codes, 8);
            }
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
