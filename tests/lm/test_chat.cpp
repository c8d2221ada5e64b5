// Formats of conversations, streaming of characters, sampling.
#include "chat_histories.hpp"
#include "text/chat_format.hpp"
#include "text/sampler.hpp"
#include "text/utf8_stream.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace test_chat {
namespace {

using lm::test::escaped;

TEST(Chat, PromptsAreThoseOfLlamaCpp) {
    std::map<std::string, std::vector<std::string>> expected;
    std::ifstream file(CRUMB_DATA_DIR "/chats.txt");
    for (std::string line; std::getline(file, line);) {
        const std::size_t tab = line.find('\t');
        ASSERT_NE(tab, line.npos);
        expected[line.substr(0, tab)].push_back(line.substr(tab + 1));
    }
    const auto histories = lm::test::chat_histories();
    EXPECT_EQ(expected.size(), 15u);
    std::map<std::vector<std::string>, std::string> kinds;
    for (const auto& [name, texts] : expected) {
        const auto format = lm::chat_format::named(name);
        ASSERT_TRUE(format.ok()) << format.message();
        ASSERT_EQ(texts.size(), histories.size()) << name;
        for (std::size_t i = 0; i < texts.size(); ++i)
            EXPECT_EQ(escaped(format->prompt(histories[i]).text), texts[i]) << name << " " << i;
        EXPECT_TRUE(kinds.try_emplace(texts, name).second) << name << " is like another";
    }
}

TEST(Chat, WhatIsAddedContinuesThePrompt) {
    std::string names = lm::chat_format::names() + ", ";
    std::size_t count = 0;
    for (std::size_t at = 0, end = 0; (end = names.find(", ", at)) != names.npos; at = end + 2, ++count) {
        const auto format = lm::chat_format::named(names.substr(at, end - at));
        ASSERT_TRUE(format.ok()) << format.message();
        EXPECT_EQ(format->name(), names.substr(at, end - at));
        const std::vector<lm::chat_message> before = {{lm::chat_role::system, "S"},
                                                      {lm::chat_role::user, "one"}};
        std::vector<lm::chat_message> all = before;
        all.push_back({lm::chat_role::assistant, "two"});
        all.push_back({lm::chat_role::user, "three"});
        const std::string space =
            format->name() == "mistral-v1" || format->name() == "mistral-v3" || format->name() == "mistral-v7"
                ? " "
                : "";
        const lm::chat_text next = format->next("three");
        EXPECT_EQ(format->prompt(before).text + space + "two" + next.text, format->prompt(all).text);
        ASSERT_EQ(next.quoted.size(), 1u);
        EXPECT_EQ(next.text.substr(next.quoted[0].begin, next.quoted[0].end - next.quoted[0].begin), "three");
        const lm::chat_text whole = format->prompt(all);
        ASSERT_EQ(whole.quoted.size(), 4u);
        std::string quoted;
        for (const lm::text_range& q : whole.quoted)
            quoted += whole.text.substr(q.begin, q.end - q.begin) + "|";
        EXPECT_EQ(quoted, "S|one|two|three|");
    }
    EXPECT_EQ(count, 16u);
}

TEST(Chat, TemplatesAreRecognizedByWhatTheyMention) {
    const std::pair<const char*, const char*> known[] = {
        {"{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>'}}", "chatml"},
        {"{{'<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>'}}", "phi4"},
        {"{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}", "llama2-sys-strip"},
        {"{{ bos_token + '[INST] ' + content + ' [/INST]' }}{{ '<<SYS>>' }}", "llama2-sys-bos"},
        {"{{ '[INST] ' + '<<SYS>>' + content + ' [/INST]' }}", "llama2-sys"},
        {"{{ '[INST] ' + content + ' [/INST]' }}", "llama2"},
        {"{{ ' [INST] ' + system_message + message['content'] + ' [/INST]' }}", "mistral-v1"},
        {"{{ '[AVAILABLE_TOOLS] ' }}{{ '[INST] ' + message['content'] }}", "mistral-v3"},
        {"{{ '[AVAILABLE_TOOLS]' }}{{ \"[INST]\" + message['content'] }}", "mistral-v3-tekken"},
        {"{{ '[SYSTEM_PROMPT]' + s + '[/SYSTEM_PROMPT]' }}{{ '[INST]' }}", "mistral-v7"},
        {"{{'<|user|>\n' + message['content'] + '<|end|>\n<|assistant|>\n'}}", "phi3"},
        {"{{ '<|user|>\n' + message['content'] + eos_token }}{{ '<|assistant|>' }}", "zephyr"},
        {"{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}", "gemma"},
        {"{{ '<｜User｜>' + content }}{{ '<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>' }}",
         "deepseek3"},
        {"{{ '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}", "llama3"}};
    for (const auto& [text, name] : known) {
        const auto format = lm::chat_format::of_template(text);
        ASSERT_TRUE(format.ok()) << format.message();
        EXPECT_EQ(format->name(), name) << text;
    }
    const auto unknown = lm::chat_format::of_template("{{ 'USER: ' + message['content'] }}");
    EXPECT_NE(
        std::string(unknown.message())
            .find("key 'tokenizer.chat_template' writes no format that is known: pass --template with the "
                  "format that the model was trained on, one of chatml, llama2, "),
        std::string::npos)
        << unknown.message();
    EXPECT_FALSE(std::string(unknown.message()).ends_with("...")) << "the list is whole";
    const auto none = lm::chat_format::of_template("");
    EXPECT_NE(std::string(none.message()).find("the file has no 'tokenizer.chat_template': pass --template"),
              std::string::npos);
    EXPECT_NE(std::string(lm::chat_format::named("jinja").message()).find("'jinja' is no format of chats"),
              std::string::npos);
}

TEST(Utf8Stream, NeverCutsACharacter) {
    const std::string text = "aé中😀\u0301 \xFF\xC3(\xE4\xB8x\xED\xA0\x80\xF4\x90\x80\x80 ß!";
    for (std::size_t step = 1; step <= 5; ++step) {
        lm::utf8_stream stream;
        std::string all;
        for (std::size_t at = 0; at < text.size(); at += step) {
            const std::string shown = stream.push(text.substr(at, step));
            all += shown;
            // Whatever comes next begins no character in its middle.
            if (!shown.empty() && at + step < text.size()) {
                const auto next = static_cast<unsigned char>(text[all.size()]);
                EXPECT_TRUE((next & 0xC0) != 0x80 || next == 0x80 || next == 0x90 || next == 0xA0)
                    << all.size();
            }
        }
        EXPECT_EQ(all, text);
    }
    lm::utf8_stream stream;
    EXPECT_EQ(stream.push("x\xF0\x9F"), "x");
    EXPECT_EQ(stream.push("\x98"), "");
    EXPECT_EQ(stream.push("\x80"), "😀");
    EXPECT_EQ(stream.push("\xF0\x9F"), "");
    EXPECT_EQ(stream.push("a"), "\xF0\x9F"
                                "a")
        << "it has been none";
}

std::map<std::int32_t, double> shares(const lm::sampling& how, std::span<const float> logits, int count) {
    lm::sampler next(how);
    std::map<std::int32_t, double> out;
    for (int i = 0; i < count; ++i)
        out[next(logits)] += 1.0 / count;
    return out;
}

TEST(Sampler, DrawsByProbability) {
    const std::array<float, 6> logits = {1.0f, 3.0f, 2.0f, -1.0f, 0.0f, -30.0f};
    for (const float temperature : {0.5f, 1.0f, 2.0f}) {
        double total = 0;
        for (const float l : logits)
            total += std::exp(l / temperature);
        constexpr int count = 20000;
        const auto seen = shares({.temperature = temperature, .top_k = 0}, logits, count);
        for (std::size_t i = 0; i < logits.size(); ++i) {
            const double p = std::exp(logits[i] / temperature) / total;
            const double is = seen.contains(std::int32_t(i)) ? seen.at(std::int32_t(i)) : 0;
            EXPECT_NEAR(is, p, 5 * std::sqrt(p * (1 - p) / count) + 1e-6) << i << " at " << temperature;
        }
    }
}

std::set<std::int32_t> drawn(const lm::sampling& how, std::span<const float> logits) {
    std::set<std::int32_t> out;
    for (const auto& each : shares(how, logits, 4000))
        out.insert(each.first);
    return out;
}

TEST(Sampler, KeepsWhatItIsTold) {
    // Probabilities .5, .25, .125, .0625, .0625, in another order.
    const float l = std::log(2.0f);
    const std::array<float, 5> logits = {-2 * l, 0.0f, -3 * l, -1 * l, -3 * l};
    using set = std::set<std::int32_t>;
    EXPECT_EQ(drawn({.temperature = 0}, logits), (set{1}));
    EXPECT_EQ(drawn({.temperature = 5, .top_k = 2}, logits), (set{1, 3}));
    EXPECT_EQ(drawn({.temperature = 5, .top_k = 0, .top_p = 0.45f}, logits), (set{1}));
    EXPECT_EQ(drawn({.temperature = 5, .top_k = 0, .top_p = 0.6f}, logits), (set{1, 3}))
        << "at temperature 1";
    EXPECT_EQ(drawn({.temperature = 5, .top_k = 0, .top_p = 0.8f}, logits), (set{0, 1, 3}));
    EXPECT_EQ(drawn({.temperature = 5, .top_k = 0, .top_p = 0}, logits), (set{1})) << "one at least";
    EXPECT_EQ(drawn({.temperature = 5, .top_k = 0, .min_p = 0.3f}, logits), (set{1, 3}));
    EXPECT_EQ(drawn({.temperature = 5, .top_k = 0, .min_p = 1}, logits), (set{1}));
    EXPECT_EQ(drawn({.temperature = 5, .top_k = 0}, logits), (set{0, 1, 2, 3, 4}));
}

TEST(Sampler, PenalizesWhatWasRecent) {
    const std::array<float, 4> logits = {2.0f, 1.9f, -1.0f, -1.1f};
    lm::sampler next({.temperature = 0, .repetition = 1.5f, .repetition_last = 2});
    EXPECT_EQ(next(logits), 0);
    EXPECT_EQ(next(logits), 1) << "2 / 1.5 is less than 1.9";
    EXPECT_EQ(next(logits), 0) << "both are penalized";
    lm::sampler negative({.temperature = 0, .repetition = 1.5f, .repetition_last = 2});
    negative.saw(0);
    EXPECT_EQ(negative(std::array<float, 2>{-1.0f, -1.4f}), 1) << "-1 * 1.5 is less than -1.4";
    lm::sampler long_ago({.temperature = 0, .repetition = 1.5f, .repetition_last = 2});
    long_ago.saw(0);
    for (int i = 0; i < 5000; ++i)
        long_ago.saw(3);
    EXPECT_EQ(long_ago(logits), 0);
}

TEST(Sampler, TheSameSeedIsTheSameTextEverywhere) {
    std::vector<float> logits(1000);
    for (std::size_t i = 0; i < logits.size(); ++i)
        logits[i] = static_cast<float>(i * 7919 % 1000) / 80.0f;
    const lm::sampling how{
        .temperature = 0.9f, .top_k = 200, .top_p = 0.95f, .min_p = 0.01f, .repetition = 1.2f, .seed = 42};
    const auto text = [&](std::uint64_t seed) {
        lm::sampling other = how;
        other.seed = seed;
        lm::sampler next(other);
        std::uint32_t hash = 0;
        for (int i = 0; i < 1000; ++i)
            hash = hash * 31 + static_cast<std::uint32_t>(next(logits));
        return hash;
    };
    EXPECT_EQ(text(42), 3144367124u) << "on every machine";
    EXPECT_NE(text(43), text(42));
}

} // namespace
} // namespace test_chat
