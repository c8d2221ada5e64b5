// Targets that begin with a file.
#pragma once

#include "fuzz.hpp"
#include "gguf/gguf.hpp"

namespace lm::fuzz {

/// Calls f(file) with the file that an input is, unless the reader refuses it.
template <class F>
void with_file(std::span<const std::byte> input, F&& f) {
    const exact_copy copy(input);
    const auto file = gguf::parse(copy.bytes());
    if (!file)
        return check_refusal(file.error());
    f(*file);
}

} // namespace lm::fuzz
