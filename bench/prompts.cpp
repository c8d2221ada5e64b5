// Rows of attention to a prompt: a chunk of rows over a cache, in floats and by products of int8 matrices.
#include "cache_problem.hpp"
#include "rows.hpp"

#include <crumb/core/buffer.hpp>
#include <crumb/core/must.hpp>
#include <crumb/op/cache/int8_products.hpp>
#include <crumb/op/cache/kv_attention.hpp>

#include <cmath>
#include <memory>
#include <random>

namespace crumb::bench {
namespace {

constexpr std::size_t chunk = 128; ///< rows

/// Queries that share a kv head, channels, tokens with the chunk.
struct prompt_size {
    std::size_t group, channels, tokens;
};
constexpr prompt_size sizes[] = {{8, 64, 2048}, {8, 64, 8192}, {4, 128, 8192}, {1, 128, 8192}};

/// A kv head with random keys and values, and a chunk of random queries at its end.
struct fixture {
    fixture(const named_kv_codec& codec, const prompt_size& s)
        : of(codec), size(s), engine(1), codebooks(codec.codec, 1, engine, s.channels) {
        const kv_cache_options options{.layers = 1,
                                       .kv_heads = 1,
                                       .head_size = s.channels,
                                       .max_tokens = s.tokens,
                                       .max_rows = chunk,
                                       .codec = codec.codec,
                                       .codebooks = codebooks.view()};
        state = buffer(must(kv_cache::state_bytes(options)));
        cache = std::make_unique<kv_cache>(must(kv_cache::create(options, state)));
        const std::size_t pages = cache->pages_for(s.tokens),
                          bytes = round_up(cache->page_bytes(), alignment);
        memory = buffer(pages * bytes);
        for (std::size_t p = 0; p < pages; ++p)
            must(cache->add_page({memory.data() + p * bytes, cache->page_bytes()}));
        const buffer scratch(cache->encode_scratch_bytes());
        for (std::size_t t = 0; t < s.tokens; t += chunk) {
            const std::vector<float> k = numbers(chunk * s.channels), v = numbers(chunk * s.channels);
            must(cache->write(0, matrix<const float>(k.data(), chunk, s.channels),
                              matrix<const float>(v.data(), chunk, s.channels)));
            if (t + chunk == s.tokens)
                break;
            must(cache->advance(chunk));
            cache->encode(scratch);
        }
        q = numbers(chunk * s.group * s.channels);
    }
    std::vector<float> numbers(std::size_t n) {
        std::normal_distribution<float> normal;
        std::vector<float> x(n);
        for (float& value : x)
            value = normal(engine);
        return x;
    }
    double macs() const {
        const double seen = double(cache->length()) + double(chunk + 1) / 2;
        return 2 * seen * double(size.channels * size.group * chunk);
    }

    named_kv_codec of;
    prompt_size size;
    std::mt19937 engine;
    random_codebooks codebooks;
    buffer state, memory;
    std::unique_ptr<kv_cache> cache;
    std::vector<float> q;
};

struct task {
    task(fixture& f_, const char* isa, bool int8) : f(f_), y(f.q.size()) {
        const kv_matrix_products by = int8 ? must(int8_products({isa})) : kv_matrix_products{};
        plan = must(kv_attention::plan(f.cache->options(), {.heads = f.size.group, .prompts = by}, {isa}));
        scratch = buffer(plan.scratch_bytes(chunk));
    }
    void run() {
        const std::size_t columns = f.size.group * f.size.channels;
        must(plan.run(matrix<const float>(f.q.data(), chunk, columns), *f.cache, 0,
                      matrix(y.data(), chunk, columns), scratch));
    }
    fixture& f;
    std::vector<float> y;
    kv_attention plan;
    buffer scratch;
};

template <class Isa>
void row(benchmark::State& state, const named_kv_codec& codec, const prompt_size& size) {
    if (!isa_supported(isa_index(Isa::name)))
        return skip(state, std::string("this CPU lacks ") + Isa::name);
    fixture f(codec, size);
    task int8(f, Isa::name, true), floats(f, Isa::name, false);
    int8.run();
    floats.run();
    const double off = relative_difference(int8.y, floats.y);
    if (!(off <= 1e-3))
        return fail(state, "wrong result: " + std::to_string(off) + " of its square is off");
    std::vector<double> vs_floats;
    const double seconds = sample(
        state, 1, [&] { int8.run(); },
        [&](double s) { vs_floats.push_back(seconds_of([&] { floats.run(); }) / s); });
    state.counters["mac_per_second"] = f.macs() / seconds;
    if (!vs_floats.empty())
        state.counters["vs_floats"] = median(vs_floats);
}

} // namespace

void register_prompts() {
    isa_list::for_each([]<class Isa>() {
        for (const prompt_size& size : sizes)
            for (const named_kv_codec& codec : kv_codecs)
                if (codec.codec.kind != kv_kind::f32)
                    benchmark::RegisterBenchmark(
                        (std::string("prompts/") + codec.name + ":int8/" + Isa::name +
                         "/queries:" + std::to_string(size.group) + "/size:" + std::to_string(size.channels) +
                         "/ctx:" + std::to_string(size.tokens) + "/rows:" + std::to_string(chunk))
                            .c_str(),
                        [=](benchmark::State& state) { row<Isa>(state, codec, size); })
                        ->UseManualTime()
                        ->Unit(benchmark::kMicrosecond);
    });
}

} // namespace crumb::bench
