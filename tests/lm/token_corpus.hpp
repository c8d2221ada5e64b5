// Small vocabularies of every kind, and texts that tell their rules apart: what tests/data/tokens.txt is made
// of.
#pragma once

#include "gguf/gguf_writer.hpp"
#include "vocabularies.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lm::test {

/// Code, numbers, scripts, emoji, broken UTF-8, whitespace, names of special tokens.
inline std::vector<std::string> corpus() {
    using namespace std::string_literals;
    std::vector<std::string> out = {
        "",
        " ",
        "  ",
        "\n",
        "\n\n",
        "\t",
        "a",
        " a",
        "Hello world",
        "Hello  World",
        "  Hello",
        "Hello, y'all! How are you 😁 ?我想在apple工作1314151天～",
        "It's we'll THEY'VE I'M he'd you're 'sup 'S",
        "3 33 333 3333 33333 333333 3.14159 1,234,567.89 0x1F ½ Ⅷ ٣٤٥ ３４",
        "нещо на Български",
        "កាន់តែពិសេសអាចខលចេញ",
        "🚀 (normal) 😶‍🌫️ (multiple emojis concatenated) ✅ 🇩🇪🇫🇷 "
        "👨‍👩‍👧‍👦 "
        "👍🏽",
        "日本語のテキスト、カタカナとひらがな。漢字",
        "한국어 문장입니다.",
        "العربية مع أرقام ١٢٣ وعلامات",
        "עברית नमस्ते दुनिया ไทย",
        "ÀÉÎõü ŽŠ ſtraße ΑΒΓ αβγ ЖуК Ǆǅǆ naïve café",
        "def f(x):\n    if x > 1:\n\t\treturn [i**2 for i in range(x)]\n\n\n# comment\n",
        "for (int i = 0; i < n; ++i) { a[i] += b[i]*c; } // end\r\n\r\n",
        "<html><body class=\"x\">&nbsp;</body></html>",
        "{\"key\": [1, 2.5e-10, null, true], \"s\": \"a\\nb\"}",
        "SELECT * FROM t WHERE a='b' AND c<>3;",
        "https://example.com/path?query=1&b=%20#frag me@x.org",
        "a\u00a0b\u2003c\u3000d\u0085e\u180ef\u200bg",
        "x \n y\n \n  z\n\n\n",
        "   \n   \n",
        "trailing   ",
        "\r\n\r\n\r\n",
        "\v\f x",
        "tab\tsep\t\tvals",
        "e\u0301 a\u0308o\u0302",
        "\ufeffbom",
        "\0nul\x01\x02\x7f"s,
        "!!!???...,,,;;;:::---___***",
        "$100 €50 £20 ¥10 + - = < > ^ ~ ` |",
        "'ll'll're don't DON'T Don’t",
        "camelCaseWordsAndHTTPServer XMLParser AAAAbbbbCCCC",
        "123abc456DEF a1b2c3",
        "\"quotes\" “curly” ‘single’ «guillemets»",
        "math ∑∏∫√∞≠≤ ↔ → 𝒜𝓑 𝟗𝟘 𠀀𠀁",
        "▁▁x ▁",
        "<0x41><unk>",
        "\xff",
        "\xfe\xff a",
        "a\x80"s + "b",
        "\xc3",
        "\xc3(",
        "\xe4\xb8",
        "ab\xe4\xb8 cd",
        "\xf0\x9f\x98",
        "\xc0\x80",
        "\xe0\x80\x80",
        "\xed\xa0\x80x",
        "\xed\xa0\xbd\xed\xb8\x80",
        "\xf0\x80\x80\x80",
        "hello \xffworld\xfe",
        "\xe2\x96"s + "ab \xe2 \x81",
        "\xf0\x9f"s + "ab",
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
        "a<|im_start|><|im_end|>  <|im_end|>  \n b",
        "<|im_start",
        "x<tool>y <tool> z\n<tool>\n",
        "<too<tool>l>",
        "<tool_call><tool>call>",
        "<|im_start|><tool_call>\n\n<|im_end|>"};
    for (const std::size_t n : {3, 7, 63, 200})
        for (const std::string& part : {" "s, "\n"s, "\t"s, " \n"s, "a"s, "-"s, "9"s, "A"s, "é"s, "中"s}) {
            out.emplace_back("x");
            for (std::size_t i = 0; i < n; ++i)
                out.back() += part;
            out.push_back(out.back() + "y");
        }
    const std::string parts[] = {
        "the", " of",  "ing", " ",  "  ", "\n",     "é",      "中文",   "1",          "23",   "'s",  "!",
        " ?",  "A",    "Z",   "\t", "😀", "ж",      " Ж",     "ß",      "م",          "한",   "_",   "(",
        ")",   "\r\n", "//",  "ſ",  "½",  "\u0301", "\u3000", "<tool>", "<|im_end|>", "\xe4", "\x80"};
    std::mt19937 random(7);
    for (std::size_t i = 0; i < 120; ++i) {
        out.emplace_back();
        for (std::size_t j = 1 + random() % 30; j > 0; --j)
            out.back() += parts[random() % std::size(parts)];
    }
    return out;
}

/// Merges of bytes that are frequent neighbours in the corpus, across words and lines, as GPT-2's characters:
/// where text is cut differently, other merges happen.
inline std::vector<std::pair<std::string, std::string>> trained_merges(std::size_t count) {
    const std::vector<std::string> names = byte_tokens();
    std::vector<std::vector<std::string>> texts;
    for (const std::string& text : corpus()) {
        texts.emplace_back();
        for (std::size_t i = 0; i < std::min<std::size_t>(text.size(), 80); ++i)
            texts.back().push_back(names[static_cast<unsigned char>(text[i])]);
    }
    std::vector<std::pair<std::string, std::string>> out;
    while (out.size() < count) {
        std::map<std::pair<std::string, std::string>, std::size_t> pairs;
        for (const auto& text : texts)
            for (std::size_t i = 0; i + 1 < text.size(); ++i)
                ++pairs[{text[i], text[i + 1]}];
        const auto best = std::max_element(pairs.begin(), pairs.end(),
                                           [](const auto& a, const auto& b) { return a.second < b.second; });
        const std::pair<std::string, std::string> merge = best->first;
        for (auto& text : texts)
            for (std::size_t i = 0; i + 1 < text.size(); ++i)
                if (text[i] == merge.first && text[i + 1] == merge.second) {
                    text[i] += text[i + 1];
                    text.erase(text.begin() + static_cast<std::ptrdiff_t>(i) + 1);
                }
        out.push_back(merge);
    }
    return out;
}

/// A vocabulary's file, by the name of what is particular to it.
struct named_vocabulary {
    std::string name;
    gguf_writer file;
};

namespace corpus_detail {

constexpr std::int32_t normal = 1, control = 3, user_defined = 4;

/// Tokens in the order that they are added, each text once.
struct token_list {
    std::vector<std::string> texts;
    std::vector<std::int32_t> types;
    void add(const std::string& text, std::int32_t type) {
        if (std::find(texts.begin(), texts.end(), text) != texts.end())
            return;
        texts.push_back(text);
        types.push_back(type);
    }
};

inline void add_special(token_list& to) {
    for (const char* text : {"<|im_start|>", "<|im_end|>", "<|endoftext|>"})
        to.add(text, control);
    for (const char* text : {"<tool>", "<tool_call>", "\n\n\n", "  \t"})
        to.add(text, user_defined);
}

inline std::uint32_t number_of(const token_list& tokens, std::string_view text) {
    return static_cast<std::uint32_t>(std::find(tokens.texts.begin(), tokens.texts.end(), text) -
                                      tokens.texts.begin());
}

inline gguf_writer bpe(std::string_view pre, std::span<const std::pair<std::string, std::string>> merges) {
    token_list tokens;
    for (const std::string& byte : byte_tokens())
        tokens.add(byte, normal);
    std::vector<std::string> lines;
    for (const auto& [left, right] : merges) {
        tokens.add(left + right, normal);
        lines.push_back(left + " " + right);
    }
    // What no merge makes, so that only those find it who look for words.
    for (const char* text : {"Hello", "ĠWorld", "333", "Ċ", "ĠĠĠĠĠĠ", "camelCase"})
        tokens.add(text, normal);
    add_special(tokens);
    gguf_writer file;
    file.set("general.architecture", "llama");
    file.set("tokenizer.ggml.model", "gpt2");
    file.set("tokenizer.ggml.pre", pre);
    file.set_strings("tokenizer.ggml.tokens", tokens.texts);
    file.set_array("tokenizer.ggml.token_type", std::span<const std::int32_t>(tokens.types));
    file.set_strings("tokenizer.ggml.merges", lines);
    file.set("tokenizer.ggml.bos_token_id", number_of(tokens, "<|im_start|>"));
    file.set("tokenizer.ggml.eos_token_id", number_of(tokens, "<|im_end|>"));
    return file;
}

inline gguf_writer spm(std::span<const std::pair<std::string, std::string>> merges) {
    token_list tokens;
    tokens.add("<unk>", 2);
    tokens.add("<s>", control);
    tokens.add("</s>", control);
    for (unsigned b = 0; b < 256; ++b) {
        char name[8];
        std::snprintf(name, sizeof name, "<0x%02X>", b);
        tokens.add(name, 6);
    }
    std::vector<float> scores(tokens.texts.size(), 0.0f);
    // Characters, then what the merges make as far as those are whole characters, with marks for spaces.
    for (const char* text :
         {"▁", "a", "e", "o", "t", "h", "i", "n", "é", "中", "\n", "H", "l", "A", "9", "-", "<"})
        tokens.add(text, normal);
    for (const auto& [left, right] : merges) {
        std::string text;
        for (const char c : gpt2_bytes(left + right))
            text += c == ' ' ? std::string("▁") : std::string(1, c);
        // llama.cpp makes control tokens of their names where pieces lead there, whoever has typed them.
        if (text.find('|') == text.npos)
            tokens.add(text, normal);
    }
    while (scores.size() < tokens.texts.size())
        scores.push_back(-static_cast<float>(scores.size() % 97));
    add_special(tokens);
    scores.resize(tokens.texts.size(), 0.0f);
    gguf_writer file;
    file.set("general.architecture", "llama");
    file.set("tokenizer.ggml.model", "llama");
    file.set_strings("tokenizer.ggml.tokens", tokens.texts);
    file.set_array("tokenizer.ggml.token_type", std::span<const std::int32_t>(tokens.types));
    file.set_array("tokenizer.ggml.scores", std::span<const float>(scores));
    file.set("tokenizer.ggml.bos_token_id", std::uint32_t{1});
    file.set("tokenizer.ggml.eos_token_id", std::uint32_t{2});
    file.set("tokenizer.ggml.unknown_token_id", std::uint32_t{0});
    return file;
}

} // namespace corpus_detail

/// One of each pre-tokenizer, and of SentencePiece with and without what models do to it.
inline std::vector<named_vocabulary> corpus_vocabularies() {
    const auto merges = trained_merges(500);
    std::vector<named_vocabulary> out;
    for (const char* pre :
         {"gpt-2",       "default",  "llama-bpe", "dbrx",       "qwen2",        "qwen35",
          "smollm",      "tekken",   "gpt-4o",    "falcon",     "deepseek-llm", "deepseek-coder",
          "deepseek-v3", "bloom",    "viking",    "seed-coder", "exaone-moe",   "minicpm5",
          "youtu",       "ufakzeka", "laguna",    "spark2_5"})
        out.push_back({pre, corpus_detail::bpe(pre, merges)});
    out.push_back({"spm", corpus_detail::spm(merges)});
    out.push_back({"spm-no-prefix", corpus_detail::spm(merges)});
    out.back().file.set("tokenizer.ggml.add_space_prefix", false);
    out.push_back({"spm-phi3", corpus_detail::spm(merges)});
    out.back().file.set("general.name", "Phi-3 mini");
    return out;
}

/// FNV-1a of tokens: their number, then each, all as 32 bits.
inline std::uint32_t hash_of(std::span<const std::int32_t> tokens, std::uint32_t hash = 0x811C9DC5u) {
    const auto add = [&hash](std::uint32_t value) {
        for (int i = 0; i < 4; ++i)
            hash = (hash ^ (value >> 8 * i & 0xFF)) * 0x01000193u;
    };
    add(static_cast<std::uint32_t>(tokens.size()));
    for (const std::int32_t token : tokens)
        add(static_cast<std::uint32_t>(token));
    return hash;
}

} // namespace lm::test
