// crumb-lm and llama.cpp as the programs here run them: the next token's logits, for the same tokens.
#pragma once

#include "model/session.hpp"

#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace beside {

struct deleter {
    void operator()(llama_model* m) const { llama_model_free(m); }
    void operator()(llama_context* c) const { llama_free(c); }
};

[[noreturn]] inline void fail(const std::string& what) {
    std::fprintf(stderr, "%s\n", what.c_str());
    std::exit(1);
}
/// The value, or the end of the program.
template <class T>
T value_of(crumb::result<T> r) {
    if (!r)
        fail(r.message());
    return std::move(*r);
}

/// How an engine runs: with `exact`, caches are F32 and llama.cpp does without flash attention, which rounds.
struct engine_options {
    std::size_t context = 512, batch = 128;
    bool exact = false;
};

/// A model and one sequence.
class engine {
  public:
    virtual ~engine() = default;
    /// Begins a sequence.
    virtual void reset() = 0;
    /// Feeds tokens, at most `batch`: the logits behind the last `last` of them, row after row. Valid until
    /// the next call.
    virtual std::span<const float> feed(std::span<const std::int32_t> tokens, std::size_t last) = 0;
};

class crumb_engine final : public engine {
  public:
    crumb_engine(const std::string& path, lm::activation_type activations, const engine_options& o)
        : model_(value_of(lm::model::load(path, {.activations = activations}))),
          session_(
              value_of(lm::session::make(model_, lm::team(1), o.exact ? lm::kv_type::f32 : lm::kv_type::f16,
                                         std::min(o.context, model_.shape().context), o.batch))) {}
    void reset() override { session_.reset(); }
    std::span<const float> feed(std::span<const std::int32_t> tokens, std::size_t last) override {
        return value_of(session_.feed(tokens, last));
    }
    const lm::model& model() const noexcept { return model_; }

  private:
    lm::model model_;
    lm::session session_;
};

class llama_engine final : public engine {
  public:
    llama_engine(const std::string& path, const engine_options& o) {
        llama_model_params mp = llama_model_default_params();
        mp.n_gpu_layers = 0;
        model_.reset(llama_model_load_from_file(path.c_str(), mp));
        if (!model_)
            fail(path + ": llama.cpp does not load it");
        llama_context_params cp = llama_context_default_params();
        cp.n_ctx = static_cast<std::uint32_t>(o.context);
        cp.n_batch = cp.n_ubatch = static_cast<std::uint32_t>(o.batch);
        cp.n_threads = cp.n_threads_batch = 1;
        if (o.exact) {
            cp.type_k = cp.type_v = GGML_TYPE_F32;
            cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
        }
        context_.reset(llama_init_from_model(model_.get(), cp));
        if (!context_)
            fail(path + ": llama.cpp makes no context");
    }
    void reset() override {
        llama_memory_clear(llama_get_memory(context_.get()), true);
        position_ = 0;
    }
    std::span<const float> feed(std::span<const std::int32_t> tokens, std::size_t last) override {
        llama_batch b = llama_batch_init(static_cast<std::int32_t>(tokens.size()), 0, 1);
        b.n_tokens = static_cast<std::int32_t>(tokens.size());
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            b.token[i] = tokens[i];
            b.pos[i] = static_cast<llama_pos>(position_++);
            b.n_seq_id[i] = 1;
            b.seq_id[i][0] = 0;
            b.logits[i] = i + last >= tokens.size();
        }
        if (llama_decode(context_.get(), b) != 0)
            fail("llama.cpp does not decode");
        const auto size = static_cast<std::size_t>(llama_vocab_n_tokens(vocabulary()));
        logits_.clear();
        for (std::size_t i = tokens.size() - last; i < tokens.size(); ++i) {
            const float* row = llama_get_logits_ith(context_.get(), static_cast<std::int32_t>(i));
            logits_.insert(logits_.end(), row, row + size);
        }
        llama_batch_free(b);
        return logits_;
    }
    const llama_vocab* vocabulary() const noexcept { return llama_model_get_vocab(model_.get()); }

  private:
    std::unique_ptr<llama_model, deleter> model_;
    std::unique_ptr<llama_context, deleter> context_;
    std::size_t position_ = 0;
    std::vector<float> logits_;
};

/// llama.cpp with the libraries in a folder; of its log only errors are seen.
inline void start_llama_cpp(const char* folder) {
    llama_log_set(
        [](ggml_log_level level, const char* text, void*) {
            if (level >= GGML_LOG_LEVEL_ERROR && level != GGML_LOG_LEVEL_CONT)
                std::fputs(text, stderr);
        },
        nullptr);
    ggml_backend_load_all_from_path(folder);
    llama_backend_init();
}

} // namespace beside
