#include "cli/commands.hpp"
#include "cli/open_model.hpp"
#include "cli/report.hpp"
#include "gguf/output_file.hpp"

#include <chrono>

namespace lm {

using crumb::status;

status quantize(const quantize_options& o) {
    using clock = std::chrono::steady_clock;
    const auto start = clock::now();
    if (const status s = check_outputs({o.out}); !s)
        return s;
    load_options full;
    full.model = o.model;
    full.weights = weight_type::f32;
    full.activations = activation_type::f32;
    full.threads = o.threads;
    auto loaded = open_model(full, 0, 512);
    if (!loaded)
        return loaded.error();
    stage_progress progress;
    const stage_function stages = std::ref(progress);
    const auto made = quantize_model(o, *loaded->weights, *loaded->run, stages);
    if (!made)
        return made.error();
    if (const status s = made->file.write(o.out, one_stage(stages, "bytes written")); !s)
        return s;
    progress.clear();
    const double seconds = std::chrono::duration<double>(clock::now() - start).count();
    const double bits = 8.0 * static_cast<double>(made->bytes) / static_cast<double>(made->weights);
    print("%s: %s, %.3f bits per weight, %.2f MB of matrices, %.1f s\n", o.out.c_str(),
          o.weights == weight_type::nested ? o.nested.name().c_str()
                                           : weight_names[static_cast<std::size_t>(o.weights)].data(),
          bits, static_cast<double>(made->bytes) / 1e6, seconds);
    return {};
}

} // namespace lm
