// The memory reader, for the ISA named by CRUMB_THIS_ISA. Included by ceilings.hpp inside its target region.
namespace crumb::bench {

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

} // namespace crumb::bench
