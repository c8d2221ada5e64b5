#include "ggml/device.hpp"

#include "ggml/attention.hpp"
#include "ggml/backend.hpp"
#include "ggml/options.hpp"
#include "ggml/products.hpp"
#include "ggml/registry.hpp"
#include "ggml/rows.hpp"
#include "ggml/weight_buffer.hpp"

#include <crumb/dispatch/isa.hpp>

namespace crumb_ggml {
namespace {

const char* name(ggml_backend_dev_t) { return "CRUMB"; }
const char* description(ggml_backend_dev_t) {
    const auto isa = crumb::choose_isa();
    return isa ? crumb::isa_names()[*isa] : "no instruction set";
}
// It has no memory of its own; whoever shares layers out among GPUs needs figures.
void memory(ggml_backend_dev_t, std::size_t* free, std::size_t* total) {
    *free = *total = 0;
    if (the_options().whole)
        if (const ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU))
            ggml_backend_dev_memory(cpu, free, total);
}
enum ggml_backend_dev_type type(ggml_backend_dev_t) {
    return the_options().whole ? GGML_BACKEND_DEVICE_TYPE_GPU : GGML_BACKEND_DEVICE_TYPE_ACCEL;
}
void properties(ggml_backend_dev_t device, ggml_backend_dev_props* props) {
    *props = {};
    props->name = name(device);
    props->description = description(device);
    props->type = type(device);
}
ggml_backend_t init_backend(ggml_backend_dev_t, const char*) { return new_backend(); }

bool supports_buffer(ggml_backend_dev_t, ggml_backend_buffer_type_t buffer) {
    return buffer == weight_buffer_type() || (!the_options().whole && ggml_backend_buft_is_host(buffer));
}

constexpr ggml_backend_device_i registered_functions = {
    .get_name = name,
    .get_description = description,
    .get_memory = memory,
    .get_type = type,
    .get_props = properties,
    .init_backend = init_backend,
    .get_buffer_type = [](ggml_backend_dev_t) { return weight_buffer_type(); },
    .get_host_buffer_type = nullptr,
    .buffer_from_host_ptr = nullptr,
    .supports_op = [](ggml_backend_dev_t, const ggml_tensor* op) { return supports(op); },
    .supports_buft = supports_buffer,
    .offload_op = nullptr,
    .event_new = nullptr,
    .event_free = nullptr,
    .event_synchronize = nullptr,
};

} // namespace

bool supports(const ggml_tensor* op) noexcept {
    switch (op->op) {
    case GGML_OP_NONE:
    case GGML_OP_RESHAPE:
    case GGML_OP_VIEW:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
        return true;
    case GGML_OP_MUL_MAT:
    case GGML_OP_MUL_MAT_ID:
        return supports_product(op);
    default:
        break;
    }
    if (the_options().products_only)
        return false;
    return op->op == GGML_OP_FLASH_ATTN_EXT ? supports_attention(op) : supports_rows(op);
}

ggml_backend_dev_t registered_device() noexcept {
    static ggml_backend_device device = {registered_functions, registry(), nullptr};
    return &device;
}

backend_device::backend_device() noexcept : device_{registered_functions, registry(), this} {
    device_.iface.supports_op = supports_op;
    if (!the_options().own_buffers)
        device_.iface.get_buffer_type = [](ggml_backend_dev_t) { return ggml_backend_cpu_buffer_type(); };
    else
        probed_ = true;
}

bool backend_device::supports_op(ggml_backend_dev_t device, const ggml_tensor* op) {
    auto& self = *static_cast<backend_device*>(device->context);
    return supports(op) && (op->op != GGML_OP_FLASH_ATTN_EXT || self.offers_attention(op));
}

// Unless told otherwise, llama.cpp makes a first graph to see who computes this operation, and goes without
// it if that is not the device of the layer, which is the CPU. That graph is the first, and has another
// number of rows than those that follow.
bool backend_device::offers_attention(const ggml_tensor* op) noexcept {
    if (probed_.load(std::memory_order_relaxed))
        return true;
    const std::int64_t rows = op->src[0]->ne[1] * op->src[0]->ne[3];
    std::int64_t first = 0;
    if (probe_rows_.compare_exchange_strong(first, rows) || first == rows)
        return false;
    probed_.store(true, std::memory_order_relaxed);
    return true;
}

} // namespace crumb_ggml
