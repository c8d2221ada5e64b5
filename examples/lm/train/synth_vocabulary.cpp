#include "train/synth_vocabulary.hpp"

#include "text/unicode.hpp"

#include <cstdio>
#include <string>
#include <vector>

namespace lm {

namespace {

/// Words by length: a to z and, in front only, a mark for a space; each is a shorter word and a letter.
struct word {
    std::string text, merge;
};
std::vector<word> words(std::string_view space, std::size_t count) {
    std::vector<word> out;
    std::vector<std::string> shorter = {std::string(space)};
    for (char c = 'a'; c <= 'z'; ++c)
        shorter.emplace_back(1, c);
    while (out.size() < count) {
        std::vector<std::string> longer;
        for (const std::string& w : shorter) {
            for (char c = 'a'; c <= 'z' && out.size() < count; ++c) {
                longer.push_back(w + c);
                out.push_back({w + c, w + ' ' + c});
            }
        }
        shorter = std::move(longer);
    }
    return out;
}

} // namespace

void put_spm(gguf_writer& file, const std::vector<std::pair<std::string, float>>& pieces) {
    std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
    std::vector<std::int32_t> types = {2, 3, 3};
    for (unsigned b = 0; b < 256; ++b) {
        char name[8];
        std::snprintf(name, sizeof name, "<0x%02X>", b);
        tokens.emplace_back(name);
        types.push_back(6);
    }
    std::vector<float> scores(tokens.size());
    for (const auto& [text, score] : pieces) {
        tokens.push_back(text);
        types.push_back(1);
        scores.push_back(score);
    }
    file.set("tokenizer.ggml.model", "llama");
    file.set_strings("tokenizer.ggml.tokens", tokens);
    file.set_array("tokenizer.ggml.scores", std::span<const float>(scores));
    file.set_array("tokenizer.ggml.token_type", std::span<const std::int32_t>(types));
    file.set("tokenizer.ggml.bos_token_id", std::uint32_t{1});
    file.set("tokenizer.ggml.eos_token_id", std::uint32_t{2});
    file.set("tokenizer.ggml.unknown_token_id", std::uint32_t{0});
}

void put_spm_words(gguf_writer& file, std::size_t size) {
    constexpr std::string_view space = "\xE2\x96\x81";
    std::vector<std::pair<std::string, float>> pieces;
    const auto add = [&](std::string text) {
        pieces.emplace_back(std::move(text), -static_cast<float>(pieces.size()));
    };
    add(std::string(space));
    for (char c = '!'; c <= '~'; ++c)
        add(std::string(1, c));
    for (word& w : words(space, size - first_spm_piece - pieces.size()))
        add(std::move(w.text));
    put_spm(file, pieces);
}

void put_bpe_words(gguf_writer& file, std::size_t size) {
    std::string space;
    append_utf8(space, gpt2_characters[' ']);
    std::vector<std::string> tokens(256), merges;
    for (std::size_t b = 0; b < 256; ++b)
        append_utf8(tokens[b], gpt2_characters[b]);
    for (word& w : words(space, size - 257)) {
        tokens.push_back(std::move(w.text));
        merges.push_back(std::move(w.merge));
    }
    tokens.emplace_back("<|endoftext|>");
    std::vector<std::int32_t> types(tokens.size(), 1);
    types.back() = 3;
    file.set("tokenizer.ggml.model", "gpt2");
    file.set("tokenizer.ggml.pre", "gpt-2");
    file.set_strings("tokenizer.ggml.tokens", tokens);
    file.set_array("tokenizer.ggml.token_type", std::span<const std::int32_t>(types));
    file.set_strings("tokenizer.ggml.merges", merges);
    file.set("tokenizer.ggml.bos_token_id", static_cast<std::uint32_t>(size - 1));
    file.set("tokenizer.ggml.eos_token_id", static_cast<std::uint32_t>(size - 1));
}

} // namespace lm
