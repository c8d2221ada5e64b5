// Attention over scanned codes that leaves out values of little weight. Loops:
//     parts: scores > blocks: weights to bins > parts: values of the blocks that are needed
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>

#include <crumb/kernel/attention/attention_pass.inl>

#include <crumb/isa/portable/pq.inl>

#include <crumb/kernel/cache/scans.inl>

#include <crumb/kernel/cache/expand_query.inl>
#include <crumb/kernel/cache/pq_tables.inl>
#include <crumb/kernel/cache/scan_means.inl>
#include <crumb/kernel/cache/scan_rounding.inl>

#include <crumb/kernel/cache/scan.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct kv_skip<I> {
    using M = math<I>;
    using f32 = typename I::f32;
    static constexpr std::size_t lanes = M::lanes;
    static constexpr std::size_t part_blocks = kv_part_tokens / kv_block_tokens;

    attention_pass<I>& pass;
    const kv_scan<I>& scan;
    const kv_attention_args& args;
    kv_skip_scratch at;

    CRUMB_INLINE kv_skip(attention_pass<I>& p, const kv_scan<I>& s, const kv_attention_args& a) noexcept
        : pass(p), scan(s), args(a), at(a.cache.coded, a.row_block * a.group) {}

    /// All coded tokens, which all queries see: first keys, then the values that matter.
    CRUMB_INLINE kv_skip_report run() const noexcept {
        const kv_layer_view& cache = args.cache;
        const std::size_t parts = (cache.coded + kv_part_tokens - 1) / kv_part_tokens;
        const std::byte* next = parts == 0 ? nullptr : cache.part(0, pass.kv_head, true);
        for (std::size_t p = 0; p < parts; ++p) {
            const std::size_t stop = end_of(p);
            const std::byte* here = next;
            next = p + 1 < parts ? cache.part(p + 1, pass.kv_head, true) : nullptr;
            pass.scores = weights(p).weights;
            scan.score_part(here, cache.sinks + p * kv_part_tokens, 0, stop, next);
            sum(p, stop);
        }
        kv_skip_report report;
        report.blocks = (cache.coded + kv_block_tokens - 1) / kv_block_tokens;
        const std::size_t limit = min_bin(report);
        for (std::size_t p = 0; p < parts; ++p)
            add(p, limit, report);
        return report;
    }

  private:
    CRUMB_INLINE std::size_t end_of(std::size_t p) const noexcept {
        const std::size_t left = args.cache.coded - p * kv_part_tokens;
        return left < kv_part_tokens ? left : kv_part_tokens;
    }
    CRUMB_INLINE kv_part_weights weights(std::size_t p) const noexcept {
        return {at.weights(args.skip_scratch) + p * pass.queries * kv_part_tokens, kv_part_tokens,
                at.levels(args.skip_scratch) + p * pass.queries};
    }
    /// Per query the mass of a block of 64 tokens: relative to the part's level, later to all tokens.
    CRUMB_INLINE float* masses(std::size_t block) const noexcept {
        return at.masses(args.skip_scratch) + block * pass.queries;
    }

    /// Sums a part's weights by blocks.
    CRUMB_INLINE void sum(std::size_t p, std::size_t stop) const noexcept {
        float* levels = at.levels(args.skip_scratch) + p * pass.queries;
        for (std::size_t i = 0; i < pass.queries; ++i) {
            const float* from = weights(p).row(i);
            levels[i] = pass.maxima[i];
            for (std::size_t t = 0; t < stop; t += kv_block_tokens) {
                f32 all = I::zero();
                for (std::size_t j = t; j < t + kv_block_tokens; j += lanes)
                    all = I::add(all, I::load(from + j));
                masses((p * kv_part_tokens + t) / kv_block_tokens)[i] = I::sum(all);
            }
        }
    }

    // Blocks are put into bins by the exponent of their largest share. The lightest bins whose shares
    // together stay within epsilon, for every query, are left out.
    static constexpr std::size_t bins = 64;
    static CRUMB_INLINE std::size_t bin_of(float share) noexcept {
        std::int32_t bits;
        __builtin_memcpy(&bits, &share, sizeof bits);
        const std::int32_t bin = (bits >> 22) - 2 * (127 - 31);
        return bin < 0                                  ? 0
               : bin >= static_cast<std::int32_t>(bins) ? bins - 1
                                                        : static_cast<std::size_t>(bin);
    }

    /// The least bin of blocks that have to be read; turns masses into shares.
    CRUMB_INLINE std::size_t min_bin(kv_skip_report& report) const noexcept {
        const std::size_t n = pass.queries;
        float sums[bins * few_queries] = {};
        for (std::size_t b = 0; b < report.blocks; ++b) {
            const kv_part_weights part = weights(b / part_blocks);
            float* share = masses(b);
            float largest = 0;
            for (std::size_t i = 0; i < n; ++i) {
                // The level of a part is soon that of all: no exponential then.
                const float behind = part.levels[i] - pass.maxima[i];
                share[i] *= (behind == 0 ? 1.0f : M::exp_of(behind)) / pass.totals[i];
                largest = share[i] > largest ? share[i] : largest;
            }
            for (std::size_t i = 0; i < n; ++i)
                sums[bin_of(largest) * n + i] += share[i];
        }
        std::size_t bin = 0;
        for (; bin < bins; ++bin) {
            bool fits = true;
            for (std::size_t i = 0; i < n; ++i) {
                if (bin != 0)
                    sums[bin * n + i] += sums[(bin - 1) * n + i];
                fits = fits && sums[bin * n + i] <= args.epsilon;
            }
            if (!fits)
                break;
            for (std::size_t i = 0; i < n; ++i)
                report.mass = sums[bin * n + i] > report.mass ? sums[bin * n + i] : report.mass;
        }
        return bin;
    }

    CRUMB_INLINE bool is_needed(std::size_t block, std::size_t limit) const noexcept {
        float largest = 0;
        for (std::size_t i = 0; i < pass.queries; ++i)
            largest = masses(block)[i] > largest ? masses(block)[i] : largest;
        return bin_of(largest) >= limit;
    }

    /// Takes a block's weights out: its codes may share registers with a neighbour's.
    CRUMB_INLINE void clear(std::size_t p, std::size_t b) const noexcept {
        const kv_part_weights part = weights(p);
        for (std::size_t i = 0; i < pass.queries; ++i)
            for (std::size_t t = b * kv_block_tokens; t < (b + 1) * kv_block_tokens; t += lanes)
                I::store(part.row(i) + t, I::zero());
    }

    /// Adds the values of a part's blocks that are needed.
    CRUMB_INLINE void add(std::size_t p, std::size_t limit, kv_skip_report& report) const noexcept {
        const std::size_t stop = end_of(p), first = p * part_blocks;
        const std::size_t blocks = (stop + kv_block_tokens - 1) / kv_block_tokens;
        const std::byte* values = args.cache.part(p, pass.kv_head, false);
        const std::byte* next = end_of(p) == kv_part_tokens && (p + 1) * kv_part_tokens < args.cache.coded
                                    ? args.cache.part(p + 1, pass.kv_head, false)
                                    : nullptr;
        std::size_t left_out = 0;
        for (std::size_t b = 0; b < blocks; ++b)
            if (!is_needed(first + b, limit)) {
                clear(p, b);
                ++left_out;
            }
        report.skipped += left_out;
        if (left_out == blocks)
            return;
        const kv_codec& codec = args.cache.values().codec();
        const std::size_t planes = scan.round_weights(values, weights(p), stop);
        for (std::size_t b = 0; b < blocks; ++b) {
            if (!is_needed(first + b, limit))
                continue;
            std::size_t end = b + 1;
            for (std::size_t i = end; i < blocks; ++i)
                if (is_needed(first + i, limit) && (i == end || args.scans->meet(codec, end, i)))
                    end = i + 1;
            const range tokens{b * kv_block_tokens,
                               end * kv_block_tokens < stop ? end * kv_block_tokens : stop};
            // What comes next is prefetched where it will be read as well.
            const bool whole = b == 0 && end == part_blocks;
            scan.add_values(values, planes, tokens, whole ? next : nullptr);
            if (codec.residual)
                scan.add_means(values, weights(p), tokens.begin, tokens.end, whole ? next : nullptr);
            b = end - 1;
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
