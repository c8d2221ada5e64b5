// Tests of every format: a new one is tested because it is listed.
//
//     template <class F> struct Packed {};
//     FORMAT_TEST_SUITE(Packed, formats);
//     FORMAT_TEST(Packed, IsSpaceNeutral) { ... }
//
// The body is that of a member of Packed<TypeParam>. As TYPED_TEST, but without classes of GoogleTest per
// format, which took a quarter of the compiler's time.
#pragma once

#include <crumb/format/list.hpp>
#include <crumb/format/packed.hpp>

#include <gtest/gtest.h>

#include <string>

namespace crumb_test {

template <class... List>
struct joined_lists;
template <class... T>
struct joined_lists<crumb::type_list<T...>> {
    using types = crumb::type_list<T...>;
};
template <class... A, class... B, class... Rest>
struct joined_lists<crumb::type_list<A...>, crumb::type_list<B...>, Rest...>
    : joined_lists<crumb::type_list<A..., B...>, Rest...> {};
/// One list of the types of some `type_list`s.
template <class... List>
using types_of = typename joined_lists<List...>::types;

template <class... F>
auto formats_with_trained_codebooks(crumb::type_list<F...>)
    -> types_of<std::conditional_t<crumb::needs_codebooks<F>, crumb::type_list<F>, crumb::type_list<>>...>;
/// Formats whose codebooks come with a plan.
using trained_formats = decltype(formats_with_trained_codebooks(crumb::format_list{}));

class function_test : public testing::Test {
  public:
    explicit function_test(void (*run)()) : run_(run) {}
    void TestBody() override { run_(); }

  private:
    void (*run_)();
};

/// Names a test <suite>.<name>/<format>.
inline void add_test(const char* suite, const char* name, const char* format, const char* file, int line,
                     void (*run)()) {
    testing::RegisterTest(suite, (std::string(name) + '/' + format).c_str(), nullptr, nullptr, file, line,
                          [run]() -> testing::Test* { return new function_test(run); });
}
template <template <class> class Test, class... F>
bool add_tests(crumb::type_list<F...>, const char* suite, const char* name, const char* file, int line) {
    (add_test(suite, name, F::name, file, line, &Test<F>::call), ...);
    return true;
}

} // namespace crumb_test

#define FORMAT_TEST_SUITE(suite, formats) using suite##_formats = formats
#define FORMAT_TEST(suite, test)                                                                             \
    template <class TypeParam>                                                                               \
    struct suite##_##test : suite<TypeParam> {                                                               \
        void run();                                                                                          \
        static void call() { suite##_##test().run(); }                                                       \
    };                                                                                                       \
    [[maybe_unused]] const bool suite##_##test##_added =                                                     \
        crumb_test::add_tests<suite##_##test>(suite##_formats{}, #suite, #test, __FILE__, __LINE__);         \
    template <class TypeParam>                                                                               \
    void suite##_##test<TypeParam>::run()
