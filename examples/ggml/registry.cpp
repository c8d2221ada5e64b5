#include "ggml/registry.hpp"

#include "ggml/backend.hpp"
#include "ggml/device.hpp"
#include "ggml/log.hpp"
#include "ggml/options.hpp"

#include <crumb/dispatch/isa.hpp>

#include <cstring>

namespace crumb_ggml {

ggml_backend_reg_t registry() noexcept {
    static ggml_backend_reg reg = {
        .api_version = GGML_BACKEND_API_VERSION,
        .iface = {
            .get_name = [](ggml_backend_reg_t) { return "CRUMB"; },
            .get_device_count = [](ggml_backend_reg_t) -> std::size_t { return the_options().off ? 0 : 1; },
            .get_device = [](ggml_backend_reg_t, std::size_t) { return registered_device(); },
            .get_proc_address = [](ggml_backend_reg_t, const char* name) -> void* {
                if (std::strcmp(name, "ggml_backend_set_n_threads") == 0)
                    return reinterpret_cast<void*>(&set_threads);
                return nullptr;
            },
        },
        .context = nullptr,
    };
    return &reg;
}

bool is_compatible() noexcept {
    const struct {
        ggml_op op;
        const char* name;
    } ops[] = {{GGML_OP_ADD, "ADD"},
               {GGML_OP_MUL_MAT, "MUL_MAT"},
               {GGML_OP_MUL_MAT_ID, "MUL_MAT_ID"},
               {GGML_OP_FLASH_ATTN_EXT, "FLASH_ATTN_EXT"},
               {GGML_OP_GLU, "GLU"}};
    for (const auto& [op, op_name] : ops)
        if (std::strcmp(ggml_op_name(op), op_name) != 0) {
            log(GGML_LOG_LEVEL_ERROR,
                "this file was compiled for backends of version %d with %d operations, %s being number %d; "
                "in "
                "the loaded ggml %s, that is %s",
                GGML_BACKEND_API_VERSION, GGML_OP_COUNT, op_name, op, ggml_version(), ggml_op_name(op));
            return false;
        }
    constexpr std::size_t object_size = 32; // what ggml keeps before a tensor
    if (ggml_tensor_overhead() != object_size + GGML_TENSOR_SIZE) {
        log(GGML_LOG_LEVEL_ERROR,
            "this file was compiled for tensors of %zu bytes; in the loaded ggml %s, they have %zu",
            GGML_TENSOR_SIZE, ggml_version(), ggml_tensor_overhead() - object_size);
        return false;
    }
    return true;
}

} // namespace crumb_ggml

extern "C" {

/// What ggml's loader calls; null, and a line in the log, if this file does not fit the ggml that loads it.
[[gnu::visibility("default")]] ggml_backend_reg_t ggml_backend_init(void) {
    using namespace crumb_ggml;
    if (!is_compatible())
        return nullptr;
    if (const auto isa = crumb::choose_isa(); !isa) {
        log(GGML_LOG_LEVEL_ERROR, "%s", isa.message());
        return nullptr;
    }
    return registry();
}

/// How well it suits this machine: always.
[[gnu::visibility("default")]] int ggml_backend_score(void) { return 1; }
}
