// Codes of a part to rows of floats. Loops:
//     bytes      tokens > groups
//     columns    16 channels > their codes, 32 tokens > 16 tokens, a row at a time
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>

#include <crumb/isa/portable/pq.inl>
#include <crumb/kernel/cache/byte_rows.inl>
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
        case kv_kind::pq:
            return columns(args);
        }
    }

  private:
    static CRUMB_INLINE const half* halves_at(const kv_decode_args& args, std::size_t offset) noexcept {
        return reinterpret_cast<const half*>(args.part + offset);
    }
    /// Halves as floats: at most a part's tokens.
    static CRUMB_NOINLINE void convert(const half* from, std::size_t n, float* to) noexcept {
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

    // Codes lie channel by channel, rows are wanted: 16 channels become rows of bytes, before those are
    // floats.
    static constexpr std::size_t tile = 16;
    static constexpr std::size_t vectors = tile / lanes; ///< registers of a row

    /// x * scale * factor + origin is what a code, or an entry, x stands for: factor and origin of a token,
    /// or the origin of a channel.
    struct terms {
        f32 scale[vectors], origin[vectors];                    ///< of channels
        float factors[kv_part_tokens], origins[kv_part_tokens]; ///< of tokens
        bool token_origins = false;
    };

    static void columns(const kv_decode_args& args) noexcept {
        const kv_part_layout& l = args.layout;
        const kv_codec& codec = l.codec();
        const bool pq = codec.kind == kv_kind::pq, blocks = pq ? codec.residual : l.keys();
        const std::uint8_t* rows = reinterpret_cast<const std::uint8_t*>(args.part + l.codes_offset());
        alignas(64) std::uint8_t codes[kv_part_tokens], bytes[tile][kv_part_tokens] = {};
        terms by;
        for (std::size_t t = args.first; t < args.last; ++t)
            by.factors[t] = 1;
        if (pq && codec.residual)
            token_numbers(args, l.scales_offset(), 0, by.factors);
        by.token_origins = !pq && !blocks;
        for (std::size_t c = 0; c < l.head_size(); c += tile) {
            const std::size_t n = l.head_size() - c < tile ? l.head_size() - c : tile;
            for (std::size_t i = 0; i < n; ++i) {
                const std::size_t channel = c + i;
                if (channel % codec.dims == 0)
                    unpack(rows + channel / codec.dims * l.row_bytes(), codec.bits, args,
                           pq ? codes : bytes[i]);
                if (pq)
                    look_up(args, channel, codes, bytes[i]);
            }
            if (by.token_origins) {
                token_numbers(args, 0, c / kv_group_channels, by.factors);
                token_numbers(args, l.origins_offset(), c / kv_group_channels, by.origins);
            }
            for (std::size_t v = 0; v < vectors; ++v) {
                by.scale[v] = pq ? M::load(args.tables.scales + c + v * lanes, left(n, v)) : I::set1(1);
                by.origin[v] = I::zero();
            }
            for (std::size_t b = args.first / kv_mean_tokens; b * kv_mean_tokens < args.last; ++b) {
                if (blocks) {
                    const std::size_t at = b * l.head_size() + c;
                    channel_numbers(halves_at(args, pq ? 0 : l.origins_offset()) + at, n, by.origin);
                    if (!pq)
                        channel_numbers(halves_at(args, 0) + at, n, by.scale);
                }
                for (std::size_t t = b * kv_mean_tokens; t < (b + 1) * kv_mean_tokens; t += tile)
                    store(args, bytes[0] + t, t, by, n, args.to + c);
            }
        }
    }
    /// Of n channels, those from register v on.
    static CRUMB_INLINE std::size_t left(std::size_t n, std::size_t v) noexcept {
        return n > v * lanes ? n - v * lanes : 0;
    }
    /// Halves of the tokens, `row` rows of a part behind `offset`.
    static CRUMB_INLINE void token_numbers(const kv_decode_args& args, std::size_t offset, std::size_t row,
                                           float* to) noexcept {
        convert(halves_at(args, offset) + row * kv_part_tokens + args.first, args.last - args.first,
                to + args.first);
    }
    static CRUMB_INLINE void channel_numbers(const half* from, std::size_t n, f32* to) noexcept {
        CRUMB_UNROLL
        for (std::size_t v = 0; v < vectors; ++v)
            to[v] = M::load(from + v * lanes, left(n, v));
    }
    /// The entries of a channel that the codes of the tokens name.
    static CRUMB_INLINE void look_up(const kv_decode_args& args, std::size_t channel,
                                     const std::uint8_t* codes, std::uint8_t* to) noexcept {
        using P = typename I::pq;
        const kv_codec& codec = args.layout.codec();
        const std::int8_t* entries = args.tables.entries + channel * codec.entries();
        const std::size_t first = args.first / kv_block_tokens * kv_block_tokens;
        if (codec.additive || codec.bits == 4) {
            for (std::size_t t = first; t < args.last; t += P::width) {
                const auto x = P::load(codes + t);
                auto y = P::look_up_16(P::load_table_16(entries), P::low_nibbles(x));
                if (codec.additive)
                    y = P::add(y, P::look_up_16(P::load_table_16(entries + 16), P::high_nibbles(x)));
                __builtin_memcpy(to + t, &y, P::width);
            }
        } else {
            alignas(64) std::int8_t all[256] = {};
            __builtin_memcpy(all, entries, codec.entries());
            const auto table = P::load_table_256(all);
            for (std::size_t t = first; t < args.last; t += P::width) {
                const auto y = P::look_up_256(table, P::eight_bits(P::load(codes + t)));
                __builtin_memcpy(to + t, &y, P::width);
            }
        }
    }
    /// Tokens t .. t + 15, if they are asked for, of n channels.
    static CRUMB_INLINE void store(const kv_decode_args& args, const std::uint8_t* bytes, std::size_t t,
                                   const terms& by, std::size_t n, float* to) noexcept {
        const std::size_t first = t < args.first ? args.first : t;
        const std::size_t last = t + tile < args.last ? t + tile : args.last;
        if (first >= last)
            return;
        alignas(64) std::int8_t row[tile][tile];
        byte_rows<I>::transpose(bytes, kv_part_tokens, row);
        for (std::size_t i = first; i < last; ++i) {
            const f32 factor = I::set1(by.factors[i]);
            float* at = to + (i - args.first) * args.stride;
            CRUMB_UNROLL
            for (std::size_t v = 0; v < vectors; ++v) {
                const f32 x = I::mul(by.scale[v], I::load_integers(row[i - t] + v * lanes));
                const f32 origin = by.token_origins ? I::set1(by.origins[i]) : by.origin[v];
                if (v * lanes < n)
                    M::store(at + v * lanes, I::fma(factor, x, origin), n - v * lanes);
            }
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
