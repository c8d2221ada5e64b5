// By what files say which model something was trained for.
#pragma once

#include "model/model.hpp"

#include <cstdint>

namespace lm {

/// A number that a model keeps when its matrices are quantized: of its shape, norms and biases.
std::uint64_t model_identity(const model& m);

} // namespace lm
