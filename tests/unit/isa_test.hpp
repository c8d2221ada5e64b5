// Running a test on every ISA of the build that this CPU has.
#pragma once

#include <crumb/dispatch/isa.hpp>

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>

namespace crumb_test {

/// Whether the environment variable CRUMB_TEST_REQUIRE_ISA, a comma list, names the ISA.
inline bool isa_required(std::string_view name) {
    const char* list = std::getenv("CRUMB_TEST_REQUIRE_ISA");
    std::string_view rest = list != nullptr ? list : "";
    while (!rest.empty()) {
        const std::size_t comma = rest.find(',');
        if (rest.substr(0, comma) == name)
            return true;
        rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
    }
    return false;
}

/// Fails for every required ISA that this build does not have.
inline void check_required_isas() {
    const char* list = std::getenv("CRUMB_TEST_REQUIRE_ISA");
    std::string_view rest = list != nullptr ? list : "";
    while (!rest.empty()) {
        const std::size_t comma = rest.find(',');
        const std::string_view name = rest.substr(0, comma);
        bool built = name.empty();
        for (const char* known : crumb::isa_names)
            built = built || name == known;
        EXPECT_TRUE(built) << "CRUMB_TEST_REQUIRE_ISA names '" << name << "', which this build does not have";
        rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
    }
}

/// Calls f.operator()<Isa>() for every ISA that this CPU supports. The others are skipped with a line of
/// output, or are failures where they are required.
template <class F>
void for_each_isa(F&& f) {
    check_required_isas();
    std::size_t index = 0;
    crumb::isa_list::for_each([&]<class Isa>() {
        if (crumb::isa_supported(index++)) {
            SCOPED_TRACE(Isa::name);
            f.template operator()<Isa>();
        } else if (isa_required(Isa::name)) {
            ADD_FAILURE() << "this CPU lacks the required ISA " << Isa::name;
        } else {
            static std::set<std::string> told;
            if (told.insert(Isa::name).second)
                std::printf("[  SKIPPED ] tests on %s: this CPU lacks it\n", Isa::name);
        }
    });
}

} // namespace crumb_test
