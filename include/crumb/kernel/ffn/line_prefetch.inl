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
    std::size_t count = 0, left = 0; ///< rows; lines of all
    std::size_t per_step = 0;        ///< in 1 / 256 of a line
    std::size_t bytes = 0;           ///< of a row
    std::size_t first = 0, last = 0; ///< rows that are prefetched together
    std::size_t row = 0, offset = 0, due = 0;

    /// What comes in with the neurons begin .. begin + max_rows - 1 of the list, in so many steps.
    CRUMB_INLINE line_prefetch(const neuron_args& args, std::size_t begin, std::size_t steps) noexcept {
        for (; count < max_rows && begin + count < args.next_count; ++count)
            rows[count] = args.records + args.next[begin + count] * args.record_bytes + args.next_offset;
        bytes = round_up(args.next_bytes, alignment);
        last = together < count ? together : count;
        left = count * (bytes / alignment);
        per_step = left * 256 / steps + 1;
    }
    CRUMB_INLINE void step() noexcept {
        for (due += per_step; due >= 256 && left != 0; due -= 256, --left) {
            __builtin_prefetch(rows[row] + offset, 0, 2);
            if (++row < last)
                continue;
            offset += alignment;
            if (offset == bytes) {
                offset = 0;
                first = last;
                last = first + together < count ? first + together : count;
            }
            row = first;
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
