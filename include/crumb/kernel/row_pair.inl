// Products of a register of channels with two rows of activations, row by row. ISAs with a matrix instruction
// have their own specialization.
namespace crumb::inline CRUMB_ABI::kernel {

template <class Product, int Rows>
requires(!isa::CRUMB_THIS_ISA::has_matrix_product) struct row_pair<isa::CRUMB_THIS_ISA, Product, Rows> {
    using I = isa::CRUMB_THIS_ISA;
    using operand = typename Product::operand;
    typename Product::acc s0, s1;

    static CRUMB_INLINE void arrange(typename I::bytes&, typename I::bytes&) noexcept {}
    CRUMB_INLINE void start(const std::int32_t* sums) noexcept {
        s0 = Product::start(sums);
        s1 = Product::start(Rows == 2 && Product::offset != 0 ? sums + 1 : sums);
    }
    template <int X>
    CRUMB_INLINE void step(operand w0, operand w1, const std::int8_t* a) noexcept {
        const typename I::act rows = Rows == 2 ? I::load_act(a) : I::load_act_half(a);
        Product::template step<X, 0>(s0, w0, w1, rows);
        if constexpr (Rows == 2)
            Product::template step<X, 1>(s1, w0, w1, rows);
    }
    CRUMB_INLINE void finish(typename I::i32& t0, typename I::i32& t1) const noexcept {
        t0 = Product::finish(s0);
        t1 = Rows == 2 ? Product::finish(s1) : t0;
    }
    static CRUMB_INLINE void weight_scales(typename I::f32 d, typename I::f32& e0,
                                           typename I::f32& e1) noexcept {
        e0 = e1 = d;
    }
    static CRUMB_INLINE void row_scales(const float* a, typename I::f32& f0, typename I::f32& f1) noexcept {
        f0 = I::set1(a[0]);
        f1 = Rows == 2 ? I::set1(a[1]) : f0;
    }
    static CRUMB_INLINE void rows(typename I::f32 t0, typename I::f32 t1, typename I::f32& r0,
                                  typename I::f32& r1) noexcept {
        r0 = t0;
        r1 = t1;
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
