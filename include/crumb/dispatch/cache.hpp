// The functions of encoded caches, per ISA.
#pragma once

#include <crumb/dispatch/table.hpp>
#include <crumb/kernel/cache/kernels.hpp>

#if CRUMB_HEADER_ONLY
#include <crumb/kernel/cache/definitions.hpp>
#endif

namespace crumb::inline CRUMB_ABI::dispatch {

/// The functions that a cache takes from its ISA.
struct kv_cache_functions {
    const char* isa = nullptr;
    void (*encode)(const kernel::kv_block_args&) noexcept = nullptr;
    void (*decode)(const kernel::kv_decode_args&) noexcept = nullptr;
    void (*to_halves)(const float*, half*, std::size_t) noexcept = nullptr;
};

/// The functions that attention over a cache takes from its ISA.
struct kv_attention_functions {
    const char* isa = nullptr;
    void (*run)(const kernel::kv_attention_args&) noexcept = nullptr;
    kernel::pq_scans scans; ///< empty where codes are decoded
};

template <>
struct function_table<kv_cache_functions> {
    template <class Isa>
    static constexpr kv_cache_functions of{
        isa_traits<Isa>::name,
        &kernel::kv_encode<own_or_base_isa<Isa>>,
        &kernel::kv_decode<own_or_base_isa<Isa>>,
        &kernel::to_halves<own_or_base_isa<Isa>>,
    };
};
template <>
struct function_table<kv_attention_functions> {
    /// The ISA whose scans of codes an ISA uses: its own if its lookups differ from its base's.
    template <class Isa, class Base = own_or_base_isa<Isa>>
    using scanning = std::conditional_t<std::is_same_v<typename Isa::pq, typename Base::pq>, Base, Isa>;

    template <class Isa>
    static constexpr kernel::pq_scans scans_of() noexcept {
        using I = scanning<Isa>;
        if constexpr (kernel::reads_codes<I>)
            return {&kernel::pq_scores<I>,       &kernel::pq_add<I>,    &kernel::pq_meet<I>,
                    &kernel::pq_expansion_of<I>, &kernel::pq_expand<I>, &kernel::pq_join<I>,
                    &kernel::pq_add_joined<I>};
        else
            return {};
    }

    template <class Isa>
    static constexpr kv_attention_functions of{isa_traits<Isa>::name,
                                               &kernel::kv_attention<own_or_base_isa<Isa>>, scans_of<Isa>()};
};

CRUMB_DECLARE_TABLE(kv_cache_functions)
CRUMB_DECLARE_TABLE(kv_attention_functions)

} // namespace crumb::inline CRUMB_ABI::dispatch
