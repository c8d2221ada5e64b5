// Choosing an ISA at run time.
#pragma once

#include <crumb/core/context.hpp>
#include <crumb/core/status.hpp>
#include <crumb/isa/list.hpp>

#include <cstdlib>
#include <cstring>
#include <span>

namespace crumb::inline CRUMB_ABI {

/// The ISAs that kernels were compiled for, best first.
struct isa_table {
    static constexpr std::size_t max = 16;
    std::size_t size = 0;
    const char* names[max] = {};
    bool supported[max] = {}; ///< whether this CPU can execute them
    bool two_streams = false; ///< see `cpu_features`
    bool converts_on_product_ports = false;

    /// The index of a name; `size` if it is none of them.
    std::size_t find(const char* name) const noexcept {
        std::size_t index = 0;
        while (index < size && std::strcmp(names[index], name) != 0)
            ++index;
        return index;
    }
};

namespace dispatch {

/// The ISAs of `isa_list`; the CPU is queried once.
inline const isa_table& listed_isas() noexcept {
    static const isa_table table = []<class... I>(type_list<I...>) {
        const cpu_features cpu = detect_cpu();
        return isa_table{sizeof...(I),
                         {isa_traits<I>::name...},
                         {isa_traits<I>::supported(cpu)...},
                         cpu.two_streams,
                         cpu.converts_on_product_ports};
    }(isa_list{});
    return table;
}

#if !CRUMB_HEADER_ONLY
extern "C" const void* CRUMB_ENTRY(isas)() noexcept;
#endif

inline const isa_table& isas() noexcept {
#if CRUMB_HEADER_ONLY
    return listed_isas();
#else
    return *static_cast<const isa_table*>(CRUMB_ENTRY(isas)());
#endif
}

} // namespace dispatch

/// Names of the ISAs of this build, best first.
inline std::span<const char* const> isa_names() noexcept {
    return {dispatch::isas().names, dispatch::isas().size};
}

/// The index of a name in `isa_names`; their number if kernels were not compiled for such an ISA.
inline std::size_t isa_index(const char* name) noexcept { return dispatch::isas().find(name); }

/// Whether this CPU can execute the ISA at `index` of `isa_names`.
inline bool isa_supported(std::size_t index) noexcept {
    return index < dispatch::isas().size && dispatch::isas().supported[index];
}

/// The index in `isa_names` of the ISA to use, as the context says. What this CPU lacks falls back to the
/// next in the list. An unknown name is an error that lists the names of this build.
inline result<std::size_t> choose_isa(const context& on = {}) noexcept {
    const std::span<const char* const> known = isa_names();
    const char* wanted = on.isa;
    const char* source = "the requested ISA";
    if (wanted == nullptr || *wanted == '\0') {
        wanted = std::getenv("CRUMB_ISA");
        source = "CRUMB_ISA";
    }
    std::size_t index = 0;
    if (wanted != nullptr && *wanted != '\0') {
        index = isa_index(wanted);
        if (index == known.size()) {
            char names[96] = {};
            for (const char* name : known) {
                std::strncat(names, " ", sizeof names - std::strlen(names) - 1);
                std::strncat(names, name, sizeof names - std::strlen(names) - 1);
            }
            return status::error(errc::unsupported, "%s is '%.32s'; this build has%s", source, wanted, names);
        }
    }
    while (index < known.size() && !isa_supported(index))
        ++index;
    if (index == known.size())
        return status::error(errc::unsupported, "this CPU lacks the only ISA of this build, %s",
                             known.back());
    return index;
}

} // namespace crumb::inline CRUMB_ABI
