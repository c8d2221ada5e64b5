#include "train/quantizer.hpp"

#include "model/input_text.hpp"
#include "train/training_set.hpp"

#include <crumb/offline/nested/feedback.hpp>
#include <crumb/offline/nested/training.hpp>
#include <crumb/offline/weights/store.hpp>

#include <algorithm>
#include <cstring>
#include <unordered_set>

namespace lm {

using crumb::result;
using crumb::status;

namespace {

/// Bytes of second moments that are kept at a time; layers beyond that are calibrated in further passes.
constexpr std::size_t max_moment_bytes = std::size_t{2} << 30;

/// A tensor as it will be written.
struct output_tensor {
    ggml_type type;
    std::vector<std::uint64_t> dims;
    std::size_t size; ///< in bytes
    buffer memory;
    std::span<const std::byte> bytes() const { return memory.bytes().first(size); }
};

template <class F>
result<output_tensor> written(const crumb::quantized<F>& q) {
    output_tensor out;
    // Blocks that other programs read as well. GGUF has none of rows that end within a block.
    if (ggml_type_of<F> && q.k % crumb::block_inputs<F> == 0) {
        out.type = *ggml_type_of<F>;
        out.dims = {q.k, q.n};
        out.size = q.blocks.size() * sizeof(typename F::block);
        out.memory = buffer(out.size);
        std::memcpy(out.memory.bytes().data(), q.blocks.data(), out.size);
    } else {
        out.type = ggml_type::i8;
        out.size = crumb::packed_bytes<F>(q.n, q.k);
        out.dims = {out.size};
        out.memory = buffer(out.size);
        const auto packed = crumb::pack(q, out.memory.bytes());
        if (!packed)
            return packed.error();
    }
    return out;
}

result<output_tensor> written(const crumb::nested_quantized& q) {
    output_tensor out;
    out.type = ggml_type::i8;
    out.size = crumb::nested_packed_bytes(q.n, q.k, q.levels.parent);
    out.dims = {out.size};
    out.memory = buffer(out.size);
    const auto packed = crumb::pack(q, out.memory.bytes());
    if (!packed)
        return packed.error();
    return out;
}

/// Everything that quantizing one model needs.
class converter {
  public:
    converter(const quantization& how, const model& m, session& s, const stage_function& progress)
        : o_(how), m_(m), s_(s), progress_(progress) {}

    /// Puts keys and tensors into `writer`, which refers to this object.
    status run(gguf_writer& writer) {
        for (const gguf_tensor& t : m_.file().tensors())
            if (const auto packed = find_packed(t); packed && packed->type == weight_type::nested)
                return status::error(crumb::errc::unsupported,
                                     "the weights are nested, with corrections that no other format keeps: "
                                     "quantize the model that they were made from");
        source_ = &m_.extras();
        if (!is_nested() && !is_leveled(o_.weights)) {
            if (const status s = round(); !s)
                return s;
            return collect(writer);
        }
        const std::size_t window = std::min<std::size_t>(m_.shape().context, 512);
        const auto text = calibration_text(o_.calibrate, m_, s_, window, o_.chunks, o_.seed, progress_);
        if (!text)
            return text.error();
        calibration calibrated(m_, s_, *text, window);
        if (const status s = train(calibrated); !s)
            return s;
        const std::size_t layers = m_.layers().size(), step = layers_at_once();
        for (std::size_t first = 0; first < layers; first += step) {
            const crumb::range part{first, std::min(first + step, layers)};
            const auto moments = calibrated.moments(
                part, one_stage(progress_, "inputs of layers " + std::to_string(part.begin + 1) + " to " +
                                               std::to_string(part.end)));
            if (!moments)
                return moments.error();
            if (const status s = convert(part, *moments); !s)
                return s;
        }
        return collect(writer);
    }
    std::size_t bytes() const noexcept { return bytes_; }
    std::size_t weights() const noexcept { return weights_; }

  private:
    std::size_t layers_at_once() const {
        const auto& d = m_.shape();
        const std::size_t each = (3 * d.width * d.width + d.hidden * d.hidden) * sizeof(double);
        return std::max<std::size_t>(1, max_moment_bytes / each);
    }

    bool is_nested() const noexcept { return o_.weights == weight_type::nested; }

    /// Trains the levels of the format, if it needs such: even ones need no importance either, which costs a
    /// pass over the text.
    status train(calibration& calibrated) {
        levels_ = crumb::nested_levels::uniform(o_.nested.seed, o_.nested.parent);
        bool is_needed = is_nested() && !o_.nested.uniform;
        with_leveled_format(o_.weights,
                            [&]<class F>(std::type_identity<F>) { is_needed = crumb::needs_codebooks<F>; });
        if (!is_needed)
            return {};
        const auto importance = calibrated.mean_squares(one_stage(progress_, "calibration"));
        if (!importance)
            return importance.error();
        const progress_function trained_part = one_stage(progress_, "codebooks");
        const auto set = training_set::read(m_.file(), *importance, *source_);
        if (!set)
            return set.error();
        if (is_nested()) {
            const auto trained = crumb::train_nested(
                set->matrices,
                {.seed = o_.nested.seed, .parent = o_.nested.parent, .progress = trained_part});
            if (!trained)
                return trained.error();
            levels_ = trained->levels;
            return {};
        }
        auto trained = train_codebooks(*set, o_.weights, trained_part);
        if (!trained)
            return trained.error();
        trained_ = std::move(*trained);
        return {};
    }

    /// All matrices to a format that rounds by itself, which needs no text.
    status round() {
        const progress_function progress = one_stage(progress_, "matrices");
        const auto matrices = m_.matrices();
        for (const named_matrix& each : matrices) {
            const auto floats = to_floats(**m_.file().get_tensor(each.name), *source_);
            if (!floats)
                return floats.error();
            const auto w = crumb::matrix<const float>(floats->data(), each.m->n(), each.m->k());
            status s = status::error(crumb::errc::unsupported, "%s is not made of other weights",
                                     name_of(o_.weights).data());
            with_format(o_.weights, [&]<class F>(std::type_identity<F>) {
                if constexpr (crumb::rounding_format<F>)
                    s = round<F>(each, w);
            });
            if (!s)
                return status::error(s.code(), "tensor %s: %s", each.name.c_str(), s.message());
            if (progress)
                progress(outputs_.size(), matrices.size());
        }
        return {};
    }
    template <class F>
    status round(const named_matrix& each, const crumb::matrix_view<const float>& w) {
        const std::size_t blocks = (w.cols + crumb::block_inputs<F> - 1) / crumb::block_inputs<F>;
        crumb::quantized<F> q;
        q.n = w.rows;
        q.k = w.cols;
        q.blocks.resize(w.rows * blocks);
        std::vector<status> each_part(s_.threads().size());
        s_.threads().run([&](std::size_t part, std::size_t parts) {
            const crumb::range rows = crumb::split(w.rows, parts, part);
            if (rows.size() == 0)
                return;
            const auto mine =
                crumb::quantize<F>(crumb::matrix<const float>(w.row(rows.begin), rows.size(), w.cols));
            if (mine)
                std::copy(mine->blocks.begin(), mine->blocks.end(),
                          q.blocks.begin() + static_cast<std::ptrdiff_t>(rows.begin * blocks));
            each_part[part] = mine.error();
        });
        for (const status& s : each_part)
            if (!s)
                return s;
        return write(each, q);
    }

    status convert(crumb::range layers, const std::vector<crumb::second_moments<double>>& moments) {
        const progress_function progress = one_stage(progress_, "matrices");
        const auto matrices = m_.matrices();
        std::optional<crumb::error_feedback> flat;
        std::optional<crumb::feedback_system> system;
        std::size_t input = ~std::size_t{0};
        for (const named_matrix& each : matrices) {
            if (each.role.layer < layers.begin || each.role.layer >= layers.end)
                continue;
            if (each.role.input() != input) {
                input = each.role.input();
                const auto& inputs = moments[input - layers.begin * matrix_role::inputs];
                mean_ = inputs.mean();
                const auto h = is_nested() ? inputs.centered() : inputs.matrix();
                const std::size_t k = each.m->k();
                const auto view = crumb::matrix<const double>(h.data(), k, k);
                if (const status s =
                        is_nested() ? assign(system, crumb::feedback_system::make(view, nested_damping))
                                    : assign(flat, crumb::error_feedback::make(view, {.sweeps = o_.sweeps}));
                    !s)
                    return s;
            }
            const status s = is_nested() ? convert_nested(each, *system) : convert(each, *flat);
            if (!s)
                return status::error(s.code(), "tensor %s: %s", each.name.c_str(), s.message());
            if (progress)
                progress(outputs_.size(), matrices.size());
        }
        return {};
    }
    template <class T>
    static status assign(std::optional<T>& to, crumb::result<T>&& made) {
        if (!made)
            return made.error();
        to.emplace(std::move(*made));
        return {};
    }
    /// Quantizes the rows of a matrix into `q` with all threads.
    template <class Quantizer, class Quantized>
    status quantize_rows(const Quantizer& quantizer, const crumb::matrix_view<const float>& w, Quantized& q) {
        std::vector<status> each_part(s_.threads().size());
        s_.threads().run([&](std::size_t part, std::size_t parts) {
            each_part[part] = quantizer.quantize(w, q, crumb::split(w.rows, parts, part));
        });
        for (const status& s : each_part)
            if (!s)
                return s;
        return {};
    }
    template <class Quantized>
    status write(const named_matrix& each, const Quantized& q) {
        auto out = written(q);
        if (!out)
            return out.error();
        keep(each.name, std::move(*out), each.m->n() * each.m->k());
        return {};
    }
    status convert(const named_matrix& each, const crumb::error_feedback& quantizer) {
        const auto floats = to_floats(**m_.file().get_tensor(each.name), *source_);
        if (!floats)
            return floats.error();
        const auto w = crumb::matrix<const float>(floats->data(), each.m->n(), each.m->k());
        status error;
        with_leveled_format(o_.weights, [&]<class F>(std::type_identity<F>) {
            auto q = crumb::leveled_matrix::zeros(crumb::levels_of<F>(trained_), w.rows, w.cols);
            error = quantize_rows(quantizer, w, q);
            if (error)
                error = write(each, crumb::store<F>(q));
        });
        return error;
    }
    status convert_nested(const named_matrix& each, const crumb::feedback_system& system) {
        const auto floats = to_floats(**m_.file().get_tensor(each.name), *source_);
        if (!floats)
            return floats.error();
        const auto w = crumb::matrix<const float>(floats->data(), each.m->n(), each.m->k());
        auto q = crumb::nested_quantized::zeros(levels_, w.rows, w.cols);
        if (const status s = quantize_rows(crumb::nested_feedback(system, {.sweeps = o_.sweeps}), w, q); !s)
            return s;
        if (const status s = crumb::correct_means(w, mean_, q); !s)
            return s;
        return write(each, q);
    }
    void keep(const std::string& name, output_tensor&& tensor, std::size_t weights) {
        bytes_ += tensor.size;
        weights_ += weights;
        outputs_.emplace(name, std::move(tensor));
    }

    /// Embedding and output matrix: 8 bits, unless their rows are no multiple of a block.
    status keep_vocabulary() {
        for (const char* name : {"token_embd.weight", "output.weight"}) {
            const gguf_tensor* t = m_.file().find_tensor(name);
            if (t == nullptr)
                continue;
            const matrix_shape shape = shape_of(*t);
            if (o_.vocabulary != weight_type::q8_0 || shape.k % crumb::group_size != 0) {
                bytes_ += t->data.size();
                weights_ += shape.n * shape.k;
                continue;
            }
            const auto floats = to_floats(*t, *source_);
            if (!floats)
                return floats.error();
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
    /// The trained set, and the source's own for tensors that stay packed as they are.
    status collect_codebooks(gguf_writer& writer) const {
        for (const gguf_tensor& t : m_.file().tensors()) {
            const auto packed = find_packed(t);
            if (!packed || outputs_.contains(std::string(t.name)))
                continue;
            const auto entries = source_->codebooks(name_of(packed->type));
            if (entries.empty())
                continue;
            // A file has one set per format.
            if (packed->type == o_.weights && !is_nested())
                return status::error(crumb::errc::unsupported,
                                     "tensor %.*s stays as it is, in format %s: other codebooks of that "
                                     "format cannot be in the same file",
                                     static_cast<int>(std::min<std::size_t>(t.name.size(), 64)),
                                     t.name.data(), name_of(packed->type).data());
            writer.set_array(matrix_extras::codebook_key(name_of(packed->type)), entries);
        }
        if (!trained_.empty())
            writer.set_array(matrix_extras::codebook_key(name_of(o_.weights)),
                             std::span<const std::int8_t>(trained_));
        return {};
    }
    status collect(gguf_writer& writer) {
        if (const status s = keep_vocabulary(); !s)
            return s;
        for (const gguf_value& value : m_.file().values())
            if (value.key != "general.file_type" && !value.key.starts_with(matrix_extras::codebook_key("")))
                writer.set(value);
        if (const status s = collect_codebooks(writer); !s)
            return s;
        // What belongs to a tensor that has become another.
        std::unordered_set<std::string> dropped;
        for (const auto& [weight, tensor] : outputs_) {
            dropped.insert(matrix_extras::scale_name(weight));
            dropped.insert(matrix_extras::input_scale_name(weight));
        }
        for (const gguf_tensor& t : m_.file().tensors()) {
            if (dropped.contains(std::string(t.name)))
                continue;
            if (const auto found = outputs_.find(std::string(t.name)); found != outputs_.end())
                writer.add_tensor(t.name, found->second.type, found->second.dims, found->second.bytes());
            else
                writer.add_tensor(t);
        }
        return {};
    }

    const quantization& o_;
    const model& m_;
    session& s_;
    const stage_function& progress_;
    const matrix_extras* source_ = nullptr; ///< of the matrices that are read
    std::vector<std::int8_t> trained_;      ///< of the format that is written; empty if it needs none
    crumb::nested_levels levels_;           ///< of nested weights
    std::vector<float> mean_;               ///< of the inputs of the matrix that is quantized
    std::unordered_map<std::string, output_tensor> outputs_;
    std::size_t bytes_ = 0, weights_ = 0;
};

} // namespace

result<quantized_model> quantize_model(const quantization& how, const model& m, session& s,
                                       const stage_function& progress) {
    const auto c = std::make_shared<converter>(how, m, s, progress);
    quantized_model out{c, gguf_writer(3, crumb::alignment)};
    if (const status error = c->run(out.file); !error)
        return error;
    out.bytes = c->bytes();
    out.weights = c->weights();
    return out;
}

result<buffer> quantized_file(const quantization& how, const model& m, session& s,
                              const stage_function& progress) {
    const auto made = quantize_model(how, m, s, progress);
    if (!made)
        return made.error();
    const auto bytes = made->file.bytes();
    if (!bytes)
        return bytes.error();
    buffer out(bytes->size());
    std::memcpy(out.bytes().data(), bytes->data(), bytes->size());
    return out;
}

} // namespace lm
