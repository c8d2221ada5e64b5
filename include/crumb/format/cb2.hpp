// CB2: 2-bit indices into one of four codebooks, a half-precision scale per group.
#pragma once

#include <crumb/format/codebook.hpp>

namespace crumb::inline CRUMB_ABI {

/// weight i = d * table[4 q_i + s], s = the low two bits of d. 10 bytes per 32 weights, 2.5 bits per weight.
/// Bytes 0-1: d, little-endian; bytes 2-9: the indices, see `stored_indices`.
struct cb2 : codebook_group<2, 2> {
    static constexpr const char* name = "cb2";
};

} // namespace crumb::inline CRUMB_ABI
