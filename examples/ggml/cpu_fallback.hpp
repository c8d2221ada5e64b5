// ggml's CPU backend for the operations that this one lacks, where there is nobody else to compute them.
#pragma once

#include "ggml/ggml_api.hpp"

#include <memory>
#include <span>

namespace crumb_ggml {

/// A CPU backend that computes tensors in this plug-in's buffers.
class cpu_fallback {
  public:
    /// In this order; weights that an operation reads in place are unpacked, and packed again by the next
    /// product. Throws std::bad_alloc.
    ggml_status compute(std::span<ggml_tensor* const> nodes, int threads);

  private:
    struct deleter {
        void operator()(ggml_backend_t b) const { ggml_backend_free(b); }
    };
    std::unique_ptr<ggml_backend, deleter> cpu_;
};

} // namespace crumb_ggml
