// Greedy answers of crumb-lm beside those of llama.cpp: a hundred prompts in the model's chat format, token
// by token until the two choose differently. Prints each first difference with both programs' gap between the
// two tokens, in nats; one whose gaps are both below .1 is a near-tie. ONE and OTHER are int8 or f32, which
// are crumb-lm with such activations, or llama.cpp; with `:exact`, caches are F32 and llama.cpp does without
// flash attention. Built by hand, LLAMA being a checkout of llama.cpp and LIBS its libraries of the same
// release, behind a build of the preset `lm`:
//
//   g++ -O2 -DNDEBUG -std=c++20 -DCRUMB_COMPILED_KERNELS -Iinclude -Iexamples/lm -Ibench
//       -I$LLAMA/include -I$LLAMA/ggml/include
//       bench/llama_cpp/texts.cpp build/lm/examples/libcrumb_lm.a build/lm/examples/libcrumb_lm_io.a
//       build/lm/libcrumb_kernels.a -L$LIBS -lllama -lggml -lggml-base -lpcre2-8 -o texts
//   texts LIBS MODEL [TOKENS=64] [ONE=int8] [OTHER=llama.cpp]
#include "llama_cpp/engines.hpp"
#include "text/chat_format.hpp"

#include <cmath>
#include <string_view>

namespace {

using beside::fail, beside::value_of;

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

std::unique_ptr<beside::engine> engine_named(std::string_view name, const char* path) {
    constexpr std::string_view suffix = ":exact";
    const bool is_exact = name.ends_with(suffix);
    if (is_exact)
        name.remove_suffix(suffix.size());
    const beside::engine_options options{.context = 512, .batch = 512, .exact = is_exact};
    if (name == "llama.cpp")
        return std::make_unique<beside::llama_engine>(path, options);
    if (name != "int8" && name != "f32")
        fail("an engine is int8, f32 or llama.cpp, and :exact behind it");
    return std::make_unique<beside::crumb_engine>(
        path, name == "f32" ? lm::activation_type::f32 : lm::activation_type::int8, options);
}

/// llama.cpp's tokens are those of crumb-lm.
void check_tokens(const lm::tokenizer& ours, const llama_vocab* theirs, const std::string& text) {
    const std::vector<std::int32_t> tokens = ours.encode_prompt(text, true);
    std::vector<llama_token> other(text.size() + 8);
    other.resize(
        static_cast<std::size_t>(llama_tokenize(theirs, text.data(), static_cast<int>(text.size()),
                                                other.data(), static_cast<int>(other.size()), true, true)));
    if (tokens != other)
        fail("other tokens: " + text);
}

} // namespace

int main(int argc, char** argv) {
    if (argc < 3)
        fail("usage: texts LIBS MODEL [TOKENS=64] [ONE=int8] [OTHER=llama.cpp]");
    const std::size_t count = argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 64;
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    beside::start_llama_cpp(argv[1]);
    const auto one = engine_named(argc > 4 ? argv[4] : "int8", argv[2]);
    const auto other = engine_named(argc > 5 ? argv[5] : "llama.cpp", argv[2]);
    const lm::model model = value_of(lm::model::load(argv[2], {}));
    const lm::tokenizer& vocabulary = model.vocabulary();
    const auto format = value_of(
        lm::chat_format::of_template(value_of(model.file().get_string("tokenizer.chat_template", ""))));

    std::size_t equal = 0, ties = 0, failures = 0, tokens_alike = 0;
    for (const std::string& prompt : prompts()) {
        const lm::chat_message message{lm::chat_role::user, prompt};
        const std::string text = format.prompt({&message, 1}).text;
        if (const auto* theirs = dynamic_cast<const beside::llama_engine*>(other.get()))
            check_tokens(vocabulary, theirs->vocabulary(), text);
        std::vector<std::int32_t> tokens = vocabulary.encode_prompt(text, true);
        one->reset();
        other->reset();
        std::size_t written = 0;
        for (; written < count; ++written) {
            const auto here = one->feed(tokens, 1), there = other->feed(tokens, 1);
            const std::int32_t mine = likeliest(here), its = likeliest(there);
            if (mine != its) {
                const auto gap = [mine, its](std::span<const float> logits) {
                    return std::abs(double{logits[static_cast<std::size_t>(mine)]} -
                                    double{logits[static_cast<std::size_t>(its)]});
                };
                const bool is_tie = gap(here) < 0.1 && gap(there) < 0.1;
                (is_tie ? ties : failures) += 1;
                std::printf("%-45s token %2zu: %s%-12s | %-12s gap %.4f | %.4f\n", prompt.c_str(), written,
                            is_tie ? "" : "NO TIE ", vocabulary.decode(mine).c_str(),
                            vocabulary.decode(its).c_str(), gap(here), gap(there));
                break;
            }
            if (vocabulary.ends_text(mine)) {
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
