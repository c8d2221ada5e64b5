// The program's commands.
#pragma once

#include "cli/pruning.hpp"
#include "model/precision.hpp"
#include "model/session.hpp"
#include "train/nested.hpp"

#include <crumb/offline/cache/codebooks.hpp>

#include <cstdint>
#include <functional>
#include <string>

namespace lm {

/// What the commands share.
struct common_options {
    std::string model;
    weight_type weights = weight_type::stored;
    activation_type activations = activation_type::int8;
    kv_type kv = kv_type::f16;
    precision_option precision; ///< of nested weights
    ffn_type ffn = ffn_type::dense;
    bool ffn_by_lists = false; ///< see `model_options`
    std::size_t threads = 0;   ///< 0: all
    bool json = false;
};

struct generate_options : common_options {
    std::string prompt;
    std::size_t tokens = 128;
    float temperature = 0.8f;
    std::size_t top_k = 40;
    std::uint64_t seed = 1;
};

struct perplexity_options : common_options {
    std::string text;
    std::string against; ///< empty: no reference
    std::size_t ctx = 512;
    std::size_t chunks = 0; ///< 0: all
    pruning prune;          ///< of the model, not of the reference
    std::string prune_text; ///< to measure inputs on: a file, or `self`
};

struct quantize_options {
    std::string model;
    weight_type weights = weight_type::cb2s;
    nested_type nested;                         ///< if `weights` are nested
    weight_type vocabulary = weight_type::q8_0; ///< embedding and output matrix: q8_0 or stored
    std::string calibrate;                      ///< a text file, `self`, or empty: random tokens
    std::size_t chunks = 64;                    ///< windows of calibration text
    std::size_t sweeps = 3;                     ///< see `crumb::feedback_options`
    std::uint64_t seed = 1;
    std::size_t threads = 0;
    std::string out;
};

/// Prompts that schedules are measured on, and what is measured.
struct study_options {
    std::string against;        ///< the model in full precision; empty: the highest precision stands for it
    std::size_t prompts = 128;  ///< cut from the text, evenly spaced
    std::size_t prompt = 256;   ///< tokens each
    std::size_t tokens = 256;   ///< decode steps
    std::size_t points = 4;     ///< of the grid of switch points
    int low = 0;                ///< bits that a learned schedule falls to; 0: one less than there are
    double epsilon = 0;         ///< quality that may be lost
    bool by_divergence = false; ///< quality is -KL on the text's continuation instead of Rouge-L
};

struct calibrate_options {
    std::string model;
    kv_type kv;                    ///< what codebooks are for; else, what a schedule is found with
    std::string schedule;          ///< static or learned instead of codebooks; or empty
    std::optional<ffn_recipe> ffn; ///< folded networks instead of codebooks
    crumb::kv_sharing sharing = crumb::kv_sharing::none;
    std::string text;        ///< a file, or `self`
    std::size_t chunks = 64; ///< windows of text
    std::uint64_t seed = 1;
    std::size_t threads = 0;
    std::string entropy;       ///< a CSV of what codes carry, or empty
    std::string distributions; ///< a CSV of what neurons see, or empty
    std::string out;
    study_options study; ///< of schedules
};

struct schedules_options : common_options {
    std::string text;
    std::string calibrate; ///< text for dense-and-sparse decompositions; empty: there are none
    study_options study;
    std::uint64_t seed = 1;
    std::string only;      ///< parts of names, | between them; schedules but these and the first are left out
    std::string csv;       ///< divergence by position, or empty
    bool features = false; ///< compare what a learned scheduler can read instead
};

struct demo_options {
    std::string models; ///< a directory
    std::size_t threads = 0;
};

struct synth_options {
    std::string like;
    std::string out;
    ggml_type weights = ggml_type::q4_0;
    std::uint64_t seed = 1;
};

struct bench_options : common_options {
    std::size_t prompt = 512;
    std::size_t generate = 128;
    std::size_t depth = 0;  ///< tokens in the cache before either
    std::size_t repeat = 5; ///< measured runs after one that warms up
    bool profile = false;
};

/// Each prints its results to stdout and returns an error or nothing.
crumb::status generate(const generate_options& options);
crumb::status perplexity(const perplexity_options& options);
crumb::status demo(const demo_options& options);
crumb::status quantize(const quantize_options& options);
crumb::status calibrate(const calibrate_options& options);
crumb::status calibrate_schedule(const calibrate_options& options);
crumb::status calibrate_ffn(const calibrate_options& options);
crumb::status schedules(const schedules_options& options);
crumb::status synth(const synth_options& options);
crumb::status bench(const bench_options& options);

/// `count` tokens after `start` (at least one token), window by window of the session's context.
crumb::result<std::vector<std::int32_t>> write_text(session& s, const std::vector<std::int32_t>& start,
                                                    std::size_t count, float temperature, std::size_t top_k,
                                                    std::uint64_t seed,
                                                    const std::function<void(std::int32_t)>& each);

/// A model with a session over it, loaded as the options say.
struct loaded_model {
    std::unique_ptr<model> weights;
    std::unique_ptr<crumb::kv_codebooks> codebooks; ///< of the cache, or null
    std::optional<session> run;
};
/// The model with its codebooks, without a session.
crumb::result<loaded_model> load(const common_options& options);
/// Its session. A context of 0 is the model's; of another one it is checked that there is memory for it.
crumb::status start(loaded_model& model, const common_options& options, std::size_t context,
                    std::size_t batch);
/// Both.
crumb::result<loaded_model> load(const common_options& options, std::size_t context, std::size_t batch);

/// The model that `--against` names, in full precision with an f16 cache; nothing loaded if that is empty.
/// Refuses another vocabulary than `other` has.
crumb::result<loaded_model> load_against(const std::string& against, const model& other,
                                         const common_options& options, std::size_t context,
                                         std::size_t batch);

class json_object;
/// Puts `ffn`, `ffn_bytes_per_token` and, of folded networks, `fixed` and what has been counted of `missed`.
void put_ffn(json_object& out, const session& s);
/// The same for people; empty of networks that are not folded.
std::string ffn_line(const session& s);

/// The name that results are reported under: the type asked for, or that of the file's own matrices.
std::string weights_name(const model& m, weight_type type);

} // namespace lm
