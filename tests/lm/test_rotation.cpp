// Models with a rotated residual stream.
#include "cli/commands.hpp"
#include "eval/evaluate.hpp"
#include "model/model_identity.hpp"
#include "tiny_model.hpp"
#include "train/rotation.hpp"
#include "train/synth.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace test_rotation {
namespace {

using namespace lm::test;
using lm::activation_type;
using lm::weight_type;

TEST(Rotation, IsOrthogonalAndMixesAllChannels) {
    for (const std::size_t width : {1, 2, 3, 5, 8, 12, 72, 96}) {
        const lm::rotation r(width, 7);
        ASSERT_EQ(r.width(), width);
        std::vector<std::vector<double>> rows;
        std::size_t block = 1;
        while (width % (2 * block) == 0)
            block *= 2;
        for (std::size_t i = 0; i < width; ++i) {
            rows.emplace_back(width, 0.0)[i] = 1;
            r.apply(rows.back());
            // A row of cosines holds none larger than sqrt(2 / m).
            for (const double x : rows.back())
                EXPECT_LE(std::fabs(x), std::sqrt(2.0 / static_cast<double>(width)) * (1 + 1e-12));
        }
        for (std::size_t i = 0; i < width; ++i)
            for (std::size_t j = 0; j <= i; ++j) {
                const double product =
                    std::inner_product(rows[i].begin(), rows[i].end(), rows[j].begin(), 0.0);
                EXPECT_NEAR(product, i == j ? 1.0 : 0.0, static_cast<double>(width) * 0x1p-52) << width;
            }
    }
    std::vector<double> one(16, 1.0), other(16, 1.0);
    lm::rotation(16, 1).apply(one);
    lm::rotation(16, 2).apply(other);
    EXPECT_NE(one, other);
}

/// The model in `path`, multiplied in floats.
lm::model floats_of(const std::string& path) {
    auto m = lm::model::load(path, {weight_type::f32, activation_type::f32});
    EXPECT_TRUE(m.ok()) << m.message();
    return std::move(*m);
}
std::vector<float> logits_of(const lm::model& m, const std::vector<std::int32_t>& tokens,
                             std::size_t threads) {
    auto s = lm::session::make(m, lm::team(threads), lm::kv_type::f32, tokens.size(), tokens.size());
    EXPECT_TRUE(s.ok()) << s.message();
    // Many rows, then one at a time.
    std::vector<float> out;
    const std::span<const std::int32_t> all(tokens);
    const std::size_t first = tokens.size() - 3;
    for (std::size_t i = 0; i < tokens.size(); i = i == 0 ? first : i + 1) {
        const auto part = all.subspan(i, i == 0 ? first : 1);
        const auto logits = s->feed(part, part.size());
        EXPECT_TRUE(logits.ok()) << logits.message();
        out.insert(out.end(), logits->begin(), logits->end());
    }
    return out;
}

/// How far logits are from those expected, as a share of their size.
double distance(const std::vector<float>& got, const std::vector<float>& expected) {
    EXPECT_EQ(expected.size(), got.size());
    double error = 0, energy = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        error += std::pow(double{got[i]} - double{expected[i]}, 2);
        energy += std::pow(double{expected[i]}, 2);
    }
    EXPECT_GT(energy, 0);
    return std::sqrt(error / energy);
}

class RotatedModels : public testing::TestWithParam<std::string> {};

TEST_P(RotatedModels, ComputeTheSame) {
    const temporary_file source{bytes()}, in_halves{bytes()}, rotated{bytes()};
    const lm::synth_shape shape = *lm::find_small_shape(GetParam());
    for (const auto& [type, path] :
         {std::pair{lm::ggml_type::f32, &source}, {lm::ggml_type::f16, &in_halves}}) {
        const auto file = lm::synthesize(shape, GetParam(), type, 1);
        ASSERT_TRUE(file.ok()) << file.message();
        ASSERT_TRUE(file->write(path->path()).ok());
    }
    const lm::model before = floats_of(source.path());
    const auto written = lm::write_rotated(before, 5, rotated.path());
    ASSERT_TRUE(written.ok()) << written.message();
    const lm::model after = floats_of(rotated.path());
    EXPECT_NE(lm::model_identity(before), lm::model_identity(after));
    const bool is_tied = before.output_tensor() == std::string("token_embd.weight");
    EXPECT_EQ(after.output_basis().n(), is_tied ? before.shape().width : 0u);
    for (const float x : after.output_norm())
        ASSERT_EQ(x, 1.0f);

    std::vector<std::int32_t> tokens;
    for (const std::int32_t t : random_tokens(24, 3))
        tokens.push_back(t % static_cast<std::int32_t>(before.shape().vocabulary));
    const auto expected = logits_of(before, tokens, 1);
    // Weights of the same sizes are rounded to halves in both; the rotated model has another matrix.
    const double rounding = distance(logits_of(floats_of(in_halves.path()), tokens, 1), expected);
    EXPECT_LT(distance(logits_of(after, tokens, 2), expected), 4 * rounding);

    const auto again = lm::write_rotated(after, 5, rotated.path());
    EXPECT_NE(std::string(again.message()).find("rotated already"), std::string::npos) << again.message();
}

INSTANTIATE_TEST_SUITE_P(Small, RotatedModels,
                         testing::Values("llama-yarn", "mistral", "smollm3", "qwen2", "qwen3", "phi3"),
                         [](const auto& shape) {
                             std::string name = shape.param;
                             std::replace(name.begin(), name.end(), '-', '_');
                             return name;
                         });

TEST(Rotation, RefusesWhatItWouldChange) {
    for (const auto& [name, why] : {std::pair{"gpt2", "subtract means"}, {"gemma3", "what is added"}}) {
        const temporary_file source{bytes()}, out{bytes()};
        auto file = lm::synthesize(*lm::find_small_shape(name), name, lm::ggml_type::f32, 1);
        ASSERT_TRUE(file.ok() && file->write(source.path()).ok());
        const auto s = lm::write_rotated(floats_of(source.path()), 1, out.path());
        ASSERT_FALSE(s.ok());
        EXPECT_NE(std::string(s.message()).find(why), std::string::npos) << s.message();
    }
}

/// A model some of whose channels are small behind the norms, and its weights for them large.
bytes with_outliers(bool tied) {
    tiny_model model({.width = 64, .hidden = 96, .layers = 4, .heads = 4, .kv_heads = 2, .tied = tied});
    for (auto& [name, tensor] : model.tensors) {
        const bool is_norm = name.ends_with("_norm.weight") && name != "output_norm.weight";
        const auto role = lm::find_role(name);
        if (!is_norm && !(role && (role->reads == 0 || role->reads == 2)))
            continue;
        auto* values = reinterpret_cast<float*>(tensor.data.data());
        for (std::size_t i = 0; i < tensor.data.size() / sizeof(float); ++i)
            if (i % 64 == 3 || i % 64 == 40)
                values[i] *= is_norm ? 1 / 16.0f : 16.0f;
    }
    return model.file();
}

TEST(Rotation, LeavesFilesOfOthersAlone) {
    const temporary_file source{with_outliers(true)}, out{bytes()};
    const std::string there = out.path() + ".rotated";
    std::ofstream(there) << "mine";
    lm::quantize_options o;
    o.model = source.path();
    o.out = out.path();
    o.rotate = true;
    EXPECT_NE(std::string(lm::quantize(o).message()).find("remove it, or name another output"),
              std::string::npos);
    std::string content;
    std::ifstream(there) >> content;
    EXPECT_EQ(content, "mine");
    std::remove(there.c_str());
}

TEST(Rotation, QuantizesModelsWithOutliersBetter) {
    bytes words;
    for (const std::int32_t t : random_tokens(24 * 48, 11))
        words.push_back(static_cast<std::byte>(t));
    const temporary_file text{words};
    for (const bool tied : {false, true}) {
        const temporary_file source{with_outliers(tied)};
        const auto full = lm::model::load(source.path(), {weight_type::f32, activation_type::f32});
        ASSERT_TRUE(full.ok()) << full.message();
        double kl[2];
        for (const bool rotate : {false, true}) {
            const temporary_file out{bytes()};
            lm::quantize_options o;
            o.model = source.path();
            o.weights = weight_type::cb3;
            o.vocabulary = weight_type::cb4;
            o.calibrate = text.path();
            o.chunks = 24;
            o.threads = 1;
            o.out = out.path();
            o.rotate = rotate;
            const auto done = lm::quantize(o);
            ASSERT_TRUE(done.ok()) << done.message();
            EXPECT_FALSE(std::ifstream(o.out + ".rotated").good());
            const auto q = lm::model::load(out.path(), {});
            ASSERT_TRUE(q.ok()) << q.message();
            EXPECT_EQ(q->output_basis().n(), tied && rotate ? 64u : 0u);
            auto a = lm::session::make(*q, lm::team(1), lm::kv_type::f16, 48, 48);
            auto b = lm::session::make(*full, lm::team(1), lm::kv_type::f16, 48, 48);
            const auto e = lm::evaluate(*a, &*b, random_tokens(8 * 48, 3), 48, 0, {});
            ASSERT_TRUE(e.ok()) << e.message();
            kl[rotate] = e->kl;
        }
        EXPECT_LT(kl[1], kl[0]) << tied;
    }
}

} // namespace
} // namespace test_rotation
