// Mutations that know what files are made of. What breaks a reader are parts that are valid and do not fit
// each other; changing bytes here and there hardly ever makes such a file.
#pragma once

#include "parts.hpp"

namespace lm::fuzz {

/// An input with one or several changes:
///  - a number that is a size of something becomes another one wherever it occurs - keys, dimensions, headers
///  of
///    packed weights and of neurons - or in some of these places only, with contents of that size;
///  - one header field, dimension, type or key is another, and the sizes around it follow or do not;
///  - tensors and keys are replaced by those of another valid file, alone or all with a prefix, under their
///  own or
///    other names;
///  - scales, exponents, levels, thresholds and floats become NaN, infinite, huge or 0;
///  - what says that parts are of the same model is made right.
/// Files stay readable: offsets, sizes and alignment are written anew. Works on GGUF files, on packed
/// weights, neurons and saved caches; empty for anything else.
bytes mutated(std::span<const std::byte> input, dice& random);

/// `a` with parts of `b`; empty if the two are not GGUF files.
bytes crossed(std::span<const std::byte> a, std::span<const std::byte> b, dice& random);

/// Valid files that `mutated` takes parts of; made once.
std::span<const bytes> donors();

} // namespace lm::fuzz
