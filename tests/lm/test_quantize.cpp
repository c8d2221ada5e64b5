// Quantized model files: what they hold, that they run as they are, and how damage is reported.
#include "cli/commands.hpp"
#include "cli/model_report.hpp"
#include "eval/evaluate.hpp"
#include "gguf/gguf_writer.hpp"
#include "tiny_model.hpp"

#include <crumb/offline/weights/store.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>

namespace test_quantize {
namespace {

using namespace lm::test;
using lm::activation_type;
using lm::architecture;
using lm::ggml_type;
using lm::name_of;
using lm::weight_type;

constexpr weight_type all_types[] = {weight_type::q8_0, weight_type::q4_0, weight_type::cb4, weight_type::cb3,
                                     weight_type::cb2,  weight_type::cb2s, weight_type::u2};

bytes content(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    const std::string all{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    const auto raw = std::as_bytes(std::span(all));
    return {raw.begin(), raw.end()};
}

/// Mean KL divergence of a file's model from the full-precision one, nats.
double divergence(const std::string& quantized, const std::string& full, weight_type type,
                  activation_type activations) {
    const auto q = lm::model::load(quantized, {type, activations});
    const auto f = lm::model::load(full, {weight_type::f32, activation_type::f32});
    EXPECT_TRUE(q.ok()) << q.message();
    EXPECT_TRUE(f.ok()) << f.message();
    auto a = lm::session::make(*q, lm::team(1), lm::kv_type::f16, 32, 32);
    auto b = lm::session::make(*f, lm::team(1), lm::kv_type::f16, 32, 32);
    const auto e = lm::evaluate(*a, &*b, random_tokens(256, 3), 32, 0, {});
    EXPECT_TRUE(e.ok()) << e.message();
    return e->kl;
}

class Quantize : public testing::TestWithParam<architecture> {
  protected:
    tiny_shape shape() const {
        return {.arch = GetParam(),
                .width = 64,
                .hidden = 96,
                .heads = 4,
                .kv_heads = GetParam() == architecture::llama ? 2u : 4u};
    }
    lm::quantize_options options(weight_type type, const std::string& calibrate = "") const {
        lm::quantize_options o;
        o.model = source_.path();
        o.weights = type;
        o.vocabulary = weight_type::stored;
        o.calibrate = calibrate;
        o.chunks = 6;
        o.threads = 2;
        o.out = out_.path();
        return o;
    }
    const temporary_file source_{tiny_model(shape()).file()};
    const temporary_file out_{bytes()};
};

TEST_P(Quantize, FilesRunAsTheyAre) {
    for (const weight_type type : all_types) {
        const auto done = lm::quantize(options(type));
        ASSERT_TRUE(done.ok()) << done.message();
        const auto m = lm::model::load(out_.path(), {});
        ASSERT_TRUE(m.ok()) << m.message();
        EXPECT_EQ(m->stored_type(), name_of(type));
        // The packed matrices and the tables are all that the file holds of them.
        for (const auto& each : m->matrices()) {
            const auto& tensor = **m->file().get_tensor(each.name);
            const auto packed = lm::find_packed(tensor);
            EXPECT_EQ(packed.has_value(), type > weight_type::q4_0) << each.name;
            EXPECT_EQ(lm::shape_of(tensor), (lm::matrix_shape{each.m->n(), each.m->k()})) << each.name;
        }
        // Kernels on the mapped bytes, and the weights that they stand for, give the same model: what lies
        // between is the rounding of activations to 8 bits.
        const double kernels =
            divergence(out_.path(), source_.path(), weight_type::stored, activation_type::int8);
        const double floats =
            divergence(out_.path(), source_.path(), weight_type::stored, activation_type::f32);
        EXPECT_NEAR(std::sqrt(kernels), std::sqrt(floats), 0.05) << name_of(type);
        const auto a = lm::model::load(out_.path(), {weight_type::stored, activation_type::int8});
        const auto b = lm::model::load(out_.path(), {weight_type::f32, activation_type::f32});
        auto s = lm::session::make(*a, lm::team(1), lm::kv_type::f16, 32, 32);
        auto r = lm::session::make(*b, lm::team(1), lm::kv_type::f16, 32, 32);
        const auto e = lm::evaluate(*s, &*r, random_tokens(256, 4), 32, 0, {});
        ASSERT_TRUE(e.ok());
        EXPECT_LT(e->kl, 2e-3) << name_of(type);
    }
}

TEST_P(Quantize, MoreBitsBringTheModelCloser) {
    // Inputs as the model has them: the calibration text and the test are both random bytes.
    const auto tokens = random_tokens(6 * 48, 11);
    bytes text;
    for (const std::int32_t t : tokens)
        text.push_back(static_cast<std::byte>(t));
    const temporary_file calibration(text);
    for (const std::string& calibrate : {std::string(), calibration.path()}) {
        double kl[std::size(all_types)];
        for (std::size_t i = 0; i < std::size(all_types); ++i) {
            const auto done = lm::quantize(options(all_types[i], calibrate));
            ASSERT_TRUE(done.ok()) << done.message();
            kl[i] = divergence(out_.path(), source_.path(), weight_type::stored, activation_type::f32);
        }
        enum { q8_0, q4_0, cb4, cb3, cb2, cb2s, u2 };
        EXPECT_LT(kl[q8_0], kl[cb4]);
        EXPECT_LT(kl[cb4], kl[cb3]);
        EXPECT_LT(kl[cb3], kl[cb2]);
        EXPECT_LT(kl[cb2], kl[u2]);
        EXPECT_LT(kl[cb2s], kl[u2]);
    }
}

TEST_P(Quantize, IsDeterministicAndCanCalibrateOnItsOwnText) {
    for (const char* calibrate : {"", "self"}) {
        auto o = options(weight_type::cb2s, calibrate);
        ASSERT_TRUE(lm::quantize(o).ok());
        const bytes first = content(out_.path());
        o.threads = 1;
        ASSERT_TRUE(lm::quantize(o).ok());
        EXPECT_EQ(first, content(out_.path())) << calibrate;
    }
}

TEST_P(Quantize, WeightsOptionQuantizesWhileLoading) {
    const auto full = lm::model::load(source_.path(), {weight_type::f32, activation_type::f32});
    auto reference = lm::session::make(*full, lm::team(1), lm::kv_type::f16, 32, 32);
    for (const weight_type type : all_types) {
        lm::common_options o;
        o.model = source_.path();
        o.weights = type;
        o.threads = 2;
        auto loaded = lm::load(o, 32, 32);
        ASSERT_TRUE(loaded.ok()) << loaded.message();
        EXPECT_EQ(lm::weights_name(*loaded->weights, type), name_of(type));
        const auto e = lm::evaluate(*loaded->run, &*reference, random_tokens(256, 3), 32, 0, {});
        ASSERT_TRUE(e.ok());
        EXPECT_GT(e->kl, 0) << name_of(type);
        EXPECT_LT(e->kl, 1.5) << name_of(type);
    }
    // A model alone cannot be made of codebooks.
    const auto alone = lm::model::load(source_.path(), {weight_type::cb2s, activation_type::int8});
    ASSERT_FALSE(alone.ok());
    EXPECT_NE(std::string(alone.message()).find("cb2s is made by quantizing a whole model"),
              std::string::npos);
}

/// Squared error of a file's attention and feed-forward weights, as a share of the others' squares.
double weight_error(const lm::gguf& file, const lm::gguf& reference) {
    double error = 0, all = 0;
    for (const lm::gguf_tensor& t : reference.tensors()) {
        if (!lm::find_role(t.name))
            continue;
        const auto a = lm::to_floats(**file.get_tensor(t.name), *lm::matrix_extras::read(file));
        const auto b = lm::to_floats(t, *lm::matrix_extras::read(reference));
        EXPECT_TRUE(a.ok()) << a.message();
        EXPECT_TRUE(b.ok()) << b.message();
        for (std::size_t i = 0; i < b->size(); ++i) {
            error += std::pow(double{(*a)[i]} - double{(*b)[i]}, 2);
            all += std::pow(double{(*b)[i]}, 2);
        }
    }
    return error / all;
}

TEST_P(Quantize, FilesOfCodebooksAreQuantizedAgain) {
    ASSERT_TRUE(lm::quantize(options(weight_type::cb2s)).ok());
    const temporary_file packed(content(out_.path()));
    const auto source = lm::gguf::open(packed.path());
    ASSERT_TRUE(source.ok()) << source.message();
    for (const auto& [type, most] :
         {std::pair{weight_type::cb4, 0.002}, {weight_type::q4_0, 0.02}, {weight_type::cb2s, 0.02}}) {
        auto o = options(type);
        o.model = packed.path();
        const auto done = lm::quantize(o);
        ASSERT_TRUE(done.ok()) << name_of(type) << ": " << done.message();
        const auto file = lm::gguf::open(out_.path());
        ASSERT_TRUE(file.ok()) << file.message();
        for (const weight_type each : all_types)
            EXPECT_EQ(file->find(lm::matrix_extras::codebook_key(name_of(each))) != nullptr,
                      each == type && type != weight_type::q4_0)
                << name_of(each);
        EXPECT_LT(weight_error(*file, *source), most) << name_of(type);
        EXPECT_LT(divergence(out_.path(), packed.path(), weight_type::stored, activation_type::f32), 0.1)
            << name_of(type);

        lm::common_options now;
        now.model = packed.path();
        now.weights = type;
        now.threads = 2;
        const auto loaded = lm::load(now, 32, 32);
        ASSERT_TRUE(loaded.ok()) << name_of(type) << ": " << loaded.message();
        if (type != weight_type::q4_0) {
            EXPECT_LT(weight_error(loaded->weights->file(), *source), most) << name_of(type);
        }
    }
}

/// To a format that rounds by itself, with embedding and output as they are.
lm::quantize_options rounding(const std::string& model, weight_type type, const std::string& out) {
    lm::quantize_options o;
    o.model = model;
    o.weights = type;
    o.vocabulary = weight_type::stored;
    o.threads = 2;
    o.out = out;
    return o;
}

TEST(QuantizeRounded, BlocksAreThoseOfGguf) {
    const tiny_model model({.width = 256, .hidden = 256, .layers = 1, .heads = 4, .kv_heads = 2});
    const temporary_file source(model.file()), out{bytes()};
    std::size_t count = 0;
    for (const lm::ggml_type_info& info : lm::ggml_types) {
        const auto type = lm::format_of(static_cast<ggml_type>(info.number));
        if (!type || lm::is_leveled(*type))
            continue;
        const auto done = lm::quantize(rounding(source.path(), *type, out.path()));
        if (*type == weight_type::nvfp4) {
            EXPECT_STREQ(done.message(), "tensor blk.0.attn_q.weight: nvfp4 is not made of other weights");
            continue;
        }
        ASSERT_TRUE(done.ok()) << done.message();
        ++count;
        const auto m = lm::model::load(out.path(), {});
        ASSERT_TRUE(m.ok()) << m.message();
        EXPECT_EQ(m->stored_type(), name_of(*type));
        for (const auto& each : m->matrices()) {
            const auto& tensor = **m->file().get_tensor(each.name);
            EXPECT_EQ(lm::ggml_type_name(tensor.type), info.name);
            const bytes& floats = model.tensors.at(each.name).data;
            const std::span<const float> values(reinterpret_cast<const float*>(floats.data()),
                                                floats.size() / sizeof(float));
            const bytes expected = encode(values, tensor.dims[0], tensor.type);
            EXPECT_TRUE(std::equal(expected.begin(), expected.end(), tensor.data.begin(), tensor.data.end()))
                << info.name << ", " << each.name;
        }
    }
    EXPECT_EQ(count, 14u);
}

TEST(QuantizeRounded, RowsThatEndWithinABlockArePacked) {
    const temporary_file source(tiny_model({.hidden = 256}).file()), out{bytes()};
    for (const weight_type type : {weight_type::q4_k, weight_type::q5_1, weight_type::tq2_0}) {
        const auto done = lm::quantize(rounding(source.path(), type, out.path()));
        ASSERT_TRUE(done.ok()) << done.message();
        const auto m = lm::model::load(out.path(), {});
        ASSERT_TRUE(m.ok()) << m.message();
        EXPECT_EQ(m->stored_type(), name_of(type));
        const auto is_packed = [&](const char* name) {
            return lm::find_packed(**m->file().get_tensor(name)).has_value();
        };
        EXPECT_TRUE(is_packed("blk.0.attn_q.weight"));
        EXPECT_FALSE(is_packed("blk.0.ffn_down.weight"));
        // The same weights as those that are rounded on the way.
        const auto run = [](const std::string& path, weight_type as) {
            const auto loaded = lm::model::load(path, {as, activation_type::int8});
            EXPECT_TRUE(loaded.ok()) << loaded.message();
            auto s = lm::session::make(*loaded, lm::team(1), lm::kv_type::f16, 32, 32);
            const auto logits = s->feed(random_tokens(20, 1), 20);
            return std::vector<float>(logits->begin(), logits->end());
        };
        EXPECT_EQ(run(out.path(), weight_type::stored), run(source.path(), type));
    }
}

TEST(QuantizeRounded, ScalesOfTensorsAreAppliedAndLeftOut) {
    tiny_model model({.width = 64,
                      .hidden = 64,
                      .layers = 1,
                      .matrices = ggml_type::nvfp4,
                      .embedding = ggml_type::nvfp4});
    for (const char* name : {"blk.0.attn_q.scale", "blk.0.attn_q.input_scale", "token_embd.scale"})
        model.add(name, ggml_type::f32, 1, 1, 0, 3.5f);
    const temporary_file source(model.file()), out{bytes()};
    for (const weight_type type : {weight_type::q5_1, weight_type::q8_0}) {
        const auto done = lm::quantize(rounding(source.path(), type, out.path()));
        ASSERT_TRUE(done.ok()) << done.message();
        const auto m = lm::model::load(out.path(), {});
        ASSERT_TRUE(m.ok()) << m.message();
        EXPECT_EQ(m->file().find_tensor("blk.0.attn_q.scale"), nullptr);
        EXPECT_EQ(m->file().find_tensor("blk.0.attn_q.input_scale"), nullptr);
        EXPECT_NE(m->file().find_tensor("token_embd.scale"), nullptr);
        EXPECT_LT(weight_error(m->file(), *lm::gguf::open(source.path())), 0.01);
    }
}

/// A file's model with its embedding in cb2s as well, which this program reads and never writes.
bytes with_packed_embedding(const lm::gguf& file) {
    lm::gguf_writer writer(3, crumb::alignment);
    for (const lm::gguf_value& value : file.values())
        writer.set(value);
    const auto sets = *lm::matrix_extras::read(file);
    lm::buffer memory;
    for (const lm::gguf_tensor& t : file.tensors()) {
        if (t.name != "token_embd.weight") {
            writer.add_tensor(t.name, t.type, std::span(t.dims).first(t.rank), t.data);
            continue;
        }
        const auto floats = *lm::to_floats(t, {});
        const auto shape = lm::shape_of(t);
        const auto q = crumb::quantize<crumb::cb2s>(
            crumb::matrix<const float>(floats.data(), shape.n, shape.k), sets.codebooks("cb2s"));
        EXPECT_TRUE(q.ok()) << q.message();
        const std::uint64_t size = crumb::packed_bytes<crumb::cb2s>(shape.n, shape.k);
        memory = lm::buffer(size);
        EXPECT_TRUE(crumb::pack(*q, memory.bytes()).ok());
        writer.add_tensor(t.name, lm::ggml_type::i8, {&size, 1}, memory.bytes().first(size));
    }
    const auto out = writer.bytes();
    EXPECT_TRUE(out.ok()) << out.message();
    return *out;
}

TEST_P(Quantize, PackedEmbeddingsKeepTheirCodebooks) {
    ASSERT_TRUE(lm::quantize(options(weight_type::cb2s)).ok());
    const temporary_file packed(with_packed_embedding(*lm::gguf::open(out_.path())));
    const auto source = lm::gguf::open(packed.path());
    ASSERT_TRUE(source.ok()) << source.message();
    const auto embedding = [](const lm::gguf& file) {
        const auto floats =
            lm::to_floats(**file.get_tensor("token_embd.weight"), *lm::matrix_extras::read(file));
        EXPECT_TRUE(floats.ok()) << floats.message();
        return *floats;
    };
    auto o = options(weight_type::cb4);
    o.model = packed.path();
    ASSERT_TRUE(lm::quantize(o).ok()) << lm::quantize(o).message();
    const auto both = lm::model::load(out_.path(), {});
    ASSERT_TRUE(both.ok()) << both.message();
    EXPECT_EQ(both->stored_type(), "cb4");
    EXPECT_EQ(embedding(both->file()), embedding(*source));

    // Two sets of one format have no place in a file.
    o.weights = weight_type::cb2s;
    EXPECT_NE(std::string(lm::quantize(o).message()).find("token_embd.weight stays as it is, in format cb2s"),
              std::string::npos);
    o.vocabulary = weight_type::q8_0;
    ASSERT_TRUE(lm::quantize(o).ok()) << lm::quantize(o).message();
    const auto rounded = lm::model::load(out_.path(), {});
    ASSERT_TRUE(rounded.ok()) << rounded.message();
    EXPECT_EQ(rounded->file().find_tensor("token_embd.weight")->type, lm::ggml_type::q8_0);
}

TEST_P(Quantize, RefusesWhatItCannotDo) {
    auto o = options(weight_type::cb2s, "/nonexistent/text");
    EXPECT_NE(std::string(lm::quantize(o).message()).find("/nonexistent/text"), std::string::npos);
    const temporary_file text(bytes(10));
    o.calibrate = text.path();
    EXPECT_NE(std::string(lm::quantize(o).message())
                  .find(": the calibration text has 10 tokens, a window takes 48"),
              std::string::npos);
    o = options(weight_type::cb2s);
    o.out = "/nonexistent/out.gguf";
    EXPECT_NE(std::string(lm::quantize(o).message()).find("/nonexistent/out.gguf"), std::string::npos);
}

TEST_P(Quantize, ReportsDamagedFiles) {
    ASSERT_TRUE(lm::quantize(options(weight_type::cb3)).ok());
    const bytes good = content(out_.path());
    const auto error = [&](std::string_view find, std::size_t offset, std::byte value) {
        bytes bad = good;
        const std::string_view all(reinterpret_cast<const char*>(bad.data()), bad.size());
        const std::size_t at = all.find(find);
        EXPECT_NE(at, std::string_view::npos) << find;
        bad[at + offset] = value;
        const temporary_file file(bad);
        const auto m = lm::model::load(file.path(), {});
        EXPECT_FALSE(m.ok()) << find;
        return m.ok() ? std::string() : std::string(m.message());
    };
    // The tables: another key, another length.
    EXPECT_NE(error("crumb.codebooks.cb3", 6, std::byte{'x'}).find("key crumb.codebooks.cb3: 0 entries"),
              std::string::npos);
    EXPECT_NE(error("crumb.codebooks.cb3", 19 + 4 + 4, std::byte{15}), "");
    // The header of packed weights: version, format, shape.
    EXPECT_NE(error("CRMB", 4, std::byte{9}).find("layout version 9"), std::string::npos);
    EXPECT_NE(error("CRMB", 8, std::byte{'x'}), "");
    EXPECT_NE(error("CRMB", 24, std::byte{1}).find("shape is"), std::string::npos);
    EXPECT_NE(error("CRMB", 41, std::byte{99}).find("by header"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Architectures, Quantize, testing::Values(architecture::llama, architecture::gpt2),
                         architecture_name);

TEST(Roles, AreReadFromTheNamesOfTensors) {
    const auto role = lm::find_role("blk.17.ffn_down.weight");
    ASSERT_TRUE(role);
    EXPECT_EQ(role->layer, 17u);
    EXPECT_EQ(role->reads, 3u);
    for (const char* name : {"token_embd.weight", "blk.1.attn_norm.weight", "blk.1.ffn_down.bias", "blk.",
                             "blk.x.attn_q.weight", "blk.1.attn_q", ".weight", ""})
        EXPECT_FALSE(lm::find_role(name)) << name;
}

} // namespace
} // namespace test_quantize
