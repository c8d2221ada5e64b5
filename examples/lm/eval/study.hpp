// What schedules of precision do to the quality of a model's text.
#pragma once

#include "model/precision.hpp"
#include "model/progress.hpp"
#include "model/session.hpp"

#include <memory>
#include <string>
#include <vector>

namespace lm {

/// Prompts that schedules are measured on.
struct study_options {
    std::size_t prompts = 128; ///< cut from the text, evenly spaced
    std::size_t prompt = 256;  ///< tokens each
    std::size_t tokens = 256;  ///< decode steps
};

/// What one schedule did.
struct study_result {
    std::string name;
    double bits = 0;           ///< mean of all decode steps
    std::vector<double> rouge; ///< Rouge-L over words, of each prompt; empty if not measured
    std::vector<double> kl;    ///< mean divergence from full precision, of each prompt; empty likewise
    std::vector<double> kl_at; ///< the same of each position, mean over the prompts
};

/// Mean of some numbers.
double mean_of(std::span<const double> x);

/// Prompts of a text with a model that continues them. Divergence is measured on the text's own continuation
/// (every step reads the text), Rouge-L between the model's likeliest continuation and the text's.
class study {
  public:
    /// What is measured.
    enum class measure { rouge, divergence, both };

    /// `m` must outlive it, and so must what `progress` refers to. `full` is the model in full precision;
    /// null: `m` at its highest precision. `text`: see `calibration_text`.
    static crumb::result<study> make(const model& m, const model* full, const kv_type& kv,
                                     const crumb::pq_codebooks& codebooks, const std::string& text,
                                     const study_options& options, std::size_t threads,
                                     const stage_function& progress = {});

    /// The same prompts and reference for another model of the same vocabulary, which must outlive it.
    crumb::result<study> with(const model& other) const;

    std::size_t prompts() const noexcept { return prompts_.size(); }
    std::size_t steps() const noexcept { return options_.tokens - 1; }
    /// Refuses what the source refuses, and output that is not finite. `stage`: of the progress; empty: none.
    crumb::result<study_result> run(const schedule_source& source, measure what,
                                    const std::string& stage = {});
    /// Calls f(session, prompt, number) for all prompts, with a session of one thread each: several at a
    /// time. The error of the first prompt that has one.
    crumb::status for_each_prompt(
        const std::string& stage,
        const std::function<crumb::status(session&, std::span<const std::int32_t>, std::size_t)>& f);
    const model& of() const noexcept { return m_; }
    /// Rouge-L of the full-precision model's texts.
    const std::vector<double>& full_rouge() const noexcept { return full_rouge_; }

  private:
    struct prompt {
        std::span<const std::int32_t> tokens, continuation;
        std::vector<float> exact;        ///< logits of full precision at every position
        std::vector<std::int32_t> words; ///< of the continuation
    };
    study(const model& m, const study_options& o, const stage_function& progress)
        : m_(m), options_(o), progress_(progress) {}
    /// Calls f(thread, prompt) for all prompts; the error of the first prompt that has one.
    template <class F>
    crumb::status for_each(const std::string& stage, F&& f);
    std::vector<std::int32_t> words(std::span<const std::int32_t> tokens) const;
    /// Sessions of one thread each.
    crumb::result<std::vector<session>> sessions_of(const model& m, const kv_type& kv,
                                                    const crumb::pq_codebooks& codebooks,
                                                    std::size_t count) const;
    /// Logits along the prompts' continuations, and the Rouge-L of the likeliest ones.
    crumb::status read_exactly(const model& full);

    const model& m_;
    study_options options_;
    stage_function progress_;
    std::shared_ptr<const std::vector<std::int32_t>> text_; ///< what the prompts refer to
    std::vector<prompt> prompts_;
    std::vector<session> sessions_; ///< one per thread
    std::vector<double> full_rouge_;
};

} // namespace lm
