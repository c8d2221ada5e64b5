// Causal attention over a kv_cache: plan once, run from any thread.
#pragma once

#include <crumb/op/attention.hpp>
#include <crumb/op/cache/kv_attention_options.hpp>
#include <crumb/op/cache/kv_cache.hpp>

#include <algorithm>
#include <array>

namespace crumb::inline CRUMB_ABI {

class kv_attention;

namespace detail {

/// What a call reads of a cache, and where results go.
struct kv_read {
    std::size_t layer;
    range tokens;
    matrix_view<float> y;
    float* partials;
    const kv_skipping* skipping = nullptr;
};

} // namespace detail

namespace dispatch {

/// What a plan of attention over a cache calls, whatever its ISA: compiled with the kernels, where these are
/// compiled once.
struct kv_attention_calls {
    void (*measure)(kv_attention&) noexcept = nullptr;
    status (*read)(const kv_attention&, const kernel::kv_attention_args&, const matrix_view<const float>& q,
                   const kv_cache&, const detail::kv_read&, std::span<std::byte> scratch,
                   const kv_attention_part&) noexcept = nullptr;
};

CRUMB_DECLARE_TABLE(kv_attention_calls)

} // namespace dispatch

/// y[r, h] = sum over t of softmax_t(scale q[r, h] . k[t, h']) v[t, h'], where h' = h / (heads / kv_heads), k
/// and v are the cache's, and t goes up to position + r, from position + r + 1 - span on if there is a span.
/// Codes stand for what they decode to. In exact mode the error bound is that of `attention`. In fast mode a
/// step with few queries per kv head does not decode: codes of product quantization are looked up in tables
/// of 14 bits (MILLION), bytes of `q8_0` are multiplied with integers of 15 bits, codes of `kivi4` with
/// planes of 7 bits, and `kv_error` bounds the difference to exact mode; scales of uniform codes (KIVI) are
/// multiplied with the queries or weights. Owns nothing; copy it freely.
class kv_attention {
  public:
    /// Checks the options and chooses the ISA.
    CRUMB_WHEN_CALLED
    static result<kv_attention> plan(const kv_cache_options& cache, const kv_attention_options& options,
                                     const context& on = {}) noexcept {
        if (const status s = check_options(cache); !s)
            return s;
        const auto dense = attention::plan({.heads = options.heads,
                                            .kv_heads = cache.kv_heads,
                                            .head_size = cache.head_size,
                                            .scale = options.scale,
                                            .span = cache.span},
                                           on);
        if (!dense)
            return dense.error();
        if (options.mode > kv_mode::exact)
            return status::error(errc::invalid_argument, "kv_attention: mode %d, the last is %d",
                                 static_cast<int>(options.mode), static_cast<int>(kv_mode::exact));
        const auto index = choose_isa(on);
        if (!index)
            return index.error();
        const kv_plane_limits& limits = options.limits;
        if (!(limits.score >= 0 && limits.weight >= 0 && limits.scaled_weight >= 0))
            return status::error(
                errc::invalid_argument,
                "kv_attention: limits of planes are %g, %g and %g, they have to be 0 or more",
                double(limits.score), double(limits.weight), double(limits.scaled_weight));
        kv_attention p;
        p.dense_ = *dense;
        p.codec_ = cache.codec;
        p.mode_ = options.mode;
        p.limits_ = options.limits;
        if (options.prompts.has_all() && kernel::can_use_matrices(cache.codec, cache.head_size, cache.span))
            p.products_ = options.prompts;
        p.functions_ = &dispatch::functions_at<dispatch::kv_attention_functions>(*index);
        p.calls_ = &dispatch::functions_at<dispatch::kv_attention_calls>(*index);
        if (!cache.codec.is_uncoded() && p.reads_codes())
            p.expansion_ = p.functions_->scans.expansion(cache.codec);
        p.calls_->measure(p);
        return p;
    }

    /// Heads, head size and scale.
    const attention_shape& shape() const noexcept { return dense_.shape(); }
    /// Name of the ISA that `run` executes.
    const char* isa() const noexcept { return dense_.isa(); }

    /// How `run` reads coded tokens for a part of `rows` rows: chosen by the plan's codec, ISA and query
    /// heads per kv head, and the same for 1 to 16 rows.
    kv_route route(std::size_t rows = 1) const noexcept {
        if (rows > kernel::few_rows && products_.has_all())
            return kv_route::matrices;
        if (!codec_.is_uncoded() && !reads_codes())
            return kv_route::decoded;
        return kernel::kv_route_of(codec_, head_size(), group(), rows, mode_, expansion_.from);
    }

    /// How many rows of a step of `rows` rows read the tokens together: parts of fewer cost more per row.
    std::size_t pass_rows(std::size_t rows) const noexcept { return pass_rows(rows, rows); }

    /// Bytes of scratch memory that calls for up to `rows` rows need; each thread its own. At most what 256
    /// rows need.
    std::size_t scratch_bytes(std::size_t rows) const noexcept {
        return rows == 0 ? 0 : scratch_[kernel::kv_rows_entry(std::min(rows, kernel::decoded_queries))];
    }

    /// The whole result for `part`. q and y: row r is the token at part.position + r, heads * head_size
    /// floats. The rows' keys and values have been written to the layer. `scratch`: scratch_bytes(rows of q),
    /// aligned. Refuses caches of other options than the plan's, tokens that have not been written,
    /// codes of tokens that a row must not see, NaN and infinite queries, y unchanged. Threads may run
    /// disjoint parts.
    status run(const matrix_view<const float>& q, const kv_cache& cache, std::size_t layer,
               const matrix_view<float>& y, std::span<std::byte> scratch,
               const kv_attention_part& part = {}) const noexcept {
        if (y.rows != q.rows || y.cols != q.cols || (y.rows > 1 && y.stride < y.cols))
            return status::error(errc::bad_shape,
                                 "kv_attention: q is %zu x %zu, y %zu x %zu with rows %zu apart", q.rows,
                                 q.cols, y.rows, y.cols, y.stride);
        return start({}, q, cache, {layer, {}, y, nullptr}, scratch, part);
    }

    /// Whether `run_skipping` serves a codec and `group` query heads per kv head, in fast mode.
    static constexpr bool can_skip(const kv_codec& codec, std::size_t head_size, std::size_t group) noexcept {
        return kernel::is_scan(kernel::kv_route_of(codec, head_size, group, 1, kv_mode::fast, 0));
    }
    /// Bytes of the further scratch memory of `run_skipping`, for a cache of up to `coded` coded tokens.
    std::size_t skip_scratch_bytes(std::size_t coded) const noexcept {
        return round_up(kernel::kv_skip_scratch(coded, group()).floats() * sizeof(float), alignment);
    }
    /// Like `run` in fast mode for one row, but values of blocks of 64 coded tokens whose weights add up to
    /// at most `epsilon` of a query's, for all queries of a kv head, are not read: |y - run's y| <= 2 epsilon
    /// max |v|. Where codes are decoded, nothing is left out. Refuses codecs without codebooks, caches with a
    /// span, groups of more than 16 heads, an epsilon that is not within 0 .. 1.
    status run_skipping(const matrix_view<const float>& q, const kv_cache& cache, std::size_t layer,
                        const matrix_view<float>& y, std::span<std::byte> scratch,
                        const kv_skipping& skipping) const noexcept {
        if (mode_ != kv_mode::fast || !can_skip(codec_, head_size(), group()))
            return status::error(errc::unsupported,
                                 "kv_attention: values are left out in fast mode of pq codecs only, with at "
                                 "most 16 query heads per kv head");
        if (!(skipping.epsilon >= 0 && skipping.epsilon <= 1))
            return status::error(errc::invalid_argument, "kv_attention: epsilon is %g",
                                 double(skipping.epsilon));
        if (shape().span != 0)
            return status::error(errc::unsupported,
                                 "kv_attention: values are left out of whole sequences only, the cache has a "
                                 "span of %zu tokens",
                                 shape().span);
        if (q.rows != 1 || y.rows != 1 || y.cols != q.cols)
            return status::error(errc::bad_shape,
                                 "kv_attention: values are left out for one row; q is %zu x %zu, y %zu x %zu",
                                 q.rows, q.cols, y.rows, y.cols);
        return start({}, q, cache, {layer, {}, y, nullptr, &skipping}, scratch, skipping.part);
    }

    /// Bytes of the partial results of `splits` ranges of tokens, as of `attention`.
    std::size_t partial_bytes(std::size_t rows, std::size_t splits) const noexcept {
        return dense_.partial_bytes(rows, splits);
    }
    /// Like `run`, but over the tokens of `split`, into its partial result; refuses what `run` refuses,
    /// ranges that are out of order, and too little memory. `errors` of a range bound what it adds to the
    /// merged result, which is off by at most the largest `score` and the largest `weight` of all ranges: the
    /// result is a mean of theirs.
    status partial(const matrix_view<const float>& q, const kv_cache& cache, std::size_t layer,
                   const attention_split& split, std::span<std::byte> scratch,
                   const kv_attention_part& part = {}) const noexcept {
        const std::size_t stride = partial_bytes(q.rows, 1);
        if (const status s =
                check_buffer(split.partials, end_of_item(split.index, stride), "kv_attention: partials");
            !s)
            return s;
        if (split.tokens.begin > split.tokens.end)
            return status::error(errc::invalid_argument, "kv_attention: tokens %zu to %zu are out of order",
                                 split.tokens.begin, split.tokens.end);
        return start(
            {}, q, cache,
            {layer, split.tokens, {}, reinterpret_cast<float*>(split.partials.data() + stride * split.index)},
            scratch, part);
    }
    /// Like `partial`, for several ranges in one pass, which makes what it needs of the queries once: range i
    /// into partial result i. Refuses what `run` refuses, ranges of another position, errors that are asked
    /// for, and too little memory.
    status partials(const matrix_view<const float>& q, const kv_cache& cache, std::size_t layer,
                    const kv_range_split& split, std::span<std::byte> scratch,
                    const kv_attention_part& part = {}) const noexcept {
        const kv_ranges& of = split.of;
        const range ranges = split.ranges.within(of.count());
        const range rows = part.rows.within(q.rows);
        const std::size_t position =
            part.position == kv_attention_part::this_step ? cache.length() : part.position;
        const auto ranges_of = [&](std::size_t row) {
            return kv_ranges::of(position + row, cache.options(), of.shortest());
        };
        if (rows.size() != 0 &&
            !(ranges_of(rows.begin).goes_with(of) && ranges_of(rows.end - 1).goes_with(of)))
            return status::error(errc::invalid_argument,
                                 "kv_attention: rows at %zu to %zu do not have %zu ranges of %zu tokens",
                                 position + rows.begin, position + rows.end, of.count(), of.tokens());
        if (ranges.size() == 0 || !split.ranges.is_within(of.count()) || part.errors != nullptr)
            return status::error(errc::invalid_argument, "kv_attention: ranges %zu to %zu of %zu%s",
                                 split.ranges.begin, split.ranges.end, of.count(),
                                 part.errors != nullptr ? ", whose errors are not known" : "");
        const std::size_t stride = partial_bytes(rows.size(), 1);
        if (const status s = check_buffer(split.partials, stride * of.count(), "kv_attention: partials"); !s)
            return s;
        kernel::kv_attention_args args;
        args.ranges = ranges.size();
        args.range_tokens = of.tokens();
        args.partial_step = stride / sizeof(float);
        range tokens = of.tokens(ranges.begin, ranges.end);
        // The last range of a row ends with the row.
        tokens.end = ranges.end == of.count() ? position + rows.end : tokens.end;
        // Kernels count rows from the first of q.
        const auto first = reinterpret_cast<std::uintptr_t>(split.partials.data()) + stride * ranges.begin -
                           partial_row_bytes() * rows.begin;
        return start(args, q, cache, {layer, tokens, {}, reinterpret_cast<float*>(first)}, scratch, part);
    }
    /// y from the first `splits` partial results, which together cover the tokens, as attention::merge.
    void merge(std::span<const std::byte> partials, std::size_t splits, const matrix_view<float>& y,
               const attention_part& part = {}) const noexcept {
        dense_.merge(partials, splits, y, part);
    }

  private:
    friend struct dispatch::function_table<dispatch::kv_attention_calls>;

    std::size_t head_size() const noexcept { return shape().head_size; }
    std::size_t group() const noexcept { return dense_.group_; }
    /// Whether the ISA reads codes as they lie.
    bool reads_codes() const noexcept { return functions_->scans.score != nullptr; }
    std::size_t partial_row_bytes() const noexcept {
        return shape().heads * (head_size() + 2) * sizeof(float);
    }
    /// Rows of a pass of a call for `rows` rows of a step of `step`.
    std::size_t pass_rows(std::size_t step, std::size_t rows) const noexcept {
        return kernel::kv_pass_rows(route(step), group(), rows, dense_.row_block(rows));
    }
    kernel::kv_scratch memory(std::size_t step, std::size_t rows, std::size_t kv_heads) const noexcept {
        return {head_size(),       codec_,   pass_rows(step, rows) * group(), kv_heads, route(step),
                expansion_.joined, products_};
    }

    status start(const kernel::kv_attention_args& args, const matrix_view<const float>& q,
                 const kv_cache& cache, const detail::kv_read& to, std::span<std::byte> scratch,
                 const kv_attention_part& part) const noexcept {
        if (calls_ == nullptr)
            return status::error(errc::invalid_argument, "kv_attention: the plan is empty");
        return calls_->read(*this, args, q, cache, to, scratch, part);
    }
    status read(kernel::kv_attention_args args, const matrix_view<const float>& q, const kv_cache& cache,
                const detail::kv_read& to, std::span<std::byte> scratch,
                const kv_attention_part& part) const noexcept {
        const kv_cache_options& o = cache.options();
        if (!(o.codec == codec_) || o.kv_heads != shape().kv_heads || o.head_size != head_size() ||
            o.span != shape().span)
            return status::error(
                errc::bad_shape,
                "kv_attention: the cache has %zu kv heads of %zu%s and span %zu, the plan %zu of %zu and %zu",
                o.kv_heads, o.head_size, o.codec == codec_ ? "" : " in another codec", o.span,
                shape().kv_heads, head_size(), shape().span);
        if (to.layer >= o.layers)
            return status::error(errc::invalid_argument, "kv_attention: layer %zu of %zu", to.layer,
                                 o.layers);
        const std::size_t position =
            part.position == kv_attention_part::this_step ? cache.length() : part.position;
        if (position > o.max_tokens)
            return status::error(errc::invalid_argument,
                                 "kv_attention: position %zu, the cache is for %zu tokens", position,
                                 o.max_tokens);
        if (q.cols != shape().heads * head_size())
            return status::error(errc::bad_shape, "kv_attention: q has %zu columns, not %zu", q.cols,
                                 shape().heads * head_size());
        if (!dense_.describe(args, q, position, to.tokens, to.y, to.partials, scratch,
                             {part.rows, part.kv_heads}))
            return {};
        if (const status s = cache.begin_reading(to.layer, args.kv_heads, position + args.rows.end); !s)
            return s;
        const kernel::kv_layer_view layer = cache.layer(to.layer);
        if (!codec_.is_uncoded() && layer.coded != 0 &&
            layer.sinks + layer.coded > position + args.rows.begin + 1)
            return status::error(errc::invalid_argument,
                                 "kv_attention: token %zu must not see the %zu tokens that are codes",
                                 position + args.rows.begin, layer.sinks + layer.coded);
        if (const status s = check_buffer(scratch, scratch_bytes(q.rows), "kv_attention: scratch"); !s)
            return s;
        const range columns = {args.kv_heads.begin * group() * head_size(),
                               args.kv_heads.end * group() * head_size()};
        for (std::size_t r = args.rows.begin; r < args.rows.end; ++r)
            for (std::size_t c = columns.begin; c < columns.end; ++c)
                if (!(std::fabs(q.row(r)[c]) <= std::numeric_limits<float>::max()))
                    return status::error(errc::not_finite, "kv_attention: row %zu, head %zu: a query is %g",
                                         r, c / head_size(), double(q.row(r)[c]));
        args.cache = layer;
        args.errors = part.errors;
        args.limits = limits_;
        // How codes are read is up to the step, so that parts of its rows give the same bits as all of them.
        args.row_block = pass_rows(q.rows, args.rows.size());
        args.memory = memory(q.rows, args.rows.size(), args.kv_heads.size());
        args.products = products_;
        if (args.memory.route() == kv_route::matrices && part.errors != nullptr)
            return status::error(errc::unsupported,
                                 "kv_attention: errors of products of matrices are not known");
        if (to.skipping != nullptr) {
            // Other threads may have made more tokens codes since the call began.
            if (const status s = check_buffer(to.skipping->scratch, skip_scratch_bytes(layer.coded),
                                              "kv_attention: scratch of what is left out");
                !s)
                return s;
            skip(args, *to.skipping);
        }
        // What is decoded has none.
        for (std::size_t r = args.rows.begin; part.errors != nullptr && r < args.rows.end; ++r)
            std::fill(part.errors + r * shape().heads + args.kv_heads.begin * group(),
                      part.errors + r * shape().heads + args.kv_heads.end * group(), kv_error());
        args.score_tokens = args.memory.tokens();
        args.scans = &functions_->scans;
        functions_->run(args);
        return {};
    }

    /// Leaves values out where codes are scanned; where they are decoded, the reports say that all are read.
    void skip(kernel::kv_attention_args& args, const kv_skipping& skipping) const noexcept {
        if (kernel::is_scan(route())) {
            args.epsilon = skipping.epsilon;
            args.skip_scratch = reinterpret_cast<float*>(skipping.scratch.data());
            args.skipped = skipping.reports;
            return;
        }
        const std::size_t blocks = (args.cache.coded + kv_block_tokens - 1) / kv_block_tokens;
        for (std::size_t h = args.kv_heads.begin; skipping.reports != nullptr && h < args.kv_heads.end; ++h)
            skipping.reports[h] = {blocks, 0, 0};
    }
    /// Finds the bytes of scratch memory for every number of rows.
    void measure() noexcept {
        // Tables for a few rows may take more memory than the floats of many, and more heads go together
        // where a part has few rows. Steps of more than 17 rows take the route of 17.
        std::size_t most = 0;
        for (std::size_t step = 1; step <= kernel::decoded_queries; ++step) {
            for (std::size_t rows = step > kernel::few_rows + 1 ? step : 1; rows <= step; ++rows)
                most = std::max(most, memory(step, rows, shape().kv_heads).bytes());
            scratch_[kernel::kv_rows_entry(step)] = round_up(most, alignment);
        }
    }

    attention dense_;
    kv_codec codec_;
    kv_mode mode_ = kv_mode::fast;
    kv_plane_limits limits_;
    kernel::pq_expansion expansion_;
    kv_matrix_products products_;
    /// Bytes of scratch memory by rows.
    std::array<std::size_t, kernel::kv_rows_entry(kernel::decoded_queries) + 1> scratch_{};
    const dispatch::kv_attention_functions* functions_ = nullptr;
    const dispatch::kv_attention_calls* calls_ = nullptr;
};

template <>
struct dispatch::function_table<dispatch::kv_attention_calls> {
    static void measure(kv_attention& plan) noexcept { plan.measure(); }
    static status read(const kv_attention& plan, const kernel::kv_attention_args& args,
                       const matrix_view<const float>& q, const kv_cache& cache, const detail::kv_read& to,
                       std::span<std::byte> scratch, const kv_attention_part& part) noexcept {
        return plan.read(args, q, cache, to, scratch, part);
    }
    template <class>
    static constexpr kv_attention_calls of{&measure, &read};
};

} // namespace crumb::inline CRUMB_ABI
