// A cache with random keys and values, and what attention over it has to be.
#pragma once

#include "random_numbers.hpp"

#include <crumb/core/buffer.hpp>
#include <crumb/op/cache/kv_attention.hpp>
#include <crumb/reference/attention.hpp>
#include <crumb/reference/kv_codec.hpp>

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <vector>

namespace crumb_test {

/// Every kind of codec.
inline constexpr std::pair<const char*, crumb::kv_codec> codecs[] = {
    {"f32", crumb::kv_codec::f32()},
    {"f16", crumb::kv_codec::f16()},
    {"q8_0", crumb::kv_codec::q8_0()},
    {"kivi4", crumb::kv_codec::kivi(4)},
    {"kivi2", crumb::kv_codec::kivi(2)},
    {"additive", crumb::kv_codec::pq(2, 8, true, true)},
    {"byte", crumb::kv_codec::pq(4, 8, false, true)},
    {"six", crumb::kv_codec::pq(2, 6, false, true)},
    {"nibble", crumb::kv_codec::pq(1, 4, false, true)},
    {"plain byte", crumb::kv_codec::pq(2, 8, false, false)},
    {"plain additive", crumb::kv_codec::pq(1, 8, true, false)},
};

/// Tables with random entries, in the order and range that training would give them.
struct random_kv_codebooks {
    std::vector<std::int8_t> entries;
    std::vector<float> scales;
    std::size_t sets;

    crumb::kv_codec codec;
    std::size_t head_size;

    random_kv_codebooks(const crumb::kv_codec& codec_, std::size_t head_size_, std::size_t sets_,
                        unsigned seed)
        : sets(sets_), codec(codec_), head_size(head_size_) {
        std::mt19937 engine(seed);
        std::uniform_int_distribution<int> entry(codec.additive ? -63 : -127, codec.additive ? 63 : 127);
        std::uniform_real_distribution<float> scale(0.01f, 0.03f);
        if (!codec.has_codebooks())
            return;
        entries.resize(2 * sets * head_size * codec.entries());
        scales.resize(2 * sets * head_size);
        for (std::int8_t& e : entries)
            e = static_cast<std::int8_t>(entry(engine));
        for (float& s : scales)
            s = scale(engine);
    }
    crumb::pq_codebooks view(std::size_t layer_step, std::size_t head_step) const {
        if (!codec.has_codebooks())
            return {};
        const auto made = crumb::pq_codebooks::make({.codec = codec,
                                                     .head_size = head_size,
                                                     .layer_step = layer_step,
                                                     .head_step = head_step,
                                                     .sets = sets,
                                                     .entries = entries,
                                                     .scales = scales});
        EXPECT_TRUE(made) << made.message();
        return made ? *made : crumb::pq_codebooks();
    }
};

/// A cache of one or more layers in memory of its own.
struct cache_problem {
    crumb::kv_cache_options options;
    random_kv_codebooks codebooks;
    std::unique_ptr<crumb::buffer> state;
    std::vector<std::unique_ptr<crumb::buffer>> pages;
    std::unique_ptr<crumb::buffer> scratch;
    std::unique_ptr<crumb::kv_cache> cache;
    std::mt19937 engine;
    std::vector<float> k, v; ///< of the last rows

    struct prepared_part {
        const std::byte* bytes = nullptr;
        std::optional<crumb::reference::kv_part> part;
    };
    mutable prepared_part last_parts[2]; ///< of values and of keys

    explicit cache_problem(const crumb::kv_cache_options& s, const char* isa = nullptr, unsigned seed = 1)
        : options(s), codebooks(s.codec, s.head_size, s.layers * s.kv_heads, seed), engine(seed) {
        options.codebooks = codebooks.view(s.kv_heads, 1);
        options.codebook_id = 17;
        const auto bytes = crumb::kv_cache::state_bytes(options);
        if (!bytes)
            ADD_FAILURE() << bytes.message();
        state = std::make_unique<crumb::buffer>(*bytes);
        auto made = crumb::kv_cache::create(options, state->bytes(), {isa});
        if (!made)
            ADD_FAILURE() << made.message();
        cache = std::make_unique<crumb::kv_cache>(*made);
        add_pages(cache->pages_for(options.max_tokens));
        scratch = std::make_unique<crumb::buffer>(cache->encode_scratch_bytes());
    }

    void add_pages(std::size_t count) {
        for (; count != 0; --count) {
            pages.push_back(std::make_unique<crumb::buffer>(cache->page_bytes()));
            // What a page holds before tokens come is not to matter: bytes of 255 are not numbers.
            std::memset(pages.back()->bytes().data(), 0xff, pages.back()->bytes().size());
            const auto added = cache->add_page(pages.back()->bytes());
            EXPECT_TRUE(added.ok()) << added.message();
        }
    }
    std::size_t width() const { return options.kv_heads * options.head_size; }

    /// Random rows, with a mean per channel and some large channels, as real keys have.
    void draw(std::size_t rows) {
        normal_numbers<float> normal;
        k.resize(rows * width());
        v.resize(rows * width());
        for (std::size_t i = 0; i < k.size(); ++i) {
            const float c = static_cast<float>(i % width() % 7);
            k[i] = 0.6f * normal(engine) + (c == 3 ? 2.0f : 0.1f * c);
            v[i] = normal(engine) - 0.2f * c;
        }
    }
    /// Writes rows to all layers without making them part of the sequence.
    void write(std::size_t rows) {
        for (std::size_t layer = 0; layer < options.layers; ++layer) {
            draw(rows);
            const auto written = cache->write(layer, crumb::matrix<const float>(k.data(), rows, width()),
                                              crumb::matrix<const float>(v.data(), rows, width()));
            ASSERT_TRUE(written.ok()) << written.message();
        }
    }
    /// Appends tokens, `rows` at a time, and encodes what may be.
    void fill(std::size_t tokens, std::size_t rows = 1) {
        while (tokens != 0) {
            const std::size_t n = std::min(rows, tokens);
            ASSERT_NO_FATAL_FAILURE(write(n));
            ASSERT_TRUE(cache->advance(n).ok());
            cache->encode(scratch->bytes());
            tokens -= n;
        }
    }

    /// The oracle over a part of a page, until the next call.
    crumb::reference::kv_part& part(std::size_t layer, std::size_t head, bool keys, std::size_t p) const {
        const auto view = cache->layer(layer);
        auto* const bytes = const_cast<std::byte*>(view.part(p, head, keys));
        // Its tables take much longer to prepare than a token to decode, and tokens come in order.
        prepared_part& last = last_parts[keys];
        if (bytes != last.bytes) {
            auto made = crumb::reference::kv_part::make(view.page.part(keys), view.tables(head, keys), bytes);
            EXPECT_TRUE(made.ok()) << made.message();
            last = {bytes, *made};
        }
        return *last.part;
    }
    /// What token t of a layer stands for.
    std::vector<double> decoded(std::size_t layer, std::size_t head, bool keys, std::size_t t) const {
        const auto view = cache->layer(layer);
        const std::size_t size = options.head_size;
        std::vector<double> out(size);
        const auto halves = [&](const crumb::half* from) {
            for (std::size_t i = 0; i < size; ++i)
                out[i] = double(crumb::to_float(from[i]));
        };
        const std::size_t u = t - view.sinks;
        if (t < view.sinks)
            halves((keys ? view.sink_keys : view.sink_values).row(head * view.sinks + t));
        else if (u < view.coded)
            part(layer, head, keys, u / crumb::kv_part_tokens).decode(u % crumb::kv_part_tokens, out.data());
        else
            halves((keys ? view.window_keys : view.window_values).row(head * view.slots + u % view.slots));
        return out;
    }
};

/// A filled cache, and a step of rows behind it.
struct step_problem : cache_problem {
    std::size_t heads, rows, position;
    std::vector<float> q, y;

    step_problem(const crumb::kv_cache_options& s, std::size_t group, std::size_t tokens, std::size_t m,
                 const char* isa, float spread = 1)
        : cache_problem(s, isa), heads(s.kv_heads * group), rows(m), position(tokens) {
        fill(tokens, s.max_rows);
        write(m);
        normal_numbers<float> normal;
        q.resize(m * heads * s.head_size);
        y.assign(q.size(), -7);
        for (float& x : q)
            x = spread * normal(engine);
    }
    std::size_t cols() const { return heads * options.head_size; }
    auto queries() { return crumb::matrix<const float>(q.data(), rows, cols()); }
    auto result() { return crumb::matrix(y.data(), rows, cols()); }
};

} // namespace crumb_test
