#include "cli/commands.hpp"
#include "cli/report.hpp"
#include "train/ffn_training.hpp"

#include <string>

namespace lm {

using crumb::status;

status calibrate_ffn(const calibrate_options& o) {
    common_options full;
    full.model = o.model;
    full.weights = weight_type::f32;
    full.activations = activation_type::f32;
    full.threads = 1; // what it reads is worked on by all while it waits
    auto loaded = load(full, 0, 512);
    if (!loaded)
        return loaded.error();
    const model& m = *loaded->weights;
    ffn_training how;
    how.recipe = *o.ffn;
    how.text = o.text;
    how.chunks = o.chunks;
    how.seed = o.seed;
    how.threads = o.threads;
    how.csv = o.distributions;
    stage_progress progress;
    const auto ffns = fold_ffns(m, *loaded->run, how, std::ref(progress));
    progress.clear();
    if (!ffns)
        return ffns.error();
    gguf_writer writer(3, crumb::alignment);
    writer.copy(m.file(), ffn_prefix);
    write_ffns(writer, m, *ffns);
    if (const status s = writer.write(o.out); !s)
        return s;
    double fixed = 0;
    for (const stored_ffn& f : ffns->layers)
        fixed += double{f.fixed} / static_cast<double>(ffns->layers.size());
    print("%s: %zu folded networks, %s\n", o.out.c_str(), ffns->layers.size(), how.recipe.name().c_str());
    print("%.2f %% of the neurons fixed on the calibration text, %.3f of the parameters read (as halves)\n",
          100 * fixed, how.recipe.left(m.shape().width, m.shape().hidden, fixed));
    return {};
}

} // namespace lm
