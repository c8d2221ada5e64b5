// What an ISA has to offer: all of the list do, and one with a hole is refused for the subject of the hole.
#include "isa_test.hpp"

#include <crumb/isa/concept.hpp>
#include <crumb/kernel/cache/definitions.hpp>
#include <crumb/kernel/ffn/definitions.hpp>

#include <gtest/gtest.h>

namespace test_isa_concept {
namespace {

namespace isa = crumb::isa;

// Those of scans and rows are defined with the kernels that use them.
#define TEST_ISA(name, needs)                                                                                \
    static_assert(crumb::isa_primitives<isa::name>);                                                         \
    static_assert(crumb::pq_primitives<isa::name::pq, isa::name>);                                           \
    static_assert(crumb::four_rows_primitives<isa::name::four_rows, isa::name>);
CRUMB_FOR_EACH_ISA(TEST_ISA)
#undef TEST_ISA

/// Which subjects an ISA covers, in the order in which `isa_primitives` asks for them.
template <class I>
constexpr bool covered[] = {crumb::isa_facts<I>,
                            crumb::isa_registers<I>,
                            crumb::isa_loads_and_stores<I>,
                            crumb::isa_float_arithmetic<I>,
                            crumb::isa_doubles<I>,
                            crumb::isa_reductions<I>,
                            crumb::isa_integers<I>,
                            crumb::isa_activations<I>,
                            crumb::isa_scales<I>,
                            crumb::isa_bits<I>,
                            crumb::isa_fields<I>,
                            crumb::isa_nibbles<I>,
                            crumb::isa_int8s<I>,
                            crumb::isa_lookups<I>,
                            crumb::isa_tiles<I>,
                            crumb::isa_panels<I>,
                            crumb::isa_int8_panels<I>,
                            crumb::isa_scans<I>,
                            crumb::isa_rows<I>};
/// The subject that an ISA does not cover; -1 if there is none or more than one.
template <class I>
constexpr int missing() {
    int found = -1, count = 0;
    for (int i = 0; i < static_cast<int>(std::size(covered<I>)); ++i)
        if (!covered<I>[i])
            found = i, ++count;
    return crumb::isa_primitives<I> == (count == 0) && count == 1 ? found : -1;
}

// A name in a derived struct hides all of the base.
struct with_blocks_of_three_rows : isa::portable {
    static constexpr std::size_t row_block = 3;
};
struct without_partial_stores : isa::portable {
    static void store_partial() = delete;
};
struct without_fma : isa::portable {
    static void fma() = delete;
};
struct without_four_sums : isa::portable {
    static void sum4() = delete;
};
struct without_rounding : isa::portable {
    static void round_group() = delete;
};
struct without_powers : isa::portable {
    static void load_powers() = delete;
};
struct without_fields : isa::portable {
    static void load_field() = delete;
};
struct with_half_a_product : isa::portable {
    struct nibbles : isa::portable::nibbles {
        static void finish() = delete;
    };
};
struct without_tables : isa::portable {
    struct lookups : int8s {};
};
struct without_operands_in_memory : isa::portable {
    static constexpr std::size_t panel_rows = 8;
};
struct without_requantization : isa::portable {
    static constexpr std::size_t panel_row_block = 8;
};
struct without_tiles : isa::portable { // says that it has its own, whose products have other steps
    using own_tiles = void;
};
static_assert(missing<with_blocks_of_three_rows>() == 0);
static_assert(missing<without_partial_stores>() == 2);
static_assert(missing<without_fma>() == 3);
static_assert(missing<without_four_sums>() == 5);
static_assert(missing<without_rounding>() == 7);
static_assert(missing<without_powers>() == 8);
static_assert(missing<without_fields>() == 10);
static_assert(missing<with_half_a_product>() == 11);
static_assert(missing<without_tables>() == 13);
static_assert(missing<without_operands_in_memory>() == 15);
static_assert(missing<without_requantization>() == 16);
static_assert(!crumb::isa_tiles<without_tiles> && !crumb::isa_nibbles<without_tiles>);

TEST(IsaConcept, EveryIsaOfTheBuildIsOfTheList) {
    crumb_test::for_each_isa([]<class I>() {
        EXPECT_STREQ(I::name, crumb::isa_traits<I>::name);
        EXPECT_LT(crumb::isa_index(I::name), crumb::isa_names().size());
    });
}

} // namespace
} // namespace test_isa_concept
