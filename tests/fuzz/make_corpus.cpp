// Writes the seeds of fuzz_gguf into a directory: valid files of both versions with every kind of value, all
// tensor types and both kinds of vocabulary, and damaged copies of them.
#include "gguf_writer.hpp"
#include "vocabularies.hpp"

#include <crumb/format/neuron_rows.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

namespace {

using bytes = std::vector<std::byte>;

class corpus {
  public:
    explicit corpus(std::filesystem::path directory) : directory_(std::move(directory)) {}

    void add(const std::string& name, const bytes& content) {
        std::ofstream file(directory_ / name, std::ios::binary);
        file.write(reinterpret_cast<const char*>(content.data()),
                   static_cast<std::streamsize>(content.size()));
        good_ = good_ && file.flush().good();
    }
    void add(const std::string& name, const lm::gguf_writer& writer) {
        const auto content = writer.bytes();
        good_ = good_ && content.ok();
        if (content)
            add(name, *content);
    }
    [[nodiscard]] bool good() const noexcept { return good_; }

  private:
    std::filesystem::path directory_;
    bool good_ = true;
};

/// A tensor of every type of the table.
void put_tensors(lm::gguf_writer& file, const bytes& data) {
    for (const lm::ggml_type_info& info : lm::ggml_types) {
        const std::uint64_t dims[] = {info.block, 2, 1};
        const std::size_t size = std::size_t{info.block_bytes} * 2;
        file.add_tensor(std::string("weight.") + info.name, static_cast<lm::ggml_type>(info.number), dims,
                        std::span(data).first(size));
    }
}

/// Copies with one field overwritten, at every 8th position, and cut at every 16th.
void add_damaged(corpus& out, const std::string& name, const bytes& whole) {
    const std::byte extremes[] = {std::byte{0x00}, std::byte{0x7F}, std::byte{0xFF}};
    for (std::size_t at = 0; at + 8 <= whole.size() && at < 256; at += 8) {
        bytes damaged = whole;
        for (std::size_t i = 0; i < 8; ++i)
            damaged[at + i] = extremes[at / 8 % 3];
        out.add(name + "-damaged-" + std::to_string(at), damaged);
    }
    for (std::size_t size = 0; size < whole.size() && size < 256; size += 16)
        out.add(name + "-cut-" + std::to_string(size),
                bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)));
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: make_corpus DIRECTORY\n");
        return 2;
    }
    std::error_code error;
    std::filesystem::create_directories(argv[1], error);
    corpus out(argv[1]);
    const bytes data(1024, std::byte{0x3C});

    for (std::uint32_t version : {2u, 3u}) {
        const std::string suffix = "-v" + std::to_string(version);
        lm::gguf_writer empty(version);
        out.add("empty" + suffix, empty);

        lm::gguf_writer kinds(version, 64);
        lm::test::put_every_kind(kinds);
        out.add("kinds" + suffix, kinds);

        lm::gguf_writer tensors(version);
        put_tensors(tensors, data);
        out.add("tensors" + suffix, tensors);

        lm::gguf_writer bpe(version);
        lm::test::put_bpe(bpe, {"l o", "h e", "he l", "hel lo", "\xC4\xA0 w", "a a", "aa aa"});
        bpe.set("tokenizer.ggml.eos_token_id", std::uint32_t{0});
        out.add("bpe" + suffix, bpe);

        lm::gguf_writer spm(version);
        lm::test::put_spm(spm, {{"\xE2\x96\x81", -1},
                                {"a", -2},
                                {"aa", -3},
                                {"\xE2\x96\x81"
                                 "a",
                                 -4},
                                {"\xC3\xA9", -5}});
        out.add("spm" + suffix, spm);

        // Vocabularies with an unknown token need no byte tokens, so these seeds are short.
        const std::string tokens[] = {"<unk>", "a", "b", "aa", "aab", "\xE2\x96\x81"};
        const std::string merges[] = {"a a", "aa b"};
        const float scores[] = {0, -1, -2, -3, -4, -5};
        lm::gguf_writer tiny(version);
        tiny.set("tokenizer.ggml.model", "llama");
        tiny.set_strings("tokenizer.ggml.tokens", tokens);
        tiny.set_array("tokenizer.ggml.scores", std::span<const float>(scores));
        out.add("tiny-spm" + suffix, tiny);
        tiny.set("tokenizer.ggml.model", "gpt2");
        tiny.set("tokenizer.ggml.unknown_token_id", std::uint8_t{0});
        tiny.set_strings("tokenizer.ggml.merges", merges);
        out.add("tiny-bpe" + suffix, tiny);

        lm::gguf_writer small(version, 8);
        const std::uint64_t dims[] = {32, 1, 2, 1};
        small.set("general.name", "small");
        small.set("n", std::uint32_t{7});
        small.add_tensor("a", lm::ggml_type::q8_0, dims, std::span(data).first(68));
        small.add_tensor("b", lm::ggml_type::f16, std::span(dims).first(1), std::span(data).first(64));
        out.add("small" + suffix, small);
        if (const auto whole = small.bytes())
            add_damaged(out, "small" + suffix, *whole);
    }
    for (const auto& [in, rest] : {std::pair{crumb::row_codec::u2, true}, {crumb::row_codec::f16, false}}) {
        const crumb::neuron_shape shape{3, 33, 5, in, crumb::row_codec::q4_0, rest};
        const auto layout = crumb::neuron_layout::of(shape);
        alignas(crumb::alignment) std::byte room[4096];
        if (layout && crumb::neuron_writer::create(room, shape))
            out.add(rest ? "neurons-rest" : "neurons", bytes(room, room + layout->bytes));
    }
    if (!out.good()) {
        std::fprintf(stderr, "%s: cannot write the corpus\n", argv[1]);
        return 1;
    }
    return 0;
}
