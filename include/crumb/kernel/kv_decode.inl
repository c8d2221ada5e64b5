// Tokens of a page as floats.
namespace crumb::inline CRUMB_ABI::kernel {

template <>
struct kv_decode_run<isa::CRUMB_THIS_ISA> {
    using I = isa::CRUMB_THIS_ISA;
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
    static CRUMB_INLINE float number(half h) noexcept {
        half all[lanes] = {h};
        float out[lanes];
        I::store(out, I::load(all));
        return out[0];
    }
    /// Halves as floats: at most a page's tokens.
    static CRUMB_INLINE void convert(const half* from, std::size_t n, float* to) noexcept {
        for (std::size_t i = 0; i < n; i += lanes)
            M::store(to + i, M::load(from + i, n - i), n - i);
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
        for (std::size_t t = args.first; t < args.last; ++t) {
            float* to = args.to + (t - args.first) * args.stride;
            for (std::size_t g = 0; g < groups; ++g) {
                const float d = number(halves_at(args, 0)[t * groups + g]);
                const std::size_t begin = g * kv_group_channels;
                const std::size_t end = begin + kv_group_channels < size ? begin + kv_group_channels : size;
                for (std::size_t c = begin; c < end; ++c)
                    to[c] = d * static_cast<float>(codes[t * size + c]);
            }
        }
    }

    static void uniform(const kv_decode_args& args) noexcept {
        const kv_part_layout& l = args.layout;
        const std::uint8_t* codes = reinterpret_cast<const std::uint8_t*>(args.part + l.codes_offset());
        float scales[kv_page_tokens], origins[kv_page_tokens];
        for (std::size_t c = 0; c < l.head_size(); ++c) {
            const std::uint8_t* row = codes + c * l.row_bytes();
            // Of keys a channel's blocks, of values a group's tokens.
            const bool first_of_group = c % kv_group_channels == 0;
            if (l.keys()) {
                for (std::size_t b = args.first / kv_mean_tokens; b * kv_mean_tokens < args.last; ++b) {
                    scales[b] = number(halves_at(args, 0)[b * l.head_size() + c]);
                    origins[b] = number(halves_at(args, l.origins_offset())[b * l.head_size() + c]);
                }
            } else if (first_of_group) {
                const std::size_t at = c / kv_group_channels * kv_page_tokens + args.first;
                convert(halves_at(args, 0) + at, args.last - args.first, scales + args.first);
                convert(halves_at(args, l.origins_offset()) + at, args.last - args.first,
                        origins + args.first);
            }
            float* to = args.to + c;
            for (std::size_t t = args.first; t < args.last; ++t, to += args.stride) {
                const std::size_t i = l.keys() ? t / kv_mean_tokens : t;
                *to = origins[i] + scales[i] * static_cast<float>(code(row, l.codec().bits, t));
            }
        }
    }

    static void centroids(const kv_decode_args& args) noexcept {
        const kv_part_layout& l = args.layout;
        const kv_codec& codec = l.codec();
        const std::uint8_t* codes = reinterpret_cast<const std::uint8_t*>(args.part + l.codes_offset());
        float scales[kv_page_tokens];
        if (codec.residual)
            convert(halves_at(args, l.scales_offset()) + args.first, args.last - args.first, scales);
        float entries[256];
        for (std::size_t c = 0; c < l.head_size(); ++c) {
            const std::uint8_t* row = codes + c / codec.dims * l.row_bytes();
            const std::int8_t* table = args.tables.entries + c * codec.entries();
            for (std::size_t e = 0; e < codec.entries(); ++e)
                entries[e] = args.tables.scales[c] * static_cast<float>(table[e]);
            float means[kv_part_layout::mean_blocks] = {};
            if (codec.residual)
                for (std::size_t b = args.first / kv_mean_tokens; b * kv_mean_tokens < args.last; ++b)
                    means[b] = number(halves_at(args, 0)[b * l.head_size() + c]);
            float* to = args.to + c;
            for (std::size_t t = args.first; t < args.last; ++t, to += args.stride) {
                const unsigned x = code(row, codec.bits, t);
                const float e = codec.additive ? entries[x & 15] + entries[16 + (x >> 4)] : entries[x];
                *to = codec.residual ? means[t / kv_mean_tokens] + scales[t - args.first] * e : e;
            }
        }
    }

    static CRUMB_INLINE unsigned code(const std::uint8_t* row, int bits, std::size_t t) noexcept {
        return bits == 8 ? row[t] : kv_code(row, bits, t);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
