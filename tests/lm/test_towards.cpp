// Quantizing towards the full model, with formats by matrix, and the vocabulary in few bits.
#include "cli/commands.hpp"
#include "eval/evaluate.hpp"
#include "tiny_model.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace test_towards {
namespace {

using namespace lm::test;
using lm::activation_type;
using lm::weight_type;

/// Deep enough that errors of layers add up, with a text that is as the test's: random bytes.
class Towards : public testing::TestWithParam<bool> {
  protected:
    tiny_shape shape(std::uint64_t seed = 1) const {
        return {.width = 64,
                .hidden = 96,
                .layers = 5,
                .heads = 4,
                .kv_heads = 2,
                .tied = GetParam(),
                .seed = seed};
    }
    /// With logits that are as small as those of an output matrix of its own.
    static bytes file(const tiny_shape& s) {
        tiny_model m(s);
        if (s.tied)
            scale(m.tensors["token_embd.weight"].data, 0.125f);
        return m.file();
    }
    lm::quantize_options options() const {
        lm::quantize_options o;
        o.model = source_.path();
        o.weights = weight_type::cb2s;
        o.calibrate = text_.path();
        o.chunks = 24;
        o.threads = 1;
        o.out = out_.path();
        return o;
    }
    /// Mean KL divergence, on the text of calibration, of what `o` writes from the model that it reads.
    double divergence(const lm::quantize_options& o) const {
        const auto done = lm::quantize(o);
        EXPECT_TRUE(done.ok()) << done.message();
        const auto q = lm::model::load(out_.path(), {weight_type::stored, activation_type::f32});
        const auto f = lm::model::load(o.model, {weight_type::f32, activation_type::f32});
        if (!q || !f) {
            ADD_FAILURE() << q.message() << f.message();
            return 0;
        }
        auto a = lm::session::make(*q, lm::team(1), lm::kv_type::f16, 48, 48);
        auto b = lm::session::make(*f, lm::team(1), lm::kv_type::f16, 48, 48);
        const auto e = lm::evaluate(*a, &*b, calibration_tokens(), 48, 0, {});
        EXPECT_TRUE(e.ok()) << e.message();
        return e->kl;
    }
    void threads_change_nothing(weight_type weights) const {
        auto o = options();
        o.weights = weights;
        o.sweeps = 1;
        o.vocabulary = weight_type::cb4;
        ASSERT_TRUE(lm::quantize(o).ok());
        const auto first = lm::gguf::open(out_.path());
        ASSERT_TRUE(first.ok());
        const temporary_file other{bytes()};
        o.threads = 2;
        o.out = other.path();
        ASSERT_TRUE(lm::quantize(o).ok());
        const auto second = lm::gguf::open(other.path());
        ASSERT_TRUE(second.ok());
        ASSERT_EQ(first->tensors().size(), second->tensors().size());
        for (const lm::gguf_tensor& t : first->tensors()) {
            const auto* same = second->find_tensor(t.name);
            ASSERT_NE(same, nullptr);
            EXPECT_TRUE(std::equal(t.data.begin(), t.data.end(), same->data.begin(), same->data.end()))
                << t.name;
        }
    }
    static void scale(bytes& floats, float by) {
        for (std::size_t i = 0; i < floats.size(); i += sizeof(float)) {
            float x;
            std::memcpy(&x, floats.data() + i, sizeof x);
            x *= by;
            std::memcpy(floats.data() + i, &x, sizeof x);
        }
    }
    static std::vector<std::int32_t> calibration_tokens() { return random_tokens(24 * 48, 11); }
    static bytes text() {
        bytes out;
        for (const std::int32_t t : calibration_tokens())
            out.push_back(static_cast<std::byte>(t));
        return out;
    }

    const temporary_file source_{file(shape())};
    const temporary_file text_{text()}, out_{bytes()};
};

// Of any one model, rounding decides which is nearer.
TEST_P(Towards, TheFullModelIsNearer) {
    double towards = 0, on_its_own_inputs = 0;
    for (const std::uint64_t seed : {1, 2, 3}) {
        const temporary_file source{file(shape(seed))};
        auto o = options();
        o.model = source.path();
        towards += divergence(o);
        o.towards.reset();
        on_its_own_inputs += divergence(o);
    }
    EXPECT_LT(towards, on_its_own_inputs);
}

TEST_P(Towards, ThreadsDoNotChangeAByte) {
    for (const weight_type weights : {weight_type::cb2s, weight_type::nested})
        threads_change_nothing(weights);
}

TEST_P(Towards, FloatsOnDemandChangeNoByte) {
    auto o = options();
    o.chunks = 4;
    o.sweeps = 1;
    o.vocabulary = weight_type::cb4;
    const auto same = [&](const char* of) {
        ASSERT_TRUE(lm::quantize(o).ok()) << of;
        auto m = lm::model::load(source_.path(), {weight_type::f32, activation_type::f32});
        ASSERT_TRUE(m.ok()) << m.message();
        auto s = lm::session::make(*m, lm::team(1), lm::kv_type::f16, 48, 48);
        ASSERT_TRUE(s.ok()) << s.message();
        const auto expected = lm::quantized_file(o, *m, *s);
        ASSERT_TRUE(expected.ok()) << expected.message();
        std::ifstream in(out_.path(), std::ios::binary);
        const std::string got{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
        ASSERT_EQ(got.size(), expected->size()) << of;
        EXPECT_EQ(std::memcmp(got.data(), expected->data(), got.size()), 0) << of;
    };
    same("towards the full model");
    o.bits = 3.0;
    same("formats by matrix");
    o.bits.reset();
    o.towards.reset();
    same("on the full model's inputs");
    o.calibrate = "self";
    same("on a text of the model");
    o.weights = weight_type::nested;
    same("nested");
    o.towards = 0.5;
    same("nested, towards the full model");
}

TEST_P(Towards, SizesAreKeptAndMoreBytesAreNearer) {
    auto o = options();
    o.sweeps = 0;
    double last = 1e9;
    std::uint64_t full = 0;
    for (const auto& bits : {2.6, 3.5, 5.0, 9.0}) {
        o.bits = bits;
        const double kl = divergence(o);
        EXPECT_LT(kl, last) << bits;
        last = kl;
        const auto m = lm::model::load(out_.path(), {});
        ASSERT_TRUE(m.ok()) << m.message();
        EXPECT_LE(m->bits_per_weight(), bits);
        full = std::filesystem::file_size(out_.path());
    }
    // A file of 5 bits, by its size.
    o.bits = 5.0;
    ASSERT_TRUE(lm::quantize(o).ok());
    const auto size = std::filesystem::file_size(out_.path());
    ASSERT_LT(size, full);
    o.bits.reset();
    o.size = size + size / 20;
    ASSERT_TRUE(lm::quantize(o).ok());
    EXPECT_LE(std::filesystem::file_size(out_.path()), *o.size);
    EXPECT_GT(std::filesystem::file_size(out_.path()), size * 8 / 10);
}

TEST_P(Towards, SaysTheSmallestSize) {
    auto o = options();
    o.sweeps = 0;
    o.bits = 1.5;
    const auto few = lm::quantize(o);
    EXPECT_NE(std::string(few.message()).find("no choice of formats has 1.500 bits per weight: "),
              std::string::npos)
        << few.message();
    o.bits.reset();
    o.size = 1000;
    o.calibrate = "self";
    const std::string small = lm::quantize(o).message();
    EXPECT_NE(small.find("no choice of formats makes a file of 1000 bytes: "), std::string::npos) << small;
    EXPECT_FALSE(std::filesystem::exists(o.out + ".partial"));
}

TEST_P(Towards, RefusesTextShorterThanTheWidestMatrix) {
    auto o = options();
    o.chunks = 1;
    for (const std::string& text : {o.calibrate, std::string("self")}) {
        o.calibrate = text;
        EXPECT_STREQ(lm::quantize(o).message(),
                     "48 tokens to calibrate on: the widest matrix reads 96 numbers, so many tokens are "
                     "needed at least");
        EXPECT_FALSE(std::filesystem::exists(o.out + ".partial")) << text;
    }
}

INSTANTIATE_TEST_SUITE_P(All, Towards, testing::Bool(), [](const auto& which) {
    return which.param ? std::string("Tied") : std::string("Untied");
});

} // namespace
} // namespace test_towards
