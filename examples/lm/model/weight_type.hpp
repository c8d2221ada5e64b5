// What weight matrices are multiplied as: names of formats, and the types of GGUF that are the same.
#pragma once

#include "gguf/ggml_type.hpp"

#include <crumb/format/list.hpp>
#include <crumb/format/nested.hpp>

#include <array>
#include <optional>
#include <string_view>
#include <type_traits>

namespace lm {

#define LM_WEIGHT_TYPE(format) format,
/// What the weight matrices are multiplied as. `stored` takes them as the file has them; then floats, the
/// formats of `crumb::all_format_list`, nested weights.
enum class weight_type {
    stored,
    f32,
    CRUMB_FOR_EACH_FORMAT(LM_WEIGHT_TYPE) CRUMB_FOR_EACH_RECORD_FORMAT(LM_WEIGHT_TYPE) nested
};
#undef LM_WEIGHT_TYPE

inline constexpr auto weight_names = []<class... F>(crumb::type_list<F...>) {
    return std::array<std::string_view, 3 + sizeof...(F)>{"stored", "f32", F::name...,
                                                          crumb::nested_view::name};
}(crumb::all_format_list{});
static_assert(weight_names.size() == static_cast<std::size_t>(weight_type::nested) + 1);

constexpr std::string_view name_of(weight_type type) noexcept {
    return weight_names[static_cast<std::size_t>(type)];
}

/// Calls f(std::type_identity<F>()) for the format of a weight type, if it is one.
template <class F, class... Format>
void with_format(weight_type type, F&& f, crumb::type_list<Format...>) {
    std::size_t i = 2;
    ((static_cast<std::size_t>(type) == i++ ? f(std::type_identity<Format>()) : void()), ...);
}
template <class F>
void with_format(weight_type type, F&& f) {
    with_format(type, f, crumb::all_format_list{});
}
/// The same for those of `crumb::format_list`, whose codes the library's quantizers choose level by level.
template <class F>
void with_leveled_format(weight_type type, F&& f) {
    with_format(type, f, crumb::format_list{});
}
/// The same, and for q5_0, whose codes may be chosen so.
template <class F>
void with_chosen_format(weight_type type, F&& f) {
    with_leveled_format(type, f);
    if (type == weight_type::q5_0)
        f(std::type_identity<crumb::q5_0>());
}

inline bool is_leveled(weight_type type) noexcept {
    bool out = false;
    with_leveled_format(type, [&](auto) { out = true; });
    return out;
}
/// Whether a format rounds any matrix by itself.
inline bool is_rounding(weight_type type) noexcept {
    bool out = false;
    with_format(type, [&]<class F>(std::type_identity<F>) { out = crumb::rounding_format<F>; });
    return out;
}
/// The type of GGUF that has a format's blocks, which is the one of the same name; nothing for crumb's own.
template <class F>
inline constexpr std::optional<ggml_type> ggml_type_of = [] {
    const std::optional<ggml_type> type = ggml_type_named(F::name);
    if (type) {
        const ggml_type_info& info = *find_ggml_type(*type);
        if (info.block != crumb::block_inputs<F> || info.block_bytes != sizeof(typename F::block))
            return std::optional<ggml_type>(std::nullopt);
    }
    return type;
}();
/// The format of a type's blocks; nothing if it is not multiplied as stored.
inline std::optional<weight_type> format_of(ggml_type type) noexcept {
    return [&]<class... F>(crumb::type_list<F...>) {
        std::optional<weight_type> out;
        std::size_t i = 2;
        ((ggml_type_of<F> == type ? void(out = static_cast<weight_type>(i++)) : void(++i)), ...);
        return out;
    }(crumb::all_format_list{});
}

} // namespace lm
