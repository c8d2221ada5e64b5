// The ISA that docs/add-an-isa.md adds: the headers with the blocks of that page in them.
#include "products.hpp"

static_assert(crumb::isa_primitives<crumb::isa::avx2_vnni>);

int main() {
    const auto& known = crumb::isa_names();
    bool listed = false;
    for (const char* name : known)
        listed |= std::strcmp(name, "avx2_vnni") == 0;
    if (!listed || !crumb::choose_isa({"avx2_vnni"}))
        return std::puts("avx2_vnni is not listed"), 1;
    std::size_t isas = 0;
    for (const std::size_t rows : {1, 7, 33})
        if (!outside::products_agree<crumb::q4_0>(50, 200, rows, isas) ||
            !outside::products_agree<crumb::q8_0>(50, 200, rows, isas))
            return 1;
    if (!crumb::isa_supported(crumb::isa_index("avx2_vnni")))
        std::puts("this CPU lacks avx2_vnni: compiled only");
    return 0;
}
