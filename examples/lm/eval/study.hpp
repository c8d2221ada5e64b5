// What schedules of precision do to the quality of a model's text.
#pragma once

#include "cli/commands.hpp"

#include <crumb/offline/schedule/training.hpp>

namespace lm {

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

/// The interval that holds the mean of a - b with 95 % probability, by bootstrap over the pairs.
struct interval {
    double low = 0, high = 0;
};
interval bootstrap(std::span<const double> a, std::span<const double> b, std::uint64_t seed);

/// Prompts of a text with a model that continues them. Divergence is measured on the text's own continuation
/// (every step reads the text), Rouge-L between the model's likeliest continuation and the text's.
class study {
  public:
    /// What is measured.
    enum class measure { rouge, divergence, both };

    /// `m` must outlive it. `full` is the model in full precision; null: `m` at its highest precision.
    static crumb::result<study> make(const model& m, const model* full, const kv_type& kv,
                                     const crumb::pq_codebooks& codebooks, const std::string& text,
                                     const study_options& options, std::size_t threads);

    /// The same prompts and reference for another model of the same vocabulary, which must outlive it.
    crumb::result<study> with(const model& other) const;

    std::size_t prompts() const noexcept { return prompts_.size(); }
    std::size_t steps() const noexcept { return options_.tokens - 1; }
    /// Refuses what the source refuses, and output that is not finite.
    crumb::result<study_result> run(const schedule_source& source, measure what,
                                    const std::string& progress = {});
    /// Rouge-L of the full-precision model's texts.
    const std::vector<double>& full_rouge() const noexcept { return full_rouge_; }
    /// Keys and values of a layer when a prompt has been read in the highest precision, T x kv width each;
    /// `activations`: its normed input instead, T x width, as the keys.
    struct features {
        std::vector<float> keys, values;
        std::size_t rows = 0, width = 0;
    };
    crumb::result<std::vector<features>> read_features(std::size_t layer, bool activations);

  private:
    struct prompt {
        std::span<const std::int32_t> tokens, continuation;
        std::vector<float> exact;        ///< logits of full precision at every position
        std::vector<std::int32_t> words; ///< of the continuation
    };
    study(const model& m, const study_options& o) : m_(m), options_(o) {}
    /// Calls f(thread, prompt) for all prompts; the error of the first prompt that has one.
    template <class F>
    crumb::status for_each(const std::string& progress, F&& f);
    std::vector<std::int32_t> words(std::span<const std::int32_t> tokens) const;
    /// Sessions of one thread each.
    crumb::result<std::vector<session>> sessions_of(const model& m, const kv_type& kv,
                                                    const crumb::pq_codebooks& codebooks,
                                                    std::size_t count) const;
    /// Logits along the prompts' continuations, and the Rouge-L of the likeliest ones.
    crumb::status read_exactly(const model& full);

    const model& m_;
    study_options options_;
    std::shared_ptr<const std::vector<std::int32_t>> text_; ///< what the prompts refer to
    std::vector<prompt> prompts_;
    std::vector<session> sessions_; ///< one per thread
    std::vector<double> full_rouge_;
};

/// A model with nested weights, the one that it is compared with (none: itself), and prompts.
struct study_subject {
    loaded_model nested, full;
    std::optional<study> prompts;
    crumb::precision_range stored;

    static crumb::result<study_subject> load(const common_options& common, const std::string& text,
                                             const study_options& options);
    /// What a learned schedule is made of.
    crumb::schedule_levels learned_levels(const study_options& options) const;
};

/// Labels of all prompts: the least point of the grid that scores as much as full precision.
crumb::result<std::vector<std::size_t>> switch_labels(study& prompts, const crumb::schedule_levels& levels,
                                                      std::size_t points);

/// How many prompts have each label.
std::vector<std::size_t> counts_of(const std::vector<std::size_t>& labels, std::size_t points);

/// Trains a scheduler on what the prompts leave in a layer.
crumb::result<crumb::trained_schedule> train_on(study& prompts, std::size_t layer, bool activations,
                                                const std::vector<std::size_t>& labels, std::size_t heads,
                                                std::size_t points, std::uint64_t seed);

} // namespace lm
