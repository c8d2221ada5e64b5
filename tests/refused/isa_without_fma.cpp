// REFUSED: isa_float_arithmetic.*fma
#include <crumb/isa/primitives.hpp>

struct without_fma : crumb::isa::portable {
    static void fma() = delete;
};
static_assert(crumb::isa_primitives<without_fma>);
