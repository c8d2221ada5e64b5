// Primitives of scans of product-quantized codes for NEON with SDOT. All else is pq_neon's.
namespace crumb::inline CRUMB_ABI::kernel {

struct pq_dotprod : pq_neon {
    static CRUMB_INLINE void dot(dots& s, reg weights, reg values) noexcept {
        s = vdotq_s32(s, vreinterpretq_s8_u8(weights), vreinterpretq_s8_u8(values));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
