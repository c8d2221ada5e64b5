// One layer's cache in several codecs: bytes per token, how far the output of attention moves, and the time
// of a step.
#include <crumb/crumb.hpp>
#include <crumb/offline/kv_codebooks.hpp>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <random>
#include <vector>

namespace {

constexpr std::size_t heads = 8, kv_heads = 2, head_size = 128, width = kv_heads * head_size, tokens = 8192;

/// What `result` holds, or the end of the program.
template <class T>
T checked(crumb::result<T> result) {
    if (!result) {
        std::fprintf(stderr, "%s\n", result.message());
        std::exit(1);
    }
    return std::move(*result);
}
void checked(const crumb::status& s) {
    if (!s) {
        std::fprintf(stderr, "%s\n", s.message());
        std::exit(1);
    }
}

/// Memory as the library wants it.
struct memory {
    explicit memory(std::size_t size)
        : bytes(static_cast<std::byte*>(::operator new (size, std::align_val_t{crumb::alignment})), size) {}
    memory(memory&& other) noexcept : bytes(std::exchange(other.bytes, {})) {}
    ~memory() { ::operator delete (bytes.data(), std::align_val_t{crumb::alignment}); }
    std::span<std::byte> bytes;
};

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

void show(const char* name, const crumb::kv_codec& codec, const sequence& s, std::vector<float>& exact) {
    // Once, offline: centroids from a sample of keys and values.
    crumb::kv_codebooks books;
    if (codec.has_codebooks()) {
        auto samples = checked(crumb::kv_samples::make({1, kv_heads, head_size}, 64));
        checked(samples.add(0, s.rows(s.k, 0, 2048), s.rows(s.v, 0, 2048)));
        books = checked(crumb::train_kv_codebooks(samples, codec, {}));
    }
    // The engine's memory: state at once, a page per 256 tokens when it is needed.
    const crumb::kv_cache_shape shape{.layers = 1,
                                      .kv_heads = kv_heads,
                                      .head_size = head_size,
                                      .max_tokens = tokens,
                                      .max_rows = 64,
                                      .codec = codec,
                                      .codebooks = books.view(),
                                      .codebook_id = books.identity()};
    memory state(checked(crumb::kv_cache::state_bytes(shape)));
    auto cache = checked(crumb::kv_cache::create(shape, state.bytes));
    memory encoding(cache.encode_scratch_bytes());
    std::vector<memory> pages;
    for (std::size_t t = 0; t < tokens; t += 64) {
        const std::size_t rows = t + 64 < tokens ? 64 : 63; // the last token is the step below
        while (cache.page_count() < cache.pages_for(t + rows)) {
            pages.emplace_back(cache.page_bytes());
            checked(cache.add_page(pages.back().bytes));
        }
        checked(cache.write(0, s.rows(s.k, t, rows), s.rows(s.v, t, rows)));
        cache.advance(rows);
        cache.encode(encoding.bytes); // what is older than the window; another thread could do it
    }
    // One decode step: the token's own key and value first, then attention over everything.
    const std::size_t position = cache.length();
    while (cache.page_count() < cache.pages_for(position + 1)) {
        pages.emplace_back(cache.page_bytes());
        checked(cache.add_page(pages.back().bytes));
    }
    checked(cache.write(0, s.rows(s.k, position, 1), s.rows(s.v, position, 1)));
    const auto attend = checked(
        crumb::kv_attention::plan({.heads = heads, .kv_heads = kv_heads, .head_size = head_size}, shape));
    memory scratch(attend.scratch_bytes(1));
    std::vector<float> q(heads * head_size), y(q.size());
    std::vector<crumb::kv_error> errors(heads);
    std::mt19937_64 random(2);
    std::normal_distribution<float> normal;
    for (float& x : q)
        x = normal(random);
    double best = 1;
    for (int i = 0; i < 20; ++i) {
        const auto start = std::chrono::steady_clock::now();
        checked(attend.run(crumb::matrix<const float>(q.data(), 1, q.size()), cache.layer(0), position,
                           crumb::matrix(y.data(), 1, y.size()), scratch.bytes, {}, errors.data()));
        best =
            std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    if (exact.empty())
        exact = y;
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
        error += double(y[i] - exact[i]) * double(y[i] - exact[i]);
        norm += double(exact[i]) * double(exact[i]);
    }
    std::printf("%-10s %13.2f %11.0f %12.1f %15.2e %9.1f us\n", name, cache.bits_per_channel(),
                cache.bytes_per_token(), double(books.bytes()) / 1024, std::sqrt(error / norm), 1e6 * best);
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
}
