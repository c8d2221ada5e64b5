// How feed-forward networks are folded, by the names of `calibrate --ffn`.
#pragma once

#include "model/matrix.hpp"

#include <string>
#include <string_view>

namespace lm {

/// How feed-forward networks are computed: as they are, folded, or folded for single tokens and as they are
/// for batches, which takes the memory of both.
enum class ffn_type { dense, tardis, both };
inline constexpr std::string_view ffn_names[] = {"dense", "tardis", "both"};

/// Everything that making folded networks takes.
struct ffn_recipe {
    double coverage = 0.85;                    ///< mean share of a neuron's inputs that its line serves
    double parameters = 0;                     ///< instead, if not 0: what may be read per token, see `left`
    weight_type predictor = weight_type::cb2s; ///< format of the estimates' weights
    std::optional<crumb::row_codec> residual;  ///< W1's rows hold what the predictor lacks, as this
    bool sound = false;                        ///< estimates come with bounds, nothing is missed
    weight_type fold = weight_type::q8_0;      ///< format of C
    crumb::row_codec in = crumb::row_codec::q8_0;  ///< of W1's rows, unless they are a residual
    crumb::row_codec out = crumb::row_codec::q8_0; ///< of W2's rows
    double miss = -1; ///< share of inputs outside their range that may be missed; < 0: ranges of estimates
    bool uniform = false; ///< the same coverage for every neuron
    bool greedy = false;  ///< ranges by the paper's search instead of the best ones
    bool refit = true;    ///< C and B by least squares on what fixes leave

    /// From tardis, followed by :coverage=C or :parameters=P, :predictor=F, :residual=R, :sound, :fold=F,
    /// :rows=R, :miss=M, :uniform, :greedy, :plain in any order, each once.
    static crumb::result<ffn_recipe> parse(std::string_view text);
    /// As `parse` reads it.
    std::string name() const;

    /// What is read per token over all weights of the network (2 d h), as TARDIS counts: C and the fixed
    /// neurons in halves, the predictor at the bits of its codes.
    double left(std::size_t width, std::size_t hidden, double fixed) const;
    /// The coverage that is asked for.
    double target(std::size_t width, std::size_t hidden) const;
};

} // namespace lm
