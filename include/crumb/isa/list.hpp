// The one list of ISAs, best first; `portable` is last and runs everywhere. Their primitives are in
// isa/primitives.hpp.
#pragma once

#include <crumb/core/type_list.hpp>
#include <crumb/isa/cpu.hpp>

// One line per ISA: which compilers build it, its name, whether a CPU with the features `cpu` has it.
#define CRUMB_LISTED_0(...)
#define CRUMB_LISTED_1(...) __VA_ARGS__
#define CRUMB_IF_BUILT(builds, ...) CRUMB_CAT(CRUMB_LISTED_, builds)(__VA_ARGS__)

/// Calls F(name, needs) for each.
// clang-format off
#define CRUMB_FOR_EACH_ISA(F)                                                                                \
    CRUMB_IF_BUILT(CRUMB_BUILDS_X86, F(avx512_vbmi, cpu.avx512_vbmi))                                        \
    CRUMB_IF_BUILT(CRUMB_BUILDS_X86, F(avx512_vnni, cpu.avx512_vnni))                                        \
    CRUMB_IF_BUILT(CRUMB_BUILDS_X86, F(avx_vnni, cpu.avx_vnni))                                              \
    CRUMB_IF_BUILT(CRUMB_BUILDS_X86, F(avx2, cpu.avx2_fma_f16c))                                             \
    CRUMB_IF_BUILT(CRUMB_BUILDS_NEON_I8MM, F(neon_i8mm, cpu.dotprod && cpu.i8mm))                            \
    CRUMB_IF_BUILT(CRUMB_BUILDS_NEON_DOTPROD, F(neon_dotprod, cpu.dotprod))                                  \
    CRUMB_IF_BUILT(CRUMB_BUILDS_NEON, F(neon, true))                                                         \
    F(portable, true)
// clang-format on

namespace crumb::inline CRUMB_ABI {

namespace isa {
#define CRUMB_ISA_ITEM(name, needs) struct name;
CRUMB_FOR_EACH_ISA(CRUMB_ISA_ITEM)
#undef CRUMB_ISA_ITEM
} // namespace isa

/// What is known of an ISA without its primitives.
template <class Isa>
struct isa_traits;
#define CRUMB_ISA_ITEM(isa_name, needs)                                                                      \
    template <>                                                                                              \
    struct isa_traits<isa::isa_name> {                                                                       \
        static constexpr const char* name = #isa_name;                                                       \
        static constexpr bool supported([[maybe_unused]] const cpu_features& cpu) noexcept { return needs; } \
    };
CRUMB_FOR_EACH_ISA(CRUMB_ISA_ITEM)
#undef CRUMB_ISA_ITEM

#if CRUMB_HEADER_ONLY && (defined(CRUMB_SINGLE_ISA) || defined(CRUMB_TWO_ISAS))
#if defined(CRUMB_SINGLE_ISA)
#define CRUMB_CHOSEN_ISA CRUMB_SINGLE_ISA
#else
#define CRUMB_CHOSEN_ISA CRUMB_TWO_ISAS
#endif
namespace detail {
constexpr bool is_listed_isa(const char* name) noexcept {
    const auto equals = [name](const char* other) {
        std::size_t i = 0;
        while (name[i] != 0 && name[i] == other[i])
            ++i;
        return name[i] == other[i];
    };
#define CRUMB_ISA_ITEM(isa, needs) || equals(#isa)
    return false CRUMB_FOR_EACH_ISA(CRUMB_ISA_ITEM);
#undef CRUMB_ISA_ITEM
}
} // namespace detail
#define CRUMB_ISA_ITEM(isa, needs) " " #isa
static_assert(detail::is_listed_isa(CRUMB_STRINGIFY(CRUMB_CHOSEN_ISA)),
              "CRUMB_SINGLE_ISA and CRUMB_TWO_ISAS name an ISA that this build does not have; it "
              "has" CRUMB_FOR_EACH_ISA(CRUMB_ISA_ITEM));
#undef CRUMB_ISA_ITEM
#endif

// Where kernels are compiled apart, the choice among them is made there.
#if CRUMB_HEADER_ONLY && defined(CRUMB_SINGLE_ISA)
using isa_list = type_list<isa::CRUMB_SINGLE_ISA>;
#elif CRUMB_HEADER_ONLY && defined(CRUMB_TWO_ISAS)
using isa_list = type_list<isa::CRUMB_TWO_ISAS, isa::portable>;
#else
#define CRUMB_ISA_ITEM(name, needs) , isa::name
using isa_list = type_list_tail<void CRUMB_FOR_EACH_ISA(CRUMB_ISA_ITEM)>;
#undef CRUMB_ISA_ITEM
#endif

} // namespace crumb::inline CRUMB_ABI
