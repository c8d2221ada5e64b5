// A small model of each architecture whose sessions have coded caches.
#pragma once

#include "eval/evaluate.hpp"
#include "fed.hpp"
#include "gguf/gguf_writer.hpp"
#include "model/kv_file.hpp"
#include "tiny_model.hpp"
#include "train/kv_training.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace lm::test {

using crumb::kv_codec;

inline kv_type parsed(const std::string& text) {
    const auto kv = kv_type::parse(text);
    EXPECT_TRUE(kv.ok()) << kv.message();
    return kv ? *kv : kv_type();
}

class kv_models : public testing::TestWithParam<architecture> {
  protected:
    static constexpr std::size_t context = 256, training_chunks = 6;

    tiny_shape shape(std::uint64_t seed = 1) const {
        return {.arch = GetParam(),
                .width = 64,
                .hidden = 96,
                .heads = 2,
                .kv_heads = GetParam() == architecture::llama ? 1u : 2u,
                .context = context,
                .seed = seed};
    }
    static lm::model load(const std::string& path) {
        auto m = lm::model::load(path, {weight_type::f32, activation_type::f32});
        EXPECT_TRUE(m.ok()) << m.message();
        return std::move(*m);
    }
    /// For the least energy of errors: what they do to random weights.
    lm::kv_training training() const {
        return {.text = calibration_.path(),
                .chunks = training_chunks,
                .errors = crumb::code_errors::plain,
                .threads = 2};
    }
    /// Codebooks of `codec`, trained once for all tests; empty ones if it needs none.
    crumb::kv_codebooks train(const kv_codec& codec) const {
        if (!codec.has_codebooks())
            return {};
        static std::map<std::pair<architecture, std::string>, crumb::kv_codebooks> trained;
        auto& books = trained[{GetParam(), lm::codec_name(codec)}];
        if (books.sets == 0) {
            auto made = lm::train_codebooks(model_, codec, training(), {});
            EXPECT_TRUE(made.ok()) << made.message();
            books = std::move(*made);
        }
        return books;
    }
    lm::session start(const kv_type& kv, std::size_t batch, const crumb::kv_codebooks& books) const {
        auto s = lm::session::make(model_, lm::team(1), kv, context, batch, *books.view());
        EXPECT_TRUE(s.ok()) << s.message();
        return std::move(*s);
    }
    /// Mean KL divergence from a session with another cache, nats. Token by token, so that all but the newest
    /// tokens are codes.
    double divergence(const kv_type& kv, const crumb::kv_codebooks& books, lm::session& reference) const {
        lm::session s = start(kv, 1, books);
        const auto e = lm::evaluate(s, &reference, random_tokens(2 * context, 7), context, 0, {});
        EXPECT_TRUE(e.ok()) << e.message();
        return e->kl;
    }
    /// All logits of a text that is fed piece by piece; the last size repeats.
    static std::vector<float> run(lm::session& s, std::span<const std::int32_t> text,
                                  std::vector<std::size_t> pieces) {
        std::vector<float> out;
        for (std::size_t at = 0, i = 0; at < text.size(); ++i) {
            const std::size_t size = std::min(pieces[std::min(i, pieces.size() - 1)], text.size() - at);
            const auto logits = fed(s, text.subspan(at, size), size);
            out.insert(out.end(), logits.begin(), logits.end());
            at += size;
        }
        return out;
    }

    /// Random bytes, as the test's text has them.
    static bytes random_text(std::size_t size, std::uint64_t seed) {
        bytes out;
        for (const std::int32_t t : random_tokens(size, seed))
            out.push_back(static_cast<std::byte>(t));
        return out;
    }
    /// The model's file with codebooks that are said to be of `of`.
    static bytes with_codebooks(const lm::model& m, const lm::model& of, const crumb::kv_codebooks& books) {
        lm::gguf_writer writer(3, crumb::alignment);
        for (const lm::gguf_value& value : m.file().values())
            writer.set(value);
        for (const lm::gguf_tensor& t : m.file().tensors())
            writer.add_tensor(t.name, t.type, std::span(t.dims).first(t.rank), t.data);
        lm::write_codebooks(writer, of, books);
        const auto out = writer.bytes();
        EXPECT_TRUE(out.ok()) << out.message();
        return *out;
    }

    const temporary_file file_{tiny_model(shape()).file()};
    const temporary_file calibration_{random_text(training_chunks * context, 11)};
    const lm::model model_ = load(file_.path());
};

} // namespace lm::test
