// The activation codes of a group as `vpdpbusd`, `vpmaddubsw` and xsimd take them: four at a time, broadcast
// from memory. No loops.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct quad_rows<I> {
    struct row {
        const std::int8_t* codes;
        std::size_t stride; ///< bytes from 8 inputs to the next 8
    };
    static CRUMB_INLINE row load_row(const std::int8_t* codes, std::size_t stride) noexcept {
        return {codes, stride};
    }
    /// Four codes, for `step<0>`.
    static CRUMB_INLINE row load_four(const std::int8_t* codes) noexcept { return {codes, 0}; }
    /// Four `Four` of a row.
    template <int Four>
    static CRUMB_INLINE typename I::quad quad(const row& x) noexcept {
        return I::load_quad(x.codes + static_cast<std::size_t>(Four / 2) * x.stride + Four % 2 * 4);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
