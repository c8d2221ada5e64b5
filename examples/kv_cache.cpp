// One layer's cache in several codecs: bytes per token, how far the output of attention moves, and the time
// of a step. Then values left unread, and the bound of what that costs beside what it did cost; and a chunk
// of a prompt, in floats and by int8 products.
#include <crumb/crumb.hpp>
#include <crumb/offline/cache/codebooks.hpp>
#include <crumb/reference/kv_codec.hpp>
#include <crumb/util.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <random>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t heads = 8, kv_heads = 2, head_size = 128, width = kv_heads * head_size, tokens = 8192;

/// Keys and values that drift slowly, channels of different sizes: what trained models produce.
struct sequence {
    std::vector<float> k, v;
    sequence() : k(tokens * width), v(tokens * width) {
        std::mt19937_64 random(1);
        std::normal_distribution<float> normal;
        std::vector<float> size(width), mean(width), drift(width);
        for (std::size_t c = 0; c < width; ++c) {
            size[c] = std::exp(0.7f * normal(random));
            mean[c] = size[c] * normal(random);
        }
        for (std::size_t t = 0; t < tokens; ++t)
            for (std::size_t c = 0; c < width; ++c) {
                drift[c] = 0.98f * drift[c] + 0.2f * normal(random);
                k[t * width + c] = mean[c] + size[c] * 0.5f * (drift[c] + normal(random));
                v[t * width + c] = 0.5f * drift[c] + normal(random);
            }
    }
    crumb::matrix_view<const float> rows(const std::vector<float>& of, std::size_t first,
                                         std::size_t count) const {
        return crumb::matrix(of.data() + first * width, count, width);
    }
};

/// A cache of one layer that holds the sequence, and the memory that is the engine's.
struct filled_cache {
    crumb::kv_codebooks books;
    crumb::kv_cache_options options;
    crumb::buffer state;
    crumb::kv_cache cache;
    crumb::buffer page; ///< for all tokens: a head's codes lie one after another in it

    filled_cache(const crumb::kv_codec& codec, const sequence& s)
        : books(codebooks(codec, s)), options{.layers = 1,
                                              .kv_heads = kv_heads,
                                              .head_size = head_size,
                                              .max_tokens = tokens,
                                              .max_rows = 64,
                                              .page_tokens = tokens,
                                              .codec = codec,
                                              .codebooks = crumb::or_exit(books.view()),
                                              .codebook_id = books.identity()},
          state(crumb::or_exit(crumb::kv_cache::state_bytes(options))),
          cache(crumb::or_exit(crumb::kv_cache::create(options, state))), page(cache.page_bytes()) {
        crumb::or_exit(cache.add_page(page));
        crumb::buffer encoding(cache.encode_scratch_bytes());
        for (std::size_t t = 0; t < tokens; t += 64) {
            const std::size_t rows = t + 64 < tokens ? 64 : 63; // the last token is the step below
            crumb::or_exit(cache.write(0, s.rows(s.k, t, rows), s.rows(s.v, t, rows)));
            crumb::or_exit(cache.advance(rows));
            cache.encode(encoding); // what is older than the window; another thread could do it
        }
        // One decode step: the token's own key and value first, then attention over everything.
        crumb::or_exit(cache.write(0, s.rows(s.k, cache.length(), 1), s.rows(s.v, cache.length(), 1)));
    }

    /// Once, offline: centroids from a sample of keys and values.
    static crumb::kv_codebooks codebooks(const crumb::kv_codec& codec, const sequence& s) {
        if (!codec.has_codebooks())
            return {};
        auto samples = crumb::or_exit(crumb::kv_samples::make({1, kv_heads, head_size}, 64));
        crumb::or_exit(samples.add(0, s.rows(s.k, 0, 2048), s.rows(s.v, 0, 2048)));
        return crumb::or_exit(crumb::train_kv_codebooks(samples, codec, {}));
    }
    crumb::kv_attention plan(const crumb::kv_matrix_products& prompts = {}) const {
        return crumb::or_exit(crumb::kv_attention::plan(options, {.heads = heads, .prompts = prompts}));
    }
    /// The largest magnitude of a coded value, as attention sees it.
    double largest_value() const {
        const auto layer = cache.layer(0);
        double row[head_size], largest = 0;
        for (std::size_t t = 0; t < layer.coded; ++t)
            for (std::size_t h = 0; h < kv_heads; ++h) {
                auto* part = const_cast<std::byte*>(layer.part(t / crumb::kv_part_tokens, h, false));
                crumb::or_exit(crumb::reference::kv_part::make(layer.values(), layer.tables(h, false), part))
                    .decode(t % crumb::kv_part_tokens, row);
                for (const double x : row)
                    largest = std::max(largest, std::fabs(x));
            }
        return largest;
    }
};

std::vector<float> queries(std::size_t rows, float size) {
    std::vector<float> q(rows * heads * head_size);
    std::mt19937_64 random(2);
    std::normal_distribution<float> normal;
    for (float& x : q)
        x = size * normal(random);
    return q;
}

/// Seconds of the fastest of some calls.
template <class F>
double fastest(F&& f) {
    double best = 1;
    for (int i = 0; i < 20; ++i) {
        const auto start = std::chrono::steady_clock::now();
        f();
        best =
            std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
}

/// |y - exact| / |exact|.
double difference(const std::vector<float>& y, const std::vector<float>& exact) {
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
        error += double(y[i] - exact[i]) * double(y[i] - exact[i]);
        norm += double(exact[i]) * double(exact[i]);
    }
    return std::sqrt(error / norm);
}

void show(const char* name, const crumb::kv_codec& codec, const sequence& s, std::vector<float>& exact) {
    const filled_cache of(codec, s);
    const auto attend = of.plan();
    crumb::buffer scratch(attend.scratch_bytes(1));
    const std::vector<float> q = queries(1, 1);
    std::vector<float> y(q.size());
    const double seconds = fastest([&] {
        crumb::or_exit(attend.run(crumb::matrix(q.data(), 1, q.size()), of.cache, 0,
                                  crumb::matrix(y.data(), 1, y.size()), scratch));
    });
    if (exact.empty())
        exact = y;
    std::printf("%-10s %13.2f %11.0f %12.1f %15.2e %9.1f us\n", name, of.cache.bits_per_channel(),
                of.cache.bytes_per_token(), double(of.books.bytes()) / 1024, difference(y, exact),
                1e6 * seconds);
}

/// Values of little weight may stay unread, and the call says what that can have cost.
void show_skipping(const crumb::named_kv_codec& codec, const sequence& s) {
    const filled_cache of(codec.codec, s);
    const auto attend = of.plan();
    crumb::buffer scratch(attend.scratch_bytes(1)), weights(attend.skip_scratch_bytes(of.cache.coded()));
    // Heads of trained models attend to few tokens. Random queries do so when they are long.
    const std::vector<float> q = queries(1, 8);
    std::vector<float> all(q.size()), y(q.size());
    const auto q_row = crumb::matrix(q.data(), 1, q.size());
    const double all_seconds = fastest([&] {
        crumb::or_exit(attend.run(q_row, of.cache, 0, crumb::matrix(all.data(), 1, all.size()), scratch));
    });
    const double largest = of.largest_value();
    std::printf(
        "\nThe values of %s that have little weight left unread; the step that reads all takes %.1f us\n\n",
        codec.name, 1e6 * all_seconds);
    std::printf("%-10s %13s %11s %12s %15s %12s\n", "epsilon", "unread", "weight", "bound", "difference",
                "step");
    for (const float epsilon : {0.0001f, 0.001f, 0.01f, 0.1f}) {
        crumb::kv_skip_report reports[kv_heads];
        const double seconds = fastest([&] {
            crumb::or_exit(attend.run_skipping(q_row, of.cache, 0, crumb::matrix(y.data(), 1, y.size()),
                                               scratch,
                                               {.epsilon = epsilon, .scratch = weights, .reports = reports}));
        });
        std::size_t blocks = 0, skipped = 0;
        float mass = 0;
        for (const crumb::kv_skip_report& each : reports) {
            blocks += each.blocks;
            skipped += each.skipped;
            mass = std::max(mass, each.mass);
        }
        double moved = 0;
        for (std::size_t i = 0; i < y.size(); ++i)
            moved = std::max(moved, std::fabs(double(y[i]) - double(all[i])));
        // What is left out had at most `mass` of any query's weight; that moves no output by more than this.
        const double bound = 2 * double(mass) * largest;
        std::printf("%-10g %11.1f %% %11.1e %12.1e %15.1e %9.1f us\n", double(epsilon),
                    100 * double(skipped) / double(blocks), double(mass), bound, moved, 1e6 * seconds);
    }
}

/// The last tokens once more, as a chunk of a prompt whose keys and values are in the cache.
void show_prompt(const crumb::named_kv_codec& codec, const sequence& s) {
    constexpr std::size_t rows = 128, columns = heads * head_size;
    const filled_cache of(codec.codec, s);
    const std::vector<float> q = queries(rows, 1);
    std::vector<float> exact;
    std::printf("\nA chunk of %zu tokens at the end, %s\n\n%-10s %29s %12s\n", rows, codec.name, "products",
                "difference", "time");
    for (const bool int8 : {false, true}) {
        const auto attend =
            of.plan(int8 ? crumb::or_exit(crumb::int8_products()) : crumb::kv_matrix_products{});
        crumb::buffer scratch(attend.scratch_bytes(rows));
        std::vector<float> y(q.size());
        const double seconds = fastest([&] {
            crumb::or_exit(attend.run(crumb::matrix(q.data(), rows, columns), of.cache, 0,
                                      crumb::matrix(y.data(), rows, columns), scratch,
                                      {.position = of.cache.length() + 1 - rows}));
        });
        if (exact.empty())
            exact = y;
        std::printf("%-10s %29.2e %9.1f ms\n", int8 ? "int8" : "floats", difference(y, exact), 1e3 * seconds);
    }
}

} // namespace

int main() {
    const sequence s;
    std::vector<float> exact;
    std::printf("%zu tokens, %zu query heads over %zu kv heads of %zu\n\n", tokens, heads, kv_heads,
                head_size);
    std::printf("%-10s %13s %11s %12s %15s %12s\n", "codec", "bits/channel", "bytes/token", "tables KiB",
                "relative error", "step");
    // The first codec shown is what the others are compared with.
    for (const crumb::named_kv_codec& each : crumb::kv_codecs)
        if (each.codec.kind != crumb::kv_kind::f32)
            show(each.name, each.codec, s, exact);
    for (const crumb::named_kv_codec& each : crumb::kv_codecs)
        if (each.codec == crumb::kv_codec::pq4())
            show_skipping(each, s);
    for (const crumb::named_kv_codec& each : crumb::kv_codecs)
        if (each.codec == crumb::kv_codec::f16())
            show_prompt(each, s);
}
