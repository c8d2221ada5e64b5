#include "model/matrix_extras.hpp"

#include "model/weight_type.hpp"

#include <crumb/format/storage.hpp>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

result<matrix_extras> matrix_extras::read(const gguf& file) {
    matrix_extras extras;
    for (const std::string_view format : weight_names) {
        auto entries = read_weight_codebooks(file, format);
        if (!entries)
            return entries.error();
        if (!entries->empty())
            extras.set_codebooks(format, std::move(*entries));
    }
    for (const gguf_tensor& t : file.tensors()) {
        const std::string name = scale_name(t.name);
        const gguf_tensor* scale =
            t.type != ggml_type::nvfp4 || name.empty() ? nullptr : file.find_tensor(name);
        if (scale == nullptr)
            continue;
        const auto number = scale->numbers<float>(1);
        if (!number)
            return number.error();
        if (!crumb::has_finite_weights<crumb::nvfp4>(number->front()))
            return status::error(errc::not_finite,
                                 "tensor %s: weights of NVFP4 under a scale of %g are not finite",
                                 name.c_str(), double{number->front()});
        extras.scales_.emplace_back(t.name, number->front());
    }
    return extras;
}

} // namespace lm
