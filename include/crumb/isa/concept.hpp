// What an ISA has to offer, subject by subject: a compiler names the concept and the expression that is
// missing.
#pragma once

#include <crumb/format/activations.hpp>
#include <crumb/format/q4_0.hpp>
#include <crumb/isa/list.hpp>

#include <concepts>

namespace crumb::inline CRUMB_ABI {

// Results are checked by what takes them: vector types lose their attributes as arguments of templates.

/// Its size, and the shape of the micro-kernels that suits it.
template <class I>
concept isa_facts = requires {
    { I::name } -> std::convertible_to<const char*>;
    requires 64 % I::width == 0 && I::width == 4 * I::lanes; // bytes and floats of a register
    requires I::registers >= 16;
    { I::fuses } -> std::convertible_to<bool>; // `fma` rounds once
    requires I::query_tile == 1 || I::query_tile == 2 || I::query_tile == 4;
    { I::prefetch_bytes } -> std::convertible_to<std::size_t>;
    requires I::row_block == 1 || I::row_block == 2 || I::row_block == 4 || I::row_block == 8 ||
                     I::row_block == 16;
    requires I::single_tiles >= 1 && I::block_tiles >= 1;
    { I::single_tiles_by_streams } -> std::convertible_to<bool>;
    { I::panel_rows } -> std::convertible_to<std::size_t>;
    { I::panel_row_block } -> std::convertible_to<std::size_t>;
};

/// Registers of floats, of int32, of packed bytes.
template <class I>
concept isa_registers = requires {
    typename I::f32;
    typename I::i32;
    typename I::bytes;
    requires sizeof(typename I::f32) == I::width && sizeof(typename I::i32) == I::width &&
                     sizeof(typename I::bytes) == I::width;
};

template <class I>
concept isa_loads_and_stores =
    requires(typename I::f32 x, typename I::f32& even, const float* in, float* out, const half* half_in,
             half* half_out, const bf16* bf16_in, const std::uint8_t* codes) {
        I::store(out, I::load(in));
        I::store(half_out, I::load(half_in)); // to nearest, ties to even
        I::store(out, I::load(bf16_in));
        I::store_partial(out, I::load_partial(in, std::size_t{1}), std::size_t{1}); // lanes beyond n are 0
        I::load_pairs(in, even, even);                                              // even and odd elements
        I::store_pairs(out, x, x);
        I::load_bytes(codes);
    };

template <class I>
concept isa_float_arithmetic = requires(typename I::f32 x, float* out) {
    I::store(out, I::zero());
    I::store(out, I::set1(1.0f));
    I::store(out, I::set1(half{}));
    I::store(out, I::add(x, x));
    I::store(out, I::sub(x, x));
    I::store(out, I::mul(x, x));
    I::store(out, I::mul_rounded(x, x)); // never fused with a sum
    I::store(out, I::div(x, x));
    I::store(out, I::fma(x, x, x)); // x x + x
    I::store(out, I::min(x, x));
    I::store(out, I::max(x, x));
    I::store(out, I::sqrt(x));
    I::store(out, I::abs(x));
    I::store(out, I::copy_sign(x, x));         // magnitude, sign
    I::store(out, I::select_less(x, x, x, x)); // a < b ? yes : no
};

/// Registers of doubles, half as many as floats.
template <class I>
concept isa_doubles = requires(typename I::f64 x, const double* in, double* out) {
    requires sizeof(typename I::f64) == I::width;
    I::store(out, I::load(in));
    I::store(out, I::set1_f64(1.0));
    I::store(out, I::sub(x, I::mul_rounded(x, x))); // never fused
};

template <class I>
concept isa_reductions = requires(typename I::f32 x, float* out) {
    { I::sum(x) } -> std::same_as<float>;
    { I::maximum(x) } -> std::same_as<float>;
    I::sum4(x, x, x, x, out); // the sums of four registers
};

template <class I>
concept isa_integers = requires(typename I::f32 x, typename I::i32 i, float* out) {
    I::add_i32(i, I::set1_i32(0));
    I::min_i32(i, I::max_i32(i, i));
    { I::maximum_i32(i) } -> std::same_as<std::int32_t>;
    requires I::products == 1 || I::products == 2; // 16-bit numbers of a lane
    I::add_i32(i, I::add_products(i, i, i));       // products of them, added to a sum
    I::add_i32(i, I::magnitude_bits(x));           // the bits of |x|
    I::add_i32(i, I::round_to_i32(x));             // to nearest, ties to even
    I::add_i32(i, I::as_i32(x));                   // the same bits
    I::store(out, I::as_f32(i));
    I::store(out, I::to_f32(i));
    I::store(out, I::power_of_two(i));
};

/// Rounding of activations to codes.
template <class I>
concept isa_activations = requires(const float* in, std::int8_t* out, const std::int8_t* codes) {
    I::round_group(in, 1.0f, out); // 32 codes: fl(x * inverse) to nearest, ties to even
    { I::sum_group(codes) } -> std::same_as<std::int32_t>;
};

/// Scales that are no floats, and the selectors in them.
template <class I>
concept isa_scales = requires(float* out, const std::int8_t* bytes, const std::uint8_t* exponents,
                              const half* halves, typename I::bytes b) {
    I::store(out, I::load_integers(bytes));
    I::store(out, I::load_powers(exponents)); // `power_of`
    I::template select_bits<15>(b, I::spread_low_nibbles(bytes));
    I::template select_bits<15>(b, I::spread_low_nibbles(halves));
};

/// Bits of packed bytes.
template <class I>
concept isa_bits = requires(typename I::bytes b) {
    I::template select_bits<15>(I::template shift_left<4>(b), I::template shift_right<4>(b));
};

/// Codes of a stored group as floats: read, or looked up in a register.
template <class I>
concept isa_fields = requires(const std::uint8_t* codes, float* out) {
    I::store(out, I::template load_field<4, 0>(codes));
    I::store(out, I::template load_field<2, I::lanes % 32, 64>(codes));
} || requires(const std::uint8_t* codes, typename I::f32 table, float* out) {
    I::store(out, I::template look_up_field<4, 0>(codes, table));
    I::store(out, I::template look_up_field<2, I::lanes % 32, 64>(codes, table));
};

/// Whether an ISA brings micro-kernels of its own, `tile<Format>`.
template <class I>
concept isa_has_own_tiles = requires { typename I::own_tiles; };

/// What shared micro-kernels multiply with: operands times four activation codes of a row, see
/// docs/add-an-isa.md.
template <class P, class I>
concept shared_product = requires(typename P::acc s, typename P::operand w, typename I::quad x,
                                  const std::int32_t* start, const std::int8_t* codes, float* out) {
    { P::offset } -> std::convertible_to<int>;
    { P::factor } -> std::convertible_to<float>;
    P::template step<0>(s, w, I::load_quad(codes));
    P::template step<1>(s, w, x);
    I::store(out, I::to_f32(P::finish(P::start(start), start)));
};
/// What micro-kernels of an ISA's own multiply with: two operands times half of 16 activation codes.
template <class P, class I>
concept own_product = requires(typename P::acc s, typename P::operand w, typename I::act x,
                               const std::int8_t* codes, float* out) {
    requires P::offset == 0;
    { P::factor } -> std::convertible_to<float>;
    P::template step<0>(s, w, w, I::load_act(codes));
    P::template step<1>(s, w, w, x);
    I::store(out, I::to_f32(P::finish(P::start())));
};
template <class P, class I>
concept isa_product =
    (isa_has_own_tiles<I> && own_product<P, I>) || (!isa_has_own_tiles<I> && shared_product<P, I>);
/// Operands made of packed bytes: of their low halves (or whole bytes), of their high ones.
template <class P, class I>
concept expanding_product = isa_product<P, I> && requires(typename I::bytes raw) {
    P::template expand<0>(raw);
    P::template expand<1>(raw);
};
/// Operands looked up in tables of 16 entries.
template <class P, class I>
concept looking_product =
    isa_product<P, I> && requires(const std::int8_t* entries) { P::load_table(entries); } &&
    (requires(typename P::table t, typename I::bytes cells) {
        P::template look_up<0>(t, cells);
        P::template look_up<1>(t, cells);
    } || requires(typename P::table t, typename I::bytes cells) { P::look_up(t, cells); });

template <class I>
concept isa_nibbles = expanding_product<typename I::nibbles, I>;
template <class I>
concept isa_int8s = expanding_product<typename I::int8s, I>;
template <class I>
concept isa_lookups = looking_product<typename I::lookups, I>;

/// Micro-kernels of its own, if it says that it has some.
template <class I>
concept isa_tiles = !isa_has_own_tiles<I> || requires {
    typename I::template tile<q4_0>;
    { I::order } -> std::convertible_to<activation_order>;
    requires I::single_tiles == 1 && I::block_tiles == 1 && I::panel_rows == 0;
};

/// The product that blocks of rows use.
template <class P>
struct rows_of_product {
    using type = P;
};
template <class P>
requires requires { typename P::rows; }
struct rows_of_product<P> {
    using type = typename P::rows;
};
/// Operands in memory.
template <class P>
concept stored_product =
    requires(const std::uint8_t* in, std::uint8_t* out) { P::store_operand(out, P::load_operand(in)); };
/// Products whose operands can stand in panels, where an ISA expands weights into such.
template <class I>
concept isa_panels =
    I::panel_rows == 0 || (stored_product<typename rows_of_product<typename I::nibbles>::type> &&
                           stored_product<typename rows_of_product<typename I::int8s>::type> &&
                           stored_product<typename rows_of_product<typename I::lookups>::type>);
/// Requantization to int8 panels, where an ISA has such and shares their micro-kernel.
template <class I>
concept isa_int8_panels =
    I::panel_row_block == 0 || isa_has_own_tiles<I> ||
    (stored_product<typename I::int8s> && requires(typename I::bytes raw, typename I::i32 m,
                                                   typename I::int8s::acc s, typename I::lookups::operand w) {
        requires I::panel_tiles >= 1;
        I::int8s::pin(s);
        I::nibbles::template requantize<0>(raw, I::nibbles::multiplier(m));
        I::nibbles::template requantize<1>(raw, I::nibbles::multiplier(m));
        I::int8s::template requantize<0>(raw, I::int8s::multiplier(m));
        I::lookups::requantize_operand(w, I::lookups::multiplier(m));
    });

/// The names of what scans of cached codes and rows of neurons are written with; see `pq_primitives` and
/// `four_rows_primitives`.
template <class I>
concept isa_scans = requires { typename I::pq; };
template <class I>
concept isa_rows = requires { typename I::four_rows; };

/// All that kernels need.
template <class I>
concept isa_primitives =
    isa_facts<I> && isa_registers<I> && isa_loads_and_stores<I> && isa_float_arithmetic<I> &&
    isa_doubles<I> && isa_reductions<I> && isa_integers<I> && isa_activations<I> && isa_scales<I> &&
    isa_bits<I> && isa_fields<I> && isa_nibbles<I> && isa_int8s<I> && isa_lookups<I> && isa_tiles<I> &&
    isa_panels<I> && isa_int8_panels<I> && isa_scans<I> && isa_rows<I>;

/// What an ISA names as `pq`: registers of codes of one sub-space, looked up, added, multiplied. Defined
/// where the kernels of the cache are compiled; isa/portable/pq.inl says what each function does.
template <class P, class I>
concept pq_primitives =
    requires(typename P::reg r, typename P::sums s, typename P::dots d, const std::uint8_t* codes,
             const std::uint16_t* sums, std::uint16_t* out, float* floats, std::size_t u) {
        requires 64 % P::width == 0 && (P::most == 1 || P::most == 2 || P::most == 4);
        { P::holds_tables } -> std::convertible_to<bool>;
        requires P::table_registers_64 >= 1 && P::table_registers_256 >= 1 && P::sets_64 >= 1;
        P::add(r, P::load(codes));
        P::add(r, P::look_up_16(P::load_table_16(codes), P::low_nibbles(r)));
        P::add(r, P::look_up_16(P::load_table_16(codes), P::high_nibbles(r)));
        P::add(r, P::look_up_64(P::load_table_64(codes), P::six_bits(P::load_six(codes, codes, u), 0)));
        P::add(r, P::look_up_256(P::load_table_256(codes), P::eight_bits(r)));
        P::pin(r);
        s = P::start();
        P::widen(s, r);
        P::store(s, out, out);
        I::store(floats, P::load_sums(sums));
        d = P::start_dots();
        P::dot(d, r, r);
        P::template add_to<1>(floats, 1.0f, &d);
        P::template add_to<2>(floats, 1.0f, &d);
        P::template add_to<4>(floats, 1.0f, &d);
    };

/// What an ISA names as `four_rows`: bytes of four rows of neurons in a register. Defined where the kernels
/// of networks are compiled; isa/portable/four_rows.inl says what each function does.
template <class P, class I>
concept four_rows_primitives =
    requires(typename P::reg r, typename P::sums s, const typename I::i32* i, const std::uint8_t* const* at,
             const std::int8_t* table, const std::int16_t* factors, std::int8_t* codes, std::uint8_t* out,
             float* floats, std::size_t stride) {
        r = P::load(at);
        r = P::load_twice(at);
        r = P::template nibbles<0>(r);
        r = P::template pairs<0>(r);
        r = P::look_up(P::same(table), r);
        r = P::scaled(r, factors, stride);
        P::store_columns(out, r);
        P::store_tile(out, &r);
        P::combine(out, table, factors, factors);
        s = P::start(std::int16_t{0});
        P::add_products(s, at, table);
        I::store(floats, P::template columns<0>(s));
        P::store_factors(codes, i);
    };

} // namespace crumb::inline CRUMB_ABI
