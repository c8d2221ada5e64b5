// Blocks encoded by every ISA against the scalar codec, to the bit.
#include "isa_test.hpp"
#include "kv_problem.hpp"
#include "random_numbers.hpp"

#include <crumb/kernel/cache/definitions.hpp>
#include <crumb/reference/kv_codec.hpp>

#include <cstring>
#include <random>
#include <vector>

namespace test_kv_encode {
namespace {

using crumb::buffer;
using crumb::half;
using crumb::kv_codec;
using crumb_test::for_each_isa;
using crumb_test::normal_numbers;

constexpr std::size_t tokens = crumb::kv_block_tokens;

const std::pair<const char*, kv_codec> codecs[] = {
    {"q8_0", kv_codec::q8_0()},
    {"kivi4", kv_codec::kivi(4)},
    {"kivi2", kv_codec::kivi(2)},
    {"2x(4+4)", kv_codec::pq(2, 8, true, true)},
    {"2x8", kv_codec::pq(2, 8, false, true)},
    {"4x8", kv_codec::pq(4, 8, false, true)},
    {"4x(4+4)", kv_codec::pq(4, 8, true, true)},
    {"2x6", kv_codec::pq(2, 6, false, true)},
    {"1x4", kv_codec::pq(1, 4, false, true)},
    {"4x4", kv_codec::pq(4, 4, false, false)},
    {"4x6", kv_codec::pq(4, 6, false, false)},
    {"1x(4+4) plain", kv_codec::pq(1, 8, true, false)},
};

enum class numbers { usual, zeros, constant, huge, denormal, mixed };
const numbers kinds[] = {numbers::usual, numbers::zeros,    numbers::constant,
                         numbers::huge,  numbers::denormal, numbers::mixed};

std::vector<half> block_of(numbers kind, std::size_t size) {
    std::mt19937 engine(7);
    normal_numbers<float> normal;
    std::vector<half> x(tokens * size);
    for (std::size_t i = 0; i < x.size(); ++i) {
        const float v = normal(engine);
        const std::size_t channel = i % size, token = i / size;
        const bool own = kind == numbers::mixed;
        const std::size_t of = own ? channel % 5 : 0;
        float y = v;
        if (kind == numbers::zeros || of == 1)
            y = v < 0 ? -0.0f : 0.0f;
        if (kind == numbers::constant || of == 2)
            y = static_cast<float>(channel) - 3;
        if (kind == numbers::huge || of == 3)
            y = v * 3e4f;
        if (kind == numbers::denormal || of == 4)
            y = v * 0x1p-22f;
        x[i] = crumb::kv_half(own && token % 7 == 3 ? 0.0f : y);
    }
    return x;
}

TEST(KvEncode, EveryIsaEncodesAsTheScalarCodec) {
    for (const auto& named : codecs)
        for (const std::size_t size : {20u, 64u, 80u, 128u, 256u})
            for (const bool with_metric : {false, true}) {
                const char* const name = named.first;
                const kv_codec& codec = named.second;
                // One size meets every kind of numbers; the others those that have all kinds, and usual ones.
                const bool every_kind = size == 20;
                if (with_metric && (!codec.has_codebooks() || size > 80))
                    continue;
                std::mt19937 engine(3);
                normal_numbers<float> normal;
                const int most = codec.additive ? 63 : 127;
                std::vector<std::int8_t> entries(size * codec.entries());
                for (auto& e : entries)
                    e = static_cast<std::int8_t>(static_cast<int>(engine() % (2u * unsigned(most) + 1)) -
                                                 most);
                std::vector<float> scales(size), metric(size * codec.dims);
                for (std::size_t i = 0; i < size; ++i)
                    scales[i] = i % 11 == 5 ? 0.0f : i % 11 == 6 ? 1e-30f : 0.01f + 0.001f * float(i % 13);
                for (float& w : metric)
                    w = normal(engine);
                const crumb::pq_tables tables{entries.data(), scales.data(),
                                              with_metric ? metric.data() : nullptr};
                for (const bool keys : {true, false})
                    for (const numbers kind : kinds) {
                        if (!every_kind && kind != numbers::usual && kind != numbers::mixed)
                            continue;
                        const auto x = block_of(kind, size);
                        std::vector<float> floats(x.size());
                        for (std::size_t i = 0; i < x.size(); ++i)
                            floats[i] = crumb::to_float(x[i]);
                        const crumb::kv_part_layout layout(codec, size, keys);
                        crumb::buffer want(layout.bytes());
                        std::memset(want.bytes().data(), 0x5a, layout.bytes());
                        auto part = crumb::reference::kv_part::make(layout, tables, want.bytes().data());
                        ASSERT_TRUE(part.ok()) << part.message();
                        const auto trials_of = [](std::size_t block) { return block == 0 ? 5u : 2u; };
                        for (const std::size_t block : {0u, 3u})
                            ASSERT_TRUE(part->encode(block,
                                                     crumb::matrix<const float>(floats.data(), tokens, size),
                                                     trials_of(block))
                                            .ok());
                        for_each_isa([&]<class Isa>() {
                            crumb::buffer got(layout.bytes()),
                                scratch(crumb::kernel::kv_encode_floats(size) * sizeof(float));
                            std::memset(got.bytes().data(), 0x5a, layout.bytes());
                            crumb::kernel::kv_block_args args;
                            args.layout = layout;
                            args.tables = tables;
                            args.part = got.bytes().data();
                            args.from = x.data();
                            args.scratch = reinterpret_cast<float*>(scratch.bytes().data());
                            for (const std::size_t block : {0u, 3u}) {
                                args.block = block;
                                args.scale_trials = trials_of(block);
                                crumb::kernel::kv_encode<crumb::dispatch::own_or_base_isa<Isa>>(args);
                            }
                            ASSERT_EQ(std::memcmp(got.bytes().data(), want.bytes().data(), layout.bytes()), 0)
                                << name << ", head size " << size << (with_metric ? ", metric" : "")
                                << (keys ? ", keys" : ", values") << ", numbers " << int(kind);
                        });
                    }
            }
}

/// The code whose centroid is nearest to y times `inverse` on the grid of sub-space j, the first of equals.
unsigned nearest(const kv_codec& codec, const crumb::pq_tables& tables, std::size_t j, const float* y,
                 float inverse) {
    const float gain = crumb::kv_grid_gain(codec, tables, j);
    double least = 1e300;
    unsigned best = 0;
    for (unsigned code = 0; code < 1u << codec.bits; ++code) {
        double distance = 0;
        for (std::size_t i = 0; i < codec.dims; ++i) {
            const double off =
                crumb::kv_grid_value(y[i], inverse, gain) -
                crumb::kv_grid_centroid(crumb::kv_weighted_centroid(codec, tables, j, i, code), gain);
            distance += off * off;
        }
        if (distance < least) {
            least = distance;
            best = code;
        }
    }
    return best;
}

TEST(KvEncode, KeepsTheCodesOfTheScaleThatFitsBest) {
    const std::size_t size = 32;
    for (const auto& named : codecs) {
        const kv_codec& codec = named.second;
        if (!codec.has_codebooks() || !codec.residual)
            continue;
        SCOPED_TRACE(named.first);
        std::mt19937 engine(5);
        normal_numbers<float> normal;
        std::vector<std::int8_t> entries(size * codec.entries());
        for (auto& e : entries)
            e = static_cast<std::int8_t>(normal(engine) * (codec.additive ? 15 : 25));
        const std::vector<float> scales(size, 0.04f);
        const crumb::pq_tables tables{entries.data(), scales.data(), nullptr};
        std::vector<float> x(tokens * size);
        for (float& v : x)
            v = normal(engine);
        const crumb::kv_part_layout layout(codec, size, true);
        crumb::buffer memory(layout.bytes());
        auto part = crumb::reference::kv_part::make(layout, tables, memory.bytes().data());
        ASSERT_TRUE(part.ok()) << part.message();
        ASSERT_TRUE(part->encode(0, crumb::matrix<const float>(x.data(), tokens, size)).ok());

        std::size_t kept[crumb::kv_scale_trials] = {};
        for (std::size_t first = 0; first < tokens; first += crumb::kv_mean_tokens) {
            std::vector<half> mean(size);
            std::vector<float> rest(crumb::kv_mean_tokens * size), rms(crumb::kv_mean_tokens);
            crumb::reference::kv_part::take_out(
                true, crumb::matrix<const float>(x.data() + first * size, crumb::kv_mean_tokens, size),
                mean.data(), crumb::matrix(rest.data(), crumb::kv_mean_tokens, size), rms.data());
            for (std::size_t t = 0; t < crumb::kv_mean_tokens; ++t) {
                const float* y = rest.data() + t * size;
                const auto explained = [&](const auto& code_of) {
                    double with = 0, own = 0;
                    for (std::size_t j = 0; j < layout.rows(); ++j)
                        for (std::size_t i = 0; i < codec.dims; ++i) {
                            const double w = crumb::kv_weighted_centroid(codec, tables, j, i, code_of(j));
                            with += y[j * codec.dims + i] * w;
                            own += w * w;
                        }
                    return with > 0 ? with * with / own : 0.0;
                };
                double most = -1;
                std::size_t best = 0;
                for (std::size_t k = 0; k < crumb::kv_scale_trials; ++k) {
                    const double fit = explained([&](std::size_t j) {
                        return nearest(codec, tables, j, y + j * codec.dims,
                                       1 / rms[t] * crumb::kv_scale_factors[k]);
                    });
                    if (fit > most) {
                        most = fit;
                        best = k;
                    }
                }
                ++kept[best];
                EXPECT_EQ(
                    explained([&](std::size_t j) { return static_cast<unsigned>(part->code(first + t, j)); }),
                    most)
                    << "token " << first + t;
            }
        }
        EXPECT_LT(kept[0], tokens); // the root mean square is not always best
    }
}

} // namespace
} // namespace test_kv_encode
