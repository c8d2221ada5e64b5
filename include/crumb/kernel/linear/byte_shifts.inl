// Shifts of bytes by so many bits to either side. No loops.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct byte_shifts<I> {
    /// Shifted right, or left where `By` is negative; what crosses bytes is not to be kept.
    template <int By>
    static CRUMB_INLINE typename I::bytes shifted(typename I::bytes x) noexcept {
        if constexpr (By > 0)
            return I::template shift_right<By>(x);
        else if constexpr (By < 0)
            return I::template shift_left<-By>(x);
        else
            return x;
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
