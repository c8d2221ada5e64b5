// Which precision of nested weights serves which pass of a model.
#pragma once

#include "model/session.hpp"

#include <crumb/op/schedule/precision_schedule.hpp>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lm {

/// What `--precision` says.
struct precision_option {
    bool from_file = false; ///< the schedule that `calibrate --schedule` has put into the file
    int prefill = 0;        ///< bits of the prompt; 0: nothing is said, all bits there are
    std::vector<crumb::precision_phase> phases;

    /// From `schedule`, or [<prefill>/]<bits>{,<bits>@<step>}: bits of the prompt and of decoding from steps
    /// on.
    static crumb::result<precision_option> parse(std::string_view text);
    std::string name() const;
    /// Whether all passes have the same precision.
    bool is_constant() const noexcept {
        return !from_file && (phases.empty() || (phases.size() == 1 && phases[0].bits == prefill));
    }
};

/// Phases as `precision_option::parse` reads them: <bits>{,<bits>@<step>}.
std::string phases_text(std::span<const crumb::precision_phase> phases);

/// Bits of decode step `step`, asked once per step in their order; `logits`: those that the token of the step
/// was taken from.
using step_precision = std::function<int(std::size_t step, std::span<const float> logits)>;

/// Those of a schedule.
step_precision steps_of(const crumb::precision_schedule& schedule);

/// Where precisions come from: one function per prompt, chosen when the prompt has been read. Threads may
/// share it.
struct schedule_source {
    std::string name;
    int prefill = 0;
    /// `number`: of the prompt, where chance decides.
    std::function<crumb::result<step_precision>(const session& after_prompt, std::size_t number)> choose;
};

/// The source that an option means for a model, for at most `length` steps. Refuses precisions that the model
/// does not have, and a schedule that its file lacks.
crumb::result<schedule_source> source_of(const precision_option& option, const model& m, std::size_t length);

/// A schedule for all prompts.
schedule_source constant_source(std::string name, const crumb::precision_schedule& schedule);

/// Feeds a session prompt by prompt, token by token, in the precision that a source says.
class decoder {
  public:
    /// Both must outlive it.
    decoder(session& s, const schedule_source& source) : s_(s), source_(source) {}

    /// Forgets the sequence and reads a prompt; the logits behind it, valid until the next call.
    crumb::result<std::span<const float>> begin(std::span<const std::int32_t> prompt, std::size_t number = 0);
    /// Reads one more token; the logits behind it, likewise.
    crumb::result<std::span<const float>> step(std::int32_t token);
    /// Mean bits of all steps since construction; of none, those of the next one.
    double average_bits() const noexcept {
        return steps_ != 0 ? double(bits_) / double(steps_) : next_ ? next_(0, logits_) : 0;
    }

  private:
    session& s_;
    const schedule_source& source_;
    step_precision next_;
    std::size_t at_ = 0, steps_ = 0, bits_ = 0;
    std::span<const float> logits_;
};

} // namespace lm
