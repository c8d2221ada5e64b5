// Files of a model's true shape with random weights: for measuring speed where no download is wanted.
#pragma once

#include "gguf/gguf_writer.hpp"
#include "model/model.hpp"

#include <cstdint>
#include <string_view>

namespace lm {

/// What `synthesize` writes. A vocabulary of `llama` needs 354 tokens or more, one of `gpt2` 257.
struct synth_shape {
    architecture arch = architecture::llama;
    std::uint32_t layers = 0;
    std::uint32_t width = 0;
    std::uint32_t hidden = 0;
    std::uint32_t heads = 0;
    std::uint32_t kv_heads = 0;
    std::uint32_t vocabulary = 0;
    std::uint32_t context = 0;
};

/// A shape by its name, as in `tinyllama-1.1b` or `llama-2-7b:layers=4`. Errors name what is wrong and what
/// there is.
crumb::result<synth_shape> find_shape(std::string_view like);

/// The file of a shape: keys, a vocabulary, and tensors that are generated while they are written. `weights`:
/// f16, q8_0 or q4_0 for all matrices (positions, norms and biases are f32). Equal arguments give equal
/// files.
crumb::result<gguf_writer> synthesize(const synth_shape& shape, std::string_view name, ggml_type weights,
                                      std::uint64_t seed);

} // namespace lm
