// Prefetches rows while others are computed with, in the loops of others.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

/// Asks for lines of up to 16 rows, of four at a time, the first line of each before the second of any:
/// records lie far apart, and the more of them are read at a time, the further ahead the hardware's own
/// prefetchers run; beyond four that costs more pages of memory at a time than it gains.
template <>
struct line_prefetch<isa::CRUMB_THIS_ISA> {
    static constexpr std::size_t max_rows = rows_added_together, together = 4;

    const std::byte* rows[max_rows];
    const std::byte* const* four = rows; ///< rows that are prefetched together
    std::size_t offset = 0, bytes = 0;   ///< of their next lines; of a row
    std::size_t left = 0;                ///< lines of four rows
    std::size_t per_step = 0, due = 0;   ///< of these, in 1 / 256

    /// What comes in with the neurons begin .. begin + max_rows - 1 of the list, in so many steps.
    CRUMB_INLINE line_prefetch(const neuron_args& args, std::size_t begin, std::size_t steps) noexcept {
        std::size_t count = 0;
        for (; count < max_rows && begin + count < args.next_count; ++count)
            rows[count] = args.records + args.next[begin + count] * args.record_bytes + args.next_offset;
        for (; count % together != 0; ++count)
            rows[count] = rows[count - 1];
        bytes = round_up(args.next_bytes, alignment);
        left = count / together * (bytes / alignment);
        per_step = left * 256 / steps + 1;
    }
    CRUMB_INLINE void step() noexcept {
        due += per_step;
        for (; due >= 256 && left != 0; due -= 256, --left) {
            CRUMB_UNROLL
            for (std::size_t i = 0; i < together; ++i)
                __builtin_prefetch(four[i] + offset, 0, 2);
            offset += alignment;
            if (offset == bytes) {
                offset = 0;
                four += together;
            }
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
