// The device that ggml finds in this plug-in, and those of its backends.
#pragma once

#include "ggml/ggml_api.hpp"

#include <atomic>

namespace crumb_ggml {

/// The one device of the registry, of the kind that llama.cpp offers the weights of its CPU layers to.
ggml_backend_dev_t registered_device() noexcept;

/// Whether the registry's device, or a backend's, computes an operation.
bool supports(const ggml_tensor* op) noexcept;

/// A backend has a device of its own: what it computes lies in ggml's CPU buffers, so that nothing is copied
/// between it and the CPU backend, and it knows whether llama.cpp is still making the context.
class backend_device {
  public:
    backend_device() noexcept;
    ggml_backend_dev_t handle() noexcept { return &device_; }
    /// To be called when the backend has computed a graph.
    void has_computed() noexcept { probed_.store(true, std::memory_order_relaxed); }

  private:
    static bool supports_op(ggml_backend_dev_t device, const ggml_tensor* op);
    bool offers_attention(const ggml_tensor* op) noexcept;

    ggml_backend_device device_;
    std::atomic<bool> probed_ = false;
    std::atomic<std::int64_t> probe_rows_ = 0;
};

} // namespace crumb_ggml
