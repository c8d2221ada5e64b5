// Tensor types that are read but not multiplied: grids of IQ1, IQ2 and IQ3, and Q8_1 and Q8_K.
#pragma once

#include "gguf/ggml_type.hpp"

#include <crumb/core/status.hpp>

#include <cstddef>
#include <span>

namespace lm {

/// Whether `decode` knows a type: IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, Q8_1, Q8_K.
bool is_decoded(ggml_type type) noexcept;

/// The floats of whole blocks of such a type, as many as they have inputs. Any bytes are blocks; scales in
/// them may be infinite or NaN. Fails for other types, and for bytes that are no whole number of blocks.
crumb::status decode(ggml_type type, std::span<const std::byte> blocks, float* out);

} // namespace lm
