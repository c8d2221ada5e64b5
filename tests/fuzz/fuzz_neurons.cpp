// libFuzzer target: whatever the bytes are, stored neurons are refused or lie within them.
#include <crumb/format/neuron_rows.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

/// Depends on everything that was read, so that no read is optimized away.
volatile float sink;

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    // Nothing lies behind it, so that reads beyond the end are noticed.
    const std::size_t room = crumb::round_up(size == 0 ? 1 : size, crumb::alignment);
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(crumb::alignment, room));
    std::byte* copy = memory + (room - size) / crumb::alignment * crumb::alignment;
    if (size > 0)
        std::memcpy(copy, data, size);
    if (const auto rows = crumb::neuron_rows::open({copy, size})) {
        const crumb::neuron_shape& s = rows->shape();
        for (const std::size_t n : {std::size_t{0}, s.neurons / 2, s.neurons - 1}) {
            sink = sink + rows->low()[n] + rows->high()[n] + rows->line(n).slope;
            for (const std::size_t i : {std::size_t{0}, s.inputs - 1})
                sink = sink + crumb::row_weight(s.in, rows->in(n), i);
            for (const std::size_t i : {std::size_t{0}, s.outputs - 1})
                sink = sink + crumb::row_weight(s.out, rows->out(n), i);
        }
    } else if (rows.message()[0] == '\0') {
        std::abort();
    }
    std::free(memory);
    return 0;
}
