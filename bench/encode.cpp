// Rows of the cache's encoding: what 64 tokens of a layer cost when they leave the window.
#include "cache_problem.hpp"
#include "rows.hpp"

#include <crumb/op/cache/kv_cache.hpp>
#include <crumb/reference/kv_codec.hpp>

#include <cstring>
#include <memory>

namespace crumb::bench {
namespace {

/// Those of a model of some 8 billion weights: 8 MiB of halves are encoded at a time.
constexpr std::size_t kv_heads = 8, layers = 32;
constexpr std::size_t tokens = kv_block_tokens;

/// A cache whose window has a block of random keys and values that waits to be encoded.
struct task {
    task(const kv_codec& codec, std::size_t scale_trials, const char* isa)
        : engine(1), codebooks(codec, kv_heads, engine) {
        kv_cache_options options;
        options.layers = layers;
        options.kv_heads = kv_heads;
        options.head_size = head_size;
        options.max_tokens = options.max_rows = tokens;
        options.codec = codec;
        options.scale_trials = scale_trials;
        options.sinks = options.window = 0;
        options.codebooks = codebooks.view();
        state = buffer(kv_cache::state_bytes(options).value());
        cache = std::make_unique<kv_cache>(
            kv_cache::create(options, {state.data(), state.size()}, {isa}).value());
        page = buffer(cache->page_bytes());
        scratch = buffer(cache->encode_scratch_bytes());
        must(cache->add_page({page.data(), cache->page_bytes()}));
        keys.resize(tokens * kv_heads * head_size);
        values.resize(keys.size());
        std::normal_distribution<float> normal;
        for (std::vector<float>* x : {&keys, &values})
            for (float& v : *x)
                v = to_float(kv_half(normal(engine)));
        for (std::size_t i = 0; i < layers; ++i)
            must(cache->write(i, rows(keys), rows(values)));
        must(cache->advance(tokens));
        block = cache->begin_encoding();
        for (const bool of_keys : {true, false})
            bytes +=
                static_cast<double>(kv_heads * tokens) *
                (head_size * sizeof(half) +
                 static_cast<double>(kv_part_layout(codec, head_size, of_keys).bytes()) / kv_part_tokens);
        if (std::strcmp(cache->isa(), isa) != 0) {
            error = std::string("the cache fell back to ") + cache->isa();
            return;
        }
        for (std::size_t i = 0; i < layers; ++i)
            run();
        error = check(true) + check(false);
    }
    /// Encodes the block in one layer after the other; it goes on waiting.
    void run() {
        cache->encode(block, {scratch.data(), scratch.size()}, {layer * kv_heads, (layer + 1) * kv_heads});
        layer = layer + 1 == layers ? 0 : layer + 1;
    }

    matrix_view<const float> rows(const std::vector<float>& x) const {
        return matrix(x.data(), tokens, kv_heads * head_size);
    }
    /// Compares the last head of the last layer with the scalar codec: the same codes decode to the same
    /// numbers.
    std::string check(bool of_keys) {
        const std::size_t h = kv_heads - 1;
        const auto view = cache->layer(layers - 1);
        const kv_part_layout layout = view.page.part(of_keys);
        const pq_tables tables = view.tables(h, of_keys);
        buffer memory(layout.bytes());
        auto want = reference::kv_part::make(layout, tables, memory.data());
        const auto got =
            reference::kv_part::make(layout, tables, const_cast<std::byte*>(view.part(0, h, of_keys)));
        if (!want || !got)
            return want.message();
        const auto x = rows(of_keys ? keys : values);
        must(want->encode(0, {x.data + h * head_size, tokens, head_size, x.stride},
                          cache->options().scale_trials));
        std::vector<double> a(head_size), b(head_size);
        for (std::size_t t = 0; t < tokens; ++t) {
            want->decode(t, a.data());
            got->decode(t, b.data());
            for (std::size_t i = 0; i < head_size; ++i)
                if (a[i] != b[i])
                    return std::string("wrong result: ") + (of_keys ? "key" : "value") + " " +
                           std::to_string(i) + " of token " + std::to_string(t) + " is " +
                           std::to_string(b[i]) + ", expected " + std::to_string(a[i]);
        }
        return {};
    }

    std::mt19937 engine;
    random_codebooks codebooks;
    buffer state, page, scratch;
    std::unique_ptr<kv_cache> cache;
    std::vector<float> keys, values;
    kv_cache::encoding block;
    std::size_t layer = 0;
    double bytes = 0; ///< that encoding the block in one layer reads and writes
    std::string error;
};

template <class Isa>
void row(benchmark::State& state, const kv_codec& codec, std::size_t scale_trials) {
    if (!isa_supported(isa_index(Isa::name)))
        return skip(state, std::string("this CPU lacks ") + Isa::name);
    task t(codec, scale_trials, Isa::name);
    if (!t.error.empty())
        return fail(state, t.error);
    const double seconds = sample(state, 1, [&] { t.run(); });
    state.counters["bytes_per_second"] = t.bytes / seconds;
    state.counters["tokens_per_second"] = tokens / seconds;
}

} // namespace

void register_encode() {
    isa_list::for_each([]<class Isa>() {
        const auto add = [](const named_kv_codec& c, std::size_t scale_trials = kv_scale_trials) {
            const std::string name =
                std::string("encode/") + c.name + "/" + Isa::name + "/kv:" + std::to_string(kv_heads) +
                (scale_trials < kv_scale_trials ? "/scales:" + std::to_string(scale_trials) : "");
            benchmark::RegisterBenchmark(
                name.c_str(), [=](benchmark::State& state) { row<Isa>(state, c.codec, scale_trials); })
                ->UseManualTime()
                ->Unit(benchmark::kMicrosecond);
        };
        for (const named_kv_codec& c : kv_codecs) {
            if (!c.codec.is_uncoded())
                add(c);
            if (c.codec.residual)
                add(c, 1);
        }
        for (const named_kv_codec& c : plain_pq_codecs)
            add(c);
    });
}

} // namespace crumb::bench
