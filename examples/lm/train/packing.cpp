#include "train/packing.hpp"

#include "gguf/iq_decode.hpp"
#include "model/model.hpp"
#include "model/packed_file.hpp"

#include <crumb/offline/weights/quantize.hpp>

#include <cstring>
#include <unordered_set>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

namespace {

/// The file that is packed, and the matrix that is being written.
struct packer {
    gguf file;
    matrix_extras extras;
    buffer memory;

    /// Whether a tensor is a matrix that is multiplied.
    bool is_multiplied(const gguf_tensor& t) const {
        if (t.rank != 2)
            return false;
        const bool tied = file.find_tensor("output.weight") == nullptr;
        return find_role(t.name) || t.name == "output.weight" || (tied && t.name == "token_embd.weight");
    }

    /// Packs a tensor into `memory`.
    template <class F>
    status pack(const gguf_tensor& t) {
        const std::size_t n = t.dims[1], k = t.dims[0];
        memory = buffer(crumb::packed_bytes<F>(n, k));
        if (ggml_type_of<F> == t.type) {
            const auto blocks = blocks_of<F>(t, extras);
            return blocks ? crumb::pack(*blocks, memory.bytes()).error() : blocks.error();
        }
        if constexpr (crumb::rounding_format<F>) {
            const auto floats = to_floats(t, extras);
            if (!floats)
                return floats.error();
            const auto q = crumb::quantize<F>(crumb::matrix<const float>(floats->data(), n, k));
            const status s = q ? crumb::pack(*q, memory.bytes()).error() : q.error();
            return s ? s : in_tensor(t, s);
        }
        return status::error(errc::unsupported, "%s is not made of other weights", F::name);
    }

    /// Adds a tensor to `to`, packed as `type`.
    template <class F>
    status add(packed_model& to, const gguf_tensor& t) {
        const std::uint64_t size = crumb::packed_bytes<F>(t.dims[1], t.dims[0]);
        if (size == 0)
            return in_tensor(t, status::error(errc::bad_shape, "it is too large to be packed"));
        to.file.add_generated(t.name, ggml_type::i8, std::span(&size, 1),
                              [this, &t](std::uint64_t at, std::span<std::byte> out) {
                                  if (const status s = at == 0 ? pack<F>(t) : status(); !s)
                                      return std::string(s.message());
                                  std::memcpy(out.data(), memory.bytes().data() + at, out.size());
                                  return std::string();
                              });
        ++to.matrices;
        to.bytes += size;
        return {};
    }
};

} // namespace

result<packed_model> pack_model(const std::string& path) {
    auto file = gguf::open(path);
    if (!file)
        return file.error();
    const auto source = describe_source(path, *file);
    if (!source)
        return source.error();
    return pack_model(std::move(*file), *source);
}

result<packed_model> pack_model(gguf file, const pack_source& source) {
    if (is_packed(file))
        return status::error(errc::invalid_argument, "the file is packed already");
    if (const auto shape = read_shape(file, {}); !shape)
        return shape.error();
    auto extras = matrix_extras::read(file);
    if (!extras)
        return extras.error();
    const auto p = std::make_shared<packer>(packer{std::move(file), std::move(*extras), {}});
    packed_model out{p, gguf_writer(3, crumb::alignment)};
    for (const gguf_value& value : p->file.values())
        out.file.set(value);
    write_source(out.file, source);
    // Packed weights have the scale of their tensor in themselves.
    std::unordered_set<std::string> dropped;
    for (const gguf_tensor& t : p->file.tensors())
        if (t.type == ggml_type::nvfp4 && p->is_multiplied(t)) {
            dropped.insert(matrix_extras::scale_name(t.name));
            dropped.insert(matrix_extras::input_scale_name(t.name));
        }
    for (const gguf_tensor& t : p->file.tensors()) {
        if (dropped.contains(std::string(t.name)))
            continue;
        // Rows of an embedding keep the numbers that they have.
        const bool is_rounded = is_decoded(t.type) && t.name != "token_embd.weight";
        const auto type = is_rounded ? std::optional(weight_type::q8_0) : format_of(t.type);
        if (!type || !p->is_multiplied(t)) {
            out.file.add_tensor(t);
            continue;
        }
        status added;
        with_format(*type, [&]<class F>(std::type_identity<F>) { added = p->template add<F>(out, t); });
        if (!added)
            return added;
    }
    return out;
}

} // namespace lm
