// The commands of crumb-lm and their options.
#pragma once

#include "eval/study.hpp"
#include "model/precision.hpp"
#include "text/chat_format.hpp"
#include "text/sampler.hpp"
#include "train/kv_training.hpp"
#include "train/loading.hpp"
#include "train/quantizer.hpp"
#include "train/schedule_training.hpp"

#include <cstdint>
#include <string>

namespace lm {

/// What the commands that run a model share.
struct common_options : load_options {
    precision_option precision; ///< of nested weights
    bool json = false;
    bool trace = false; ///< tell how blocks of the cache become codes
};

struct generate_options : common_options {
    std::string prompt;
    std::size_t tokens = 128;
    sampling how;
    bool chat = false;  ///< the prompt is a message
    std::string system; ///< another before it, or empty
    std::string format; ///< of both; empty: what the file's template writes
};

struct chat_options : common_options {
    std::size_t tokens = 0;  ///< of an answer; 0: as many as fit
    std::size_t context = 0; ///< tokens of the conversation; 0: the model's
    sampling how;
    std::string system; ///< or empty
    std::string format; ///< empty: what the file's template writes
};

struct perplexity_options : common_options {
    std::string text;
    std::string against; ///< empty: no reference
    std::size_t ctx = 512;
    std::size_t chunks = 0; ///< 0: all
};

struct quantize_options : quantization {
    std::string model;
    bool rotate = false; ///< the residual stream first
    std::size_t threads = 0;
    bool json = false;
    std::string out;
};

struct pack_options {
    std::string model, out;
};

struct calibrate_options {
    std::string model;
    kv_type kv;                    ///< what codebooks are for; else, what a schedule is found with
    std::string schedule;          ///< static or learned instead of codebooks; or empty
    std::optional<ffn_recipe> ffn; ///< folded networks instead of codebooks
    crumb::kv_sharing sharing = crumb::kv_sharing::none;
    crumb::code_errors errors = crumb::code_errors::weighted;
    std::string text;        ///< a file, or `self`
    std::size_t chunks = 64; ///< windows of text
    std::uint64_t seed = 1;
    std::size_t threads = 0;
    std::string entropy;       ///< a CSV of what codes carry, or empty
    std::string distributions; ///< a CSV of what neurons see, or empty
    std::string out;
    schedule_options study; ///< of schedules
};

struct demo_options {
    std::string models; ///< a directory
    std::size_t threads = 0;
};

struct synth_options {
    std::string like, arch; ///< one of them
    std::string out;
    ggml_type weights = ggml_type::q4_0;
    std::uint32_t context = 0; ///< 0: the shape's
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
crumb::status chat(const chat_options& options);
crumb::status perplexity(const perplexity_options& options);
crumb::status demo(const demo_options& options);
crumb::status quantize(const quantize_options& options);
crumb::status pack(const pack_options& options);
crumb::status calibrate(const calibrate_options& options);
crumb::status synth(const synth_options& options);
crumb::status bench(const bench_options& options);

/// The format named, or if the name is empty, the one that the model's template writes.
crumb::result<chat_format> format_of(const model& m, const std::string& name);

} // namespace lm
