// The memory reader and the peak of floats, for the ISA named by CRUMB_THIS_ISA. Included by ceilings.hpp
// inside its target region.
namespace crumb::ceilings {

template <>
struct reader<isa::CRUMB_THIS_ISA> {
    using I = isa::CRUMB_THIS_ISA;

    /// Reads `bytes` (a multiple of 1024) bytes as `Streams` (1 or 4) parts side by side, asking for the line
    /// `Ahead` bytes further on unless that is 0, with the temporal locality of `__builtin_prefetch`. The
    /// largest sum.
    template <int Streams, int Ahead = 0, int Locality = 0>
    static CRUMB_NOINLINE int read(const std::byte* data, std::size_t bytes) noexcept {
        constexpr int step = 256;
        const std::size_t part = bytes / static_cast<std::size_t>(Streams);
        typename I::i32 sum[8];
        CRUMB_UNROLL
        for (int i = 0; i < 8; ++i)
            sum[i] = I::set1_i32(0);
        for (std::size_t at = 0; at < part; at += step) {
            CRUMB_UNROLL
            for (int s = 0; s < Streams; ++s) {
                const std::byte* from = data + static_cast<std::size_t>(s) * part + at;
                CRUMB_UNROLL
                for (int i = 0; i < step; i += I::width) {
                    if constexpr (Ahead != 0) {
                        if (i % 64 == 0)
                            __builtin_prefetch(from + i + Ahead, 0, Locality);
                    }
                    auto& to = sum[i / I::width % 8];
                    to = I::add_i32(to, I::as_i32(I::load(reinterpret_cast<const float*>(from + i))));
                }
            }
        }
        CRUMB_UNROLL
        for (int i = 1; i < 8; ++i)
            sum[0] = I::add_i32(sum[0], sum[i]);
        return I::maximum_i32(sum[0]);
    }
};

template <>
struct float_peak<isa::CRUMB_THIS_ISA> {
    using I = isa::CRUMB_THIS_ISA;
    static constexpr int sums = I::registers >= 32 ? 24 : 12;
    static constexpr double macs = double{sums} * I::lanes;

    /// `rounds` FMAs of each of `sums` registers, all from registers.
    static CRUMB_NOINLINE float run(std::size_t rounds) noexcept {
        typename I::f32 total[sums];
        const typename I::f32 w = I::set1(0.5f), x = I::set1(0.25f);
        CRUMB_UNROLL
        for (int i = 0; i < sums; ++i)
            total[i] = I::set1(static_cast<float>(i)); // equal sums would be one
        for (; rounds != 0; --rounds) {
            CRUMB_UNROLL
            for (int i = 0; i < sums; ++i)
                total[i] = I::fma(total[i], w, x); // a sum of constants would be folded
        }
        CRUMB_UNROLL
        for (int i = 1; i < sums; ++i)
            total[0] = I::add(total[0], total[i]);
        return I::sum(total[0]);
    }
};

#if CRUMB_BUILDS_X86
template <>
struct group_mix<isa::CRUMB_THIS_ISA> {
    using I = isa::CRUMB_THIS_ISA;
    static constexpr int sums = I::registers >= 32 ? 12 : 5;
    static constexpr double macs = sums * 8.0 * I::width;

    /// `rounds` groups of 32 inputs for `sums` registers of channels: the product's dot instructions, the end
    /// of its sums, one conversion and one FMA, all from registers.
    template <class Product>
    static CRUMB_NOINLINE float run(std::size_t rounds) noexcept {
        alignas(64) std::uint8_t bytes[I::width];
        alignas(64) std::int8_t codes[4] = {5, 5, 5, 5};
        std::memset(bytes, 3, sizeof bytes);
        const std::int32_t start = 0;
        typename I::f32 total[sums];
        const typename I::f32 scale = I::set1(0.5f);
        auto w = Product::template expand<0>(I::load_bytes(bytes));
        const typename I::quad x = I::load_quad(codes);
        CRUMB_UNROLL
        for (int i = 0; i < sums; ++i)
            total[i] = I::zero();
        for (; rounds != 0; --rounds) {
            typename Product::acc s[sums];
            CRUMB_UNROLL
            for (int i = 0; i < sums; ++i)
                s[i] = Product::start(&start);
            CRUMB_UNROLL
            for (int i = 0; i < sums; ++i)
                CRUMB_CEILINGS_OPAQUE(s[i]); // or one sum would do for all
            CRUMB_UNROLL
            for (int j = 0; j < 8; ++j) {
                CRUMB_UNROLL
                for (int i = 0; i < sums; ++i) {
                    CRUMB_CEILINGS_OPAQUE(w);
                    Product::template step<0>(s[i], w, x);
                }
            }
            CRUMB_UNROLL
            for (int i = 0; i < sums; ++i)
                total[i] = I::fma(I::to_f32(Product::finish(s[i], &start)), scale, total[i]);
        }
        CRUMB_UNROLL
        for (int i = 1; i < sums; ++i)
            total[0] = I::add(total[0], total[i]);
        return I::sum(total[0]);
    }
};
#endif

} // namespace crumb::ceilings
