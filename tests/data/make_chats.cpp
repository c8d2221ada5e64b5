// Writes tests/data/chats.txt: what llama.cpp makes of the conversations of tests/lm/chat_histories.hpp, one
// per line: the format's name, a tab, the text with \n for ends of lines. Not part of the build; LLAMA is a
// checkout of llama.cpp v0.5.0, LIBS has its libraries:
//
//   g++ -std=c++20 -Iinclude -Iexamples/lm -Itests/lm -I$LLAMA/include -I$LLAMA/ggml/include
//       tests/data/make_chats.cpp -L$LIBS -lllama -lggml -lggml-base -o make_chats
//   LD_LIBRARY_PATH=$LIBS ./make_chats > tests/data/chats.txt
#include "chat_histories.hpp"

#include <llama.h>

#include <cstdio>

int main() {
    for (const char* name : {"chatml", "llama2", "llama2-sys", "llama2-sys-bos", "llama2-sys-strip", "llama3",
                             "gemma", "mistral-v1", "mistral-v3", "mistral-v3-tekken", "mistral-v7",
                             "mistral-v7-tekken", "phi3", "phi4", "deepseek3"})
        for (const auto& history : lm::test::chat_histories()) {
            std::vector<llama_chat_message> messages;
            for (const lm::chat_message& each : history)
                messages.push_back({each.role == lm::chat_role::system ? "system"
                                    : each.role == lm::chat_role::user ? "user"
                                                                       : "assistant",
                                    each.text.c_str()});
            std::string text(4096, '\0');
            const int size = llama_chat_apply_template(name, messages.data(), messages.size(), true,
                                                       text.data(), static_cast<int>(text.size()));
            if (size < 0)
                return 1;
            text.resize(static_cast<std::size_t>(size));
            std::printf("%s\t%s\n", name, lm::test::escaped(text).c_str());
        }
}
