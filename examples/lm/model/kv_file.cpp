#include "model/kv_file.hpp"

#include "model/model_identity.hpp"

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

namespace {

/// The numbers of a tensor of one dimension; empty if there is none.
template <class T>
result<std::vector<T>> read_numbers(const gguf& file, const std::string& name, std::size_t count) {
    const gguf_tensor* t = file.find_tensor(name);
    return t == nullptr ? std::vector<T>() : t->numbers<T>(count);
}

} // namespace

std::string codec_name(const crumb::kv_codec& codec) {
    const std::string name = kv_type{codec}.name();
    return name.substr(0, name.find(":sinks"));
}

std::string codebooks_prefix(const crumb::kv_codec& codec) { return "crumb.kv." + codec_name(codec) + "."; }

result<std::optional<crumb::kv_codebooks>> read_codebooks(const model& m, const crumb::kv_codec& codec) {
    const gguf& file = m.file();
    const auto key = [&](const char* what) { return codebooks_prefix(codec) + what; };
    if (file.find(key("version")) == nullptr)
        return std::optional<crumb::kv_codebooks>();
    const auto version = file.get_u32(key("version"));
    if (!version)
        return version.error();
    if (*version != 1)
        return status::error(errc::wrong_version, "key %s is %u, this program reads 1",
                             key("version").c_str(), *version);
    const auto identity = file.get_u64(key("model"));
    if (!identity)
        return identity.error();
    if (*identity != model_identity(m))
        return status::error(errc::invalid_argument, "the codebooks of %s are of another model",
                             codec_name(codec).c_str());
    crumb::kv_codebooks books;
    books.codec = codec;
    for (const auto& [what, to] : {std::pair<const char*, std::size_t*>{"head_size", &books.head_size},
                                   {"layer_step", &books.layer_step},
                                   {"head_step", &books.head_step},
                                   {"sets", &books.sets}}) {
        const auto value = file.get_u32(key(what));
        if (!value)
            return value.error();
        *to = *value;
    }
    const model_shape& d = m.shape();
    if (books.head_size != d.head_size || books.sets > d.layers * d.kv_heads ||
        (d.layers - 1) * books.layer_step + (d.kv_heads - 1) * books.head_step >= books.sets)
        return status::error(errc::corrupt, "the codebooks of %s are not of this model's shape",
                             codec_name(codec).c_str());
    const std::size_t channels = 2 * books.sets * books.head_size;
    auto entries = read_numbers<std::int8_t>(file, key("entries"), channels * codec.entries());
    auto scales = read_numbers<float>(file, key("scales"), channels);
    auto metric = read_numbers<float>(file, key("metric"), channels * codec.dims);
    for (const status& s : {entries.error(), scales.error(), metric.error()})
        if (!s)
            return s;
    if (entries->empty() || scales->empty())
        return status::error(errc::corrupt, "the codebooks of %s are incomplete", codec_name(codec).c_str());
    books.entries = std::move(*entries);
    books.scales = std::move(*scales);
    books.metric = std::move(*metric);
    if (const auto view = books.view(); !view)
        return status::error(view.error().code(), "tensors %s: %s", key("*").c_str(), view.message());
    return std::optional<crumb::kv_codebooks>(std::move(books));
}

void write_codebooks(gguf_writer& to, const model& m, const crumb::kv_codebooks& books) {
    const auto key = [&](const char* what) { return codebooks_prefix(books.codec) + what; };
    to.set(key("version"), std::uint32_t{1});
    to.set(key("model"), model_identity(m));
    to.set(key("head_size"), static_cast<std::uint32_t>(books.head_size));
    to.set(key("layer_step"), static_cast<std::uint32_t>(books.layer_step));
    to.set(key("head_step"), static_cast<std::uint32_t>(books.head_step));
    to.set(key("sets"), static_cast<std::uint32_t>(books.sets));
    const auto add = [&](const char* what, ggml_type type, const auto& numbers) {
        const std::uint64_t dims[] = {numbers.size()};
        if (!numbers.empty())
            to.add_tensor(key(what), type, dims, std::as_bytes(std::span(numbers)));
    };
    add("entries", ggml_type::i8, books.entries);
    add("scales", ggml_type::f32, books.scales);
    add("metric", ggml_type::f32, books.metric);
}

} // namespace lm
