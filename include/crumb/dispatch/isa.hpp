// Choosing an ISA at run time.
#pragma once

#include <crumb/core/status.hpp>
#include <crumb/isa/list.hpp>

#include <array>
#include <cstdlib>
#include <cstring>

namespace crumb::inline CRUMB_ABI {

/// Names of the ISAs of this build, best first; the order of `isa_list`.
inline constexpr auto isa_names = []<class... I>(type_list<I...>) {
    return std::array<const char*, sizeof...(I)>{I::name...};
}(isa_list{});

/// The ISA whose functions do everything but products of codebook formats for `Isa`: the one that it names as
/// `plain`, or itself.
template <class Isa>
struct plain_isa_of {
    using type = Isa;
};
template <class Isa>
requires requires { typename Isa::plain; }
struct plain_isa_of<Isa> {
    using type = typename Isa::plain;
};
template <class Isa>
using plain_isa = typename plain_isa_of<Isa>::type;

/// Whether this CPU can execute the ISA at `index` of `isa_list`.
inline bool isa_supported(std::size_t index) noexcept {
    static const auto supported = []<class... I>(type_list<I...>) {
        const cpu_features cpu = detect_cpu();
        return std::array<bool, sizeof...(I)>{I::supported(cpu)...};
    }(isa_list{});
    return index < supported.size() && supported[index];
}

/// The index in `isa_list` of the ISA to use: the one called `wanted`, else the one that the environment
/// variable CRUMB_ISA names, else the best. What this CPU lacks falls back to the next in the list. An
/// unknown name is an error that lists the names of this build.
inline result<std::size_t> choose_isa(const char* wanted = nullptr) noexcept {
    const char* source = "the requested ISA";
    if (wanted == nullptr || *wanted == '\0') {
        wanted = std::getenv("CRUMB_ISA");
        source = "CRUMB_ISA";
    }
    std::size_t index = 0;
    if (wanted != nullptr && *wanted != '\0') {
        while (index < isa_names.size() && std::strcmp(isa_names[index], wanted) != 0)
            ++index;
        if (index == isa_names.size()) {
            char names[96] = {};
            for (const char* name : isa_names) {
                std::strncat(names, " ", sizeof names - std::strlen(names) - 1);
                std::strncat(names, name, sizeof names - std::strlen(names) - 1);
            }
            return status::error(errc::unsupported, "%s is '%.32s'; this build has%s", source, wanted, names);
        }
    }
    while (index < isa_names.size() && !isa_supported(index))
        ++index;
    if (index == isa_names.size())
        return status::error(errc::unsupported, "this CPU lacks the only ISA of this build, %s",
                             isa_names[isa_names.size() - 1]);
    return index;
}

} // namespace crumb::inline CRUMB_ABI
