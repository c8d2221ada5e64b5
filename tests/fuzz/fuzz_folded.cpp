// libFuzzer target: the parts of a folded network, each of its own sizes and formats, are refused together or
// run together. They come as a GGUF file: tensors `fold` (floats or packed), `predictor` (packed or nested),
// `neurons`, `bounds` (perhaps), `up` and `down` (perhaps), and the keys `width` and `hidden`: what the model
// around them has.
#include "folded.hpp"
#include "gguf/gguf.hpp"
#include "model/matrix.hpp"

#include <deque>

namespace lm::fuzz {
namespace {

/// Makes products of tensors. What they refer to lives as long as this.
class reader {
  public:
    reader(const gguf& file, const matrix_extras& extras) : file_(file), extras_(extras) {}

    crumb::result<crumb::any_linear> product(const char* name, choices& choose) {
        const auto t = file_.get_tensor(name);
        if (!t)
            return t.error();
        const auto packed = find_packed(**t);
        if (!packed) {
            const auto [n, k] = shape_of(**t);
            auto values = to_floats(**t, extras_);
            if (!values)
                return values.error();
            const auto& kept = floats_.emplace_back(std::move(*values));
            const auto plan = crumb::dense_linear<float>::plan(crumb::matrix<const float>(kept.data(), n, k));
            return plan ? crumb::result<crumb::any_linear>(crumb::any_linear(*plan)) : plan.error();
        }
        if (packed->n > most || packed->k > most)
            return crumb::status::error(crumb::errc::bad_shape, "%s is large", name);
        if (packed->type == weight_type::nested) {
            const auto view = crumb::nested_view::open((*t)->data);
            if (!view)
                return view.error();
            const auto plan = crumb::nested_linear::plan(*view);
            if (!plan)
                return plan.error();
            const auto precisions = static_cast<std::size_t>(plan->parent() - plan->seed() + 1);
            return crumb::any_linear(*plan, plan->seed() + static_cast<int>(choose.below(precisions)));
        }
        crumb::result<crumb::any_linear> out = crumb::status::error(crumb::errc::wrong_format, "no format");
        with_format(packed->type, [&]<class F>(std::type_identity<F>) {
            const auto view = crumb::packed_view<F>::open((*t)->data);
            if (!view) {
                out = view.error();
                return;
            }
            const auto plan = crumb::linear<F>::plan(
                *view, {.codebooks = crumb::needs_codebooks<F> ? extras_.codebooks(F::name)
                                                               : std::span<const std::int8_t>()});
            if (plan)
                out = crumb::any_linear(*plan);
            else
                out = plan.error();
        });
        return out;
    }

  private:
    static constexpr std::size_t most = 256;
    const gguf& file_;
    const matrix_extras& extras_;
    std::deque<std::vector<float>> floats_;
};

} // namespace

void run(std::span<const std::byte> input) {
    const exact_copy copy(input);
    choices choose(input);
    const auto file = gguf::parse(copy.bytes());
    if (!file)
        return check_refusal(file.error());
    const auto width = file->get_u32("width"), hidden = file->get_u32("hidden");
    const auto extras = matrix_extras::read(*file);
    const auto stored = file->get_tensor("neurons");
    for (const crumb::status& s : {width.error(), hidden.error(), extras.error(), stored.error()})
        if (!s)
            return check_refusal(s);
    const auto neurons = crumb::neuron_rows::open((*stored)->data);
    if (!neurons)
        return check_refusal(neurons.error());
    // A few bytes may stand for many neurons of few weights, or the other way round.
    const crumb::neuron_shape& s = neurons->shape();
    if (s.neurons > 256 || s.inputs > 256 || s.outputs > 256)
        return;
    reader read(*file, *extras);
    const auto fold = read.product("fold", choose), predictor = read.product("predictor", choose);
    for (const crumb::status& e : {fold.error(), predictor.error()})
        if (!e)
            return check_refusal(e);
    crumb::folded_ffn_parts parts;
    parts.fold = *fold;
    parts.predictor = *predictor;
    parts.neurons = *neurons;
    const std::vector<float> bias = inputs(choose.flag() ? s.outputs : *width % 512);
    parts.output_bias = bias;
    if (choose.flag())
        parts.activation = crumb::activation_function::kind::relu;
    if (const gguf_tensor* t = file->find_tensor("bounds");
        t != nullptr && t->type == ggml_type::f16 && t->rank == 2) {
        const auto plan = crumb::dense_linear<crumb::half>::plan(crumb::matrix<const crumb::half>(
            reinterpret_cast<const crumb::half*>(t->data.data()), t->dims[1], t->dims[0]));
        if (plan)
            parts.bounds = *plan;
    }
    if (choose.flag())
        for (const auto& [name, to] : {std::pair{"up", &parts.up}, {"down", &parts.down}})
            if (file->find_tensor(name) != nullptr)
                if (const auto product = read.product(name, choose))
                    *to = *product;
    run_folded({*width, *hidden, *width}, parts);
}

} // namespace lm::fuzz
