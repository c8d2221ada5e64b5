// The program's commands.
#pragma once

#include "session.hpp"

#include <cstdint>
#include <string>

namespace lm {

/// What the commands share.
struct common_options {
    std::string model;
    weight_type weights = weight_type::stored;
    activation_type activations = activation_type::int8;
    kv_type kv = kv_type::f16;
    std::size_t threads = 0; ///< 0: all
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
crumb::status synth(const synth_options& options);
crumb::status bench(const bench_options& options);

/// A model with a session over it, loaded as the options say.
struct loaded_model {
    std::unique_ptr<model> weights;
    std::optional<session> run;
};
crumb::result<loaded_model> load(const common_options& options, std::size_t context, std::size_t batch);

/// The name that results are reported under: the type asked for, or that of the file's own matrices.
std::string weights_name(const model& m, weight_type type);

} // namespace lm
