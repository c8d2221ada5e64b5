#include "train/packing.hpp"

#include "cli/commands.hpp"
#include "cli/report.hpp"
#include "gguf/output_file.hpp"

namespace lm {

using crumb::status;

status pack(const pack_options& o) {
    if (const status s = check_outputs({o.out}); !s)
        return s;
    const auto made = pack_model(o.model);
    if (!made)
        return made.error();
    progress_line progress("megabytes");
    const status s = made->file.write(
        o.out, [&](std::size_t done, std::size_t all) { progress(done / 1000000, all / 1000000 + 1); });
    progress.clear();
    if (!s)
        return s;
    print("%s: %zu matrices packed, %.2f MB\n", o.out.c_str(), made->matrices,
          static_cast<double>(made->bytes) / 1e6);
    return {};
}

} // namespace lm
