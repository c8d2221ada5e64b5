// ggml's headers, with the interface that backends implement.
#pragma once

#include <ggml-backend-impl.h>
#include <ggml-backend.h>
#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace crumb_ggml {

/// The buffer that a tensor lies in, also as a view; null before it is allocated.
inline ggml_backend_buffer_t buffer_of(const ggml_tensor* t) noexcept {
    return t->view_src != nullptr ? t->view_src->buffer : t->buffer;
}

/// The first element of a tensor.
template <class T>
T* data_of(const ggml_tensor* t) noexcept {
    return static_cast<T*>(t->data);
}

/// A row of a tensor, by its indices.
template <class T>
T* row_of(const ggml_tensor* t, std::int64_t i1, std::int64_t i2, std::int64_t i3) noexcept {
    return reinterpret_cast<T*>(static_cast<char*>(t->data) + i1 * static_cast<std::int64_t>(t->nb[1]) +
                                i2 * static_cast<std::int64_t>(t->nb[2]) +
                                i3 * static_cast<std::int64_t>(t->nb[3]));
}

/// Elements of a tensor along dimension i.
inline std::size_t extent(const ggml_tensor* t, int i) noexcept { return static_cast<std::size_t>(t->ne[i]); }

/// Parameter i of an operation, a float.
inline float parameter(const ggml_tensor* t, std::size_t i) noexcept {
    float value;
    std::memcpy(&value, t->op_params + i, sizeof value);
    return value;
}

/// Whether the loaded ggml has the tensors and numbers that this file was compiled for; logs what differs.
bool is_compatible() noexcept;

} // namespace crumb_ggml
