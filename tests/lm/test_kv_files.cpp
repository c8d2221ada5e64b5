// Codebooks of caches in files: calibrated, read back, of another model, damaged.
#include "cli/commands.hpp"
#include "kv_models.hpp"
#include "model/model_identity.hpp"

#include <cmath>
#include <limits>

namespace test_kv_files {
namespace {

using namespace lm::test;
using lm::activation_type;
using lm::architecture;
using lm::weight_type;

struct KvFiles : kv_models {
    /// What reading the codebooks of a file says.
    static std::string read_error(const bytes& file, const kv_codec& codec) {
        const temporary_file on_disk(file);
        const lm::model m = load(on_disk.path());
        const auto books = lm::read_codebooks(m, codec);
        EXPECT_FALSE(books.ok());
        return books.ok() ? std::string() : std::string(books.message());
    }
};

TEST_P(KvFiles, CalibratedFilesHoldTheirCodebooks) {
    const kv_codec codecs[] = {kv_codec::pq(2, 8, true, true), kv_codec::pq(2, 4, false, false)};
    const temporary_file out{bytes()}, both{bytes()};
    lm::calibrate_options o;
    o.model = file_.path();
    o.kv = {codecs[0]};
    o.text = calibration_.path();
    o.chunks = training_chunks;
    o.errors = crumb::code_errors::plain;
    o.threads = 2;
    o.out = out.path();
    ASSERT_TRUE(lm::calibrate(o).ok()) << lm::calibrate(o).message();
    o.model = out.path();
    o.kv = {codecs[1]};
    o.threads = 1;
    o.out = both.path();
    ASSERT_TRUE(lm::calibrate(o).ok()) << lm::calibrate(o).message();

    const auto none = lm::read_codebooks(model_, codecs[0]);
    ASSERT_TRUE(none.ok()) << none.message();
    EXPECT_FALSE(none->has_value());
    const lm::model first = load(out.path()), second = load(both.path());
    EXPECT_FALSE(lm::read_codebooks(first, codecs[1])->has_value());
    for (const kv_codec& codec : codecs) {
        const auto books = lm::read_codebooks(second, codec);
        ASSERT_TRUE(books.ok() && books->has_value()) << books.message();
        EXPECT_EQ((*books)->identity(), train(codec).identity()) << lm::codec_name(codec);
    }
    // The rest of the file is what it was.
    EXPECT_EQ(lm::model_identity(second), lm::model_identity(model_));
    for (const lm::gguf_tensor& t : model_.file().tensors()) {
        const auto* copy = second.file().find_tensor(t.name);
        ASSERT_NE(copy, nullptr) << t.name;
        EXPECT_TRUE(std::equal(t.data.begin(), t.data.end(), copy->data.begin(), copy->data.end())) << t.name;
    }
    // Calibrating again replaces.
    o.model = both.path();
    o.seed = 2;
    o.out = out.path();
    ASSERT_TRUE(lm::calibrate(o).ok()) << lm::calibrate(o).message();
    const lm::model third = load(out.path());
    EXPECT_EQ(third.file().tensors().size(), second.file().tensors().size());
    EXPECT_NE((*lm::read_codebooks(third, codecs[1]))->identity(),
              (*lm::read_codebooks(second, codecs[1]))->identity());

    // Turned ones are read back with their matrices.
    o.errors = crumb::code_errors::turned;
    o.seed = 1;
    o.model = file_.path();
    ASSERT_TRUE(lm::calibrate(o).ok()) << lm::calibrate(o).message();
    {
        const lm::model turned = load(out.path());
        const auto with = lm::read_codebooks(turned, codecs[1]);
        ASSERT_TRUE(with.ok() && with->has_value()) << with.message();
        EXPECT_TRUE((*with)->view()->are_turned());
    }

    // Weighted by queries and output matrices, they have a metric, and other entries.
    o.errors = crumb::code_errors::weighted;
    o.seed = 1;
    o.model = file_.path();
    ASSERT_TRUE(lm::calibrate(o).ok()) << lm::calibrate(o).message();
    const lm::model weighted = load(out.path());
    const auto with = lm::read_codebooks(weighted, codecs[1]);
    ASSERT_TRUE(with.ok() && with->has_value()) << with.message();
    EXPECT_EQ((*with)->metric.size(), (*with)->scales.size() * 2);
    EXPECT_NE((*with)->entries, train(codecs[1]).entries);
    const auto& metric = (*with)->metric;
    EXPECT_NE(*std::min_element(metric.begin(), metric.end()),
              *std::max_element(metric.begin(), metric.end()));

    // Loading takes default ones if it is told to, unless the file has some.
    for (const std::string& path : {both.path(), file_.path()}) {
        lm::common_options common;
        common.model = path;
        common.kv = {codecs[0]};
        common.threads = 1;
        common.default_codebooks = true;
        const auto loaded = lm::load(common, 0, 1);
        ASSERT_TRUE(loaded.ok()) << loaded.message();
        EXPECT_EQ(loaded->codebooks->sets == 1, path == file_.path());
        EXPECT_EQ(loaded->codebooks->identity() == train(codecs[0]).identity(), path == both.path());
    }

    // Loading takes the file's codebooks, or trains some.
    for (const std::string& path : {both.path(), file_.path()}) {
        lm::common_options common;
        common.model = path;
        common.kv = {codecs[1]};
        common.threads = 1;
        const auto loaded = lm::load(common, 0, 1);
        ASSERT_TRUE(loaded.ok()) << loaded.message();
        ASSERT_NE(loaded->codebooks, nullptr);
        EXPECT_EQ(loaded->codebooks->identity() == train(codecs[1]).identity(), path == both.path());
    }
}

TEST_P(KvFiles, CalibrationRefusesWhatItCannotDo) {
    const temporary_file out{bytes()}, empty{bytes()};
    lm::calibrate_options o;
    o.model = file_.path();
    o.kv = parsed("kivi4");
    o.text = calibration_.path();
    o.out = out.path();
    EXPECT_STREQ(lm::calibrate(o).message(), "--kv kivi4:sinks=4:window=32 has no codebooks to calibrate");
    o.kv = parsed("pq4");
    o.text = "/nonexistent/text";
    EXPECT_NE(std::string(lm::calibrate(o).message()).find("/nonexistent/text"), std::string::npos);
    o.text = empty.path();
    EXPECT_NE(std::string(lm::calibrate(o).message())
                  .find(": the calibration text has 0 tokens, a window takes 256"),
              std::string::npos);
    o.text = calibration_.path();
    o.kv.sinks = 240;
    EXPECT_NE(std::string(lm::calibrate(o).message()).find("layer 0 has no whole block of samples"),
              std::string::npos)
        << lm::calibrate(o).message();
    o.kv.sinks = 4;
    o.chunks = 1;
    o.out = "/nonexistent/out.gguf";
    EXPECT_NE(std::string(lm::calibrate(o).message()).find("/nonexistent/out.gguf"), std::string::npos);
}

TEST_P(KvFiles, CodebooksOfAnotherModelAreRefused) {
    const kv_codec codec = kv_codec::pq(2, 8, true, true);
    const temporary_file other_file(tiny_model(shape(2)).file());
    const lm::model other = load(other_file.path());
    EXPECT_NE(lm::model_identity(other), lm::model_identity(model_));
    EXPECT_EQ(read_error(with_codebooks(model_, other, train(codec)), codec),
              "the codebooks of pq4 are of another model");
    // Weights in fewer bits are the same model.
    const auto rounded = lm::model::load(file_.path(), {weight_type::q4_0, activation_type::int8});
    ASSERT_TRUE(rounded.ok()) << rounded.message();
    EXPECT_EQ(lm::model_identity(*rounded), lm::model_identity(model_));
}

TEST_P(KvFiles, DamagedCodebooksAreRefused) {
    const kv_codec codec = kv_codec::pq(2, 8, true, true);
    const auto books = train(codec);
    const bytes good = with_codebooks(model_, model_, books);
    const auto changed = [&](const char* key, std::byte value) {
        bytes bad = good;
        const std::string name = std::string("crumb.kv.pq4.") + key;
        const std::string_view all(reinterpret_cast<const char*>(bad.data()), bad.size());
        const std::size_t at = all.find(name);
        EXPECT_NE(at, std::string_view::npos) << key;
        bad[at + name.size() + 4] = value; // behind the key stands its type
        return read_error(bad, codec);
    };
    EXPECT_EQ(changed("version", std::byte{2}), "key crumb.kv.pq4.version is 2, this program reads 1");
    EXPECT_EQ(changed("model", good[0] ^ std::byte{0xff}), "the codebooks of pq4 are of another model");
    for (const char* key : {"head_size", "layer_step", "sets"})
        EXPECT_NE(changed(key, std::byte{200}), "") << key;
    if (model_.shape().kv_heads > 1) {
        EXPECT_NE(changed("head_step", std::byte{200}), "");
    }
    EXPECT_NE(changed("sets", std::byte{0}), "");

    const auto damaged = [&](const auto& damage) {
        auto bad = books;
        damage(bad);
        return read_error(with_codebooks(model_, model_, bad), codec);
    };
    const auto is_of = [&](const char* tensor, std::size_t numbers) {
        return std::string("tensor crumb.kv.pq4.") + tensor + " is not of " + std::to_string(numbers) +
               " numbers";
    };
    EXPECT_EQ(damaged([](auto& b) { b.entries.pop_back(); }), is_of("entries", books.entries.size()));
    EXPECT_EQ(damaged([](auto& b) { b.scales.resize(b.scales.size() / 2); }),
              is_of("scales", books.scales.size()));
    EXPECT_EQ(damaged([](auto& b) { b.metric.resize(3); }), is_of("metric", 2 * books.scales.size()));
    EXPECT_EQ(damaged([](auto& b) { b.entries.clear(); }), "the codebooks of pq4 are incomplete");
    EXPECT_EQ(damaged([](auto& b) { b.scales.clear(); }), "the codebooks of pq4 are incomplete");
    for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf(""), -1.0f})
        EXPECT_NE(damaged([&](auto& b) { b.scales.back() = bad; }).find("tensors crumb.kv.pq4.*: codebooks"),
                  std::string::npos)
            << bad;
    EXPECT_NE(damaged([&](auto& b) {
                  b.metric.assign(2 * b.scales.size(), 1.0f);
                  b.metric[5] = std::nanf("");
              }).find("tensors crumb.kv.pq4.*: codebooks, metric"),
              std::string::npos);
    // Two entries whose sum is no signed byte.
    EXPECT_NE(damaged([](auto& b) { b.entries[3] = b.entries[16] = 100; }).find("the max is 127"),
              std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Architectures, KvFiles, testing::Values(architecture::llama, architecture::gpt2),
                         architecture_name);

} // namespace
} // namespace test_kv_files
