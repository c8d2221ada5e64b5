#include "train/synth.hpp"

#include "cli/commands.hpp"
#include "cli/report.hpp"
#include "gguf/output_file.hpp"

namespace lm {

using crumb::status;

status synth(const synth_options& o) {
    if (const status s = check_outputs({o.out}); !s)
        return s;
    const bool is_small = !o.arch.empty();
    const std::string& name = is_small ? o.arch : o.like;
    auto shape = is_small ? find_small_shape(name) : find_shape(name);
    if (!shape)
        return shape.error();
    if (o.context != 0)
        shape->context = o.context;
    const auto file = synthesize(*shape, name, o.weights, o.seed);
    if (!file)
        return file.error();
    progress_line progress("megabytes");
    const status s = file->write(
        o.out, [&](std::size_t done, std::size_t all) { progress(done / 1000000, all / 1000000 + 1); });
    progress.clear();
    if (!s)
        return s;
    print("%s: %s, %s, random weights\n", o.out.c_str(), name.c_str(), ggml_type_name(o.weights).c_str());
    return {};
}

} // namespace lm
