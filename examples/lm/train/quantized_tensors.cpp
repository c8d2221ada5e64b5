#include "train/quantized_tensors.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <unordered_set>

namespace lm {

using crumb::result;
using crumb::status;

void quantized_tensors::set_codebooks(weight_type type, std::vector<std::int8_t> entries) {
    extras_.set_codebooks(name_of(type), entries);
    codebooks_.insert_or_assign(type, std::move(entries));
}

std::span<const std::int8_t> quantized_tensors::codebooks(weight_type type) const noexcept {
    const auto found = codebooks_.find(type);
    return found == codebooks_.end() ? std::span<const std::int8_t>() : found->second;
}

result<tensor_rows> quantized_tensors::rows(std::string_view name) const {
    const auto found = tensors_.find(std::string(name));
    if (found != tensors_.end())
        return tensor_rows::open(found->second.as_read(name), extras_);
    const auto tensor = m_.file().get_tensor(std::string(name));
    if (!tensor)
        return tensor.error();
    return tensor_rows::open(**tensor, m_.extras());
}

/// The sets of formats that are written, and the source's own for tensors that stay packed as they are.
status quantized_tensors::collect_codebooks(gguf_writer& writer) const {
    std::set<weight_type> written;
    for (const auto& [name, tensor] : tensors_)
        if (const auto packed = find_packed(tensor.as_read(name)))
            written.insert(packed->type);
    for (const gguf_tensor& t : m_.file().tensors()) {
        const auto packed = find_packed(t);
        if (!packed || tensors_.contains(std::string(t.name)))
            continue;
        const auto entries = m_.extras().codebooks(name_of(packed->type));
        if (entries.empty())
            continue;
        // A file has one set per format.
        if (codebooks_.contains(packed->type) && written.contains(packed->type))
            return status::error(crumb::errc::unsupported,
                                 "tensor %.*s stays as it is, in format %s: other codebooks of that "
                                 "format cannot be in the same file",
                                 static_cast<int>(std::min<std::size_t>(t.name.size(), 64)), t.name.data(),
                                 name_of(packed->type).data());
        writer.set_array(matrix_extras::codebook_key(name_of(packed->type)), entries);
    }
    for (const auto& [type, entries] : codebooks_)
        if (written.contains(type))
            writer.set_array(matrix_extras::codebook_key(name_of(type)),
                             std::span<const std::int8_t>(entries));
    return {};
}

status quantized_tensors::collect(gguf_writer& writer) const {
    for (const gguf_value& value : m_.file().values())
        if (value.key != "general.file_type" && !value.key.starts_with(matrix_extras::codebook_key("")))
            writer.set(value);
    if (const status s = collect_codebooks(writer); !s)
        return s;
    // What belongs to a tensor that has become another.
    std::unordered_set<std::string> dropped;
    for (const auto& [weight, tensor] : tensors_) {
        dropped.insert(matrix_extras::scale_name(weight));
        dropped.insert(matrix_extras::input_scale_name(weight));
    }
    for (const gguf_tensor& t : m_.file().tensors()) {
        if (dropped.contains(std::string(t.name)))
            continue;
        if (const auto found = tensors_.find(std::string(t.name)); found != tensors_.end())
            writer.add_tensor(t.name, found->second.type, found->second.dims, found->second.bytes());
        else
            writer.add_tensor(t);
    }
    return {};
}

std::vector<quantized_matrix> quantized_tensors::matrices() const {
    std::vector<quantized_matrix> out;
    for (const gguf_tensor& t : m_.file().tensors()) {
        if (!find_role(t.name) && t.name != "token_embd.weight" && t.name != "output.weight")
            continue;
        const auto found = tensors_.find(std::string(t.name));
        const gguf_tensor now = found == tensors_.end() ? t : found->second.as_read(t.name);
        const auto packed = find_packed(now);
        const matrix_shape shape = shape_of(now);
        out.push_back({std::string(t.name),
                       packed ? std::string(name_of(packed->type)) : ggml_type_name(now.type),
                       shape.n * shape.k, now.data.size()});
    }
    return out;
}

std::size_t quantized_model::bytes() const noexcept {
    return std::accumulate(matrices.begin(), matrices.end(), std::size_t{0},
                           [](std::size_t sum, const quantized_matrix& m) { return sum + m.bytes; });
}

std::size_t quantized_model::weights() const noexcept {
    return std::accumulate(matrices.begin(), matrices.end(), std::size_t{0},
                           [](std::size_t sum, const quantized_matrix& m) { return sum + m.weights; });
}

} // namespace lm
