// Valid inputs of every kind, a few kilobytes each.
#pragma once

#include "parts.hpp"

#include <string>
#include <vector>

namespace lm::fuzz {

struct seed {
    std::string name;
    bytes content;
};

/// Files with the keys and tensors of GGUF's table, and vocabularies.
std::vector<seed> gguf_seeds();
/// Models: both architectures, matrices in all formats, tied and untied, ragged; with folded networks,
/// codebooks of the cache and schedules of precision.
std::vector<seed> model_seeds();
/// Models that are refused for one reason each, deep in what reads them.
std::vector<seed> refused_seeds();
/// Parts of folded networks as `fuzz_folded` reads them: a GGUF file of tensors `fold`, `predictor`,
/// `neurons` and perhaps `bounds` and keys `width`, `hidden`, `crumb.codebooks.<format>`.
std::vector<seed> folded_seeds();
std::vector<seed> packed_seeds();
std::vector<seed> nested_seeds();
std::vector<seed> neuron_seeds();

} // namespace lm::fuzz
