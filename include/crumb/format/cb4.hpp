// CB4: 4-bit indices into one codebook, byte scales under a power of two per 256 inputs.
#pragma once

#include <crumb/format/codebook.hpp>

namespace crumb::inline CRUMB_ABI {

/// weight i = 2^(e - 127) * m_g * table[q_i]. 137 bytes per 256 weights, 4.28125 bits per weight. Byte 0: e;
/// bytes 1-8: m_g of the groups; bytes 9-136: the indices, group by group.
struct cb4 : codebook_block<4, 0> {
    static constexpr const char* name = "cb4";
};

} // namespace crumb::inline CRUMB_ABI
