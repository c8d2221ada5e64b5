// Loading models for a command: progress and notices go to the terminal.
#pragma once

#include "cli/report.hpp"
#include "train/loading.hpp"

namespace lm {

/// Events that are shown on the terminal, on `line`, which must outlive them.
load_events terminal_events(stage_progress& line);

/// See `load` and `load_against`.
crumb::result<loaded_model> open_model(const load_options& options);
crumb::result<loaded_model> open_model(const load_options& options, std::size_t context, std::size_t batch);
crumb::result<loaded_model> open_against(const std::string& against, const model& other,
                                         const load_options& options, std::size_t context, std::size_t batch);

/// Prints a line on stderr for every block of the cache that becomes codes.
void trace_encoding(session& s);

} // namespace lm
