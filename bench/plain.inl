// The plain baseline's loops, for the ISA named by CRUMB_THIS_ISA. Included by plain.hpp inside its target
// region.
namespace crumb::bench {

template <>
struct plain<isa::CRUMB_THIS_ISA> {
    using P = plain_primitives<isa::CRUMB_THIS_ISA>;

    /// y[r, c] for all rows and n channels. Sixteen channels stay in cache for all rows, as engines block it.
    template <class Block>
    static CRUMB_NOINLINE void product(const Block* w, std::size_t n, std::size_t groups, const plain_row* x,
                                       std::size_t rows, float* y, std::size_t y_stride) noexcept {
        for (std::size_t first = 0; first < n; first += 16)
            for (std::size_t r = 0; r < rows; ++r)
                for (std::size_t c = first; c < n && c < first + 16; ++c)
                    y[r * y_stride + c] = channel(w + c * groups, groups, x[r].codes, x[r].scales);
    }

  private:
    template <class Block>
    static CRUMB_INLINE float channel(const Block* w, std::size_t groups, const std::int8_t* x,
                                      const float* scales) noexcept {
        typename P::f32 even = P::zero(), odd = P::zero();
        std::size_t g = 0;
        for (; g + 2 <= groups; g += 2, x += 64) {
            even = P::accumulate(even, P::dot(w[g], x), P::scale(w[g].d) * scales[g]);
            odd = P::accumulate(odd, P::dot(w[g + 1], x + 32), P::scale(w[g + 1].d) * scales[g + 1]);
        }
        if (g < groups)
            even = P::accumulate(even, P::dot(w[g], x), P::scale(w[g].d) * scales[g]);
        return P::sum(even, odd);
    }
};

} // namespace crumb::bench
