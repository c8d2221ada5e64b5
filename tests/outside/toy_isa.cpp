// The ISA that docs/add-an-isa.md adds: the headers with the blocks of that page in them.
#include "products.hpp"

static_assert(crumb::isa_primitives<crumb::isa::avx512_gfni>);

int main() {
    const auto& known = crumb::isa_names();
    bool listed = false;
    for (const char* name : known)
        listed |= std::strcmp(name, "avx512_gfni") == 0;
    if (!listed || !crumb::choose_isa({"avx512_gfni"}))
        return std::puts("avx512_gfni is not listed"), 1;
    std::size_t isas = 0;
    for (const std::size_t rows : {1, 7, 33})
        if (!outside::products_agree<crumb::q4_0>(50, 200, rows, isas) ||
            !outside::products_agree<crumb::q8_0>(50, 200, rows, isas))
            return 1;
    if (!crumb::isa_supported(crumb::isa_index("avx512_gfni")))
        std::puts("this CPU lacks avx512_gfni: compiled only");
    return 0;
}
