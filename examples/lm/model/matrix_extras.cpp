#include "model/matrix_extras.hpp"

#include "model/weight_type.hpp"

#include <crumb/format/storage.hpp>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

namespace {

result<std::vector<std::int8_t>> signed_bytes(const gguf& file, const std::string& key) {
    const auto values = file.get_i32s(key);
    if (!values)
        return values.error();
    std::vector<std::int8_t> entries;
    for (const std::int32_t v : *values) {
        if (v < -128 || v > 127)
            return status::error(errc::corrupt, "key %s holds %d, not a signed byte", key.c_str(), v);
        entries.push_back(static_cast<std::int8_t>(v));
    }
    return entries;
}

} // namespace

result<matrix_extras> matrix_extras::read(const gguf& file) {
    matrix_extras extras;
    for (const std::string_view format : weight_names) {
        if (file.find(codebook_key(format)) == nullptr)
            continue;
        auto entries = signed_bytes(file, codebook_key(format));
        if (!entries)
            return entries.error();
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
