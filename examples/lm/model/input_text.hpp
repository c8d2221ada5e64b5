// Texts that a model is fed: read from a file, or written by a model.
#pragma once

#include "gguf/mapped_file.hpp"
#include "model/progress.hpp"
#include "model/session.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace lm {

/// `count` tokens after `start` (at least one token), window by window of the session's context.
crumb::result<std::vector<std::int32_t>> write_text(session& s, const std::vector<std::int32_t>& start,
                                                    std::size_t count, float temperature, std::size_t top_k,
                                                    std::uint64_t seed,
                                                    const std::function<void(std::int32_t)>& each);

/// The tokens of a file, at most `chunks` windows of `window` (0: all).
std::vector<std::int32_t> read_windows(const mapped_file& file, const model& m, std::size_t window,
                                       std::size_t chunks);

/// The text to calibrate on, at most `chunks` windows: of the file named `text`; if that is `self`, written
/// by the model at temperature 1; if it is empty, uniformly random tokens, which tell at least which inputs
/// are large and how the weights before make them vary together.
crumb::result<std::vector<std::int32_t>> calibration_text(const std::string& text, const model& m, session& s,
                                                          std::size_t window, std::size_t chunks,
                                                          std::uint64_t seed,
                                                          const stage_function& progress = {});

} // namespace lm
