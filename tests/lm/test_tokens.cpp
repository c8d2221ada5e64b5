// The same tokens as llama.cpp, of every pre-tokenizer and of SentencePiece.
#include "gguf/gguf.hpp"
#include "text/tokenizer.hpp"
#include "token_corpus.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace test_tokens {
namespace {

/// What llama.cpp has made of the corpus: hashes by the vocabulary's name (tests/data/make_tokens.cpp).
std::map<std::string, std::vector<std::string>> golden() {
    std::map<std::string, std::vector<std::string>> out;
    std::ifstream file(CRUMB_DATA_DIR "/tokens.txt");
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string name;
        words >> name;
        for (std::string hash; words >> hash;)
            out[name].push_back(hash);
    }
    return out;
}

TEST(Tokens, AreThoseOfLlamaCpp) {
    const auto expected = golden();
    const std::vector<std::string> texts = lm::test::corpus();
    const auto vocabularies = lm::test::corpus_vocabularies();
    ASSERT_EQ(expected.size(), vocabularies.size());
    std::map<std::vector<std::string>, std::string> kinds;
    for (const auto& [name, writer] : vocabularies) {
        const auto bytes = writer.bytes();
        ASSERT_TRUE(bytes.ok()) << bytes.message();
        const auto file = lm::gguf::parse(*bytes);
        ASSERT_TRUE(file.ok()) << file.message();
        const auto t = lm::tokenizer::make(*file);
        ASSERT_TRUE(t.ok()) << t.message();
        ASSERT_TRUE(expected.contains(name)) << name;
        const std::vector<std::string>& hashes = expected.at(name);
        ASSERT_EQ(hashes.size(), texts.size()) << name;
        for (std::size_t i = 0; i < texts.size(); ++i) {
            const std::uint32_t hash = lm::test::hash_of(t->encode_prompt(texts[i], true),
                                                         lm::test::hash_of(t->encode(texts[i], true)));
            char shown[16];
            std::snprintf(shown, sizeof shown, "%08x", static_cast<unsigned>(hash));
            EXPECT_EQ(shown, hashes[i]) << name << ": " << testing::PrintToString(texts[i]);
        }
        // A corpus that does not tell two of them apart could not tell that one is wrong.
        const auto [same, is_new] = kinds.try_emplace(hashes, name);
        EXPECT_TRUE(is_new) << name << " is as " << same->second;
    }
}

/// Vocabularies as people have them, if CRUMB_TEST_VOCABULARIES names some (parted by colons): what is
/// decoded from a text's tokens is the text.
TEST(Tokens, OfFilesAreTheTextAgain) {
    const char* files = std::getenv("CRUMB_TEST_VOCABULARIES");
    std::istringstream names(files != nullptr ? files : CRUMB_MODEL_DIR "/novels-llama-5m-q8_0.gguf");
    for (std::string name; std::getline(names, name, ':');) {
        const auto file = lm::gguf::open(name);
        ASSERT_TRUE(file.ok()) << file.message();
        const auto t = lm::tokenizer::make(*file);
        ASSERT_TRUE(t.ok()) << t.message();
        for (const std::string text : {"Hello world", "  x = 12345;\n\n", "naïve 中文 😀"}) {
            const std::string again = t->decode(t->encode(text, false));
            EXPECT_TRUE(again == text || again == " " + text) << name << ": " << again;
        }
    }
}

} // namespace
} // namespace test_tokens
