// What channels of large numbers do to codes of the others: uniform codes beside product codes.
#include "cli/report.hpp"
#include "lab/commands.hpp"

#include <crumb/offline/cache/codebooks.hpp>

#include <numbers>

namespace lm::lab {

using crumb::result;
using crumb::status;

namespace {

constexpr std::size_t head_size = 64, outliers = 2, trained = 8192, tested = 2048;
/// Where outliers are: in different sub-spaces and different groups of 32 channels.
constexpr std::size_t first_outlier = 5, outlier_step = 40;

constexpr bool is_outlier(std::size_t channel) {
    return channel >= first_outlier && (channel - first_outlier) % outlier_step == 0;
}

/// Normally distributed keys; two channels are `factor` times as large.
std::vector<float> keys_of(std::size_t tokens, double factor, std::uint64_t seed) {
    crumb::splitmix64 random(seed);
    std::vector<float> out(tokens * head_size);
    for (std::size_t i = 0; i < out.size(); ++i) {
        const double u = 1 - random.uniform(), v = random.uniform();
        const double x = std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
        out[i] = static_cast<float>(is_outlier(i % head_size) ? factor * x : x);
    }
    return out;
}

/// Mean squared errors as shares of the variances: of the ordinary channels, and of the outliers.
struct errors {
    double others = 0, outliers = 0;
};

struct scheme {
    const char* name;
    crumb::kv_codec codec;
    bool as_keys; ///< uniform codes: a range per channel and 32 tokens; else per token and 32 channels
};
constexpr scheme schemes[] = {{"uniform, a range per token", crumb::kv_codec::kivi4(), false},
                              {"uniform, a range per channel", crumb::kv_codec::kivi4(), true},
                              {"product codes, pq:2x8", crumb::kv_codec::pq(2, 8, false, false), true},
                              {"product codes, pq4", crumb::kv_codec::pq4(), true}};

result<errors> measure(const scheme& s, double factor, std::uint64_t seed) {
    crumb::kv_codebooks books;
    if (s.codec.has_codebooks()) {
        auto samples = crumb::kv_samples::make({1, 1, head_size}, trained / crumb::kv_mean_tokens, seed);
        if (!samples)
            return samples.error();
        const auto keys = keys_of(trained, factor, seed);
        const auto rows = crumb::matrix<const float>(keys.data(), trained, head_size);
        if (const status added = samples->add(0, rows, rows); !added)
            return added;
        auto made = crumb::train_kv_codebooks(*samples, s.codec);
        if (!made)
            return made.error();
        books = std::move(*made);
    }
    const auto view = books.view();
    if (!view)
        return view.error();
    const crumb::kv_part_layout layout(s.codec, head_size, s.as_keys);
    const crumb::buffer memory(layout.bytes());
    auto part = crumb::reference::kv_part::make(layout, view->tables(0, 0, true), memory.data());
    if (!part)
        return part.error();
    const auto keys = keys_of(tested, factor, seed + 1);
    errors sum;
    double row[head_size];
    for (std::size_t t = 0; t < tested; t += crumb::kv_block_tokens) {
        const float* from = keys.data() + t * head_size;
        if (const status done = part->encode(0, crumb::matrix(from, crumb::kv_block_tokens, head_size));
            !done)
            return done;
        for (std::size_t i = 0; i < crumb::kv_block_tokens; ++i) {
            part->decode(i, row);
            for (std::size_t c = 0; c < head_size; ++c) {
                const double off = row[c] - double{from[i * head_size + c]};
                (is_outlier(c) ? sum.outliers : sum.others) += off * off;
            }
        }
    }
    constexpr double count = static_cast<double>(tested);
    return errors{sum.others / (count * (head_size - outliers)),
                  sum.outliers / (count * outliers * factor * factor)};
}

} // namespace

status compare_outliers(const outliers_options& o) {
    constexpr double factors[] = {1, 4, 16, 64};
    if (!o.json)
        print("4-bit codes of keys with %zu of %zu channels larger: mean squared error of the other channels "
              "(of the large ones), as a share of their variance\n\n%-30s",
              outliers, head_size, "times as large:");
    for (const double factor : factors)
        if (!o.json)
            print(" %18g", factor);
    print(o.json ? "" : "\n");
    for (const scheme& s : schemes) {
        if (!o.json)
            print("%-30s", s.name);
        for (const double factor : factors) {
            const auto e = measure(s, factor, o.seed);
            if (!e)
                return e.error();
            if (o.json)
                print("%s\n", json_object()
                                  .put("codes", s.name)
                                  .put("factor", factor)
                                  .put("error", e->others)
                                  .put("error_of_outliers", e->outliers)
                                  .text()
                                  .c_str());
            else
                print("  %.4f (%.4f)", e->others, e->outliers);
        }
        if (!o.json)
            print("\n");
    }
    return {};
}

} // namespace lm::lab
