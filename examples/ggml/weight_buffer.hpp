// Memory for weights: packed as they are uploaded, and given back byte for byte as they came.
#pragma once

#include "ggml/ggml_api.hpp"
#include "ggml/replaced_weights.hpp"
#include "ggml/weight_format.hpp"

#include "machine/team.hpp"

#include <crumb/core/arena.hpp>
#include <crumb/op/linear/any_linear.hpp>

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace crumb_ggml {

/// The buffer type of weights; its buffers belong to `device`.
ggml_backend_buffer_type_t weight_buffer_type() noexcept;

/// Whether a tensor lies in a buffer of that type.
inline bool is_in_weight_buffer(const ggml_tensor* t) noexcept {
    const ggml_backend_buffer_t buffer = buffer_of(t);
    return buffer != nullptr && buffer->buft == weight_buffer_type();
}

/// What tensors of a process take in buffers of weights.
struct weight_totals {
    std::size_t packed_tensors = 0, packed_bytes = 0;
    std::size_t replaced_tensors = 0, replaced_bytes = 0; ///< by those of another file, where they are mapped
};
weight_totals count_weights() noexcept;

/// A tensor of weights: matrices of one shape, each with its plan.
struct stored_weights {
    std::span<std::byte> packed; ///< matrix after matrix; empty: ggml's bytes are in the tensor's place
    ggml_type type = GGML_TYPE_COUNT;
    std::size_t n = 0, k = 0, matrices = 0;
    const weight_format* format = nullptr; ///< null: floats, halves or bfloat16
    const replacement* replaced = nullptr; ///< or null: weights of another file
    bool has_failed = false;               ///< the format cannot hold it; multiplied as floats
    std::vector<crumb::any_linear> plans;
    crumb::buffer floats; ///< of what has failed

    /// Whether the bytes of ggml are not there.
    bool is_packed() const noexcept { return packed.size() != 0 || replaced != nullptr; }
    /// Bytes between the packed forms of two matrices.
    std::size_t packed_stride() const noexcept { return crumb::round_up(packed_bytes(), crumb::alignment); }
    std::size_t packed_bytes() const noexcept { return format->packed_bytes(n, k); }
    std::span<const std::byte> packed_matrix(std::size_t i) const noexcept {
        return packed.subspan(i * packed_stride(), packed_bytes());
    }
    std::size_t row_bytes() const noexcept { return ggml_row_size(type, static_cast<std::int64_t>(k)); }
    std::size_t matrix_bytes() const noexcept { return n * row_bytes(); }
};

/// The memory of one buffer. Weights that are packed lie beside it, and their place in it takes no memory: a
/// packed matrix has a header more than ggml's, for which somebody else's allocator, as that of RPC, leaves
/// no room. Any thread may call it, one at a time does something.
class weight_buffer {
  public:
    /// An error if the system refuses the memory.
    static crumb::result<std::unique_ptr<weight_buffer>> make(std::size_t size);
    ~weight_buffer();
    weight_buffer(const weight_buffer&) = delete;
    weight_buffer& operator=(const weight_buffer&) = delete;

    std::byte* base() const noexcept { return base_; }
    static weight_buffer& of(ggml_backend_buffer_t buffer) noexcept {
        return *static_cast<weight_buffer*>(buffer->context);
    }

    /// Forgets what the memory of a tensor held.
    void init(const ggml_tensor* t);
    void set(ggml_tensor* t, const void* data, std::size_t offset, std::size_t size);
    void fill(ggml_tensor* t, std::uint8_t value, std::size_t offset, std::size_t size);
    void get(const ggml_tensor* t, void* data, std::size_t offset, std::size_t size);
    void clear(std::uint8_t value);

    /// The plans of a tensor's matrices, packed by now. The result is valid until something writes to the
    /// tensor. An error says what the memory does not suffice for.
    crumb::result<const stored_weights*> plans_of(const ggml_tensor* t);
    /// Makes the bytes of a tensor those that ggml expects, for who reads or writes them in place.
    void make_raw(const ggml_tensor* t);

  private:
    weight_buffer() = default;
    stored_weights* find(const ggml_tensor* t);
    stored_weights& entry_of(const ggml_tensor* t);
    void forget(std::unordered_map<const void*, stored_weights>::iterator at);
    void forget_all();
    static void unpack(const stored_weights& w, std::size_t matrix, crumb::range rows, std::byte* to);
    /// Takes the weights of `weights=` for a tensor, if they are its.
    bool replace(const ggml_tensor* t, stored_weights& w, const void* blocks);
    crumb::status pack(const ggml_tensor* t, stored_weights& w, const void* blocks);
    crumb::status plan(const ggml_tensor* t, stored_weights& w);
    crumb::status expand(const ggml_tensor* t, stored_weights& w);

    std::mutex guard_;
    std::byte* base_ = nullptr;
    void* mapping_ = nullptr;
    std::size_t size_ = 0, mapped_ = 0;
    crumb::arena arena_; ///< of packed weights
    std::unordered_map<const void*, stored_weights> tensors_;
    std::unique_ptr<lm::team> loaders_; ///< while weights are uploaded
};

} // namespace crumb_ggml
