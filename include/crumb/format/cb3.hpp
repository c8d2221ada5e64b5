// CB3: 3-bit indices into one of two codebooks, byte scales under a power of two per 256 inputs.
#pragma once

#include <crumb/format/codebook.hpp>

namespace crumb::inline CRUMB_ABI {

/// weight i = 2^(e - 127) * m_g * table[2 q_i + s_g], s_g = the lowest bit of m_g. 105 bytes per 256 weights,
/// 3.28125 bits per weight. Byte 0: e; bytes 1-8: m_g of the groups; bytes 9-104: the indices, group by
/// group.
struct cb3 : codebook_block<3, 1> {
    static constexpr const char* name = "cb3";
};

} // namespace crumb::inline CRUMB_ABI
