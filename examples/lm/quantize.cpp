#include "commands.hpp"
#include "gguf_writer.hpp"
#include "quantizer.hpp"
#include "report.hpp"
#include "sampler.hpp"

#include <crumb/offline/store.hpp>

#include <chrono>

namespace lm {
namespace {

using crumb::result;
using crumb::status;

/// Bytes of second moments that are kept at a time; layers beyond that are calibrated in further passes.
constexpr std::size_t most_moment_bytes = std::size_t{2} << 30;

/// A tensor as it will be written.
struct output_tensor {
    ggml_type type;
    std::vector<std::uint64_t> dims;
    buffer memory;
};

template <class F>
result<output_tensor> written(const crumb::quantized<F>& q) {
    constexpr bool in_files = std::is_same_v<F, crumb::q8_0> || std::is_same_v<F, crumb::q4_0>;
    output_tensor out;
    if constexpr (in_files) {
        // Blocks that other programs read as well.
        out.type = std::is_same_v<F, crumb::q8_0> ? ggml_type::q8_0 : ggml_type::q4_0;
        out.dims = {q.k, q.n};
        out.memory = buffer(q.blocks.size() * sizeof(typename F::block));
        std::memcpy(out.memory.bytes().data(), q.blocks.data(), q.blocks.size() * sizeof(typename F::block));
    } else {
        out.type = ggml_type::i8;
        out.dims = {crumb::packed_bytes<F>(q.n, q.k)};
        out.memory = buffer(out.dims[0]);
        const auto packed = crumb::pack<F>(q, out.memory.bytes());
        if (!packed)
            return packed.error();
    }
    return out;
}

/// The text to calibrate on: of a file, or written by the model at temperature 1.
result<std::vector<std::int32_t>> calibration_text(const quantize_options& o, const model& m, session& s,
                                                   std::size_t window) {
    std::vector<std::int32_t> tokens;
    if (o.calibrate == "self") {
        progress_line progress("the model writes a text");
        std::size_t done = 0;
        tokens = write_text(s, m.vocabulary().encode(" ", true), o.chunks * window, 1.0f, 0, o.seed,
                            [&](std::int32_t) { progress(++done, o.chunks * window); });
    } else {
        std::string error;
        const auto file = mapped_file::open(o.calibrate, error);
        if (!file)
            return status::error(crumb::errc::invalid_argument, "%s", error.c_str());
        const auto bytes = file->bytes();
        tokens = m.vocabulary().encode({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, false);
    }
    if (tokens.size() < window)
        return status::error(crumb::errc::invalid_argument,
                             "the calibration text has %zu tokens, a window takes %zu", tokens.size(),
                             window);
    tokens.resize(std::min(tokens.size(), o.chunks * window) / window * window);
    return tokens;
}

/// Everything that quantizing one model needs.
class converter {
  public:
    converter(const quantize_options& o, const model& m, session& s) : o_(o), m_(m), s_(s) {}

    status run() {
        const std::size_t window = std::min<std::size_t>(m_.shape().context, 512);
        std::optional<calibration> calibrated;
        std::vector<std::int32_t> text;
        importances importance;
        if (!o_.calibrate.empty()) {
            auto tokens = calibration_text(o_, m_, s_, window);
            if (!tokens)
                return tokens.error();
            text = std::move(*tokens);
            calibrated.emplace(m_, s_, text, window);
            progress_line progress("calibration");
            auto squares = calibrated->mean_squares(reporter(progress));
            if (!squares)
                return squares.error();
            importance = std::move(*squares);
        }
        {
            progress_line progress("codebooks");
            if (const status s =
                    train_codebooks(m_.file(), o_.weights, importance, codebooks_, reporter(progress));
                !s)
                return s;
        }
        const std::size_t layers = m_.layers().size(), step = layers_at_once();
        for (std::size_t first = 0; first < layers; first += step) {
            const crumb::range part{first, std::min(first + step, layers)};
            std::vector<crumb::second_moments<double>> moments;
            if (calibrated) {
                progress_line progress("inputs of layers " + std::to_string(part.begin + 1) + " to " +
                                       std::to_string(part.end));
                auto found = calibrated->moments(part, reporter(progress));
                if (!found)
                    return found.error();
                moments = std::move(*found);
            }
            if (const status s = convert(part, moments); !s)
                return s;
        }
        return write();
    }
    std::size_t bytes() const noexcept { return bytes_; }
    std::size_t weights() const noexcept { return weights_; }

  private:
    static progress_function reporter(progress_line& line) {
        return [&line](std::size_t done, std::size_t all) { line(done, all); };
    }
    std::size_t layers_at_once() const {
        const auto& d = m_.shape();
        const std::size_t each = (3 * d.width * d.width + d.hidden * d.hidden) * sizeof(double);
        return std::max<std::size_t>(1, most_moment_bytes / each);
    }

    status convert(crumb::range layers, const std::vector<crumb::second_moments<double>>& moments) {
        progress_line progress("matrices");
        const auto matrices = m_.matrices();
        std::optional<crumb::error_feedback> quantizer;
        std::size_t input = ~std::size_t{0};
        for (const named_matrix& each : matrices) {
            if (each.role.layer < layers.begin || each.role.layer >= layers.end)
                continue;
            if (each.role.input() != input) {
                input = each.role.input();
                auto made = make_quantizer(
                    each.m->k(),
                    moments.empty() ? nullptr : &moments[input - layers.begin * matrix_role::inputs]);
                if (!made)
                    return made.error();
                quantizer.emplace(std::move(*made));
            }
            if (const status s = convert(each, *quantizer); !s)
                return status::error(s.code(), "tensor %s: %s", each.name.c_str(), s.message());
            progress(outputs_.size(), matrices.size());
        }
        return {};
    }
    static result<crumb::error_feedback> make_quantizer(std::size_t k,
                                                        const crumb::second_moments<double>* moments) {
        if (moments == nullptr)
            return crumb::error_feedback::independent(k, {});
        const auto h = moments->matrix();
        return crumb::error_feedback::make(crumb::matrix<const double>(h.data(), k, k));
    }
    status convert(const named_matrix& each, const crumb::error_feedback& quantizer) {
        const auto floats = to_floats(**m_.file().get_tensor(each.name), codebook_sets());
        if (!floats)
            return floats.error();
        const auto w = crumb::matrix<const float>(floats->data(), each.m->n(), each.m->k());
        status error;
        with_format(o_.weights, [&]<class F>(std::type_identity<F>) {
            auto q =
                crumb::leveled_matrix::zeros(crumb::levels_of<F>(codebooks_.find(F::name)), w.rows, w.cols);
            std::vector<status> each_part(s_.threads().size());
            s_.threads().run([&](std::size_t part, std::size_t parts) {
                each_part[part] = quantizer.quantize(w, q, crumb::split(w.rows, parts, part));
            });
            for (const status& s : each_part)
                if (!s)
                    error = s;
            auto out = error ? written(crumb::store<F>(q)) : result<output_tensor>(error);
            if (out)
                keep(each.name, std::move(*out), w.rows * w.cols);
            else
                error = out.error();
        });
        return error;
    }
    void keep(const std::string& name, output_tensor&& tensor, std::size_t weights) {
        bytes_ += tensor.memory.bytes().size();
        weights_ += weights;
        outputs_.emplace(name, std::move(tensor));
    }

    /// Embedding and output matrix: 8 bits, unless their rows are no multiple of a block.
    status keep_vocabulary() {
        for (const char* name : {"token_embd.weight", "output.weight"}) {
            const gguf_tensor* t = m_.file().find_tensor(name);
            if (t == nullptr)
                continue;
            if (o_.vocabulary != weight_type::q8_0 || t->dims[0] % crumb::group_size != 0) {
                bytes_ += t->data.size();
                weights_ += t->elements();
                continue;
            }
            const auto floats = to_floats(*t);
            if (!floats)
                return floats.error();
            const matrix_shape shape = shape_of(*t);
            const auto q =
                crumb::quantize<crumb::q8_0>(crumb::matrix<const float>(floats->data(), shape.n, shape.k));
            if (!q)
                return q.error();
            auto out = written(*q);
            if (!out)
                return out.error();
            keep(name, std::move(*out), shape.n * shape.k);
        }
        return {};
    }
    status write() {
        if (const status s = keep_vocabulary(); !s)
            return s;
        gguf_writer writer(3, crumb::alignment);
        for (const gguf_value& value : m_.file().values())
            if (value.key != "general.file_type")
                writer.set(value);
        const auto entries = codebooks_.find(weight_names[static_cast<std::size_t>(o_.weights)]);
        if (!entries.empty())
            writer.set_array(codebook_sets::key(weight_names[static_cast<std::size_t>(o_.weights)]), entries);
        for (const gguf_tensor& t : m_.file().tensors()) {
            if (const auto found = outputs_.find(std::string(t.name)); found != outputs_.end())
                writer.add_tensor(t.name, found->second.type, found->second.dims,
                                  found->second.memory.bytes());
            else
                writer.add_tensor(t.name, t.type, std::span(t.dims).first(t.rank), t.data);
        }
        progress_line progress("bytes written");
        return writer.write(o_.out, reporter(progress));
    }

    const quantize_options& o_;
    const model& m_;
    session& s_;
    codebook_sets codebooks_;
    std::unordered_map<std::string, output_tensor> outputs_;
    std::size_t bytes_ = 0, weights_ = 0;
};

} // namespace

status quantize(const quantize_options& o) {
    using clock = std::chrono::steady_clock;
    const auto start = clock::now();
    common_options full;
    full.model = o.model;
    full.weights = weight_type::f32;
    full.activations = activation_type::f32;
    full.threads = o.threads;
    auto loaded = load(full, 0, 512);
    if (!loaded)
        return loaded.error();
    converter c(o, *loaded->weights, *loaded->run);
    if (const status s = c.run(); !s)
        return s;
    const double seconds = std::chrono::duration<double>(clock::now() - start).count();
    const double bits = 8.0 * static_cast<double>(c.bytes()) / static_cast<double>(c.weights());
    std::printf("%s: %s, %.3f bits per weight, %.2f MB of matrices, %.1f s\n", o.out.c_str(),
                weight_names[static_cast<std::size_t>(o.weights)].data(), bits,
                static_cast<double>(c.bytes()) / 1e6, seconds);
    return {};
}

} // namespace lm
