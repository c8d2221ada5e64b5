// Finding schedules of precision: static ones by search, learned ones by training.
#pragma once

#include "eval/study.hpp"
#include "model/schedule_file.hpp"

#include <crumb/offline/schedule/solver.hpp>
#include <crumb/offline/schedule/trained_schedule.hpp>

#include <string>
#include <vector>

namespace lm {

/// Prompts that schedules are measured on, and what is measured.
struct schedule_options : study_options {
    std::string against;        ///< the model in full precision; empty: the highest precision stands for it
    std::size_t points = 4;     ///< of the grid of switch points
    int low = 0;                ///< bits that a learned schedule falls to; 0: one less than there are
    double epsilon = 0;         ///< quality that may be lost
    bool by_divergence = false; ///< quality is -KL on the text's continuation instead of Rouge-L
    bool monotone = false;      ///< more bits are assumed to be no worse, and fewer schedules are measured
};

/// A schedule of all prompts, and the precisions of the two phases that would do without one. The schedule's
/// prompts have the bits of the phases (PMPD, algorithm 1, line 2).
struct static_schedule {
    crumb::solved_schedule found;
    crumb::phase_allocation phases;
    double reference = 0; ///< quality of the highest precision
};

/// Allocates the phases, then searches the schedules of a grid that begin with the prompt's precision or a
/// lower one for the one of fewest bits that holds the quality.
crumb::result<static_schedule> find_static_schedule(study& prompts, const crumb::precision_range& stored,
                                                    const schedule_options& how,
                                                    const stage_function& progress = {});

/// Labels of all prompts: the least point of the grid that scores as much as full precision.
crumb::result<std::vector<std::size_t>> switch_labels(study& prompts, const crumb::schedule_levels& levels,
                                                      std::size_t points);

/// How many prompts have each label.
std::vector<std::size_t> counts_of(const std::vector<std::size_t>& labels, std::size_t points);

/// What a learned scheduler reads of a prompt: rows of keys and of values, rows x width each.
struct prompt_features {
    std::vector<float> keys, values; ///< values: empty if they are the keys
    std::size_t rows = 0, width = 0;

    /// Appends rows.
    void add(const crumb::matrix_view<const float>& k);
    void add(const crumb::matrix_view<const float>& k, const crumb::matrix_view<const float>& v);
};

/// Keys and values of a layer when the prompts have been read in the highest precision.
crumb::result<std::vector<prompt_features>> cache_features(study& prompts, std::size_t layer);

/// Trains a scheduler on features of all prompts.
crumb::result<crumb::trained_schedule> train_on(const std::vector<prompt_features>& features,
                                                const std::vector<std::size_t>& labels, std::size_t heads,
                                                std::size_t points, std::uint64_t seed);

} // namespace lm
