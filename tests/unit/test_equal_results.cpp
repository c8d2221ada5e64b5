// The list in docs/numerics.md of results that are equal on all ISAs that fuse multiply and add. The hashes
// are those of x86 and of Arm: inputs are made of integers, so that they are the same everywhere.
#include "isa_test.hpp"
#include "kv_problem.hpp"

#include <crumb/crumb.hpp>
#include <crumb/offline/weights/quantize.hpp>
#include <crumb/util.hpp>

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <vector>

namespace test_equal_results {
namespace {

constexpr std::size_t n = 48, k = 200, rows = 5;

std::vector<float> numbers(std::size_t count, unsigned seed, float unit) {
    std::mt19937 random(seed);
    std::vector<float> x(count);
    for (float& v : x)
        v = unit * static_cast<float>(static_cast<std::int32_t>(random() >> 12) - (1 << 19));
    return x;
}

/// 64-bit FNV-1a.
std::uint64_t hash_of(std::span<const std::byte> bytes) {
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (const std::byte b : bytes)
        hash = (hash ^ static_cast<std::uint64_t>(b)) * 0x100000001b3u;
    return hash;
}
std::uint64_t hash_of(const std::vector<float>& x) { return hash_of(std::as_bytes(std::span(x))); }

/// Hashes by what they are of; a result of one ISA is compared with those before.
class results {
  public:
    void add(const std::string& what, std::uint64_t hash) {
        const auto [at, is_new] = of_.emplace(what, hash);
        EXPECT_EQ(at->second, hash) << what;
    }
    const std::map<std::string, std::uint64_t>& all() const { return of_; }

  private:
    std::map<std::string, std::uint64_t> of_;
};

template <class F>
void add_products(results& to, const char* isa) {
    const auto w = numbers(n * k, 1, 0x1p-22f), x = numbers(rows * k, 2, 0x1p-17f);
    const auto stored = *crumb::quantize<F>(crumb::matrix(w.data(), n, k));
    const crumb::buffer packed(crumb::packed_bytes<F>(n, k));
    const auto plan = *crumb::linear<F>::plan(*crumb::pack(stored, packed), {}, {isa});
    const crumb::buffer memory(crumb::activation_bytes(plan.input_plan(), rows));
    auto a = *crumb::activations::create(memory, plan.input_plan(), rows);
    a.quantize(crumb::matrix(x.data(), rows, k));
    std::vector<float> y(rows * n);
    plan.run(a, crumb::matrix(y.data(), rows, n));
    to.add(std::string("linear ") + F::name, hash_of(y));
    std::vector<std::byte> codes;
    for (std::size_t r = 0; r < rows; ++r) {
        const auto row = crumb::activation_row::of(a.layout(), a.codes(), a.scales(), rows, r);
        for (std::size_t i = 0; i < k; ++i)
            codes.push_back(static_cast<std::byte>(row.code(i)));
        for (std::size_t g = 0; g < a.layout().groups(); ++g) {
            const float scale = row.scale(g);
            const auto* bytes = reinterpret_cast<const std::byte*>(&scale);
            codes.insert(codes.end(), bytes, bytes + sizeof scale);
        }
    }
    const bool one_scale = a.layout().group == crumb::record_inputs;
    to.add(one_scale ? "activations, a scale per 256" : "activations", hash_of(codes));
}

void add_float_ops(results& to, const char* isa) {
    const auto ops = *crumb::float_ops::plan({isa});
    const auto x = numbers(7 * 96, 3, 0x1p-16f);
    std::vector<float> y(x.size());
    const auto in = crumb::matrix(x.data(), 7, 96);
    const auto out = crumb::matrix(y.data(), 7, 96);
    ops.silu(in, out);
    to.add("silu", hash_of(y));
    ops.gelu_tanh(in, out);
    to.add("gelu_tanh", hash_of(y));
    ops.gelu_erf(in, out);
    to.add("gelu_erf", hash_of(y));
}

void add_pages(results& to, const char* isa, std::size_t scale_trials) {
    for (const auto& [name, codec] : crumb_test::codecs) {
        if (scale_trials != 1 && !codec.residual)
            continue;
        crumb_test::cache_problem c({.layers = 1,
                                     .kv_heads = 2,
                                     .head_size = 32,
                                     .max_tokens = 256,
                                     .max_rows = 64,
                                     .codec = codec,
                                     .scale_trials = scale_trials},
                                    isa);
        for (unsigned part = 0; part < 3; ++part) {
            const auto keys = numbers(64 * 64, 10 + part, 0x1p-18f),
                       values = numbers(64 * 64, 20 + part, 0x1p-18f);
            ASSERT_TRUE(
                c.cache->write(0, crumb::matrix(keys.data(), 64, 64), crumb::matrix(values.data(), 64, 64))
                    .ok());
            ASSERT_TRUE(c.cache->advance(64).ok());
            c.cache->encode(*c.scratch);
        }
        std::vector<std::byte> bytes;
        for (const bool is_key : {true, false})
            for (std::size_t h = 0; h < 2; ++h) {
                const auto part = c.cache->part(0, 0, h, is_key);
                bytes.insert(bytes.end(), part.begin(), part.end());
            }
        to.add(std::string("page ") + name + (scale_trials == 1 ? "" : ", all scales"), hash_of(bytes));
    }
}

TEST(EqualResults, OnAllIsasThatFuse) {
    results all;
    crumb_test::for_each_isa([&](const crumb_test::tested_isa& isa) {
        if (!isa.fuses)
            return;
        add_products<crumb::q4_0>(all, isa.name);
        add_products<crumb::q8_0>(all, isa.name);
        add_products<crumb::u2>(all, isa.name);
        crumb::record_format_list::for_each([&]<class F>() {
            if constexpr (crumb::rounding_format<F>)
                add_products<F>(all, isa.name);
        });
        add_float_ops(all, isa.name);
        for (const std::size_t trials : {std::size_t{1}, crumb::kv_scale_trials})
            ASSERT_NO_FATAL_FAILURE(add_pages(all, isa.name, trials));
    });
    const std::map<std::string, std::uint64_t> wanted = {
        {"activations", 0xa33636072b7ba36eu},
        {"gelu_erf", 0xa07d4b5ea99c81f4u},
        {"gelu_tanh", 0x39b08b9a882b425u},
        {"linear q4_0", 0x781b9b9c06e01ce8u},
        {"linear q8_0", 0xaadfaf64da632864u},
        {"linear u2", 0xb3352228604ab87au},
        {"page additive", 0x4b7ded2257b98499u},
        {"page additive, all scales", 0x32cb1af5bcfe7798u},
        {"page byte", 0xfce21b627cc198fcu},
        {"page byte, all scales", 0x9f1684f310e6efeau},
        {"page f16", 0x78818d9e1ad6edb3u},
        {"page f32", 0xef4e6944ca536568u},
        {"page kivi2", 0x9e06100c1dd55c70u},
        {"page kivi4", 0x9ef1e1e6517561a8u},
        {"page nibble", 0x15d23828115e68fdu},
        {"page nibble, all scales", 0x768b881d0c0b01c0u},
        {"page plain additive", 0xe7a37e3bcd319989u},
        {"page plain byte", 0xe2517df96fe9e2fu},
        {"page q8_0", 0xc51f7e0a2d63592bu},
        {"page six", 0x66f68bb65653ac60u},
        {"page six, all scales", 0xb958a97f09a99c21u},
        {"silu", 0x702c62229bd700u},
        {"activations, a scale per 256", 0xc600205eaa4c7676u},
        {"linear q4_1", 0xa9780f2400657488u},
        {"linear q5_0", 0xb7d8a684e8d7c17bu},
        {"linear q5_1", 0x974dfe577304b639u},
        {"linear q2_k", 0x1b4e66e614b2423u},
        {"linear q3_k", 0x601886ad11b4f38au},
        {"linear q4_k", 0xb299ab144f04563u},
        {"linear q5_k", 0x37a93fbc801f72acu},
        {"linear q6_k", 0x626fb8300e96cb8du},
        {"linear iq4_xs", 0x4f1b00579ec06005u},
        {"linear mxfp4", 0x92e087771ad2d070u},
        {"linear tq1_0", 0x5d4853b882308d10u},
        {"linear tq2_0", 0x5d4853b882308d10u},
        {"linear q1_0", 0xf2c60a517bbbd50cu},
        {"linear q2_0", 0xde100384d6a5289u},
    };
    for (const auto& [what, hash] : all.all()) {
        const auto at = wanted.find(what);
        EXPECT_TRUE(at != wanted.end() && at->second == hash)
            << "{\"" << what << "\", 0x" << std::hex << hash << "u},";
    }
}

} // namespace
} // namespace test_equal_results
