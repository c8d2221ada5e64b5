// JSON of any text.
#include "cli/report.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace test_report {
namespace {

std::string json_of(std::string_view text) { return lm::json_object().put("k", text).text(); }

TEST(Report, JsonIsValidUtf8) {
    const std::string bad = "\xEF\xBF\xBD";
    EXPECT_EQ(json_of("plain"), R"({"k": "plain"})");
    EXPECT_EQ(json_of("\"\\/"), R"({"k": "\"\\/"})");
    EXPECT_EQ(json_of({"\0\n\x1F\x7F", 4}), "{\"k\": \"\\u0000\\u000a\\u001f\x7F\"}");
    EXPECT_EQ(json_of("é€😀" + bad), "{\"k\": \"é€😀" + bad + "\"}");
    EXPECT_EQ(json_of("a\xFF"), "{\"k\": \"a" + bad + "\"}");
    EXPECT_EQ(json_of("\x80z"), "{\"k\": \"" + bad + "z\"}");
    EXPECT_EQ(json_of("\xE2\x82"), "{\"k\": \"" + bad + bad + "\"}");           // cut
    EXPECT_EQ(json_of("\xE2\"q"), "{\"k\": \"" + bad + "\\\"q\"}");             // a quote within a character
    EXPECT_EQ(json_of("\xC0\xAF"), "{\"k\": \"" + bad + bad + "\"}");           // longer than needed
    EXPECT_EQ(json_of("\xED\xA0\x80"), "{\"k\": \"" + bad + bad + bad + "\"}"); // a surrogate
    EXPECT_EQ(lm::json_object().put("\xFF", std::size_t{1}).text(), "{\"" + bad + "\": 1}");
    EXPECT_EQ(lm::json_object().put("k", std::numeric_limits<double>::quiet_NaN()).text(), R"({"k": null})");
}

} // namespace
} // namespace test_report
