// Primitives of scans of product-quantized codes for AVX-512 VBMI: lookups by vpermb. All else is of
// pq_avx512.
namespace crumb::inline CRUMB_ABI::kernel {

// vpermb ignores the bits above those that a table needs, if it is repeated over the register.
struct pq_vbmi : pq_avx512 {
    static constexpr int table_registers_64 = 1, table_registers_256 = 4;
    using table_64 = __m512i;
    using index_64 = __m512i;
    struct table_256 {
        __m512i part[4];
    };
    struct index_256 {
        __m512i six;
        __mmask64 bit6, bit7, both;
    };

    static CRUMB_INLINE index_16 low_nibbles(reg raw) noexcept { return raw; }
    static CRUMB_INLINE index_16 high_nibbles(reg raw) noexcept { return _mm512_srli_epi16(raw, 4); }
    static CRUMB_INLINE reg look_up_16(table_16 t, index_16 i) noexcept {
        return _mm512_permutexvar_epi8(i, t);
    }

    static CRUMB_INLINE table_64 load_table_64(const void* p) noexcept { return _mm512_loadu_si512(p); }
    static CRUMB_INLINE index_64 six_bits(const six_codes& x, int set) noexcept {
        const __m512i nibbles = x.nibbles[set / 2], twos = x.twos[set / 2];
        constexpr long long ones = 0x0001000100010001;
        const __m512i up =
            _mm512_setr_epi64(4 * ones, 4 * ones, 2 * ones, 2 * ones, 4 * ones, 4 * ones, 2 * ones, 2 * ones);
        const __m512i down = _mm512_setr_epi64(0, 0, 2 * ones, 2 * ones, 0, 0, 2 * ones, 2 * ones);
        return isa::avx512_vnni::select_bits<15>(set % 2 == 0 ? nibbles : _mm512_srli_epi16(nibbles, 4),
                                                 set % 2 == 0 ? _mm512_sllv_epi16(twos, up)
                                                              : _mm512_srlv_epi16(twos, down));
    }
    static CRUMB_INLINE reg look_up_64(table_64 t, index_64 i) noexcept {
        return _mm512_permutexvar_epi8(i, t);
    }

    static CRUMB_INLINE table_256 load_table_256(const void* p) noexcept {
        const auto* t = static_cast<const std::uint8_t*>(p);
        return {{_mm512_loadu_si512(t), _mm512_loadu_si512(t + 64), _mm512_loadu_si512(t + 128),
                 _mm512_loadu_si512(t + 192)}};
    }
    static CRUMB_INLINE index_256 eight_bits(reg raw) noexcept {
        const __mmask64 bit6 = _mm512_movepi8_mask(_mm512_add_epi8(raw, raw));
        const __mmask64 bit7 = _mm512_movepi8_mask(raw);
        return {raw, bit6, bit7, _kand_mask64(bit6, bit7)};
    }
    /// Four lookups that are merged as they are made need 4 uops; of two vpermi2b and a blend each of the
    /// former needs 3.
    static CRUMB_INLINE reg look_up_256(const table_256& t, const index_256& i) noexcept {
        __m512i x = _mm512_permutexvar_epi8(i.six, t.part[0]);
        x = _mm512_mask_permutexvar_epi8(x, i.bit6, i.six, t.part[1]);
        x = _mm512_mask_permutexvar_epi8(x, i.bit7, i.six, t.part[2]);
        return _mm512_mask_permutexvar_epi8(x, i.both, i.six, t.part[3]);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
