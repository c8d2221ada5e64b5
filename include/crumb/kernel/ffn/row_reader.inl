// Stored rows of weights, read a group of 32 at a time. No loops.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

/// 32 weights of a row as floats.
template <row_codec Codec>
struct row_reader<isa::CRUMB_THIS_ISA, Codec> {
    using I = isa::CRUMB_THIS_ISA;
    using f32 = typename I::f32;
    static constexpr int vectors = static_cast<int>(group_size) / I::lanes;
    static constexpr std::size_t bytes = row_block<Codec>::bytes;
    static constexpr bool scaled = has_scales(Codec);
    static constexpr bool gathers = scaled && gathers_halves<I>;

    static CRUMB_INLINE f32 scale(const std::byte* block) noexcept {
        return I::set1(*reinterpret_cast<const half*>(block));
    }
    /// The scales of n blocks; on ISAs that gather them.
    template <class Isa = I>
    static CRUMB_INLINE f32 scales(const std::byte* block, std::size_t n) noexcept {
        return Isa::template gather_halves<static_cast<int>(bytes)>(block, n);
    }
    /// Register V of the block, in units of its scale.
    template <int V>
    static CRUMB_INLINE f32 weights(const std::byte* block) noexcept {
        if constexpr (Codec == row_codec::f32)
            return I::load(reinterpret_cast<const float*>(block) + V * I::lanes);
        else if constexpr (Codec == row_codec::f16)
            return I::load(reinterpret_cast<const half*>(block) + V * I::lanes);
        else if constexpr (Codec == row_codec::q8_0)
            return I::load_integers(reinterpret_cast<const std::int8_t*>(block) + sizeof(half) +
                                    V * I::lanes);
        else
            return field<V, I>(reinterpret_cast<const std::uint8_t*>(block) + sizeof(half));
    }
    /// All registers of the block.
    template <int V = 0>
    static CRUMB_INLINE void all(const std::byte* block, f32* w) noexcept {
        w[V] = weights<V>(block);
        if constexpr (V + 1 < vectors)
            all<V + 1>(block, w);
    }

  private:
    template <int V, class Isa>
    static CRUMB_INLINE f32 field(const std::uint8_t* codes) noexcept {
        constexpr int bits = Codec == row_codec::q4_0 ? 4 : 2, first = V * I::lanes;
        if constexpr (looks_up_fields<Isa>) {
            alignas(64) static constexpr float nibbles[] = {-8, -7, -6, -5, -4, -3, -2, -1,
                                                            0,  1,  2,  3,  4,  5,  6,  7};
            alignas(64) static constexpr float pairs[] = {-3, -1, 1, 3, -3, -1, 1, 3,
                                                          -3, -1, 1, 3, -3, -1, 1, 3};
            return Isa::template look_up_field<bits, first>(codes, Isa::load(bits == 4 ? nibbles : pairs));
        } else {
            const f32 code = Isa::template load_field<bits, first>(codes);
            return bits == 4 ? I::sub(code, I::set1(8.0f)) : I::fma(code, I::set1(2.0f), I::set1(-3.0f));
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
