// Rows of attention: one decode step over caches of every codec.
#include "cache_problem.hpp"
#include "rows.hpp"

#include <crumb/core/must.hpp>
#include <crumb/op/cache/kv_attention.hpp>

#include <cstdio>
#include <memory>
#include <optional>
#include <random>

namespace crumb::bench {
namespace {

constexpr named_kv_codec f16_codec{"f16", kv_codec::f16()};

struct cache_size {
    std::size_t heads, kv_heads, tokens;
    std::size_t page_tokens = 0; ///< 0: one page for all
    std::size_t channels = head_size;
    double spread = 1; ///< of the queries: small ones need one plane
};
constexpr double small_spread = 0.0625;
// 1, 2, 4, 8 and 16 queries share a kv head; and a few heads.
constexpr cache_size sizes[] = {{32, 32, 4096},
                                {32, 32, 32768},
                                {8, 8, 32768},
                                {16, 8, 32768},
                                {32, 8, 8192},
                                {32, 8, 32768},
                                {32, 8, 131072},
                                {64, 8, 32768},
                                {32, 4, 32768},
                                {128, 8, 32768},
                                {16, 2, 32768},
                                {4, 1, 32768, 0, 256},
                                {32, 32, 32768, 256},
                                {32, 32, 32768, 4096},
                                {8, 8, 32768, 0, head_size, small_spread},
                                {32, 8, 32768, 0, head_size, small_spread},
                                {64, 8, 32768, 0, head_size, small_spread}};

/// What threads share by ranges of tokens.
constexpr cache_size shared_sizes[] = {
    {32, 8, 8192}, {32, 8, 32768}, {9, 3, 4352}, {9, 3, 8192}, {4, 1, 8192}};

/// A cache of random codes in as many layers as the working set takes, and the queries of a step.
struct fixture {
    fixture(const named_kv_codec& c, const cache_size& s)
        : of(c), size(s), engine(1), codebooks(c.codec, s.kv_heads, engine, s.channels) {
        options.kv_heads = s.kv_heads;
        options.head_size = s.channels;
        options.codec = c.codec;
        options.max_tokens = s.tokens + 4 + kv_part_tokens;
        // A plain codec needs room for the token of this step, the others have it in the window.
        options.page_tokens = s.page_tokens != 0 ? s.page_tokens : s.tokens + kv_part_tokens;
        const kv_part_layout keys(c.codec, size.channels, true), values(c.codec, size.channels, false);
        const std::size_t layer_bytes =
            s.kv_heads * (keys.bytes() + values.bytes()) * (s.tokens / kv_part_tokens);
        options.layers = std::max<std::size_t>(1, (dram_working_set() + layer_bytes - 1) / layer_bytes);
        options.codebooks = codebooks.view();
        state = buffer(kv_cache::state_bytes(options).value());
        cache = std::make_unique<kv_cache>(kv_cache::create(options, {state.data(), state.size()}).value());
        const std::size_t pages = (s.tokens + options.page_tokens) / options.page_tokens;
        memory = buffer(pages * round_up(cache->page_bytes(), alignment));
        for (std::size_t p = 0; p < pages; ++p) {
            const std::span<std::byte> page{memory.data() + p * round_up(cache->page_bytes(), alignment),
                                            cache->page_bytes()};
            if (const status added = cache->add_page(page); !added)
                error = added.message();
            fill_page(page);
        }
        cache->assume(s.tokens + cache->sinks() + 1, c.codec.is_uncoded() ? 0 : s.tokens);
        bytes = static_cast<double>(layer_bytes);
        q.resize(s.heads * size.channels);
        y.resize(q.size());
        for (float& x : q)
            x = static_cast<float>(s.spread) * normal(engine);
    }

    /// Random codes of layer 0, the same in all layers.
    void fill_page(std::span<std::byte> page) {
        const std::size_t layer = page.size() / options.layers;
        std::byte* at = page.data();
        for (std::size_t h = 0; h < size.kv_heads; ++h)
            for (std::size_t part = 0; part < 2 * options.page_tokens / kv_part_tokens; ++part) {
                const bool keys = part < options.page_tokens / kv_part_tokens;
                const kv_part_layout l(of.codec, size.channels, keys);
                const std::size_t halves = of.codec.is_uncoded() ? l.bytes() : l.codes_offset();
                for (std::size_t i = 0; i < halves; i += 2) {
                    const half x = to_half(number(l, i));
                    std::memcpy(at + i, &x, 2);
                }
                for (std::size_t i = halves; i < l.bytes(); ++i)
                    at[i] = static_cast<std::byte>(engine() >> 13);
                at += l.bytes();
            }
        for (std::size_t i = 1; i < options.layers; ++i)
            std::memcpy(page.data() + i * layer, page.data(), layer);
    }

    /// What the half at byte i of a part is: codes stand for numbers with a deviation of 1, about.
    float number(const kv_part_layout& l, std::size_t i) {
        const float x = normal(engine), near_one = 1 + 0.2f * x;
        switch (of.codec.kind) {
        case kv_kind::q8_0:
            return 0.014f * near_one;
        case kv_kind::uniform:
            return i >= l.origins_offset() ? -2 + 0.2f * x
                                           : 4 * near_one / static_cast<float>((1 << of.codec.bits) - 1);
        case kv_kind::pq:
            return i >= l.scales_offset() ? near_one : 0.2f * x;
        default:
            return x;
        }
    }

    /// Compares the step's result for one head with double precision, within the step's own bound.
    std::string check(const kv_attention& plan, std::span<std::byte> scratch) {
        std::vector<kv_error> errors(size.heads);
        if (const status done =
                plan.run(matrix<const float>(q.data(), 1, q.size()), *cache, 0, matrix(y.data(), 1, y.size()),
                         scratch, {.position = position(), .errors = errors.data()});
            !done)
            return done.message();
        second_scores = second_weights = 0;
        for (const kv_error& e : errors) {
            second_scores += e.second_scores / static_cast<float>(size.heads);
            second_weights += e.second_weights / static_cast<float>(size.heads);
        }
        const std::size_t tokens = position() + 1, head = size.heads - 1, kv_head = size.kv_heads - 1;
        return check_attention(*cache, kv_head, tokens, q.data() + head * size.channels,
                               y.data() + head * size.channels, errors[head]);
    }
    std::size_t position() const { return size.tokens + cache->sinks(); }

    named_kv_codec of;
    cache_size size;
    std::mt19937 engine;
    std::normal_distribution<float> normal;
    random_codebooks codebooks;
    kv_cache_options options;
    std::vector<float> q, y;
    buffer state, memory;
    std::unique_ptr<kv_cache> cache;
    double bytes = 0; ///< that a step reads
    /// Shares of the parts that took a second plane, of scores and of weights, in the step that was checked.
    float second_scores = 0, second_weights = 0;
    std::string error;
};

fixture& fixture_of(const named_kv_codec& codec, const cache_size& size) {
    static std::unique_ptr<fixture> current;
    if (current == nullptr || !(current->of.codec == codec.codec) ||
        std::memcmp(&current->size, &size, sizeof size) != 0) {
        current.reset();
        current = std::make_unique<fixture>(codec, size);
    }
    return *current;
}

std::string row_name(const char* codec, const char* isa, const cache_size& s) {
    return std::string("attention/") + codec + "/" + isa + "/heads:" + std::to_string(s.heads) +
           "/kv:" + std::to_string(s.kv_heads) + "/ctx:" + std::to_string(s.tokens) +
           (s.channels == head_size ? std::string() : "/size:" + std::to_string(s.channels)) +
           (s.page_tokens == 0 ? std::string() : "/page:" + std::to_string(s.page_tokens)) +
           (s.spread == 1 ? std::string() : "/queries:small");
}

/// One step over one layer after the other.
struct task {
    task(fixture& f_, const char* isa) : f(f_) {
        const auto made = kv_attention::plan(f.options, {.heads = f.size.heads}, {isa});
        if (!made) {
            error = made.message();
            return;
        }
        plan.emplace(*made);
        scratch = buffer(plan->scratch_bytes(1));
        if (std::strcmp(plan->isa(), isa) != 0)
            error = std::string("the plan fell back to ") + plan->isa();
        else if (!f.error.empty())
            error = f.error;
        else
            error = f.check(*plan, {scratch.data(), scratch.size()});
    }
    void run() {
        must(plan->run(matrix<const float>(f.q.data(), 1, f.q.size()), *f.cache, layer,
                       matrix(f.y.data(), 1, f.y.size()), scratch, {.position = f.position()}));
        layer = layer + 1 == f.options.layers ? 0 : layer + 1;
    }
    /// With an epsilon of 0.
    void run_skipping(std::span<std::byte> memory, kv_skip_report* reports) {
        must(plan->run_skipping(matrix<const float>(f.q.data(), 1, f.q.size()), *f.cache, layer,
                                matrix(f.y.data(), 1, f.y.size()), scratch,
                                {.scratch = memory, .reports = reports, .part = {.position = f.position()}}));
        layer = layer + 1 == f.options.layers ? 0 : layer + 1;
    }
    fixture& f;
    std::optional<kv_attention> plan;
    buffer scratch;
    std::size_t layer = 0;
    std::string error;
};

/// Steps per second with a cache of halves; from its row, or measured now.
template <class Isa>
double f16_rate(const cache_size& size) {
    return this_run().rate(row_name(f16_codec.name, Isa::name, size), [&] {
        task f16(fixture_of(f16_codec, size), Isa::name);
        return f16.error.empty() ? 1 / quick_sample(0.1, [&] { f16.run(); }) : 0.0;
    });
}

/// The same step by `run_skipping` with an epsilon of 0, in turns with a plain one: what it costs to ask
/// where nothing may be left out.
template <class Isa>
void skipping_row(benchmark::State& state, const named_kv_codec& codec, const cache_size& size) {
    if (!isa_supported(isa_index(Isa::name)))
        return skip(state, std::string("this CPU lacks ") + Isa::name);
    task t(fixture_of(codec, size), Isa::name);
    if (!t.error.empty())
        return fail(state, t.error);
    const buffer memory(t.plan->skip_scratch_bytes(t.f.size.tokens));
    std::vector<kv_skip_report> reports(size.kv_heads);
    const std::vector<float> want = [&] {
        t.run();
        return t.f.y;
    }();
    const auto step = [&] { t.run_skipping({memory.data(), memory.size()}, reports.data()); };
    step();
    for (std::size_t i = 0; i < want.size(); ++i)
        if (!(std::fabs(t.f.y[i] - want[i]) <= 1e-3f))
            return fail(state, "wrong result: " + std::to_string(t.f.y[i]) + " instead of " +
                                   std::to_string(want[i]));
    for (const kv_skip_report& r : reports)
        if (r.skipped != 0)
            return fail(state, "blocks are left out");
    std::vector<double> vs_run;
    const double seconds =
        sample(state, 1, step, [&](double s) { vs_run.push_back(seconds_of([&] { t.run(); }) / s); });
    state.counters["bytes_per_second"] = t.f.bytes / seconds;
    state.counters["of_read_bandwidth"] = t.f.bytes / seconds / read_bandwidth(dram());
    if (!vs_run.empty())
        state.counters["vs_run"] = median(vs_run);
}

/// The same step by the ranges of tokens that threads share: all of them by one thread, in turns with a plain
/// step, and the longer part of two threads, by ranges and by whole heads.
template <class Isa>
void ranges_row(benchmark::State& state, const named_kv_codec& codec, const cache_size& size) {
    if (!isa_supported(isa_index(Isa::name)))
        return skip(state, std::string("this CPU lacks ") + Isa::name);
    task t(fixture_of(codec, size), Isa::name);
    if (!t.error.empty())
        return fail(state, t.error);
    const kv_ranges ranges = kv_ranges::of(t.f.position(), t.f.options);
    const buffer partials(t.plan->partial_bytes(1, ranges.count()));
    const auto take = [&](range heads, range of) {
        must(t.plan->partials(matrix<const float>(t.f.q.data(), 1, t.f.q.size()), *t.f.cache, t.layer,
                              {ranges, of, partials.bytes()}, t.scratch,
                              {.kv_heads = heads, .position = t.f.position()}));
    };
    const auto merge = [&](range heads) {
        t.plan->merge(partials.bytes(), ranges.count(), matrix(t.f.y.data(), 1, t.f.y.size()),
                      {.kv_heads = heads});
    };
    const auto next = [&] { t.layer = t.layer + 1 == t.f.options.layers ? 0 : t.layer + 1; };
    const std::vector<float> want = [&] {
        t.layer = 0;
        t.run();
        return t.f.y;
    }();
    const auto step = [&] {
        take({0, size.kv_heads}, {0, ranges.count()});
        merge({0, size.kv_heads});
        next();
    };
    t.layer = 0;
    step();
    for (std::size_t i = 0; i < want.size(); ++i)
        if (!(std::fabs(t.f.y[i] - want[i]) <= 1e-3f))
            return fail(state, "wrong result: " + std::to_string(t.f.y[i]) + " instead of " +
                                   std::to_string(want[i]));
    // Half of the tokens of all heads, and their half of the merge.
    const std::size_t half = size.kv_heads / 2;
    const auto shared = [&] {
        if (half != 0)
            take({0, half}, {0, ranges.count()});
        if (size.kv_heads % 2 != 0)
            take({half, half + 1}, {0, (ranges.count() + 1) / 2});
        merge({0, (size.kv_heads + 1) / 2});
        next();
    };
    const auto by_heads = [&] {
        must(t.plan->run(matrix<const float>(t.f.q.data(), 1, t.f.q.size()), *t.f.cache, t.layer,
                         matrix(t.f.y.data(), 1, t.f.y.size()), t.scratch,
                         {.kv_heads = {0, (size.kv_heads + 1) / 2}, .position = t.f.position()}));
        next();
    };
    std::vector<double> vs_run, vs_heads;
    const double seconds = sample(state, 1, step, [&](double s) {
        vs_run.push_back(seconds_of([&] { t.run(); }) / s);
        const double part = seconds_of(shared);
        vs_heads.push_back(seconds_of(by_heads) / part);
    });
    state.counters["bytes_per_second"] = t.f.bytes / seconds;
    if (!vs_run.empty()) {
        state.counters["vs_run"] = median(vs_run);
        state.counters["two_threads_vs_heads"] = median(vs_heads);
    }
}

template <class Isa>
void row(benchmark::State& state, const named_kv_codec& codec, const cache_size& size) {
    if (!isa_supported(isa_index(Isa::name)))
        return skip(state, std::string("this CPU lacks ") + Isa::name);
    const bool is_f16 = codec.codec == f16_codec.codec;
    const double f16 = is_f16 ? 0 : f16_rate<Isa>(size);
    task t(fixture_of(codec, size), Isa::name);
    if (!t.error.empty())
        return fail(state, t.error);
    std::vector<double> of_read;
    const double seconds = sample(
        state, 1, [&] { t.run(); },
        [&](double s) { of_read.push_back(t.f.bytes / s / read_bandwidth(dram())); });
    state.counters["bytes_per_second"] = t.f.bytes / seconds;
    state.counters["working_set_bytes"] = t.f.bytes * static_cast<double>(t.f.options.layers);
    if (!of_read.empty())
        state.counters["of_read_bandwidth"] = median(of_read);
    const kv_route route = t.plan->route();
    std::string label = name_of(route);
    if (route == kv_route::tables || route == kv_route::expanded ||
        (route == kv_route::integers && codec.codec.kind == kv_kind::uniform)) {
        const double scores = 1 + t.f.second_scores, weights = 1 + t.f.second_weights;
        state.counters["score_planes"] = scores;
        state.counters["weight_planes"] = weights;
        char text[64];
        std::snprintf(text, sizeof text, ", %.2f planes of scores, %.2f of weights", scores, weights);
        label += text;
    }
    state.SetLabel(label);
    if (is_f16)
        this_run().record(row_name(f16_codec.name, Isa::name, size), 1 / seconds);
    else
        state.counters["vs_f16"] = 1 / seconds / f16;
}

} // namespace

void register_attention() {
    isa_list::for_each([]<class Isa>() {
        const auto add = [](const named_kv_codec& codec, const cache_size& size) {
            benchmark::RegisterBenchmark(row_name(codec.name, Isa::name, size).c_str(),
                                         [=](benchmark::State& state) { row<Isa>(state, codec, size); })
                ->UseManualTime()
                ->Unit(benchmark::kMicrosecond);
            if (codec.codec.kind != kv_kind::pq)
                return;
            const std::string skipping = std::string(codec.name) + ":skip=0";
            benchmark::RegisterBenchmark(
                row_name(skipping.c_str(), Isa::name, size).c_str(),
                [=](benchmark::State& state) { skipping_row<Isa>(state, codec, size); })
                ->UseManualTime()
                ->Unit(benchmark::kMicrosecond);
        };
        for (const cache_size& size : sizes) {
            for (const named_kv_codec& codec : kv_codecs)
                if (codec.codec.kind != kv_kind::f32)
                    add(codec, size);
            for (const named_kv_codec& codec : plain_pq_codecs)
                add(codec, size);
        }
        for (const cache_size& size : shared_sizes)
            for (const named_kv_codec& codec : kv_codecs)
                if (codec.codec.kind != kv_kind::f32)
                    benchmark::RegisterBenchmark(
                        row_name((std::string(codec.name) + ":ranges").c_str(), Isa::name, size).c_str(),
                        [=](benchmark::State& state) { ranges_row<Isa>(state, codec, size); })
                        ->UseManualTime()
                        ->Unit(benchmark::kMicrosecond);
    });
}

} // namespace crumb::bench
