// Causal attention over a kv_cache: plan once, run from any thread.
#pragma once

#include <crumb/op/attention.hpp>
#include <crumb/op/cache/kv_cache.hpp>

namespace crumb::inline CRUMB_ABI {

using kernel::kv_error;
using kernel::kv_mode;
using kernel::kv_skip_report;

/// y[r, h] = sum over t <= position + r of softmax_t(scale q[r, h] . k[t, h']) v[t, h'], where h' = h /
/// (heads / kv_heads) and k, v are the cache's. Codes stand for what they decode to. In exact mode the error
/// bound is that of `attention`. In fast mode a step with few queries per kv head does not decode: codes of
/// product quantization are looked up in tables of 14 bits (MILLION), and `kv_error` bounds the difference to
/// exact mode; scales of uniform codes (KIVI) are multiplied with the queries or weights. Owns nothing; copy
/// it freely.
class kv_attention {
  public:
    /// Checks the shape against the cache's and chooses the ISA: the one named, or that of `choose_isa`.
    CRUMB_WHEN_CALLED
    static result<kv_attention> plan(const attention_shape& shape, const kv_cache_options& cache,
                                     kv_mode mode = kv_mode::fast, const char* isa = nullptr) noexcept {
        const auto dense = attention::plan(shape, isa);
        if (!dense)
            return dense.error();
        if (const status s = check_options(cache); !s)
            return s;
        if (shape.kv_heads != cache.kv_heads || shape.head_size != cache.head_size)
            return status::error(errc::bad_shape,
                                 "kv_attention: %zu kv_heads of %zu, the cache has %zu of %zu",
                                 shape.kv_heads, shape.head_size, cache.kv_heads, cache.head_size);
        const auto index = choose_isa(isa);
        if (!index)
            return index.error();
        kv_attention p;
        p.dense_ = *dense;
        p.codec_ = cache.codec;
        p.mode_ = mode;
        p.functions_ = &dispatch::functions_at<dispatch::kv_attention_functions>(*index);
        return p;
    }

    const attention_shape& shape() const noexcept { return dense_.shape(); }
    /// Name of the ISA that `run` executes.
    const char* isa() const noexcept { return functions_->isa; }

    /// Bytes of scratch memory that calls for up to `rows` rows need; each thread its own. At most what 64
    /// rows need.
    std::size_t scratch_bytes(std::size_t rows) const noexcept {
        // Tables for a few rows may take more memory than the floats of many.
        std::size_t max = 0;
        for (std::size_t r = 1; r <= dense_.row_block(rows); ++r) {
            const std::size_t bytes = memory(r, shape().kv_heads).bytes();
            max = bytes > max ? bytes : max;
        }
        return round_up(max, alignment);
    }

    /// The whole result for `part`. q and y: row r is the token at `position` + r, heads * head_size floats.
    /// `cache`: a layer of a cache to which the rows' keys and values have been written, with no code at or
    /// after `position`. `scratch`: scratch_bytes(rows of the part), aligned. `errors`: null, or
    /// one per row and head. Refuses NaN and infinite queries, y unchanged. Threads may run
    /// disjoint parts.
    status run(const matrix_view<const float>& q, const kernel::kv_layer_view& cache, std::size_t position,
               const matrix_view<float>& y, std::span<std::byte> scratch, const attention_part& part = {},
               kv_error* errors = nullptr) const noexcept {
        CRUMB_CHECK(y.rows == q.rows && y.cols == q.cols, "kv_attention::run: y has another shape than q");
        return start({}, q, cache, position, {}, y, nullptr, scratch, part, errors);
    }

    /// Whether `run_skipping` serves a codec and `group` query heads per kv head, in fast mode.
    static constexpr bool can_skip(const kv_codec& codec, std::size_t head_size, std::size_t group) noexcept {
        return kernel::kv_route_of(codec, head_size, group, kv_mode::fast) == kernel::kv_route::tables;
    }
    /// Bytes of the further scratch memory of `run_skipping`, for a cache of up to `coded` coded tokens.
    std::size_t skip_scratch_bytes(std::size_t coded) const noexcept {
        return round_up(kernel::kv_skip_scratch(coded, group()).floats() * sizeof(float), alignment);
    }
    /// Like `run` in fast mode for one row, but values of blocks of 64 coded tokens whose weights add up to
    /// at most `epsilon` of a query's, for all queries of a kv head, are not read: |y - run's y| <= 2 epsilon
    /// max |v|. `skipped`: one report per kv head. Refuses codecs without codebooks, groups of more than 16
    /// heads, an epsilon that is not within 0 .. 1.
    status run_skipping(const matrix_view<const float>& q, const kernel::kv_layer_view& cache,
                        std::size_t position, const matrix_view<float>& y, float epsilon,
                        kv_skip_report* skipped, std::span<std::byte> scratch,
                        std::span<std::byte> skip_scratch, const range& kv_heads = {}) const noexcept {
        if (mode_ != kv_mode::fast || !can_skip(codec_, head_size(), group()))
            return status::error(errc::unsupported,
                                 "kv_attention: values are left out in fast mode of pq codecs only, with at "
                                 "most 16 query heads per kv head");
        if (!(epsilon >= 0 && epsilon <= 1))
            return status::error(errc::invalid_argument, "kv_attention: epsilon is %g", double(epsilon));
        if (q.rows != 1)
            return status::error(errc::bad_shape, "kv_attention: values are left out for one row, not %zu",
                                 q.rows);
        CRUMB_CHECK(check_buffer(skip_scratch, skip_scratch_bytes(cache.coded), "skip_scratch"),
                    "kv_attention::run_skipping: skip_scratch is too small or not aligned");
        kernel::kv_attention_args args;
        args.epsilon = epsilon;
        args.skip_scratch = reinterpret_cast<float*>(skip_scratch.data());
        args.skipped = skipped;
        return start(args, q, cache, position, {}, y, nullptr, scratch, {.rows = {}, .kv_heads = kv_heads},
                     nullptr);
    }

    /// As attention::partial_bytes, attention::partial and attention::merge. `errors` of a range bound what
    /// it adds to the merged result, which is off by at most the largest `score` and the largest `weight` of
    /// all ranges: the result is a mean of theirs.
    std::size_t partial_bytes(std::size_t rows, std::size_t splits) const noexcept {
        return dense_.partial_bytes(rows, splits);
    }
    status partial(const matrix_view<const float>& q, const kernel::kv_layer_view& cache,
                   std::size_t position, range tokens, std::span<std::byte> partials, std::size_t split,
                   std::span<std::byte> scratch, const attention_part& part = {},
                   kv_error* errors = nullptr) const noexcept {
        const std::size_t stride = partial_bytes(q.rows, 1);
        CRUMB_CHECK(check_buffer(partials, stride * (split + 1), "partials"),
                    "kv_attention::partial: partials are too small or not aligned");
        if (tokens.begin > tokens.end)
            return status::error(errc::invalid_argument, "kv_attention: tokens %zu to %zu are out of order",
                                 tokens.begin, tokens.end);
        return start({}, q, cache, position, tokens, {},
                     reinterpret_cast<float*>(partials.data() + stride * split), scratch, part, errors);
    }
    void merge(std::span<const std::byte> partials, std::size_t splits, const matrix_view<float>& y,
               const attention_part& part = {}) const noexcept {
        dense_.merge(partials, splits, y, part);
    }

  private:
    std::size_t head_size() const noexcept { return shape().head_size; }
    std::size_t group() const noexcept { return dense_.group(); }
    kernel::kv_scratch memory(std::size_t rows, std::size_t kv_heads) const noexcept {
        return {head_size(), codec_, rows * group(), kv_heads, mode_};
    }

    status start(kernel::kv_attention_args args, const matrix_view<const float>& q,
                 const kernel::kv_layer_view& cache, std::size_t position, range tokens,
                 const matrix_view<float>& y, float* partials, std::span<std::byte> scratch,
                 const attention_part& part, kv_error* errors) const noexcept {
        if (!dense_.describe(args, q, position, tokens, y, partials, scratch, part))
            return {};
        CRUMB_CHECK(cache.keys().codec() == codec_,
                    "kv_attention: the cache has another codec than the plan");
        CRUMB_CHECK(codec_.is_uncoded() || cache.coded == 0 ||
                        cache.sinks + cache.coded <= position + args.rows.begin + 1,
                    "kv_attention: codes of tokens that a row must not see");
        CRUMB_CHECK(check_buffer(scratch, scratch_bytes(args.rows.size()), "scratch"),
                    "kv_attention: scratch is too small or not aligned");
        const range columns = {args.kv_heads.begin * group() * head_size(),
                               args.kv_heads.end * group() * head_size()};
        for (std::size_t r = args.rows.begin; r < args.rows.end; ++r)
            for (std::size_t c = columns.begin; c < columns.end; ++c)
                if (!(std::fabs(q.row(r)[c]) <= std::numeric_limits<float>::max()))
                    return status::error(errc::not_finite, "kv_attention: row %zu, head %zu: a query is %g",
                                         r, c / head_size(), double(q.row(r)[c]));
        args.cache = cache;
        args.errors = errors;
        args.memory = memory(args.row_block, args.kv_heads.size());
        args.score_tokens = args.memory.tokens();
        args.scans = &functions_->scans;
        functions_->run(args);
        return {};
    }

    attention dense_;
    kv_codec codec_;
    kv_mode mode_ = kv_mode::fast;
    const dispatch::kv_attention_functions* functions_ = nullptr;
};

} // namespace crumb::inline CRUMB_ABI
