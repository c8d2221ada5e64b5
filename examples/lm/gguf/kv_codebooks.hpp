// Codebooks of the cache in a file.
#pragma once

#include "gguf/gguf.hpp"

#include <crumb/offline/cache/trained_codebooks.hpp>

namespace lm {

/// The codebooks that a file has for a codec, whose name is that of the command line, "pq4": tensors
/// `crumb.kv.<name>.entries`, `.scales` and perhaps `.metric` or `.turns`, keys `.version`, `.head_size`,
/// `.layer_step`,
/// `.head_step` and `.sets`. Empty ones for a codec that needs none. Errors: there are none that it needs,
/// they are damaged, of a version that this program does not read, or not for so many layers and heads of
/// `head_size` channels. Whether they are of the file's own model is not checked.
inline crumb::result<crumb::kv_codebooks> read_kv_codebooks(const gguf& file, const std::string& name,
                                                            const crumb::kv_codec& codec, std::size_t layers,
                                                            std::size_t kv_heads, std::size_t head_size) {
    using crumb::errc;
    using crumb::result;
    using crumb::status;
    crumb::kv_codebooks books;
    books.codec = codec;
    if (!codec.has_codebooks())
        return books;
    const auto key = [&](const char* what) { return "crumb.kv." + name + "." + what; };
    if (file.find(key("version")) == nullptr)
        return status::error(errc::invalid_argument,
                             "the file has no codebooks of %s: crumb-lm calibrate makes some", name.c_str());
    const auto version = file.get_u32(key("version"));
    if (!version)
        return version.error();
    if (*version != 1)
        return status::error(errc::wrong_version, "key %s is %u, this program reads 1",
                             key("version").c_str(), *version);
    for (const auto& [what, to] : {std::pair<const char*, std::size_t*>{"head_size", &books.head_size},
                                   {"layer_step", &books.layer_step},
                                   {"head_step", &books.head_step},
                                   {"sets", &books.sets}}) {
        const auto value = file.get_u32(key(what));
        if (!value)
            return value.error();
        *to = *value;
    }
    if (books.head_size != head_size || books.sets > layers * kv_heads ||
        (layers - 1) * books.layer_step + (kv_heads - 1) * books.head_step >= books.sets)
        return status::error(errc::corrupt, "the codebooks of %s are not of this model's shape",
                             name.c_str());
    const auto numbers = [&]<class T>(T, const char* what, std::size_t count) -> result<std::vector<T>> {
        const gguf_tensor* t = file.find_tensor(key(what));
        return t == nullptr ? std::vector<T>() : t->numbers<T>(count);
    };
    const std::size_t channels = 2 * books.sets * books.head_size;
    auto entries = numbers(std::int8_t{}, "entries", channels * codec.entries());
    auto scales = numbers(0.0f, "scales", channels);
    auto metric = numbers(0.0f, "metric", channels * codec.dims);
    auto turns = numbers(0.0f, "turns", 2 * channels * head_size);
    for (const status& s : {entries.error(), scales.error(), metric.error(), turns.error()})
        if (!s)
            return s;
    if (entries->empty() || scales->empty())
        return status::error(errc::corrupt, "the codebooks of %s are incomplete", name.c_str());
    books.entries = std::move(*entries);
    books.scales = std::move(*scales);
    books.metric = std::move(*metric);
    books.turns = std::move(*turns);
    if (const auto view = books.view(); !view)
        return status::error(view.error().code(), "tensors %s: %s", key("*").c_str(), view.message());
    return books;
}

} // namespace lm
