// Greedy answers of crumb-lm beside those of llama.cpp: a hundred prompts in the model's chat format, token
// by token until the two choose differently. Prints each first difference with both programs' gap between the
// two tokens, in nats; one whose gaps are both below .1 is a near-tie. Built by hand, LLAMA being a checkout
// of llama.cpp and LIBS its libraries of the same release, behind a build of the preset `lm`:
//
//   g++ -O2 -DNDEBUG -std=c++20 -DCRUMB_COMPILED_KERNELS -Iinclude -Iexamples/lm -I$LLAMA/include
//       -I$LLAMA/ggml/include
//       bench/llama_cpp/texts.cpp build/lm/examples/libcrumb_lm.a build/lm/examples/libcrumb_lm_io.a
//       build/lm/libcrumb_kernels.a -L$LIBS -lllama -lggml -lggml-base -lpcre2-8 -o texts
//   texts LIBS MODEL [TOKENS=64] [int8|f32]
#include "model/session.hpp"
#include "text/chat_format.hpp"

#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace {

struct deleter {
    void operator()(llama_model* m) const { llama_model_free(m); }
    void operator()(llama_context* c) const { llama_free(c); }
};

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "texts: %s\n", what.c_str());
    std::exit(1);
}
template <class T>
T value_of(crumb::result<T> r) {
    if (!r)
        fail(r.message());
    return std::move(*r);
}

std::vector<std::string> prompts() {
    const char* forms[] = {"What is %s?", "Write a short story about %s.", "Give me three facts about %s.",
                           "Explain %s to a child."};
    const char* things[] = {"the moon",
                            "a steam engine",
                            "photosynthesis",
                            "the number seven",
                            "a lighthouse",
                            "bread",
                            "the French Revolution",
                            "gravity",
                            "a chess game",
                            "honey",
                            "the ocean",
                            "a violin",
                            "recursion in Python",
                            "the alphabet",
                            "a volcano",
                            "winter",
                            "the human heart",
                            "a bicycle",
                            "money",
                            "a dream",
                            "the Roman Empire",
                            "a computer virus",
                            "coffee",
                            "the speed of light",
                            "friendship"};
    std::vector<std::string> out;
    for (const char* form : forms)
        for (const char* thing : things) {
            const std::string text = form;
            const std::size_t at = text.find("%s");
            out.push_back(text.substr(0, at) + thing + text.substr(at + 2));
        }
    return out;
}

std::int32_t likeliest(std::span<const float> logits) {
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

} // namespace

int main(int argc, char** argv) {
    if (argc < 3)
        fail("usage: texts LIBS MODEL [TOKENS=64] [int8|f32]");
    const std::size_t count = argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 64;
    const bool is_f32 = argc > 4 && std::string_view(argv[4]) == "f32";
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    ggml_backend_load_all_from_path(argv[1]);
    llama_backend_init();
    const std::unique_ptr<llama_model, deleter> theirs(
        llama_model_load_from_file(argv[2], llama_model_default_params()));
    if (!theirs)
        fail("llama.cpp does not read the model");
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 512;
    params.n_threads = params.n_threads_batch = 1;
    const std::unique_ptr<llama_context, deleter> context(llama_init_from_model(theirs.get(), params));
    const llama_vocab* vocabulary = llama_model_get_vocab(theirs.get());

    const lm::model ours = value_of(lm::model::load(
        argv[2], {.activations = is_f32 ? lm::activation_type::f32 : lm::activation_type::int8}));
    lm::session session = value_of(lm::session::make(ours, lm::team(1), lm::kv_type::f16, 512, 128));
    const auto format = value_of(
        lm::chat_format::of_template(value_of(ours.file().get_string("tokenizer.chat_template", ""))));

    std::size_t equal = 0, ties = 0, failures = 0, tokens_alike = 0;
    for (const std::string& prompt : prompts()) {
        const lm::chat_message message{lm::chat_role::user, prompt};
        const std::string text = format.prompt({&message, 1}).text;
        std::vector<std::int32_t> tokens = ours.vocabulary().encode_prompt(text, true);
        std::vector<llama_token> other(text.size() + 8);
        other.resize(static_cast<std::size_t>(llama_tokenize(vocabulary, text.data(),
                                                             static_cast<int>(text.size()), other.data(),
                                                             static_cast<int>(other.size()), true, true)));
        if (tokens != other)
            fail("other tokens: " + prompt);
        session.reset();
        llama_memory_clear(llama_get_memory(context.get()), true);
        std::size_t written = 0;
        for (; written < count; ++written) {
            const auto here = value_of(session.feed(tokens, 1));
            if (llama_decode(context.get(),
                             llama_batch_get_one(tokens.data(), static_cast<int>(tokens.size()))) != 0)
                fail("llama.cpp does not decode");
            const std::span<const float> there(llama_get_logits_ith(context.get(), -1), here.size());
            const std::int32_t mine = likeliest(here), its = likeliest(there);
            if (mine != its) {
                const auto gap = [mine, its](std::span<const float> logits) {
                    return std::abs(double{logits[static_cast<std::size_t>(mine)]} -
                                    double{logits[static_cast<std::size_t>(its)]});
                };
                const bool is_tie = gap(here) < 0.1 && gap(there) < 0.1;
                (is_tie ? ties : failures) += 1;
                std::printf("%-45s token %2zu: %s%-12s | %-12s gap %.4f | %.4f\n", prompt.c_str(), written,
                            is_tie ? "" : "NO TIE ", ours.vocabulary().decode(mine).c_str(),
                            ours.vocabulary().decode(its).c_str(), gap(here), gap(there));
                break;
            }
            if (ours.vocabulary().ends_text(mine)) {
                if (!llama_vocab_is_eog(vocabulary, mine))
                    fail("llama.cpp does not end there");
                written = count;
                break;
            }
            ++tokens_alike;
            tokens = {mine};
        }
        equal += written == count;
    }
    std::printf("%zu answers are equal, %zu up to a near-tie, %zu differ; %zu tokens alike\n", equal, ties,
                failures, tokens_alike);
    return failures != 0;
}
