// Codes of a part to rows of floats. Loops: tokens > groups (`q8_0`), or channels > tokens of a block.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>

#include <crumb/kernel/cache/unpack.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct kv_decode_run<I> {
    using M = math<I>;
    using f32 = typename I::f32;
    static constexpr std::size_t lanes = M::lanes;

    static void run(const kv_decode_args& args) noexcept {
        switch (args.layout.codec().kind) {
        case kv_kind::f32:
        case kv_kind::f16:
            return rows(args);
        case kv_kind::q8_0:
            return bytes(args);
        case kv_kind::uniform:
            return uniform(args);
        case kv_kind::pq:
            return centroids(args);
        }
    }

  private:
    static CRUMB_INLINE const half* halves_at(const kv_decode_args& args, std::size_t offset) noexcept {
        return reinterpret_cast<const half*>(args.part + offset);
    }
    /// Halves as floats: at most a part's tokens.
    static CRUMB_INLINE void convert(const half* from, std::size_t n, float* to) noexcept {
        for (std::size_t i = 0; i < n; i += lanes)
            M::store(to + i, M::load(from + i, n - i), n - i);
    }

    /// Codes of a row, at their tokens' places.
    static CRUMB_INLINE void unpack(const std::uint8_t* row, int bits, const kv_decode_args& args,
                                    std::uint8_t* to) noexcept {
        const std::size_t first = args.first / kv_block_tokens;
        kv_unpack<I>::run(row, bits, first, (args.last + kv_block_tokens - 1) / kv_block_tokens,
                          to + first * kv_block_tokens);
    }

    static void rows(const kv_decode_args& args) noexcept {
        const std::size_t size = args.layout.head_size();
        for (std::size_t t = args.first; t < args.last; ++t) {
            float* to = args.to + (t - args.first) * args.stride;
            if (args.layout.codec().kind == kv_kind::f16)
                convert(halves_at(args, 0) + t * size, size, to);
            else
                __builtin_memcpy(to, args.part + t * size * sizeof(float), size * sizeof(float));
        }
    }

    static void bytes(const kv_decode_args& args) noexcept {
        const std::size_t size = args.layout.head_size(), groups = args.layout.groups();
        const std::int8_t* codes =
            reinterpret_cast<const std::int8_t*>(args.part + args.layout.codes_offset());
        float scales[512 / kv_group_channels];
        for (std::size_t t = args.first; t < args.last; ++t) {
            float* to = args.to + (t - args.first) * args.stride;
            convert(halves_at(args, 0) + t * groups, groups, scales);
            for (std::size_t g = 0; g < groups; ++g) {
                std::size_t c = g * kv_group_channels;
                const std::size_t end = c + kv_group_channels < size ? c + kv_group_channels : size;
                for (; c + lanes <= end; c += lanes)
                    I::store(to + c, I::mul(I::set1(scales[g]), I::load_integers(codes + t * size + c)));
                for (; c < end; ++c)
                    to[c] = scales[g] * static_cast<float>(codes[t * size + c]);
            }
        }
    }

    static void uniform(const kv_decode_args& args) noexcept {
        const kv_part_layout& l = args.layout;
        const std::uint8_t* codes = reinterpret_cast<const std::uint8_t*>(args.part + l.codes_offset());
        float scales[kv_part_tokens], origins[kv_part_tokens];
        for (std::size_t c = 0; c < l.head_size(); ++c) {
            const std::uint8_t* row = codes + c * l.row_bytes();
            // Of keys a channel's blocks, of values a group's tokens.
            const bool first_of_group = c % kv_group_channels == 0;
            if (l.keys()) {
                for (std::size_t b = args.first / kv_mean_tokens; b * kv_mean_tokens < args.last; ++b) {
                    scales[b] = M::number(halves_at(args, 0)[b * l.head_size() + c]);
                    origins[b] = M::number(halves_at(args, l.origins_offset())[b * l.head_size() + c]);
                }
            } else if (first_of_group) {
                const std::size_t at = c / kv_group_channels * kv_part_tokens + args.first;
                convert(halves_at(args, 0) + at, args.last - args.first, scales + args.first);
                convert(halves_at(args, l.origins_offset()) + at, args.last - args.first,
                        origins + args.first);
            }
            std::uint8_t all[kv_part_tokens];
            unpack(row, l.codec().bits, args, all);
            float* to = args.to + c;
            for (std::size_t t = args.first; t < args.last; ++t, to += args.stride) {
                const std::size_t i = l.keys() ? t / kv_mean_tokens : t;
                *to = origins[i] + scales[i] * static_cast<float>(all[t]);
            }
        }
    }

    static void centroids(const kv_decode_args& args) noexcept {
        const kv_part_layout& l = args.layout;
        const kv_codec& codec = l.codec();
        const std::uint8_t* codes = reinterpret_cast<const std::uint8_t*>(args.part + l.codes_offset());
        float scales[kv_part_tokens];
        if (codec.residual)
            convert(halves_at(args, l.scales_offset()) + args.first, args.last - args.first, scales);
        float entries[256];
        std::uint8_t all[kv_part_tokens];
        for (std::size_t c = 0; c < l.head_size(); ++c) {
            const std::uint8_t* row = codes + c / codec.dims * l.row_bytes();
            if (c % codec.dims == 0)
                unpack(row, codec.bits, args, all);
            const std::int8_t* table = args.tables.entries + c * codec.entries();
            for (std::size_t e = 0; e < codec.entries(); ++e)
                entries[e] = args.tables.scales[c] * static_cast<float>(table[e]);
            float means[kv_part_layout::mean_blocks] = {};
            if (codec.residual)
                for (std::size_t b = args.first / kv_mean_tokens; b * kv_mean_tokens < args.last; ++b)
                    means[b] = M::number(halves_at(args, 0)[b * l.head_size() + c]);
            float* to = args.to + c;
            for (std::size_t t = args.first; t < args.last; ++t, to += args.stride) {
                const unsigned x = all[t];
                const float e = codec.additive ? entries[x & 15] + entries[16 + (x >> 4)] : entries[x];
                *to = codec.residual ? means[t / kv_mean_tokens] + scales[t - args.first] * e : e;
            }
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
