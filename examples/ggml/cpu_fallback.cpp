#include "ggml/cpu_fallback.hpp"

#include "ggml/log.hpp"
#include "ggml/weight_buffer.hpp"

#include <new>

namespace crumb_ggml {
namespace {

void make_plain(const ggml_tensor* t) {
    if (t != nullptr && is_in_weight_buffer(t))
        weight_buffer::of(buffer_of(t)).make_raw(t);
}

void set_cpu_threads(ggml_backend_t cpu, int threads) {
    const ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu));
    const auto set = reinterpret_cast<ggml_backend_set_n_threads_t>(
        ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads"));
    if (set != nullptr)
        set(cpu, threads);
}

} // namespace

ggml_status cpu_fallback::compute(std::span<ggml_tensor* const> nodes, int threads) {
    if (!cpu_)
        cpu_.reset(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    if (!cpu_) {
        log(GGML_LOG_LEVEL_ERROR, "%s needs ggml's CPU backend, which is not loaded",
            ggml_op_name(nodes.front()->op));
        return GGML_STATUS_FAILED;
    }
    set_cpu_threads(cpu_.get(), threads);
    for (const ggml_tensor* node : nodes) {
        make_plain(node);
        for (const ggml_tensor* source : node->src)
            make_plain(source);
    }
    const std::size_t bytes = ggml_graph_overhead_custom(nodes.size(), false);
    const std::unique_ptr<ggml_context, decltype(&ggml_free)> context(
        ggml_init({.mem_size = bytes, .mem_buffer = nullptr, .no_alloc = true}), ggml_free);
    if (!context)
        throw std::bad_alloc();
    ggml_cgraph* graph = ggml_new_graph_custom(context.get(), nodes.size(), false);
    for (ggml_tensor* node : nodes)
        ggml_graph_add_node(graph, node);
    return ggml_backend_graph_compute(cpu_.get(), graph);
}

} // namespace crumb_ggml
