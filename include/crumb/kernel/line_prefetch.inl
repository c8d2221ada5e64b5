// Rows that come into the cache while others are computed with.
namespace crumb::inline CRUMB_ABI::kernel {

/// Asks for lines of up to 16 rows, the first line of every row before the second of any: records lie far
/// apart, and the more of them are read at a time, the further ahead the hardware's own prefetchers run.
template <>
struct line_prefetch<isa::CRUMB_THIS_ISA> {
    static constexpr std::size_t most_rows = rows_added_together;

    const std::byte* rows[most_rows];
    std::size_t count = 0, left = 0; ///< rows; lines of all
    std::size_t per_step = 0;        ///< in 1 / 256 of a line
    std::size_t row = 0, offset = 0, due = 0;

    /// What comes in with the neurons first .. first + most_rows - 1 of the list, in so many steps.
    CRUMB_INLINE line_prefetch(const neuron_args& args, std::size_t first, std::size_t steps) noexcept {
        for (; count < most_rows && first + count < args.next_count; ++count)
            rows[count] = args.records + args.next[first + count] * args.record_bytes + args.next_offset;
        left = count * ((args.next_bytes + alignment - 1) / alignment);
        per_step = left * 256 / steps + 1;
    }
    CRUMB_INLINE void step() noexcept {
        for (due += per_step; due >= 256 && left != 0; due -= 256, --left) {
            __builtin_prefetch(rows[row] + offset, 0, 2);
            if (++row == count) {
                row = 0;
                offset += alignment;
            }
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
