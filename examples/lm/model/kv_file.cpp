#include "model/kv_file.hpp"

#include "gguf/kv_codebooks.hpp"
#include "model/model_identity.hpp"

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

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
    const auto identity = file.get_u64(key("model"));
    if (!identity)
        return identity.error();
    if (*identity != model_identity(m))
        return status::error(errc::invalid_argument, "the codebooks of %s are of another model",
                             codec_name(codec).c_str());
    const model_shape& d = m.shape();
    auto books = read_kv_codebooks(file, codec_name(codec), codec, d.layers, d.kv_heads, d.head_size);
    if (!books)
        return books.error();
    return std::optional(std::move(*books));
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
    add("turns", ggml_type::f32, books.turns);
}

} // namespace lm
