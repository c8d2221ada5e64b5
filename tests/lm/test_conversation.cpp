// Conversations over one cache: what is fed, what is forgotten, what is stopped.
#include "cli/conversation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace test_conversation {
namespace {

using lm::chat_answer;

struct Conversation : testing::Test {
    Conversation()
        : m(lm::model::load(CRUMB_MODEL_DIR "/novels-llama-5m-q8_0.gguf", {})),
          format(*lm::chat_format::named("chatml")) {}
    void SetUp() override { ASSERT_TRUE(m.ok()) << m.message(); }

    lm::session session(std::size_t context) const {
        return std::move(*lm::session::make(*m, lm::team(1), lm::kv_type::f16, context, 64));
    }
    static bool all(std::string_view) { return true; }

    crumb::result<lm::model> m;
    lm::chat_format format;
    lm::sampling greedy{.temperature = 0};
};

TEST_F(Conversation, FeedsOnlyWhatIsNew) {
    lm::session s = session(512);
    lm::conversation talk(s, format, greedy, 20);
    talk.reset("Be brief.");
    std::string shown;
    const auto first = talk.ask("It was", [&](std::string_view piece) {
        shown += piece;
        return true;
    });
    ASSERT_TRUE(first.ok()) << first.message();
    EXPECT_EQ(first->tokens, 20u);
    EXPECT_EQ(first->why, chat_answer::end::limit);
    EXPECT_TRUE(shown == first->text || " " + shown == first->text) << shown;
    const auto second = talk.ask("Why?", all);
    ASSERT_TRUE(second.ok()) << second.message();
    // The model's tokens are bytes; the last one of the answer had not been fed.
    EXPECT_EQ(second->prompt_tokens, format.next("Why?").text.size() + 1);

    // All of it at once is answered alike.
    const std::vector<lm::chat_message> start = {{lm::chat_role::system, "Be brief."},
                                                 {lm::chat_role::user, "It was"}};
    const std::string before = format.prompt(start).text + first->text + format.next("Why?").text;
    lm::session fresh = session(512);
    lm::sampler next(greedy);
    auto logits = fresh.feed(m->vocabulary().encode_prompt(before, true), 1);
    std::string text;
    for (std::size_t i = 0; i < 20; ++i) {
        ASSERT_TRUE(logits.ok()) << logits.message();
        const std::int32_t token = next(*logits);
        text += m->vocabulary().decode(token);
        logits = fresh.feed({&token, 1}, 1);
    }
    EXPECT_EQ(second->text, text);
}

TEST_F(Conversation, ForgetsTheOldestWhenItIsFull) {
    lm::session s = session(160);
    lm::conversation talk(s, format, greedy, 0);
    talk.reset("");
    const auto first = talk.ask("It was", all);
    ASSERT_TRUE(first.ok()) << first.message();
    EXPECT_EQ(first->why, chat_answer::end::context);
    EXPECT_EQ(s.length(), 160u);
    EXPECT_EQ(first->prompt_tokens + first->tokens, 161u) << "the last token needs no room";
    const auto second = talk.ask("Go on", all);
    ASSERT_TRUE(second.ok()) << second.message();
    EXPECT_EQ(second->dropped, 2u);
    const std::vector<lm::chat_message> alone = {{lm::chat_role::user, "Go on"}};
    EXPECT_EQ(second->prompt_tokens, format.prompt(alone).text.size());
    const auto too_long = talk.ask(std::string(200, 'x'), all);
    ASSERT_FALSE(too_long.ok());
    EXPECT_NE(std::string(too_long.message()).find("the context is 160"), std::string::npos)
        << too_long.message();
    EXPECT_TRUE(talk.ask("Still there?", all).ok());
}

TEST_F(Conversation, StopsWhenItIsTold) {
    lm::session s = session(512);
    lm::conversation talk(s, format, greedy, 30);
    talk.reset("");
    int calls = 0;
    const auto asked = [&](int most) {
        calls = 0;
        return talk.ask("It was", [&calls, most](std::string_view) { return ++calls < most; });
    };
    const auto unheard = asked(1);
    ASSERT_TRUE(unheard.ok()) << unheard.message();
    EXPECT_EQ(unheard->why, chat_answer::end::stopped);
    EXPECT_EQ(unheard->tokens, 0u);
    EXPECT_EQ(s.length(), 0u) << "as if it had not been asked";
    const auto some = asked(6);
    ASSERT_TRUE(some.ok()) << some.message();
    EXPECT_EQ(some->why, chat_answer::end::stopped);
    EXPECT_EQ(some->tokens, 5u);
    const std::size_t length = s.length();
    ASSERT_TRUE(asked(1).ok());
    EXPECT_EQ(s.length(), length);
    const auto next = talk.ask("Go on", all);
    ASSERT_TRUE(next.ok()) << next.message();
    EXPECT_EQ(next->prompt_tokens, format.next("Go on").text.size() + 1);
    talk.reset("");
    const auto again = talk.ask("It was", all);
    EXPECT_EQ(again->text.substr(0, some->text.size()), some->text);
}

} // namespace
} // namespace test_conversation
