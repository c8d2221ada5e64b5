// Running a test on every ISA of the build that this CPU has.
#pragma once

#include <crumb/dispatch/isa.hpp>
#include <crumb/isa/primitives.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

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

/// An ISA, for tests that need no types of it: one function for all ISAs takes a quarter of the compiler's
/// time.
struct tested_isa {
    const char* name;
    bool fuses;
    std::size_t lanes, row_block, panel_row_block;

    template <class Isa>
    static constexpr tested_isa of() {
        return {Isa::name, Isa::fuses, Isa::lanes, Isa::row_block, Isa::panel_row_block};
    }
};

/// Whether the tests run on an ISA: if this CPU supports it, and CRUMB_TEST_ONLY_ISA names it or nothing.
/// What this CPU lacks is skipped with a line of output, or is a failure where CRUMB_TEST_REQUIRE_ISA names
/// it.
inline bool runs_here(const char* isa) {
    const auto required = isas_of("CRUMB_TEST_REQUIRE_ISA"), only = isas_of("CRUMB_TEST_ONLY_ISA");
    const bool is_required = required.contains(std::string_view(isa));
    if (!only.empty() && !only.contains(std::string_view(isa))) {
        EXPECT_FALSE(is_required) << "CRUMB_TEST_ONLY_ISA leaves out " << isa << ", which is required";
        return false;
    }
    if (crumb::isa_supported(crumb::isa_index(isa)))
        return true;
    if (is_required) {
        ADD_FAILURE() << "this CPU lacks the required ISA " << isa;
        return false;
    }
    static std::set<std::string> told;
    if (told.insert(isa).second)
        std::printf("[  SKIPPED ] tests on %s: this CPU lacks it\n", isa);
    return false;
}

/// Calls call(f, isa) for every ISA that tests run on.
inline void call_for_each_isa(void* f, void (*call)(void*, const tested_isa&)) {
    std::vector<tested_isa> all;
    crumb::isa_list::for_each([&]<class Isa>() { all.push_back(tested_isa::of<Isa>()); });
    for (const tested_isa& isa : all)
        if (runs_here(isa.name)) {
            SCOPED_TRACE(isa.name);
            call(f, isa);
        }
}
/// Calls f(tested_isa) or f.operator()<Isa>() for every ISA that tests run on.
template <class F>
void for_each_isa(F&& f) {
    if constexpr (std::is_invocable_v<F&, const tested_isa&>) {
        call_for_each_isa(
            &f, [](void* g, const tested_isa& isa) { (*static_cast<std::remove_reference_t<F>*>(g))(isa); });
    } else {
        crumb::isa_list::for_each([&]<class Isa>() {
            if (runs_here(Isa::name)) {
                SCOPED_TRACE(Isa::name);
                f.template operator()<Isa>();
            }
        });
    }
}

} // namespace crumb_test
