#include "train/weight_samples.hpp"

#include <crumb/offline/weights/store.hpp>

namespace lm {

using crumb::result;
using crumb::status;

result<crumb::group_samples> sample_matrices(const gguf& file, const importances& importance,
                                             const matrix_extras& source) {
    std::size_t groups = 0;
    for (const gguf_tensor& t : file.tensors())
        if (find_role(t.name)) {
            const matrix_shape shape = shape_of(t);
            groups += crumb::group_sampler::groups_of(shape.n, shape.k);
        }
    const crumb::training_options options;
    crumb::group_sampler sampler(groups, options.max_groups, options.seed);
    for (const gguf_tensor& t : file.tensors()) {
        const auto role = find_role(t.name);
        if (!role)
            continue;
        const auto values = to_floats(t, source);
        if (!values)
            return values.error();
        const matrix_shape shape = shape_of(t);
        if (const status s = sampler.add(
                {crumb::matrix<const float>(values->data(), shape.n, shape.k), importance.at(role->input())});
            !s)
            return s;
    }
    return std::move(sampler).finish();
}

result<std::vector<std::int8_t>> train_codebooks(const crumb::group_samples& samples, weight_type type,
                                                 const progress_function& progress) {
    status error;
    std::vector<std::int8_t> entries;
    with_leveled_format(type, [&]<class F>(std::type_identity<F>) {
        if constexpr (crumb::needs_codebooks<F>) {
            const auto trained = crumb::train_codebooks(
                samples,
                {.entries = std::size_t{1} << F::codes::bits,
                 .selector_bits = F::codes::selector_bits,
                 .scales = F::scales::block_groups == 1 ? crumb::scale_kind::half : crumb::scale_kind::byte,
                 .progress = progress});
            if (trained)
                entries = crumb::codebooks_of<F>(trained->levels);
            else
                error = trained.error();
        }
    });
    if (!error)
        return error;
    return entries;
}

} // namespace lm
