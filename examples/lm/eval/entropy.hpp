// How much of their width the codes of a cache use.
#pragma once

#include <crumb/offline/cache/samples.hpp>
#include <crumb/offline/cache/trained_codebooks.hpp>

#include <string>

namespace lm {

/// Writes a CSV with a line per layer, kv head, keys or values, and pair of neighbouring channels. Entropies
/// are in bits, over all samples:
///     first, second, joint    uniform codes of 4 bits of either channel, whose range is that of the channel,
///                             and of both codes together: what one code for the pair has to carry
///     residual_...            the same after the mean of 32 tokens and the scale of a token are taken out
///     codes                   codes that the codebooks choose, per pair of channels
///     width                   bits of these codes, per pair of channels
crumb::status write_entropies(const std::string& path, const crumb::kv_samples& samples,
                              const crumb::kv_codebooks& books);

} // namespace lm
