// libFuzzer target: a vocabulary from any file is refused, or encodes any text to tokens that it has.
#include "parsed_file.hpp"
#include "text/tokenizer.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace lm::fuzz {
namespace {

using tokens = std::vector<std::int32_t>;

tokens encoded(const tokenizer& t, std::string_view text, bool special, bool prompt) {
    const text_range quoted[] = {{text.size() / 3, text.size() / 2}};
    return prompt ? t.encode_prompt(text, special, quoted) : t.encode(text, special);
}

void encode_and_decode(const tokenizer& t, std::string_view text) {
    for (const int way : {0, 1, 2, 3}) {
        const bool special = way % 2 != 0, prompt = way >= 2;
        const tokens all = encoded(t, text, special, prompt);
        // A byte is three at most: U+FFFD, or the mark of a space, which may come before any part of the
        // text. BOS and EOS are before and behind.
        check(all.size() <= 6 * text.size() + (special ? 2 : 0), "more tokens than bytes");
        std::string whole;
        for (const std::int32_t token : all) {
            check(token >= 0 && static_cast<std::size_t>(token) < t.vocab_size(),
                  "a token that is not in the vocabulary");
            whole += t.decode(token);
            consume(t.ends_text(token) ? 1 : 0);
        }
        check(whole == t.decode(all), "tokens together are not what they are alone");
        check(all == encoded(t, text, special, prompt), "the same text has other tokens");
        if (!prompt) {
            const tokens some = t.encode_first(text, special, all.size() / 2);
            check(std::equal(some.begin(), some.end(), all.begin()), "the first tokens are others");
        }
        // What is decoded is text again.
        if (!special && whole.size() <= 4096)
            consume(t.encode(whole, false).size());
    }
}

/// The end of the input is a text as well: what the file does not read, or names and numbers of its own.
void check_vocabulary(const gguf& file, std::span<const std::byte> input) {
    const auto t = tokenizer::make(file);
    if (!t)
        return check_refusal(t.error());
    check(t->vocab_size() > 0, "an empty vocabulary");
    for (const auto& id : {t->bos(), t->eos()})
        check(!id || (*id >= 0 && static_cast<std::size_t>(*id) < t->vocab_size()),
              "BOS or EOS is not in the vocabulary");
    for (const std::int32_t token : {-1, -0x7fffffff - 1, 0x7fffffff})
        check(t->decode(token).empty(), "a token outside the vocabulary has bytes");
    const std::size_t size = std::min<std::size_t>(input.size(), 200);
    const exact_copy end(input.last(size));
    const std::string_view text(reinterpret_cast<const char*>(end.bytes().data()), size);
    for (const std::string_view each :
         {text, std::string_view("Hello  world's 123 \n\xE2\x96\x81!"), std::string_view(),
          std::string_view(" "), std::string_view("\xC3\xA9\xFF\x80 aaaaabbbb<s>")})
        encode_and_decode(*t, each);
    for (std::size_t token = 0; token < t->vocab_size() && token < 64; ++token)
        encode_and_decode(*t, t->decode(static_cast<std::int32_t>(token)).substr(0, 256));
}

} // namespace

void run(std::span<const std::byte> input) {
    with_file(input, [&](const gguf& file) { check_vocabulary(file, input); });
}

} // namespace lm::fuzz
