#include "ggml/backend.hpp"

#include "ggml/cpu_fallback.hpp"
#include "ggml/device.hpp"
#include "ggml/graph_plan.hpp"
#include "ggml/log.hpp"
#include "ggml/options.hpp"
#include "ggml/registry.hpp"
#include "ggml/replaced_weights.hpp"
#include "ggml/weight_buffer.hpp"

#include "machine/team.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <new>
#include <system_error>

namespace crumb_ggml {
namespace {

/// What a backend has for itself.
struct context {
    explicit context(const crumb::float_ops& floats) : plan(floats) {}

    const lm::team& team_of(std::size_t size) {
        const auto at = teams.find(size);
        if (at != teams.end())
            return at->second;
        return teams
            .emplace(size, the_options().steady ? lm::team(size, [] { return false; }) : lm::team(size))
            .first->second;
    }
    /// Steps of few rows wait for memory, others compute.
    lm::pace& pace_of(std::size_t rows) noexcept { return paces[rows == 1 ? 0 : rows < 32 ? 1 : 2]; }

    ggml_backend handle{};
    backend_device device;
    graph_plan plan;
    cpu_fallback cpu;
    std::size_t threads = 4;               ///< ggml's default
    std::map<std::size_t, lm::team> teams; ///< of few sizes: one for prompts, one for single tokens
    lm::pace paces[3];
};

context& context_of(ggml_backend_t backend) noexcept { return *static_cast<context*>(backend->context); }

void run(context& c) {
    const lm::team& team = c.team_of(c.threads);
    const std::size_t rows = c.plan.rows();
    team.step(c.pace_of(rows), rows, [&](std::size_t part, std::size_t parts) {
        worker w{part, parts, c.plan.scratch(part), &c.plan.floats()};
        for (const step& s : c.plan.steps()) {
            if (s.waits)
                w.parts = team.barrier(part);
            s.run(s, w);
        }
    });
}

ggml_status compute_here(context& c, std::span<ggml_tensor* const> nodes) {
    if (const auto s = c.plan.fill(nodes, c.threads); !s) {
        log(GGML_LOG_LEVEL_ERROR, "%s", s.message());
        return GGML_STATUS_FAILED;
    }
    run(c);
    return GGML_STATUS_SUCCESS;
}

/// Stretches of nodes that are computed here and by ggml's CPU backend, in turn.
ggml_status compute_whole(context& c, std::span<ggml_tensor* const> nodes) {
    for (std::size_t begin = 0, end = 0; begin < nodes.size(); begin = end) {
        const bool here = supports(nodes[begin]);
        while (end < nodes.size() && supports(nodes[end]) == here)
            ++end;
        const auto part = nodes.subspan(begin, end - begin);
        const ggml_status s = here ? compute_here(c, part) : c.cpu.compute(part, static_cast<int>(c.threads));
        if (s != GGML_STATUS_SUCCESS)
            return s;
    }
    return GGML_STATUS_SUCCESS;
}

ggml_status compute(ggml_backend_t backend, ggml_cgraph* graph) {
    context& c = context_of(backend);
    const std::span<ggml_tensor* const> nodes(ggml_graph_nodes(graph),
                                              static_cast<std::size_t>(ggml_graph_n_nodes(graph)));
    try {
        const ggml_status s = the_options().whole ? compute_whole(c, nodes) : compute_here(c, nodes);
        c.device.has_computed();
        return s;
    } catch (const std::bad_alloc&) {
        log(GGML_LOG_LEVEL_ERROR, "no memory for a batch of %zu rows", c.plan.rows());
        return GGML_STATUS_ALLOC_FAILED;
    } catch (const std::system_error& e) {
        log(GGML_LOG_LEVEL_ERROR, "%zu threads: %s", c.threads, e.what());
        return GGML_STATUS_FAILED;
    }
}

ggml_guid_t guid() noexcept {
    static ggml_guid bytes = {0x63, 0x72, 0x75, 0x6d, 0x62, 0x2d, 0x67, 0x67,
                              0x6d, 0x6c, 0x2d, 0x30, 0x2e, 0x32, 0x00, 0x01};
    return &bytes;
}

constexpr ggml_backend_i functions = {
    .get_name = [](ggml_backend_t) { return "CRUMB"; },
    .free = [](ggml_backend_t backend) { delete &context_of(backend); },
    .set_tensor_async = nullptr,
    .get_tensor_async = nullptr,
    .set_tensor_2d_async = nullptr,
    .get_tensor_2d_async = nullptr,
    .cpy_tensor_async = nullptr,
    .synchronize = nullptr,
    .graph_plan_create = nullptr,
    .graph_plan_free = nullptr,
    .graph_plan_update = nullptr,
    .graph_plan_compute = nullptr,
    .graph_compute = compute,
    .event_record = nullptr,
    .event_wait = nullptr,
    .graph_optimize = nullptr,
};

} // namespace

ggml_backend_t new_backend() noexcept try {
    const auto floats = crumb::float_ops::plan();
    if (!floats) {
        log(GGML_LOG_LEVEL_ERROR, "%s", floats.message());
        return nullptr;
    }
    auto made = std::make_unique<context>(*floats);
    made->handle = {guid(), functions, made->device.handle(), made.get()};
    const weight_totals weights = count_weights();
    log(GGML_LOG_LEVEL_INFO, "%s, %zu tensors of weights packed, %.1f MiB", floats->isa(),
        weights.packed_tensors, static_cast<double>(weights.packed_bytes) / (1 << 20));
    if (has_replacements())
        log(weights.replaced_tensors == 0 ? GGML_LOG_LEVEL_WARN : GGML_LOG_LEVEL_INFO,
            "%zu tensors of weights replaced, %.1f MiB mapped from %s", weights.replaced_tensors,
            static_cast<double>(weights.replaced_bytes) / (1 << 20), the_options().weights.c_str());
    return &made.release()->handle;
} catch (const std::bad_alloc&) {
    log(GGML_LOG_LEVEL_ERROR, "no memory for a backend");
    return nullptr;
}

void set_threads(ggml_backend_t backend, int threads) {
    context_of(backend).threads = static_cast<std::size_t>(std::max(1, threads));
}

} // namespace crumb_ggml
