// The function tables of encoded caches, per ISA.
#pragma once

#include <crumb/dispatch/isa.hpp>
#include <crumb/kernel/kv_kernels.hpp>

namespace crumb::inline CRUMB_ABI::dispatch {

/// What a cache and its attention keep of the ISA they chose.
struct kv_functions {
    const char* isa = nullptr;
    void (*encode)(const kernel::kv_block_args&) noexcept = nullptr;
    void (*decode)(const kernel::kv_decode_args&) noexcept = nullptr;
    void (*attention)(const kernel::kv_attention_args&) noexcept = nullptr;
    void (*to_halves)(const float*, half*, std::size_t) noexcept = nullptr;
    void (*merge)(const kernel::merge_args&) noexcept = nullptr;
};

/// The functions, in the order of `isa_list`.
template <class Isa>
inline constexpr kv_functions kv_functions_of{
    Isa::name,
    &kernel::kv_encode<plain_isa<Isa>>,
    &kernel::kv_decode<plain_isa<Isa>>,
    &kernel::kv_attention<Isa>,
    &kernel::to_halves<plain_isa<Isa>>,
    &kernel::merge<plain_isa<Isa>>,
};
inline constexpr auto kv_table = []<class... I>(type_list<I...>) {
    return std::array<kv_functions, sizeof...(I)>{kv_functions_of<I>...};
}(isa_list{});

} // namespace crumb::inline CRUMB_ABI::dispatch
