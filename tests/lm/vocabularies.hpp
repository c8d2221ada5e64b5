// Small vocabularies for the tests of the tokenizer and the fuzzer's seeds.
#pragma once

#include "gguf/gguf_writer.hpp"
#include "text/unicode.hpp"
#include "train/synth_vocabulary.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lm::test {

/// GPT-2's characters of all bytes, in the bytes' order.
inline std::vector<std::string> byte_tokens() {
    std::vector<std::string> tokens(256);
    for (std::size_t b = 0; b < 256; ++b)
        append_utf8(tokens[b], gpt2_characters[b]);
    return tokens;
}

/// Writes a BPE vocabulary: token b is byte b, token 256 + i the result of merge i.
inline void put_bpe(gguf_writer& file, const std::vector<std::string>& merges) {
    std::vector<std::string> tokens = byte_tokens();
    for (const std::string& merge : merges) {
        const std::size_t space = merge.find(' ');
        tokens.push_back(merge.substr(0, space) + merge.substr(space + 1));
    }
    file.set("tokenizer.ggml.model", "gpt2");
    file.set("tokenizer.ggml.pre", "gpt-2");
    file.set_strings("tokenizer.ggml.tokens", tokens);
    file.set_strings("tokenizer.ggml.merges", merges);
}

using lm::put_spm;

/// One key of every kind, one array of every kind.
inline void put_every_kind(gguf_writer& file) {
    const auto both = [&](const char* name, auto value) {
        const decltype(value) values[] = {value, decltype(value){}, value};
        file.set(std::string("one.") + name, value);
        file.set_array(std::string("many.") + name, std::span<const decltype(value)>(values));
    };
    both("u8", std::uint8_t{200});
    both("i8", std::int8_t{-100});
    both("u16", std::uint16_t{60000});
    both("i16", std::int16_t{-30000});
    both("u32", std::uint32_t{4000000000});
    both("i32", std::int32_t{-2000000000});
    both("u64", ~std::uint64_t{0});
    both("i64", std::int64_t{-9000000000000000000});
    both("f32", 1.5f);
    both("f64", -2.25);
    both("bool", true);
    file.set("one.string", "text");
    const std::string strings[] = {"first", "", "third one"};
    file.set_strings("many.string", strings);
}

} // namespace lm::test
