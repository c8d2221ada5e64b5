// The formats of the library as the types of a typed test: a new one is tested because it is listed.
#pragma once

#include <crumb/format/list.hpp>
#include <crumb/format/packed.hpp>

#include <gtest/gtest.h>

namespace crumb_test {

template <class... List>
struct joined_lists;
template <class... T>
struct joined_lists<crumb::type_list<T...>> {
    using types = testing::Types<T...>;
};
template <class... A, class... B, class... Rest>
struct joined_lists<crumb::type_list<A...>, crumb::type_list<B...>, Rest...>
    : joined_lists<crumb::type_list<A..., B...>, Rest...> {};
/// The types of some `type_list`s.
template <class... List>
using types_of = typename joined_lists<List...>::types;

template <class... F>
auto formats_with_trained_codebooks(crumb::type_list<F...>)
    -> types_of<std::conditional_t<crumb::needs_codebooks<F>, crumb::type_list<F>, crumb::type_list<>>...>;
/// Formats whose codebooks come with a plan.
using trained_formats = decltype(formats_with_trained_codebooks(crumb::format_list{}));

} // namespace crumb_test
