// Byte-level BPE and SentencePiece: known examples, arbitrary bytes, and vocabularies that are refused.
#include "gguf/gguf.hpp"
#include "gguf/gguf_writer.hpp"
#include "text/pre_tokenizer.hpp"
#include "text/regex.hpp"
#include "text/tokenizer.hpp"
#include "text/unicode.hpp"
#include "vocabularies.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace test_tokenizer {
namespace {

using tokens = std::vector<std::int32_t>;

/// Of this process: what others do beside it does not count.
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

crumb::result<lm::tokenizer> make(const lm::gguf_writer& writer) {
    const auto bytes = writer.bytes();
    if (!bytes)
        return bytes.error();
    const auto file = lm::gguf::parse(*bytes);
    if (!file)
        return file.error();
    return lm::tokenizer::make(*file);
}

std::string random_bytes(std::size_t size, unsigned seed) {
    std::mt19937 random(seed);
    std::string text(size, '\0');
    for (char& c : text)
        c = static_cast<char>(random() & 0xFF);
    return text;
}

std::vector<std::string> words(std::string_view text, std::string_view pre = "gpt-2") {
    std::vector<std::string> out;
    const auto rules = lm::pre_tokenizer::make(pre);
    EXPECT_TRUE(rules.ok()) << rules.message();
    lm::pre_tokenizer::splitter(*rules).for_each(text, [&](std::string_view word) {
        out.emplace_back(word);
        return true;
    });
    return out;
}

TEST(Regex, TellsWhatIsWrong) {
    const auto bad = lm::regex::compile("a(b");
    ASSERT_FALSE(bad.ok());
    EXPECT_NE(std::string(bad.message()).find("a(b at byte 3"), std::string::npos) << bad.message();
}

TEST(Regex, MatchesByUnicodesProperties) {
    const auto first = [](const char* pattern, std::string_view text) {
        const auto compiled = lm::regex::compile(pattern);
        EXPECT_TRUE(compiled.ok()) << compiled.message();
        const auto found = lm::regex::matcher(*compiled).find(text, 0);
        return found ? std::string(text.substr(found->begin, found->end - found->begin))
                     : std::string("none");
    };
    EXPECT_EQ(first("\\p{L}+", "12aZéßЖλאمक中あ한ﬁ𠀀𝒜!"), "aZéßЖλאمक中あ한ﬁ𠀀𝒜");
    EXPECT_EQ(first("\\p{N}+", "a09²½٣Ⅷ①𝟗b"), "09²½٣Ⅷ①𝟗");
    EXPECT_EQ(first("[^\\s]+", "\u00A0\u2003\u3000\u0085\u180E\u200B\t"), "\u180E\u200B")
        << "whitespace is Unicode's";
    EXPECT_EQ(first("\\S", " \n"), "none");
}

TEST(Unicode, MalformedUtf8IsTakenByteByByte) {
    const auto size = [](std::string_view text) { return lm::decode_utf8(text, 0).size; };
    const auto value = [](std::string_view text) { return lm::decode_utf8(text, 0).value; };
    EXPECT_EQ(value("\xC3\xA9"), U'é');
    EXPECT_EQ(value("\xE4\xB8\xAD"), U'中');
    EXPECT_EQ(value("\xF0\x9F\x98\x80"), U'😀');
    for (std::string_view bad :
         {"\x80", "\xC0\x80", "\xC1\xBF", "\xC3", "\xC3(", "\xE0\x80\x80", "\xED\xA0\x80", "\xE4\xB8",
          "\xF0\x80\x80\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"}) {
        EXPECT_EQ(size(bad), 1u);
        EXPECT_EQ(value(bad), 0xFFFDu);
    }
}

TEST(Unicode, WordsAreCutLikeGpt2) {
    using list = std::vector<std::string>;
    EXPECT_EQ(words("Hello world"), (list{"Hello", " world"}));
    EXPECT_EQ(words("Hello  world"), (list{"Hello", " ", " world"}));
    EXPECT_EQ(words("a   b  "), (list{"a", "  ", " b", "  "}));
    EXPECT_EQ(words("It's we'll they've I'm he'd you're can't"),
              (list{"It", "'s", " we", "'ll", " they", "'ve", " I", "'m", " he", "'d", " you", "'re", " can",
                    "'t"}));
    EXPECT_EQ(words("IT'S 'sup 'x"), (list{"IT", "'", "S", " '", "sup", " '", "x"}));
    EXPECT_EQ(words("'save"), (list{"'s", "ave"}));
    EXPECT_EQ(words("abc123 45,6!?"), (list{"abc", "123", " 45", ",", "6", "!?"}));
    EXPECT_EQ(words("x\ny\n\nz\n"), (list{"x", "\n", "y", "\n", "\n", "z", "\n"}));
    EXPECT_EQ(words("x \n y"), (list{"x", " \n", " y"}));
    EXPECT_EQ(words("\t\tx"), (list{"\t", "\t", "x"}));
    EXPECT_EQ(words("naïve Жук 中文。３４"), (list{"naïve", " Жук", " 中文", "。", "３４"}));
    EXPECT_EQ(words(" \xC2\xA0x"), (list{" ", "\xC2\xA0", "x"}));
    EXPECT_EQ(words(" "), (list{" "}));
}

TEST(Bpe, MergesByRankLikeGpt2) {
    // The first merges of GPT-2's own vocabulary that build these words, in its order.
    lm::gguf_writer writer;
    lm::test::put_bpe(writer, {"Ġ t", "h e", "i n", "r e", "Ġt he", "o r", "l l", "Ġ w", "l d", "or ld",
                               "Ġw orld", "H e", "ll o", "He llo"});
    const auto t = make(writer);
    ASSERT_TRUE(t.ok()) << t.message();
    EXPECT_EQ(t->vocab_size(), 270u);
    const auto pieces = [&](std::string_view text) {
        std::string out;
        for (std::int32_t token : t->encode(text, false))
            out += t->decode(token) + '|';
        return out.substr(0, out.empty() ? 0 : out.size() - 1);
    };
    EXPECT_EQ(pieces("Hello world"), "Hello| world");
    EXPECT_EQ(pieces("Hello  world the"), "Hello| | world| the");
    EXPECT_EQ(pieces("the there"), "t|he| the|re");
    EXPECT_EQ(pieces("lllll"), "ll|ll|l");
    EXPECT_EQ(pieces("Hellor"), "He|ll|or") << "the lower rank goes first: 'o r' before 'll o'";
    EXPECT_EQ(pieces(""), "");
    EXPECT_EQ(t->encode("A", false), tokens{65});
    EXPECT_EQ(t->encode("Hello", true), tokens{269});
    EXPECT_FALSE(t->bos().has_value());
    EXPECT_FALSE(t->eos().has_value());
}

TEST(Bpe, MergesNeverCrossWords) {
    lm::gguf_writer writer;
    lm::test::put_bpe(writer, {"a 1", "o Ġ", "Ġ Ġ"});
    const auto t = make(writer);
    ASSERT_TRUE(t.ok()) << t.message();
    EXPECT_EQ(t->encode("a1", false), (tokens{'a', '1'}));
    EXPECT_EQ(t->encode("o o", false), (tokens{'o', ' ', 'o'}));
    EXPECT_EQ(t->encode("o   o", false), (tokens{'o', 258, ' ', 'o'}));
}

/// What BPE makes of bytes that are no UTF-8, by hand.
std::string repaired(std::string_view text) {
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
        const lm::utf8_char c = lm::decode_utf8(text, at);
        lm::append_utf8(out, c.value);
        at += c.size;
    }
    return out;
}

/// Characters and parts of some; neither overlong sequences nor surrogates, which are read otherwise.
std::string broken_text(std::size_t size, unsigned seed) {
    std::mt19937 random(seed);
    std::string text(size, '\0');
    for (char& c : text)
        c = "\xFF\xC3\xA9 a\xE4\xB8\xAD\xF1\x9F\x98\x80!"[random() % 13];
    return text;
}

TEST(Bpe, BytesThatAreNoCharactersAreReplaced) {
    lm::gguf_writer writer;
    lm::test::put_bpe(writer, {"a a", "aa aa", "Ġ a", "\xC3\x83 \xC2\xA9", "\xC4\x80 \xC4\x80"});
    const auto t = make(writer);
    ASSERT_TRUE(t.ok()) << t.message();
    for (unsigned i = 0; i < 200; ++i) {
        const std::string text = broken_text(i, i);
        EXPECT_EQ(t->decode(t->encode(text, false)), repaired(text)) << testing::PrintToString(text);
    }
    for (const auto& [text, read] : std::initializer_list<std::pair<std::string_view, std::string_view>>{
             {{"\xC0\x80", 2}, {"\0", 1}},
             {"\xE0\x81\x81", "A"},
             {"\xED\xA0\x80x", "\xED\xA0\x80x"},
             {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
             {"\xF8\x88\x80\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD"}})
        EXPECT_EQ(t->decode(t->encode(text, false)), read);
    EXPECT_EQ(t->encode("é", false), tokens{259});
    EXPECT_EQ(t->decode(-1), "");
    EXPECT_EQ(t->decode(261), "");
}

TEST(Bpe, SpecialTokensAreAddedOnRequest) {
    lm::gguf_writer writer;
    lm::test::put_bpe(writer, {"a a"});
    writer.set("tokenizer.ggml.bos_token_id", std::uint32_t{7});
    writer.set("tokenizer.ggml.eos_token_id", std::uint64_t{8});
    EXPECT_EQ(make(writer)->encode("x", true), tokens{'x'}) << "not by default";
    writer.set("tokenizer.ggml.add_bos_token", true);
    writer.set("tokenizer.ggml.add_eos_token", true);
    const auto t = make(writer);
    EXPECT_EQ(t->bos(), 7);
    EXPECT_EQ(t->eos(), 8);
    EXPECT_EQ(t->encode("x", true), (tokens{7, 'x', 8}));
    EXPECT_EQ(t->encode("x", false), tokens{'x'});
    EXPECT_EQ(t->encode("", true), (tokens{7, 8}));
}

TEST(Bpe, TheShippedModelsTakeBytesAsTokens) {
    for (const char* name : {"gpt2", "llama"}) {
        const auto file = lm::gguf::open(std::string(CRUMB_MODEL_DIR "/novels-") + name + "-5m-q8_0.gguf");
        ASSERT_TRUE(file.ok()) << file.message();
        const auto t = lm::tokenizer::make(*file);
        ASSERT_TRUE(t.ok()) << t.message();
        EXPECT_EQ(t->vocab_size(), 256u);
        EXPECT_EQ(t->bos(), 0);
        EXPECT_EQ(t->eos(), 0);
        const std::string text = repaired(broken_text(4096, 1)) + "plain text, naïve 中文";
        const tokens encoded = t->encode(text, true);
        ASSERT_EQ(encoded.size(), text.size());
        for (std::size_t i = 0; i < text.size(); ++i)
            EXPECT_EQ(encoded[i], static_cast<unsigned char>(text[i]));
        EXPECT_EQ(t->decode(encoded), text);
    }
}

constexpr std::int32_t piece(int i) { return lm::first_spm_piece + i; }

TEST(Spm, MergesTheBestScoreFirst) {
    lm::gguf_writer writer;
    lm::test::put_spm(writer, {{"▁", -10},
                               {"a", -11},
                               {"b", -12},
                               {"c", -13},
                               {"ab", -2},
                               {"bc", -1},
                               {"abc", -5},
                               {"▁a", -3},
                               {"▁ab", -4},
                               {"aa", -6}});
    const auto t = make(writer);
    ASSERT_TRUE(t.ok()) << t.message();
    EXPECT_EQ(t->encode("abc", false), (tokens{piece(7), piece(5)})) << "bc, then ▁a, which abc would need";
    EXPECT_EQ(t->encode("ab", false), tokens{piece(8)}) << "ab, then ▁ab";
    EXPECT_EQ(t->encode("b abc", false), (tokens{piece(0), piece(2), piece(7), piece(5)}));
    EXPECT_EQ(t->encode("aaaaa", false), (tokens{piece(7), piece(9), piece(9)}))
        << "equal scores from the left";
    EXPECT_EQ(t->encode("ab", true), (tokens{1, piece(8)})) << "BOS by default";
    EXPECT_EQ(t->encode("", true), tokens{1});
    EXPECT_EQ(t->encode("", false), tokens{});
    EXPECT_EQ(t->encode(" ", false), (tokens{piece(0), piece(0)}));
    EXPECT_EQ(t->encode("▁b", false), t->encode(" b", false)) << "the mark is a space";
    EXPECT_EQ(t->decode(t->encode("b abc", true)), " b abc");
}

TEST(Spm, UnknownCharactersBecomeBytes) {
    lm::gguf_writer writer;
    lm::test::put_spm(writer, {{"▁", -1}, {"a", -2}, {"é", -3}});
    writer.set("tokenizer.ggml.add_space_prefix", false);
    const auto t = make(writer);
    ASSERT_TRUE(t.ok()) << t.message();
    const auto byte = [](int b) { return 3 + b; };
    EXPECT_EQ(t->encode("a中é", false), (tokens{piece(1), byte(0xE4), byte(0xB8), byte(0xAD), piece(2)}));
    EXPECT_EQ(t->encode("\n\xFF", false), (tokens{byte('\n'), byte(0xFF)}));
    EXPECT_EQ(t->encode("a a", false), (tokens{piece(1), piece(0), piece(1)}));
    EXPECT_EQ(t->decode(byte(0xE4)), "\xE4");
    EXPECT_EQ(t->decode(1), "") << "control tokens have no text";
    EXPECT_EQ(t->decode(0), " \xE2\x81\x87 ");
    // A byte that begins a character takes as many along as that has, the mark of a space among them.
    EXPECT_EQ(t->encode("\xF0 a", false), (tokens{byte(0xF0), byte(0xE2), byte(0x96), byte(0x81), piece(1)}));
    for (unsigned seed = 0; seed < 200; ++seed) {
        std::string text = random_bytes(seed * 3, seed);
        std::erase(text, ' ');
        EXPECT_EQ(t->decode(t->encode(text, false)), text);
    }
}

TEST(Spm, NamesOfControlTokensAreText) {
    lm::gguf_writer writer;
    lm::test::put_spm(writer, {{"▁", -1}, {"<", -2}, {"s", -3}, {">", -4}, {"<s", -5}});
    const auto t = make(writer);
    ASSERT_TRUE(t.ok()) << t.message();
    EXPECT_EQ(t->encode("<s>", false), (tokens{piece(0), piece(4), piece(3)}));
}

TEST(Spm, WithoutTypesTokensAreKnownByTheirNames) {
    lm::gguf_writer writer;
    const std::string texts[] = {"<unk>", "<s>", "</s>", "<0x41>", "▁", "b"};
    const float scores[] = {0, 0, 0, 0, -1, -2};
    writer.set("tokenizer.ggml.model", "llama");
    writer.set_strings("tokenizer.ggml.tokens", texts);
    writer.set_array("tokenizer.ggml.scores", std::span<const float>(scores));
    writer.set("tokenizer.ggml.add_eos_token", true);
    const auto t = make(writer);
    ASSERT_TRUE(t.ok()) << t.message();
    EXPECT_EQ(t->encode("bA中", true), (tokens{1, 4, 5, 3, 0, 2})) << "one unknown token for a character";
    EXPECT_EQ(t->decode(3), "A");
}

/// Merges the cheapest pair of neighbours, of equal ones the leftmost, until `cost_of(left, right)` has none.
template <class Cost>
std::vector<std::string> naive_merges(std::vector<std::string> symbols, const Cost& cost_of) {
    for (;;) {
        std::optional<double> best;
        std::size_t at = 0;
        for (std::size_t i = 0; i + 1 < symbols.size(); ++i)
            if (const std::optional<double> cost = cost_of(symbols[i], symbols[i + 1]);
                cost && (!best || *cost < *best)) {
                best = cost;
                at = i;
            }
        if (!best)
            return symbols;
        symbols[at] += symbols[at + 1];
        symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
}

/// `encode_first` has to be the beginning of `encode`, whatever its length.
void expect_beginnings(const lm::tokenizer& t, const std::string& text) {
    for (const bool add_special : {false, true}) {
        const tokens all = t.encode(text, add_special);
        for (std::size_t most = 0; most <= all.size() + 2; ++most) {
            const tokens first(all.begin(),
                               all.begin() + static_cast<std::ptrdiff_t>(std::min(most, all.size())));
            ASSERT_EQ(t.encode_first(text, add_special, most), first)
                << most << " of " << all.size() << ": " << testing::PrintToString(text);
        }
    }
}

std::string random_text(std::mt19937& random, std::span<const std::string> parts, std::size_t count) {
    std::string text;
    for (std::size_t i = 0; i < count; ++i)
        text += parts[random() % parts.size()];
    return text;
}

TEST(Spm, PiecesAreMergedAsTheWholeText) {
    // Characters of 1 to 4 bytes, the mark of a space, and bytes that are none or become some with others.
    const std::string parts[] = {"a",    "b",    " ",    "▁",        "é",        "中",
                                 "\xC3", "\xA9", "\xE2", "\x96\x81", "\xF0\x9F", "😀"};
    std::mt19937 random(11);
    std::size_t merged = 0;
    for (int vocabulary = 0; vocabulary < 150; ++vocabulary) {
        // Few characters and long pieces leave hardly a boundary where text may be cut.
        const auto some = std::span(parts).first(2 + random() % (std::size(parts) - 1));
        std::vector<std::pair<std::string, float>> pieces;
        for (std::size_t i = 0, count = 1 + random() % 40; i < count; ++i)
            pieces.emplace_back(random_text(random, some, 1 + random() % 4),
                                static_cast<float>(random() % 5));
        lm::gguf_writer writer;
        lm::test::put_spm(writer, pieces);
        const bool prefix = random() % 2 == 0;
        writer.set("tokenizer.ggml.add_space_prefix", prefix);
        writer.set("tokenizer.ggml.add_eos_token", random() % 2 == 0);
        const auto t = make(writer);
        ASSERT_TRUE(t.ok()) << t.message();
        const auto marked = [](std::string text) {
            for (std::size_t at = 0; (at = text.find(' ', at)) != text.npos; at += 3)
                text.replace(at, 1, "▁");
            return text;
        };
        std::map<std::string, std::int32_t> known;
        for (std::size_t i = 0; i < pieces.size(); ++i)
            known.try_emplace(pieces[i].first, lm::first_spm_piece + static_cast<std::int32_t>(i));
        for (std::size_t length = 0; length < 40; length += 1 + random() % 6) {
            const std::string text = random_text(random, some, length);
            const std::string view = marked((prefix && !text.empty() ? " " : "") + text);
            std::vector<std::string> symbols;
            for (std::size_t at = 0; at < view.size(); at += symbols.back().size()) {
                const auto lead = static_cast<unsigned char>(view[at]);
                symbols.push_back(view.substr(at, lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4));
            }
            tokens expected;
            for (const std::string& symbol :
                 naive_merges(symbols, [&](const auto& left, const auto& right) -> std::optional<double> {
                     const auto found = known.find(left + right);
                     if (found == known.end())
                         return std::nullopt;
                     return -pieces[static_cast<std::size_t>(found->second - lm::first_spm_piece)].second;
                 })) {
                merged += symbol.size() > 4 ? 1 : 0;
                if (const auto found = known.find(symbol); found != known.end())
                    expected.push_back(found->second);
                else
                    for (const char c : symbol)
                        expected.push_back(3 + static_cast<unsigned char>(c));
            }
            ASSERT_EQ(t->encode(text, false), expected) << testing::PrintToString(text);
            expect_beginnings(*t, text);
        }
    }
    EXPECT_GT(merged, 100u);
}

TEST(Bpe, PartsOfWordsAreMergedAsTheWhole) {
    const std::vector<std::string> bytes = lm::test::byte_tokens();
    const std::string characters = "ab '1\n";
    std::mt19937 random(12);
    std::size_t merged = 0;
    for (int vocabulary = 0; vocabulary < 150; ++vocabulary) {
        const std::size_t some = 1 + random() % characters.size();
        const auto any = [&] { return characters[random() % some]; };
        const auto name = [&](const std::string& text) {
            std::string out;
            for (const char c : text)
                out += bytes[static_cast<unsigned char>(c)];
            return out;
        };
        std::vector<std::string> known(1, std::string(1, any()));
        std::vector<std::string> merges;
        std::map<std::pair<std::string, std::string>, double> ranks;
        std::map<std::string, std::int32_t> numbers;
        for (std::size_t i = 0, count = random() % 30; i < count; ++i) {
            const auto part = [&] {
                return random() % 2 == 0 ? std::string(1, any()) : known[random() % known.size()];
            };
            const std::string left = part(), right = part();
            ranks.try_emplace({left, right}, static_cast<double>(i));
            numbers.try_emplace(left + right, static_cast<std::int32_t>(256 + i));
            merges.push_back(name(left) + " " + name(right));
            known.push_back(left + right);
        }
        lm::gguf_writer writer;
        lm::test::put_bpe(writer, merges);
        writer.set("tokenizer.ggml.bos_token_id", 7u);
        writer.set("tokenizer.ggml.eos_token_id", 8u);
        writer.set("tokenizer.ggml.add_bos_token", random() % 2 == 0);
        writer.set("tokenizer.ggml.add_eos_token", random() % 2 == 0);
        const auto t = make(writer);
        ASSERT_TRUE(t.ok()) << t.message();
        for (std::size_t length = 0; length < 60; length += 1 + random() % 9) {
            std::string text;
            while (text.size() < length)
                text += any();
            tokens expected;
            for (const std::string& word : words(text)) {
                std::vector<std::string> symbols;
                for (const char c : word)
                    symbols.emplace_back(1, c);
                for (const std::string& symbol :
                     naive_merges(symbols, [&](const auto& left, const auto& right) -> std::optional<double> {
                         const auto found = ranks.find({left, right});
                         return found != ranks.end() ? std::optional(found->second) : std::nullopt;
                     })) {
                    merged += symbol.size() > 2 ? 1 : 0;
                    expected.push_back(symbol.size() == 1 ? static_cast<unsigned char>(symbol[0])
                                                          : numbers.at(symbol));
                }
            }
            ASSERT_EQ(t->encode(text, false), expected) << testing::PrintToString(text);
            expect_beginnings(*t, text);
        }
    }
    EXPECT_GT(merged, 100u);
}

TEST(Tokenizer, BeginningsOfLongTexts) {
    lm::gguf_writer bpe, spm, bytes;
    lm::test::put_bpe(bpe, {"Ġ Ġ", "ĠĠ ĠĠ", "a b"});
    lm::test::put_spm(spm, {{"▁", -1}, {"▁▁", -2}, {"▁▁▁▁", -3}, {"a", -4}, {"ab", -5}});
    lm::test::put_bpe(bytes, {});
    // Long enough for the number of tokens to be estimated, at rates that change.
    std::string text(100000, ' ');
    for (int i = 0; i < 40000; ++i)
        text += i % 3 == 0 ? "ab " : "xyz";
    for (const lm::gguf_writer* writer : {&bpe, &spm, &bytes}) {
        const auto t = make(*writer);
        ASSERT_TRUE(t.ok()) << t.message();
        const tokens all = t->encode(text, false);
        EXPECT_TRUE(t->decode(all).ends_with(text));
        for (const std::size_t most : {std::size_t{1}, std::size_t{1000}, all.size() / 2, all.size() - 1}) {
            const tokens first = t->encode_first(text, false, most);
            ASSERT_EQ(first.size(), most);
            EXPECT_TRUE(std::equal(first.begin(), first.end(), all.begin()));
        }
        EXPECT_EQ(t->encode_first(text, false, all.size() + 1), all);
    }
}

TEST(Tokenizer, TextBehindTheFirstTokensIsNotRead) {
    lm::gguf_writer bpe, spm, bytes;
    lm::test::put_bpe(bpe, {"a b", "Ġ ab"});
    lm::test::put_spm(spm, {{"▁", -1}, {"ab", -2}, {"▁ab", -3}, {"a", -4}, {"b", -5}});
    lm::test::put_bpe(bytes, {});
    // Blocks end at the ends of lines.
    const std::size_t page = std::size_t{1} << 18;
    void* memory = ::mmap(nullptr, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    auto* text = static_cast<char*>(memory);
    for (std::size_t i = 0; i < page; ++i)
        text[i] = "ab\n ab"[i % 6];
    ASSERT_EQ(::mprotect(text + page, 3 * page, PROT_NONE), 0);
    for (const lm::gguf_writer* writer : {&bpe, &spm, &bytes}) {
        const auto t = make(*writer);
        ASSERT_TRUE(t.ok()) << t.message();
        EXPECT_EQ(t->encode_first({text, 4 * page}, false, 500), t->encode_first({text, page}, false, 500));
        EXPECT_EQ(t->encode_first({text, 4 * page}, false, 500).size(), 500u);
    }
    ::munmap(memory, 4 * page);
}

TEST(Tokenizer, LongTextsTakeLittleTime) {
    lm::gguf_writer bpe;
    lm::test::put_bpe(bpe, {"a a", "aa aa", "aaaa aaaa", "a b"});
    lm::gguf_writer spm;
    lm::test::put_spm(spm, {{"▁", -1}, {"a", -2}, {"aa", -3}, {"aaaa", -4}, {"b", -5}, {"ab", -6}});
    std::string text(500000, 'a');
    for (std::size_t i = 0; i < text.size(); i += 17)
        text[i] = 'b';
    for (const lm::gguf_writer* writer : {&bpe, &spm}) {
        const auto t = make(*writer);
        ASSERT_TRUE(t.ok()) << t.message();
        const double start = cpu_seconds();
        const tokens encoded = t->encode(text, false);
        const double seconds = cpu_seconds() - start;
        EXPECT_LT(seconds, 20) << "a quadratic loop takes minutes";
        EXPECT_TRUE(t->decode(encoded).ends_with(text));
        RecordProperty("milliseconds", static_cast<int>(seconds * 1000));
    }
}

TEST(Tokenizer, RunsOfOneCharacterTakeLittleTime) {
    const char* pres[] = {"gpt-2",       "default", "llama-bpe",  "qwen2",        "smollm",
                          "tekken",      "gpt-4o",  "falcon",     "deepseek-llm", "deepseek-coder",
                          "deepseek-v3", "bloom",   "seed-coder", "exaone-moe",   "youtu",
                          "laguna",      "spark2_5"};
    for (const char* pre : pres) {
        lm::gguf_writer writer;
        lm::test::put_bpe(writer, {"x y"});
        writer.set("tokenizer.ggml.pre", pre);
        const auto t = make(writer);
        ASSERT_TRUE(t.ok()) << t.message();
        for (const std::string_view one : {" ", "a", "A", "\n", "9", "-", "é", "\xFF", " \n", "aA", "a "}) {
            std::string text;
            const bool is_long = one == " " || one == "a";
            while (text.size() < (is_long ? std::size_t{1} << 20 : std::size_t{1} << 17))
                text += one;
            text += "x";
            const double start = cpu_seconds();
            const tokens encoded = t->encode(text, false);
            const double seconds = cpu_seconds() - start;
            EXPECT_LT(seconds, 20) << pre << ": a quadratic loop takes minutes";
            EXPECT_EQ(t->decode(encoded), repaired(text)) << pre;
        }
    }
    lm::gguf_writer spm;
    lm::test::put_spm(spm, {{"▁", -1}, {"▁▁", -2}, {"▁▁▁▁", -3}, {"a", -4}, {"aa", -5}});
    const auto t = make(spm);
    ASSERT_TRUE(t.ok()) << t.message();
    for (const char one : {' ', 'a', '\n'}) {
        const std::string text(std::size_t{1} << 20, one);
        EXPECT_EQ(t->decode(t->encode(text, false)), ' ' + text);
    }
}

TEST(Tokenizer, AQuarterOfAMillionTokensAreReadAtOnce) {
    std::vector<std::pair<std::string, float>> pieces;
    std::mt19937 random(5);
    while (pieces.size() < 261885) {
        std::string piece = random() % 2 == 0 ? "▁" : "";
        for (std::uint32_t bits = static_cast<std::uint32_t>(pieces.size()); bits != 0; bits /= 23)
            lm::append_utf8(piece, U"aeioulnrstdmhcpgéжλ中국ह "[bits % 23]);
        pieces.emplace_back(piece, -static_cast<float>(pieces.size()));
    }
    lm::gguf_writer writer;
    lm::test::put_spm(writer, pieces);
    const auto bytes = writer.bytes();
    ASSERT_TRUE(bytes.ok()) << bytes.message();
    const auto file = lm::gguf::parse(*bytes);
    ASSERT_TRUE(file.ok()) << file.message();
    const double start = cpu_seconds();
    const auto t = lm::tokenizer::make(*file);
    const double seconds = cpu_seconds() - start;
    ASSERT_TRUE(t.ok()) << t.message();
    EXPECT_EQ(t->vocab_size(), 262144u);
    EXPECT_LT(seconds, 5) << "a tenth of that is what it takes where nothing watches";
    RecordProperty("milliseconds", static_cast<int>(seconds * 1000));
    for (const std::int32_t i : {0, 1000, 261000})
        EXPECT_EQ(t->encode(pieces[static_cast<std::size_t>(i)].first + "!", false).back(), 3 + '!');
}

struct refusal {
    const char* name;
    bool spm;
    std::function<void(lm::gguf_writer&)> apply;
    const char* message; ///< a part of it

    friend void PrintTo(const refusal& self, std::ostream* out) { *out << self.name; }
};

class TokenizerRefusal : public testing::TestWithParam<refusal> {};

TEST_P(TokenizerRefusal, IsNamed) {
    lm::gguf_writer writer;
    if (GetParam().spm)
        lm::test::put_spm(writer, {{"▁", -1}, {"a", -2}});
    else
        lm::test::put_bpe(writer, {"a a"});
    GetParam().apply(writer);
    const auto t = make(writer);
    ASSERT_FALSE(t.ok());
    EXPECT_NE(std::string(t.message()).find(GetParam().message), std::string::npos) << t.message();
}

using writer = lm::gguf_writer;

void set_strings(writer& w, const char* key, std::vector<std::string> values) { w.set_strings(key, values); }

INSTANTIATE_TEST_SUITE_P(
    All, TokenizerRefusal,
    testing::Values(
        refusal{"Model", false, [](writer& w) { w.set("tokenizer.ggml.model", "bert"); },
                "key 'tokenizer.ggml.model': 'bert' is unsupported (gpt2 and llama are)"},
        refusal{"Splitter", false, [](writer& w) { w.set("tokenizer.ggml.pre", "llama-bpf"); },
                "key 'tokenizer.ggml.pre': 'llama-bpf' is unsupported (known are, with their aliases, gpt-2, "
                "default, "
                "llama-bpe, "},
        refusal{"TokensKind", false, [](writer& w) { w.set("tokenizer.ggml.tokens", "abc"); },
                "key 'tokenizer.ggml.tokens' is string, not an array"},
        refusal{"TokensEmpty", false, [](writer& w) { set_strings(w, "tokenizer.ggml.tokens", {}); },
                "key 'tokenizer.ggml.tokens' has 0 elements"},
        refusal{"BytesMissing", false,
                [](writer& w) {
                    set_strings(w, "tokenizer.ggml.tokens", {"Ā", "ā"});
                    set_strings(w, "tokenizer.ggml.merges", {});
                },
                "no token for the byte 0x09"},
        refusal{"MergesKind", false, [](writer& w) { w.set("tokenizer.ggml.merges", 1u); },
                "key 'tokenizer.ggml.merges' is u32"},
        refusal{"MergeOfOne", false,
                [](writer& w) { set_strings(w, "tokenizer.ggml.merges", {"a a", "ab"}); },
                "key 'tokenizer.ggml.merges': element 1 is 'ab', not two symbols"},
        refusal{"MergeWithoutItsToken", false,
                [](writer& w) { set_strings(w, "tokenizer.ggml.merges", {"a a", "a b"}); },
                "key 'tokenizer.ggml.merges': element 1 is 'a b', but there is no token 'ab'"},
        refusal{"MergeOfNoToken", false, [](writer& w) { set_strings(w, "tokenizer.ggml.merges", {"a ab"}); },
                "element 0 is 'a ab', but there is no token 'ab'"},
        refusal{"MergeOfThree", false, [](writer& w) { set_strings(w, "tokenizer.ggml.merges", {"a b c"}); },
                "element 0 is 'a b c', not two symbols"},
        refusal{"MergeOfNothing", false, [](writer& w) { set_strings(w, "tokenizer.ggml.merges", {" b"}); },
                "element 0 is ' b', not two symbols"},
        refusal{"MergeWithNothing", false, [](writer& w) { set_strings(w, "tokenizer.ggml.merges", {"b "}); },
                "element 0 is 'b ', not two symbols"},
        refusal{"Bos", false, [](writer& w) { w.set("tokenizer.ggml.bos_token_id", 257u); },
                "key 'tokenizer.ggml.bos_token_id' is 257, but the vocabulary has 257 tokens"},
        refusal{"Eos", true, [](writer& w) { w.set("tokenizer.ggml.eos_token_id", 4000000000u); },
                "key 'tokenizer.ggml.eos_token_id' is 4000000000, but the vocabulary has 261 tokens"},
        refusal{"EosNegative", true,
                [](writer& w) { w.set("tokenizer.ggml.eos_token_id", std::int32_t{-1}); },
                "key 'tokenizer.ggml.eos_token_id' holds an integer that does not fit"},
        refusal{"AddBosWithoutBos", false, [](writer& w) { w.set("tokenizer.ggml.add_bos_token", true); },
                "key 'tokenizer.ggml.add_bos_token' is set, but there is no such token"},
        refusal{"AddBosKind", true, [](writer& w) { w.set("tokenizer.ggml.add_bos_token", 1u); },
                "key 'tokenizer.ggml.add_bos_token' is u32, not a bool"},
        refusal{"ScoresLength", true,
                [](writer& w) {
                    const float few[] = {1, 2};
                    w.set_array("tokenizer.ggml.scores", std::span<const float>(few));
                },
                "key 'tokenizer.ggml.scores' has 2 elements, but the vocabulary has 261 tokens"},
        refusal{"ScoresNotFinite", true,
                [](writer& w) {
                    const std::vector<float> scores(261, std::numeric_limits<float>::quiet_NaN());
                    w.set_array("tokenizer.ggml.scores", std::span<const float>(scores));
                },
                "key 'tokenizer.ggml.scores' holds a number that is not finite"},
        refusal{"TypesLength", false,
                [](writer& w) {
                    const std::int32_t few[] = {1};
                    w.set_array("tokenizer.ggml.token_type", std::span<const std::int32_t>(few));
                },
                "key 'tokenizer.ggml.token_type' has 1 elements, but the vocabulary has 257 tokens"},
        refusal{"ByteTokenName", true,
                [](writer& w) {
                    const std::vector<std::int32_t> all_bytes(261, 6);
                    w.set_array("tokenizer.ggml.token_type", std::span<const std::int32_t>(all_bytes));
                },
                "byte token 0 is '<unk>', not <0xXX>"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Tokenizer, MissingKeysAreNamed) {
    lm::gguf_writer nothing;
    EXPECT_STREQ(make(nothing).message(), "key 'tokenizer.ggml.model' is missing");
    nothing.set("tokenizer.ggml.model", "llama");
    EXPECT_STREQ(make(nothing).message(), "key 'tokenizer.ggml.tokens' is missing");
    const std::vector<std::string> texts = lm::test::byte_tokens();
    nothing.set_strings("tokenizer.ggml.tokens", texts);
    EXPECT_STREQ(make(nothing).message(), "key 'tokenizer.ggml.scores' is missing");
    nothing.set("tokenizer.ggml.model", "gpt2");
    EXPECT_STREQ(make(nothing).message(), "key 'tokenizer.ggml.merges' is missing");
}

} // namespace
} // namespace test_tokenizer
