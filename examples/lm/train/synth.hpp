// Files of a model's true shape with random weights: for measuring speed where no download is wanted.
#pragma once

#include "gguf/gguf_writer.hpp"
#include "model/model.hpp"

#include <cstdint>
#include <string_view>
#include <vector>

namespace lm {

/// What `synthesize` writes. A vocabulary of SentencePiece needs 354 tokens or more, one of BPE 257.
struct synth_shape {
    architecture arch = architecture::llama;
    std::uint32_t layers = 0;
    std::uint32_t width = 0;
    std::uint32_t hidden = 0;
    std::uint32_t heads = 0;
    std::uint32_t kv_heads = 0;
    std::uint32_t vocabulary = 0;
    std::uint32_t context = 0;
    std::uint32_t head_size = 0; ///< 0: width / heads
    std::uint32_t window = 0;    ///< 0: no key
    rope_scaling scaling = rope_scaling::none;
    bool factors = false; ///< of the rotary embedding, in tensors
    bool bpe = false;     ///< the vocabulary; else SentencePiece, unless positions are learned
    bool biases = false;  ///< those that the architecture may have
    bool tied = false;    ///< no output matrix
    float logit_cap = 0;  ///< 0: no key
    bool telling = false; ///< weights are such that any other entry of the architecture gives other logits

    constexpr std::uint32_t head() const noexcept { return head_size != 0 ? head_size : width / heads; }
};

/// A shape by its name, as in `tinyllama-1.1b` or `llama-2-7b:layers=4`. Errors name what is wrong and what
/// there is.
crumb::result<synth_shape> find_shape(std::string_view like);

/// A small shape that shows an architecture, by its name, as in `gemma3`: that of an architecture or, as
/// `llama-yarn`, of a variant. Errors list the names.
crumb::result<synth_shape> find_small_shape(std::string_view name);
/// All of them.
std::vector<std::string_view> small_shape_names();

/// Token ids without a meaning, the same for everybody who compares logits. The first five of a vocabulary
/// may have one, and the last five.
std::vector<std::int32_t> arbitrary_tokens(std::size_t count, std::size_t vocabulary);

/// The file of a shape: keys, a vocabulary, and tensors that are generated while they are written. `weights`:
/// f32, f16, q8_0 or q4_0 for all matrices (positions, norms and biases are f32). Equal arguments give equal
/// files.
crumb::result<gguf_writer> synthesize(const synth_shape& shape, std::string_view name, ggml_type weights,
                                      std::uint64_t seed);

} // namespace lm
