// libFuzzer target: a vocabulary from any file is refused, or encodes any text to tokens that it has.
#include "parsed_file.hpp"
#include "text/tokenizer.hpp"

#include <string>

namespace lm::fuzz {
namespace {

void encode_and_decode(const tokenizer& t, std::string_view text) {
    for (const bool special : {false, true}) {
        const auto tokens = t.encode(text, special);
        // A byte is a token at most; before and behind them are BOS, a space and EOS.
        check(tokens.size() <= text.size() + (special ? 3 : 1), "more tokens than bytes");
        std::string whole;
        for (const std::int32_t token : tokens) {
            check(token >= 0 && static_cast<std::size_t>(token) < t.vocab_size(),
                  "a token that is not in the vocabulary");
            whole += t.decode(token);
        }
        check(whole == t.decode(tokens), "tokens together are not what they are alone");
        check(tokens == t.encode(text, special), "the same text has other tokens");
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
