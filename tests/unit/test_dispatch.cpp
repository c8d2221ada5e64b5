#include <crumb/crumb.hpp>

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace test_dispatch {
namespace {

class Dispatch : public testing::Test {
  protected:
    void SetUp() override {
        const char* set = std::getenv("CRUMB_ISA");
        before_ = set != nullptr ? set : "";
        unsetenv("CRUMB_ISA");
    }
    void TearDown() override { setenv("CRUMB_ISA", before_.c_str(), 1); }
    std::string before_;
};

std::size_t best_supported(std::size_t from) {
    while (!crumb::isa_supported(from))
        ++from;
    return from;
}

TEST_F(Dispatch, DefaultIsTheBestSupported) {
    ASSERT_TRUE(crumb::choose_isa());
    EXPECT_EQ(*crumb::choose_isa(), best_supported(0));
}

TEST_F(Dispatch, EnvironmentOverridesAndFallsBack) {
    for (std::size_t i = 0; i < crumb::isa_names().size(); ++i) {
        setenv("CRUMB_ISA", crumb::isa_names()[i], 1);
        const auto chosen = crumb::choose_isa();
        ASSERT_TRUE(chosen);
        EXPECT_EQ(*chosen, best_supported(i));
        // An explicit request beats the environment.
        EXPECT_EQ(*crumb::choose_isa({"portable"}), crumb::isa_names().size() - 1);
    }
}

TEST_F(Dispatch, UnknownNamesAreErrorsThatListTheKnownOnes) {
    setenv("CRUMB_ISA", "sse9", 1);
    const auto chosen = crumb::choose_isa();
    ASSERT_FALSE(chosen);
    EXPECT_EQ(chosen.error().code(), crumb::errc::unsupported);
    const std::string message = chosen.message();
    EXPECT_NE(message.find("sse9"), std::string::npos);
    for (const char* name : crumb::isa_names())
        EXPECT_NE(message.find(name), std::string::npos) << message;
    const auto plan = crumb::linear<crumb::q4_0>::plan({});
    ASSERT_FALSE(plan);
    EXPECT_EQ(plan.error().code(), crumb::errc::unsupported);
}

TEST_F(Dispatch, PlanNamesTheIsaThatItChose) {
    for (std::size_t i = 0; i < crumb::isa_names().size(); ++i) {
        const auto plan = crumb::linear<crumb::q8_0>::plan({}, {}, {crumb::isa_names()[i]});
        ASSERT_TRUE(plan);
        EXPECT_STREQ(plan->isa(), crumb::isa_names()[best_supported(i)]);
    }
}

} // namespace
} // namespace test_dispatch
