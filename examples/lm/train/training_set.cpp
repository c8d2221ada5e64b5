#include "train/training_set.hpp"

#include <crumb/offline/weights/store.hpp>

namespace lm {

using crumb::result;
using crumb::status;

result<training_set> training_set::read(const gguf& file, const importances& importance,
                                        const matrix_extras& source) {
    training_set set;
    for (const gguf_tensor& t : file.tensors()) {
        const auto role = find_role(t.name);
        if (!role)
            continue;
        auto values = to_floats(t, source);
        if (!values)
            return values.error();
        set.floats.push_back(std::move(*values));
        const matrix_shape shape = shape_of(t);
        set.matrices.push_back({crumb::matrix<const float>(set.floats.back().data(), shape.n, shape.k),
                                importance.at(role->input())});
    }
    return set;
}

result<std::vector<std::int8_t>> train_codebooks(const training_set& set, weight_type type,
                                                 const progress_function& progress) {
    status error;
    std::vector<std::int8_t> entries;
    with_leveled_format(type, [&]<class F>(std::type_identity<F>) {
        if constexpr (crumb::needs_codebooks<F>) {
            const auto trained = crumb::train_codebooks(
                set.matrices,
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
