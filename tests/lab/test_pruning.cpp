// Pruning against its definitions, computed plainly.
#include "lab/pruning.hpp"
#include "lm/fed.hpp"

#include "lm/tiny_model.hpp"
#include "train/calibration.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace test_pruning {
namespace {

using namespace lm::test;
using lm::activation_type;
using lm::architecture;
using lm::weight_type;
using lm::lab::pruning;
using kind = pruning::kind;

constexpr lm::model_options in_full = {weight_type::f32, activation_type::f32};

using weights = std::map<std::string, std::vector<float>>;

class Pruning : public testing::TestWithParam<architecture> {
  protected:
    tiny_shape shape() const {
        return {.arch = GetParam(), .heads = 4, .kv_heads = GetParam() == architecture::llama ? 2u : 4u};
    }
    lm::model load(const lm::model_options& options = in_full) const {
        auto m = lm::model::load(file_.path(), options);
        EXPECT_TRUE(m.ok()) << m.message();
        return std::move(*m);
    }
    static weights weights_of(lm::model& m) {
        weights out;
        for (const auto& each : m.matrices()) {
            const auto w = m.floats(each);
            out[each.name].assign(w.begin(), w.end());
        }
        return out;
    }
    /// Squares that differ by orders of magnitude, so that they decide.
    static lm::importances random_squares(const lm::model& m) {
        lm::importances out(m.layers().size() * lm::matrix_role::inputs);
        std::mt19937_64 random(5);
        for (const auto& each : m.matrices()) {
            auto& squares = out[each.role.input()];
            squares.resize(each.m->k());
            for (float& x : squares)
                x = std::exp(static_cast<float>(random() % 1000) * 0.01f - 5);
        }
        return out;
    }

    const temporary_file file_{tiny_model(shape()).file()};
};

/// The score of weight (i, j) of n x k weights.
double score(kind by, const std::vector<float>& w, std::size_t k, std::size_t i, std::size_t j,
             const std::vector<float>& squares) {
    const double size = std::fabs(w[i * k + j]), norm = std::sqrt(double{squares[j]});
    if (by == kind::magnitude)
        return size;
    if (by == kind::wanda)
        return size * norm;
    double row = 0, column = 0;
    for (std::size_t c = 0; c < k; ++c)
        row += std::fabs(w[i * k + c]);
    for (std::size_t r = 0; r < w.size() / k; ++r)
        column += std::fabs(w[r * k + j]);
    return (size / row + size / column) * std::sqrt(norm);
}

TEST_P(Pruning, KeepsTheHighestScores) {
    const kind kinds[] = {kind::magnitude, kind::wanda, kind::ria};
    for (const kind by : kinds) {
        for (const double share : {0.1, 0.3, 0.5, 0.75, 0.999}) {
            lm::model m = load();
            const weights before = weights_of(m);
            const auto squares = random_squares(m);
            const pruning how{by, share};
            const auto left = lm::lab::prune(m, how, squares);
            ASSERT_TRUE(left.ok()) << left.message();
            const weights after = weights_of(m);
            std::size_t kept = 0, all = 0, ffn = 0;
            for (const auto& each : m.matrices()) {
                const auto& w = before.at(each.name);
                const auto& pruned = after.at(each.name);
                if (each.name.find("ffn") == std::string::npos) {
                    EXPECT_EQ(pruned, w) << each.name;
                    continue;
                }
                ++ffn;
                const std::size_t k = each.m->k();
                const std::size_t group = by == kind::magnitude ? w.size() : k;
                const auto zeros = static_cast<std::size_t>(std::lround(share * static_cast<double>(group)));
                for (std::size_t first = 0; first < w.size(); first += group) {
                    std::vector<std::pair<double, std::size_t>> order;
                    for (std::size_t e = first; e < first + group; ++e)
                        order.emplace_back(score(by, w, k, e / k, e % k, squares[each.role.input()]), e);
                    std::sort(order.begin(), order.end());
                    for (std::size_t o = 0; o < group; ++o) {
                        const std::size_t e = order[o].second;
                        EXPECT_EQ(pruned[e], o < zeros ? 0.0f : w[e])
                            << each.name << " " << e << " " << how.name();
                    }
                    kept += group - zeros;
                }
                all += w.size();
            }
            EXPECT_EQ(ffn, 2u * (GetParam() == architecture::llama ? 3 : 2));
            EXPECT_DOUBLE_EQ(*left, static_cast<double>(kept) / static_cast<double>(all));
        }
    }
}

TEST_P(Pruning, TheKindsDiffer) {
    std::vector<weights> results;
    for (const kind by : {kind::magnitude, kind::wanda, kind::ria}) {
        lm::model m = load();
        ASSERT_TRUE(lm::lab::prune(m, {by, 0.5}, random_squares(m)).ok());
        results.push_back(weights_of(m));
    }
    EXPECT_NE(results[0], results[1]);
    EXPECT_NE(results[0], results[2]);
    EXPECT_NE(results[1], results[2]);
}

TEST_P(Pruning, ShareZeroChangesNothing) {
    for (const kind by : {kind::none, kind::magnitude, kind::wanda, kind::ria}) {
        lm::model m = load();
        const weights before = weights_of(m);
        const auto left = lm::lab::prune(m, {by, 0}, random_squares(m));
        ASSERT_TRUE(left.ok()) << left.message();
        EXPECT_EQ(*left, 1);
        EXPECT_EQ(weights_of(m), before);
    }
}

TEST_P(Pruning, ZeroesTheFirstAmongEquals) {
    tiny_model tiny(shape());
    for (auto& [name, t] : tiny.tensors) {
        if (name.find("ffn_up.weight") == std::string::npos)
            continue;
        const std::vector<float> same(t.data.size() / sizeof(float), -0.25f);
        t.data = encode(same, t.dims[0], lm::ggml_type::f32);
    }
    const temporary_file file(tiny.file());
    for (const kind by : {kind::magnitude, kind::wanda, kind::ria}) {
        auto m = lm::model::load(file.path(), in_full);
        ASSERT_TRUE(m.ok()) << m.message();
        lm::importances squares(m->layers().size() * lm::matrix_role::inputs);
        for (const auto& each : m->matrices())
            squares[each.role.input()].assign(each.m->k(), 2.0f);
        ASSERT_TRUE(lm::lab::prune(*m, {by, 0.25}, squares).ok());
        for (const auto& each : m->matrices()) {
            if (each.name.find("ffn_up") == std::string::npos)
                continue;
            const std::size_t k = each.m->k(), n = each.m->n();
            const auto w = m->floats(each);
            for (std::size_t e = 0; e < n * k; ++e) {
                const bool is_first = by == kind::magnitude ? e < n * k / 4 : e % k < k / 4;
                EXPECT_EQ(w[e], is_first ? 0.0f : -0.25f) << e;
            }
        }
    }
}

TEST_P(Pruning, ToleratesRowsAndInputsThatAreZero) {
    tiny_model tiny(shape());
    auto& up = tiny.tensors.at("blk.0.ffn_up.weight");
    std::memset(up.data.data(), 0, up.dims[0] * sizeof(float));
    const temporary_file file(tiny.file());
    for (const kind by : {kind::wanda, kind::ria}) {
        auto m = lm::model::load(file.path(), in_full);
        ASSERT_TRUE(m.ok()) << m.message();
        lm::importances squares = random_squares(*m);
        squares[lm::matrix_role{0, 2}.input()][3] = 0;
        const auto left = lm::lab::prune(*m, {by, 0.5}, squares);
        ASSERT_TRUE(left.ok()) << left.message();
        std::size_t all = 0;
        for (const auto& each : m->matrices()) {
            if (each.role.is_ffn())
                all += each.m->n() * each.m->k();
            if (each.name != "blk.0.ffn_up.weight")
                continue;
            // Input 3 has the lowest score of every row.
            for (std::size_t r = 0; r < each.m->n(); ++r)
                EXPECT_EQ(m->floats(each)[r * each.m->k() + 3], 0);
        }
        // Half of every row, and what was left of the first one.
        EXPECT_DOUBLE_EQ(*left, 0.5 - 0.5 * static_cast<double>(up.dims[0]) / static_cast<double>(all));
    }
}

TEST_P(Pruning, TheModelRunsOnWhatIsLeft) {
    lm::model m = load(), full = load();
    ASSERT_TRUE(lm::lab::prune(m, {kind::wanda, 0.5}, random_squares(m)).ok());
    tiny_model pruned(shape());
    for (const auto& each : m.matrices())
        pruned.tensors.at(each.name).data = encode(m.floats(each), each.m->k(), lm::ggml_type::f32);
    const temporary_file file(pruned.file());
    auto read = lm::model::load(file.path(), in_full);
    ASSERT_TRUE(read.ok()) << read.message();
    const auto tokens = random_tokens(20, 9);
    const auto logits = [&](const lm::model& of) {
        auto s = lm::session::make(of, lm::team(1), lm::kv_type::f16, 32, 32);
        const auto out = fed(*s, tokens, tokens.size());
        return std::vector<float>(out.begin(), out.end());
    };
    EXPECT_EQ(logits(m), logits(*read));
    EXPECT_NE(logits(m), logits(full));
}

TEST_P(Pruning, RefusesWhatItCannotPrune) {
    const auto error = [](lm::model m, const lm::importances& squares, kind by = kind::wanda) {
        const auto left = lm::lab::prune(m, {by, 0.5}, squares);
        return std::string(left.ok() ? "" : left.message());
    };
    const std::string first =
        GetParam() == architecture::llama ? "blk.0.ffn_gate.weight" : "blk.0.ffn_up.weight";
    const auto squares = random_squares(load());
    EXPECT_EQ(error(load(), squares), "");
    EXPECT_EQ(error(load(), {}, kind::magnitude), "");
    EXPECT_EQ(error(load(), {}), "mean_squares: none for the 24 inputs of " + first);
    lm::importances bad = squares;
    bad[2].pop_back();
    EXPECT_EQ(error(load(), bad), "mean_squares: none for the 24 inputs of " + first);
    bad[2].push_back(INFINITY);
    EXPECT_EQ(error(load(), bad), "mean_squares: the inputs of " + first + " are not finite");
    bad[2].back() = NAN;
    EXPECT_EQ(error(load(), bad), "mean_squares: the inputs of " + first + " are not finite");
    for (const kind by : {kind::magnitude, kind::wanda, kind::ria})
        EXPECT_EQ(error(load({weight_type::q8_0, activation_type::int8}), squares, by),
                  "pruning needs float weights, which " + first + " has not");
}

INSTANTIATE_TEST_SUITE_P(Architectures, Pruning, testing::Values(architecture::llama, architecture::gpt2),
                         architecture_name);

TEST(PruningOption, IsRead) {
    const std::pair<const char*, pruning> good[] = {{"magnitude:0.5", {kind::magnitude, 0.5}},
                                                    {"wanda:0", {kind::wanda, 0}},
                                                    {"ria:0.999", {kind::ria, 0.999}}};
    for (const auto& [text, expected] : good) {
        const auto read = pruning::parse(text);
        ASSERT_TRUE(read.ok()) << read.message();
        EXPECT_EQ(read->by, expected.by);
        EXPECT_EQ(read->share, expected.share);
        EXPECT_EQ(read->name(), text);
    }
    for (const char* text :
         {"", ":", "wanda", "wanda:", "wanda:1", "wanda:-0.1", "wanda:nan", "wanda:inf", "wanda:0.5x",
          "wanda:0.5:", ":0.5", "none:0.5", "none", "sparsegpt:0.5", "wanda 0.5", "Wanda:0.5"}) {
        const auto read = pruning::parse(text);
        ASSERT_FALSE(read.ok()) << text;
        EXPECT_EQ(std::string(read.message()),
                  "--by " + std::string(text) +
                      ": known are magnitude, wanda and ria, each with :<share> from 0 to below 1");
    }
}

} // namespace
} // namespace test_pruning
