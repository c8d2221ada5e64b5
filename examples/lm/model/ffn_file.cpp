#include "model/ffn_file.hpp"

#include "model/model_identity.hpp"

#include <cmath>
#include <cstring>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

namespace {

std::string key(std::string_view what) { return std::string(ffn_prefix).append(what); }
std::string name_of(std::size_t layer, std::string_view what) {
    return std::string(ffn_prefix).append(std::to_string(layer)).append(".").append(what);
}

/// Reads the parts of one file.
class reader {
  public:
    explicit reader(const gguf& file) : file_(file) {}

    result<std::vector<float>> floats(std::size_t layer, const char* what, std::size_t count) {
        const auto t = file_.get_tensor(name_of(layer, what));
        if (!t)
            return t.error();
        auto out = (*t)->numbers<float>(count);
        if (!out)
            return out;
        for (const float x : *out)
            if (!std::isfinite(x))
                return status::error(errc::not_finite, "tensor %s holds %g", name_of(layer, what).c_str(),
                                     double{x});
        return out;
    }
    /// Bytes of a tensor of bytes.
    result<std::span<const std::byte>> bytes(std::size_t layer, const char* what) {
        const auto t = file_.get_tensor(name_of(layer, what));
        if (!t)
            return t.error();
        if ((*t)->type != ggml_type::i8)
            return status::error(errc::corrupt, "tensor %s is not of bytes", name_of(layer, what).c_str());
        return (*t)->data;
    }
    /// A product with packed weights.
    result<crumb::any_linear> packed(std::size_t layer, const char* what, weight_type type,
                                     std::span<const std::int8_t> codebooks, std::span<const float> bias) {
        const auto data = bytes(layer, what);
        if (!data)
            return data.error();
        result<crumb::any_linear> out =
            status::error(errc::corrupt, "tensor %s has no format", name_of(layer, what).c_str());
        with_leveled_format(type, [&]<class F>(std::type_identity<F>) {
            const auto view = crumb::packed_view<F>::open(*data);
            if (!view) {
                out = view.error();
                return;
            }
            const auto plan = crumb::linear<F>::plan(*view, {.bias = bias, .codebooks = codebooks});
            if (plan)
                out = crumb::any_linear(*plan);
            else
                out = plan.error();
        });
        if (!out)
            return status::error(out.error().code(), "tensor %s: %s", name_of(layer, what).c_str(),
                                 out.error().message());
        return out;
    }
    result<std::vector<std::int8_t>> codebooks(const char* what, weight_type type) {
        std::size_t count = 0;
        with_leveled_format(type, [&]<class F>(std::type_identity<F>) {
            count = crumb::needs_codebooks<F> ? crumb::codebook_entries<F> : 0;
        });
        std::vector<std::int8_t> out;
        if (count == 0)
            return out;
        const auto entries = file_.get_i32s(key(what));
        if (!entries)
            return entries.error();
        if (entries->size() != count)
            return status::error(errc::corrupt, "key %s has %zu entries, not %zu", key(what).c_str(),
                                 entries->size(), count);
        for (const std::int32_t e : *entries) {
            if (e < -128 || e > 127)
                return status::error(errc::corrupt, "key %s holds %d", key(what).c_str(), e);
            out.push_back(static_cast<std::int8_t>(e));
        }
        return out;
    }

  private:
    const gguf& file_;
};

} // namespace

void write_ffns(gguf_writer& to, const model& m, const stored_ffns& ffns) {
    to.set(key("version"), std::uint32_t{1});
    to.set(key("model"), model_identity(m));
    to.set(key("recipe"), ffns.recipe.name());
    const auto set_entries = [&](const char* what, const std::vector<std::int8_t>& entries) {
        const std::vector<std::int32_t> wide(entries.begin(), entries.end());
        if (!wide.empty())
            to.set_array(key(what), std::span<const std::int32_t>(wide));
    };
    set_entries("fold_codebooks", ffns.fold_codebooks);
    set_entries("predictor_codebooks", ffns.predictor_codebooks);
    std::vector<float> fixed;
    for (std::size_t l = 0; l < ffns.layers.size(); ++l) {
        const stored_ffn& f = ffns.layers[l];
        const auto add_row = [&](const char* what, ggml_type type, std::size_t count,
                                 std::span<const std::byte> bytes) {
            const std::uint64_t dims[] = {count};
            to.add_tensor(name_of(l, what), type, dims, bytes);
        };
        const auto add_floats = [&](const char* what, const std::vector<float>& v) {
            add_row(what, ggml_type::f32, v.size(), std::as_bytes(std::span(v)));
        };
        if (f.fold_floats.empty())
            add_row("fold", ggml_type::i8, f.fold_bytes, f.fold.bytes().first(f.fold_bytes));
        else
            add_floats("fold", f.fold_floats);
        add_floats("bias", f.fold_bias);
        add_row("predictor", ggml_type::i8, f.predictor_bytes, f.predictor.bytes().first(f.predictor_bytes));
        add_floats("predictor_bias", f.predictor_bias);
        add_row("neurons", ggml_type::i8, f.neuron_bytes, f.neurons.bytes().first(f.neuron_bytes));
        if (!f.bounds.empty())
            add_row("bounds", ggml_type::f16, f.bounds.size(), std::as_bytes(std::span(f.bounds)));
        fixed.push_back(f.fixed);
    }
    to.set_array(key("fixed"), std::span<const float>(fixed));
}

result<std::vector<folded_layer>> read_ffns(const model& m, const model_options& options) {
    const gguf& file = m.file();
    const model_shape& d = m.shape();
    if (file.find(key("version")) == nullptr)
        return status::error(errc::invalid_argument,
                             "the file has no folded networks: `crumb-lm calibrate --ffn tardis` makes some");
    const auto version = file.get_u32(key("version"));
    const auto identity = file.get_u64(key("model"));
    const auto text = file.get_string(key("recipe"));
    const auto fixed = file.get_f32s(key("fixed"));
    for (const status& s : {version.error(), identity.error(), text.error(), fixed.error()})
        if (!s)
            return s;
    if (*version != 1)
        return status::error(errc::wrong_version, "key %s is %u, this program reads 1",
                             key("version").c_str(), *version);
    if (*identity != model_identity(m))
        return status::error(errc::invalid_argument, "the folded networks are of another model");
    const auto recipe = ffn_recipe::parse(*text);
    if (!recipe)
        return recipe.error();
    if (fixed->size() != d.layers)
        return status::error(errc::corrupt, "key %s has %zu numbers, not %zu", key("fixed").c_str(),
                             fixed->size(), d.layers);
    reader read(file);
    const auto fold_codebooks = read.codebooks("fold_codebooks", recipe->fold);
    const auto predictor_codebooks = read.codebooks("predictor_codebooks", recipe->predictor);
    for (const status& s : {fold_codebooks.error(), predictor_codebooks.error()})
        if (!s)
            return s;
    std::vector<folded_layer> out(d.layers);
    for (std::size_t l = 0; l < d.layers; ++l) {
        folded_layer& layer = out[l];
        auto bias = read.floats(l, "bias", d.width);
        auto predictor_bias = read.floats(l, "predictor_bias", d.hidden);
        const auto data = read.bytes(l, "neurons");
        for (const status& s : {bias.error(), predictor_bias.error(), data.error()})
            if (!s)
                return s;
        layer.fold_bias_ = std::move(*bias);
        layer.predictor_bias_ = std::move(*predictor_bias);
        crumb::folded_ffn_parts parts;
        if (recipe->fold == weight_type::f32) {
            const auto floats = read.floats(l, "fold", d.width * d.width);
            if (!floats)
                return floats.error();
            layer.fold_ = buffer(floats->size() * sizeof(float));
            std::memcpy(layer.fold_.as<float>(), floats->data(), floats->size() * sizeof(float));
            const auto plan = crumb::dense_linear<float>::plan(
                crumb::matrix<const float>(layer.fold_.as<float>(), d.width, d.width),
                {.bias = layer.fold_bias_});
            if (!plan)
                return plan.error();
            parts.fold = *plan;
        } else {
            const auto plan = read.packed(l, "fold", recipe->fold, *fold_codebooks, layer.fold_bias_);
            if (!plan)
                return plan.error();
            parts.fold = *plan;
        }
        const auto predictor =
            read.packed(l, "predictor", recipe->predictor, *predictor_codebooks, layer.predictor_bias_);
        if (!predictor)
            return predictor.error();
        parts.predictor = *predictor;
        const auto neurons = crumb::neuron_rows::open(*data);
        if (!neurons)
            return status::error(neurons.error().code(), "tensor %s: %s", name_of(l, "neurons").c_str(),
                                 neurons.error().message());
        parts.neurons = *neurons;
        parts.output_bias = m.layers()[l].down_bias;
        if (recipe->sound) {
            const auto t = file.get_tensor(name_of(l, "bounds"));
            if (!t)
                return t.error();
            const std::size_t columns = 2 * ((d.width + crumb::group_size - 1) / crumb::group_size);
            if ((*t)->type != ggml_type::f16 || (*t)->rank != 1 || (*t)->dims[0] != d.hidden * columns)
                return status::error(errc::corrupt, "tensor %s is not of %zu x %zu halves",
                                     name_of(l, "bounds").c_str(), d.hidden, columns);
            if (const status s = crumb::check_scales((*t)->data.data(), d.hidden * columns, "bounds"); !s)
                return status::error(s.code(), "tensor %s: %s", name_of(l, "bounds").c_str(), s.message());
            const auto plan = crumb::dense_linear<crumb::half>::plan(crumb::matrix<const crumb::half>(
                reinterpret_cast<const crumb::half*>((*t)->data.data()), d.hidden, columns));
            if (!plan)
                return plan.error();
            parts.bounds = *plan;
        }
        parts.activation = crumb::activation_function::kind::gelu_tanh;
        if (options.ffn == ffn_type::both) {
            const auto up = m.layers()[l].up.plan(), down = m.layers()[l].down.plan();
            for (const status& s : {up.error(), down.error()})
                if (!s)
                    return status::error(s.code(), "--ffn both: %s", s.message());
            parts.up = *up;
            parts.down = *down;
        }
        const float share = (*fixed)[l];
        const auto plan =
            crumb::folded_ffn::plan({d.width, d.hidden, d.width}, parts,
                                    {.max_rows = std::max<std::size_t>(d.context, 1),
                                     .expected_share = share >= 0 && share <= 1 ? double{share} : 1.0,
                                     .batches = options.ffn_by_lists ? crumb::folded_batches::lists
                                                                     : crumb::folded_batches::automatic});
        if (!plan)
            return status::error(plan.error().code(), "folded network of layer %zu: %s", l,
                                 plan.error().message());
        layer.plan_ = *plan;
        layer.bytes_ = parts.fold.bytes() + parts.predictor.bytes() + data->size() +
                       (parts.bounds ? parts.bounds->n() * parts.bounds->k() * sizeof(crumb::half) : 0);
    }
    return out;
}

} // namespace lm
