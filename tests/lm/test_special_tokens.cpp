#include "text/special_tokens.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace test_special_tokens {
namespace {

using lm::special_tokens;
using lm::text_fragment;
using lm::text_range;

struct place {
    std::size_t begin, end;
    std::int32_t token;
    bool operator==(const place&) const = default;
};

/// As the header says it: names by length, the longest first, each from left to right wherever nothing is
/// taken.
std::vector<place> expected(const std::vector<special_tokens::name>& names, const std::string& text,
                            const std::vector<text_range>& quoted) {
    std::vector<const special_tokens::name*> order;
    for (const auto& each : names)
        if (!each.text.empty() && std::none_of(order.begin(), order.end(),
                                               [&](const auto* other) { return other->text == each.text; }))
            order.push_back(&each);
    std::vector<bool> taken(text.size());
    std::vector<place> out;
    for (std::size_t length = text.size(); length != 0; --length)
        for (std::size_t at = 0; at + length <= text.size(); ++at)
            for (const auto* each : order) {
                if (each->text != std::string_view(text).substr(at, length))
                    continue;
                const bool is_free =
                    std::find(taken.begin() + std::ptrdiff_t(at), taken.begin() + std::ptrdiff_t(at + length),
                              true) == taken.begin() + std::ptrdiff_t(at + length);
                const bool is_quoted = std::any_of(quoted.begin(), quoted.end(), [&](const text_range& q) {
                    return at < q.end && q.begin < at + length;
                });
                if (!is_free || (is_quoted && !each->in_quotes))
                    continue;
                std::fill(taken.begin() + std::ptrdiff_t(at), taken.begin() + std::ptrdiff_t(at + length),
                          true);
                out.push_back({at, at + length, each->token});
            }
    std::sort(out.begin(), out.end(), [](const place& a, const place& b) { return a.begin < b.begin; });
    return out;
}

TEST(SpecialTokens, TheLongestAreCutFirstWhereverTheyAre) {
    std::mt19937 random(3);
    const auto word = [&](std::size_t most) {
        std::string w(1 + random() % most, 'a');
        for (char& c : w)
            c = "ab\xff"[random() % 3];
        return w;
    };
    std::size_t found = 0;
    for (int round = 0; round < 2000; ++round) {
        std::vector<std::string> texts(1 + random() % 12);
        std::vector<special_tokens::name> names;
        for (std::string& each : texts)
            each = word(1 + random() % 7);
        for (std::size_t i = 0; i < texts.size(); ++i)
            names.push_back({texts[i], std::int32_t(100 + i), random() % 2 == 0, false});
        special_tokens tokens;
        tokens.assign(names);
        const std::string text = word(40);
        std::vector<text_range> quoted;
        if (const std::size_t begin = random() % text.size(); round % 3 == 0)
            quoted.push_back({begin, begin + 1 + random() % (text.size() - begin)});
        std::vector<text_fragment> cut;
        tokens.cut(text, quoted, cut);
        std::vector<place> places;
        std::size_t end = 0;
        for (const text_fragment& each : cut) {
            EXPECT_EQ(each.at.begin, end);
            end = each.at.end;
            if (each.token >= 0)
                places.push_back({each.at.begin, each.at.end, each.token});
        }
        EXPECT_EQ(end, text.size());
        EXPECT_EQ(places, expected(names, text, quoted)) << text;
        found += places.size();
    }
    EXPECT_GT(found, 2000u);
}

// Thousands of names that begin alike: a place costs what it has in common with them.
TEST(SpecialTokens, ManyLengthsCostNothingWhereTheyAreNot) {
    std::vector<std::string> texts;
    std::vector<special_tokens::name> names;
    for (std::size_t length = 1; length <= 3000; ++length)
        texts.push_back(" " + std::string(length, 'x'));
    for (std::size_t i = 0; i < texts.size(); ++i)
        names.push_back({texts[i], std::int32_t(i), true, false});
    special_tokens tokens;
    tokens.assign(names);
    std::string text;
    while (text.size() < 4u << 20)
        text += " plain words";
    std::vector<text_fragment> cut;
    tokens.cut(text, {}, cut);
    EXPECT_EQ(cut.size(), 1u);
}

} // namespace
} // namespace test_special_tokens
