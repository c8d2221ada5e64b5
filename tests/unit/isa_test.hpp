// Running a test on every ISA of the build that this CPU has.
#pragma once

#include <crumb/dispatch/isa.hpp>
#include <crumb/isa/primitives.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

namespace crumb_test {

/// The ISAs that an environment variable, a comma list, names.
inline std::set<std::string, std::less<>> isas_of(const char* variable) {
    std::set<std::string, std::less<>> names;
    const char* list = std::getenv(variable);
    std::istringstream items(list != nullptr ? list : "");
    for (std::string name; std::getline(items, name, ',');)
        if (!name.empty())
            names.insert(name);
    for (const std::string& name : names)
        EXPECT_NE(std::find(crumb::isa_names().begin(), crumb::isa_names().end(), name),
                  crumb::isa_names().end())
            << variable << " names '" << name << "', which this build does not have";
    return names;
}

/// Calls f.operator()<Isa>() for every ISA that this CPU supports, or for those among them that
/// CRUMB_TEST_ONLY_ISA names. What this CPU lacks is skipped with a line of output, or is a failure where
/// CRUMB_TEST_REQUIRE_ISA names it.
template <class F>
void for_each_isa(F&& f) {
    const auto required = isas_of("CRUMB_TEST_REQUIRE_ISA"), only = isas_of("CRUMB_TEST_ONLY_ISA");
    crumb::isa_list::for_each([&]<class Isa>() {
        const bool supported = crumb::isa_supported(crumb::isa_index(Isa::name));
        if (!only.empty() && only.count(std::string_view(Isa::name)) == 0) {
            EXPECT_EQ(required.count(std::string_view(Isa::name)), 0u)
                << "CRUMB_TEST_ONLY_ISA leaves out " << Isa::name << ", which is required";
        } else if (supported) {
            SCOPED_TRACE(Isa::name);
            f.template operator()<Isa>();
        } else if (required.count(std::string_view(Isa::name)) != 0) {
            ADD_FAILURE() << "this CPU lacks the required ISA " << Isa::name;
        } else {
            static std::set<std::string> told;
            if (told.insert(Isa::name).second)
                std::printf("[  SKIPPED ] tests on %s: this CPU lacks it\n", Isa::name);
        }
    });
}

} // namespace crumb_test
