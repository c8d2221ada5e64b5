// IQ4_NL: 32 indices of 4 bits into a fixed table and one half-precision scale; byte for byte GGUF's block of
// that name.
#pragma once

#include <crumb/format/codebook.hpp>

namespace crumb::inline CRUMB_ABI {

/// weight i = d * codebooks[code i]. 18 bytes per 32 weights, 4.5 bits per weight. Bytes 0-1: d,
/// little-endian; bytes 2-17: index i in the low nibble of byte i, 16 + i in the high one.
struct iq4_nl : codebook_group<4, 0> {
    static constexpr const char* name = "iq4_nl";
    static constexpr std::int8_t codebooks[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                  1,    13,   25,  38,  53,  69,  89,  113};
};

} // namespace crumb::inline CRUMB_ABI
