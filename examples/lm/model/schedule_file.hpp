// Schedules of precision in a model's file.
#pragma once

#include "gguf/gguf_writer.hpp"
#include "model/precision.hpp"

#include <crumb/offline/schedule/trained_schedule.hpp>

#include <optional>
#include <string>

namespace lm {

/// A learned scheduler as files keep it.
struct stored_schedule {
    crumb::schedule_levels levels;
    crumb::trained_schedule trained;
};

/// The schedule that a file has. Static: keys `crumb.schedule.version`, `.model`, `.kind` (`static`),
/// `.length`, `.prefill`, `.steps` and `.bits`. Learned (`learned`): `.length`, `.prefill`, `.high`, `.low`,
/// `.heads`, `.head_size`, `.hidden`, `.points` and tensors `crumb.schedule.query`, `.w1`, `.b1`, `.w2`,
/// `.b2`; it reads the cache of the last layer. Nothing if the file has none; an error if it is damaged, of
/// another model or of a version this program does not read.
crumb::result<std::optional<schedule_source>> read_schedule(const model& m);

/// A source that runs a learned scheduler over the last layer of a session's cache. It shares `stored`.
crumb::result<schedule_source> learned_source(std::string name,
                                              std::shared_ptr<const stored_schedule> stored);

/// What the names of a schedule's keys and tensors begin with.
inline constexpr std::string_view schedule_prefix = "crumb.schedule.";

/// Adds a schedule to a file; what it refers to stays the caller's until the file is written.
void write_schedule(gguf_writer& to, const model& m, const crumb::precision_schedule& schedule);
void write_schedule(gguf_writer& to, const model& m, const stored_schedule& schedule);

} // namespace lm
