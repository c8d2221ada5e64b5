// CB2S: 2-bit indices into one of four codebooks, byte scales under a power of two per 256 inputs.
#pragma once

#include <crumb/format/codebook.hpp>

namespace crumb::inline CRUMB_ABI {

/// weight i = 2^(e - 127) * m_g * table[4 q_i + s_g], s_g = the low two bits of m_g. 73 bytes per 256
/// weights, 2.28125 bits per weight. Byte 0: e; bytes 1-8: m_g of the groups; bytes 9-72: the indices, group
/// by group.
struct cb2s : codebook_block<2, 2> {
    static constexpr const char* name = "cb2s";
};

} // namespace crumb::inline CRUMB_ABI
