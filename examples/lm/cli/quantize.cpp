#include "cli/commands.hpp"
#include "cli/open_model.hpp"
#include "cli/program.hpp"
#include "cli/work_report.hpp"
#include "gguf/output_file.hpp"
#include "gguf/shown_text.hpp"
#include "machine/seconds.hpp"
#include "train/partial_file.hpp"
#include "train/rotation.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>

#include <unistd.h>

namespace lm {

using crumb::status;

namespace {

/// "ffn_up" of "blk.3.ffn_up.weight".
std::string kind_of(const std::string& tensor) {
    const std::size_t end = tensor.rfind('.'), begin = tensor.rfind('.', end - 1);
    return begin == std::string::npos ? tensor.substr(0, end) : tensor.substr(begin + 1, end - begin - 1);
}

/// Rows are kinds of matrices, columns formats: how many matrices of a kind have become what.
void print_formats(const std::vector<quantized_matrix>& matrices) {
    std::map<std::string, double> bits; // of formats, by the matrices that have them
    std::map<std::string, std::map<std::string, std::size_t>> counts;
    std::vector<std::string> kinds;
    for (const quantized_matrix& each : matrices) {
        const std::string kind = kind_of(each.tensor);
        if (!counts.contains(kind))
            kinds.push_back(kind);
        ++counts[kind][each.type];
        bits[each.type] = 8.0 * static_cast<double>(each.bytes) / static_cast<double>(each.weights);
    }
    std::vector<std::string> formats;
    for (const auto& each : bits)
        formats.push_back(each.first);
    std::sort(formats.begin(), formats.end(), [&](const std::string& a, const std::string& b) {
        return std::pair(bits[a], a) < std::pair(bits[b], b);
    });
    print("%-12s", "matrices");
    for (const std::string& format : formats)
        print(" %8s", format.c_str());
    print("\n");
    for (const std::string& kind : kinds) {
        print("%-12s", kind.c_str());
        for (const std::string& format : formats)
            print(" %8zu", counts[kind][format]);
        print("\n");
    }
}

/// Says what an already quantized source means.
void warn_of_few_bits(const model& m) {
    std::size_t bytes = 0, weights = 0;
    for (const named_matrix& each : m.matrices())
        if (const auto t = m.file().get_tensor(each.name)) {
            bytes += (*t)->data.size();
            weights += each.m->n() * each.m->k();
        }
    const double bits = 8.0 * static_cast<double>(bytes) / static_cast<double>(weights);
    if (bits < 7)
        complain("%s: its matrices have %.2f bits per weight already; what they have lost stays lost, so "
                 "quantize the model in 8 bits or more if there is one",
                 shown_path(m.path()).c_str(), bits);
}

/// The model of `path` with a rotated residual stream, from a file beside the output that has no name any
/// more when this returns.
crumb::result<loaded_model> open_rotated(const quantize_options& o, load_options how) {
    const auto source = model::load(o.model, {});
    if (!source)
        return source.error();
    warn_of_few_bits(*source);
    how.model = o.out + ".rotated";
    if (std::error_code unknown; std::filesystem::exists(how.model, unknown))
        return status::error(
            crumb::errc::invalid_argument,
            "%s is there, where the rotated model has to be for a moment: remove it, or name "
            "another output",
            how.model.c_str());
    stage_progress progress;
    const stage_function stages = std::ref(progress);
    if (const status s = write_rotated(*source, o.seed, how.model, one_stage(stages, "bytes rotated")); !s)
        return s;
    progress.clear();
    auto loaded = open_model(how, 0, 512);
    if (::unlink(how.model.c_str()) != 0 && loaded)
        complain("%s: cannot remove: %s", how.model.c_str(), std::strerror(errno));
    return loaded;
}

} // namespace

status quantize(const quantize_options& o) {
    const auto start = std::chrono::steady_clock::now();
    quantization how = o;
    how.partial = o.out + ".partial";
    if (!o.curves.empty() && !o.chooses_formats())
        return status::error(crumb::errc::invalid_argument,
                             "--curves %s: formats are chosen with --bits or --size only", o.curves.c_str());
    if (const status s = check_outputs({o.out, how.partial, o.curves}); !s)
        return s;
    load_options full;
    full.model = o.model;
    full.weights = weight_type::f32;
    full.activations = activation_type::f32;
    full.threads = o.threads;
    full.always_shared = true;
    full.floats_on_demand = true;
    auto loaded = o.rotate ? open_rotated(o, full) : open_model(full, 0, 512);
    if (!loaded)
        return loaded.error();
    if (!o.rotate)
        warn_of_few_bits(*loaded->weights);
    if (std::error_code unknown; std::filesystem::exists(how.partial, unknown))
        complain("looking in %s for what is finished", how.partial.c_str());
    work_line line;
    work_meter meter(std::ref(line));
    const auto made = quantize_model(how, *loaded->weights, *loaded->run, {}, &meter);
    if (!made)
        return made.error();
    if (const status s = made->file.write(o.out); !s)
        return s;
    if (const status s = partial_file::remove(how.partial); !s)
        return s;
    line.clear();
    const double seconds = seconds_since(start);
    const double other = seconds - meter.seconds();
    const double bits = 8.0 * static_cast<double>(made->bytes()) / static_cast<double>(made->weights());
    std::string formats(name_of(o.weights));
    if (o.chooses_formats())
        formats = "formats by matrix";
    else if (o.weights == weight_type::nested)
        formats = o.nested.name();
    if (o.json) {
        json_object out;
        out.put("model", o.model)
            .put("out", o.out)
            .put("weights", formats)
            .put("bits_per_weight", bits)
            .put("matrix_bytes", made->bytes())
            .put("seconds", seconds)
            .put("stages", work_object(meter, other));
        if (o.chooses_formats()) {
            json_object chosen;
            for (const quantized_matrix& each : made->matrices)
                chosen.put(each.tensor, each.type);
            out.put("formats", chosen);
        }
        print_text(out.text() + "\n");
        return {};
    }
    if (o.chooses_formats())
        print_formats(made->matrices);
    print_work(meter, other);
    print("%s: %s, %.3f bits per weight, %.2f MB of matrices, %.1f s\n", o.out.c_str(), formats.c_str(), bits,
          static_cast<double>(made->bytes()) / 1e6, seconds);
    return {};
}

} // namespace lm
