// Tensors as they will be written.
#pragma once

#include "model/tensor_rows.hpp"

#include <crumb/core/buffer.hpp>
#include <crumb/format/nested.hpp>
#include <crumb/offline/nested/quantized.hpp>
#include <crumb/offline/weights/quantize.hpp>

#include <cstring>

namespace lm {

/// A tensor with its own bytes.
struct written_tensor {
    ggml_type type;
    std::vector<std::uint64_t> dims;
    std::size_t size; ///< in bytes
    crumb::buffer memory;

    std::span<const std::byte> bytes() const { return memory.bytes().first(size); }
    /// As if it had been read from a file.
    gguf_tensor as_read(std::string_view name) const {
        gguf_tensor t;
        t.name = name;
        t.type = type;
        t.rank = static_cast<std::uint32_t>(dims.size());
        std::copy(dims.begin(), dims.end(), t.dims.begin());
        t.data = bytes();
        return t;
    }
};

/// Whether rows of k weights are written as blocks, which other programs read as well; GGUF has none of rows
/// that end within a block.
template <class F>
bool is_written_as_blocks(std::size_t k) {
    return ggml_type_of<F> && k % crumb::block_inputs<F> == 0;
}

/// Bytes of a tensor of n x k weights.
template <class F>
std::size_t written_bytes(std::size_t n, std::size_t k) {
    return is_written_as_blocks<F>(k) ? n * k / crumb::block_inputs<F> * sizeof(typename F::block)
                                      : crumb::packed_bytes<F>(n, k);
}

template <class F>
crumb::result<written_tensor> written(const crumb::quantized<F>& q) {
    written_tensor out;
    out.size = written_bytes<F>(q.n, q.k);
    out.memory = crumb::buffer(out.size);
    if (is_written_as_blocks<F>(q.k)) {
        out.type = *ggml_type_of<F>;
        out.dims = {q.k, q.n};
        std::memcpy(out.memory.bytes().data(), q.blocks.data(), out.size);
        return out;
    }
    out.type = ggml_type::i8;
    out.dims = {out.size};
    const auto packed = crumb::pack(q, out.memory.bytes());
    if (!packed)
        return packed.error();
    return out;
}

inline crumb::result<written_tensor> written(const crumb::nested_quantized& q) {
    written_tensor out;
    out.type = ggml_type::i8;
    out.size = crumb::nested_packed_bytes(q.n, q.k, q.levels.parent);
    out.dims = {out.size};
    out.memory = crumb::buffer(out.size);
    const auto packed = crumb::pack(q, out.memory.bytes());
    if (!packed)
        return packed.error();
    return out;
}

} // namespace lm
