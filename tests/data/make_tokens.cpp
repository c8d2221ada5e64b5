// Writes tests/data/tokens.txt: hashes of what llama.cpp makes of the texts of tests/lm/token_corpus.hpp with
// each of its vocabularies, a line for each: the name, then a hash per text, of the tokens without and with
// names of control tokens, BOS and EOS included. Not part of the build; LLAMA is a checkout of llama.cpp
// v0.5.0, LIBS has its libraries:
//
//   g++ -std=c++20 -Iinclude -Iexamples/lm -Itests -Itests/lm -I$LLAMA/include -I$LLAMA/ggml/include
//       tests/data/make_tokens.cpp examples/lm/gguf/*.cpp -L$LIBS -lllama -lggml -lggml-base -o make_tokens
//   LD_LIBRARY_PATH=$LIBS ./make_tokens > tests/data/tokens.txt
#include "token_corpus.hpp"

#include <llama.h>

#include <cstdio>
#include <filesystem>

int main() {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    const std::string path = (std::filesystem::temp_directory_path() / "crumb_make_tokens.gguf").string();
    for (const auto& [name, file] : lm::test::corpus_vocabularies()) {
        if (const crumb::status s = file.write(path); !s) {
            std::fprintf(stderr, "%s\n", s.message());
            return 1;
        }
        auto params = llama_model_default_params();
        params.vocab_only = true;
        llama_model* model = llama_model_load_from_file(path.c_str(), params);
        if (model == nullptr) {
            std::fprintf(stderr, "llama.cpp does not read %s\n", name.c_str());
            return 1;
        }
        std::printf("%s", name.c_str());
        for (const std::string& text : lm::test::corpus()) {
            std::uint32_t hash = 0x811C9DC5u;
            for (const bool special : {false, true}) {
                std::vector<llama_token> tokens(4 * text.size() + 16);
                const int count =
                    llama_tokenize(llama_model_get_vocab(model), text.data(), static_cast<int>(text.size()),
                                   tokens.data(), static_cast<int>(tokens.size()), true, special);
                tokens.resize(static_cast<std::size_t>(count));
                hash = lm::test::hash_of(tokens, hash);
            }
            std::printf(" %08x", hash);
        }
        std::printf("\n");
        llama_model_free(model);
    }
    std::filesystem::remove(path);
}
