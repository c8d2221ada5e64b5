// A program with a format of its own, the one of docs/add-a-format.md, whose kernels it compiles by itself.
#include "products.hpp"

#if !CRUMB_HEADER_ONLY
#include <crumb/kernel/linear/definitions.hpp>
#endif

#include <five_bits.hpp>

int main() {
    using mine::five_bits;
    std::size_t isas = 0;
    for (const std::size_t rows : {1, 7, 33})
        if (!outside::products_agree<five_bits>(50, 200, rows, isas) || isas == 0)
            return 1;
    // As the page uses it.
    const std::vector<five_bits::block> blocks(3 * 2);
    outside::buffer memory(crumb::packed_bytes<five_bits>(3, 64));
    const auto plan = prepare(blocks, 3, 64, memory.span());
    return plan && plan->n() == 3 && plan->k() == 64 ? 0 : 1;
}
