// The plug-in by ggml's own interface: buffers give back the bytes that they got, however these came;
// products are those of the weights' values.
//
//   buffer_test libggml-crumb.so
#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace {

int failures = 0;

void check(bool holds, const std::string& what) {
    if (!holds) {
        std::printf("FAILED  %s\n", what.c_str());
        ++failures;
    }
}

struct deleter {
    void operator()(ggml_context* c) const { ggml_free(c); }
    void operator()(ggml_backend_buffer* b) const { ggml_backend_buffer_free(b); }
    void operator()(ggml_backend* b) const { ggml_backend_free(b); }
};
using context_ptr = std::unique_ptr<ggml_context, deleter>;
using buffer_ptr = std::unique_ptr<ggml_backend_buffer, deleter>;
using backend_ptr = std::unique_ptr<ggml_backend, deleter>;

context_ptr new_context() {
    return context_ptr(ggml_init({.mem_size = 1 << 20, .mem_buffer = nullptr, .no_alloc = true}));
}

std::vector<char> random_weights(ggml_type type, std::int64_t rows, std::int64_t k, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> floats(static_cast<std::size_t>(rows * k)),
        importance(static_cast<std::size_t>(k), 1.0f);
    for (float& f : floats)
        f = normal(random);
    std::vector<char> bytes(ggml_row_size(type, k) * static_cast<std::size_t>(rows));
    ggml_quantize_chunk(type, floats.data(), bytes.data(), 0, rows, k, importance.data());
    return bytes;
}

std::vector<char> bytes_of(const ggml_tensor* t, std::size_t offset, std::size_t size) {
    std::vector<char> bytes(size);
    ggml_backend_tensor_get(t, bytes.data(), offset, size);
    return bytes;
}

void test_bytes(ggml_backend_buffer_type_t type_of_buffer, ggml_type type) {
    const std::string name = ggml_type_name(type);
    const context_ptr c = new_context();
    // Neither the rows nor the matrices are whole tiles of crumb's.
    ggml_tensor* w = ggml_new_tensor_3d(c.get(), type, 512, 23, 3);
    ggml_tensor* copy = ggml_new_tensor_3d(c.get(), type, 512, 23, 3);
    ggml_tensor* view = ggml_view_2d(c.get(), w, 512, 7, w->nb[1], w->nb[2] + 5 * w->nb[1]);
    const buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(c.get(), type_of_buffer));
    if (!buffer)
        return check(false, name + ": no buffer");
    const auto all = random_weights(type, 23 * 3, 512, 1);
    ggml_backend_tensor_set(w, all.data(), 0, all.size());
    check(bytes_of(w, 0, all.size()) == all, name + ": set at once");
    const std::size_t at = w->nb[1] * 20 + 5, size = w->nb[1] * 9 + 1;
    check(bytes_of(w, at, size) == std::vector<char>(all.begin() + static_cast<std::ptrdiff_t>(at),
                                                     all.begin() + static_cast<std::ptrdiff_t>(at + size)),
          name + ": a part");
    const auto* of_view = all.data() + w->nb[2] + 5 * w->nb[1];
    check(bytes_of(view, 0, 7 * w->nb[1]) == std::vector<char>(of_view, of_view + 7 * w->nb[1]),
          name + ": a view");
    ggml_backend_tensor_copy(w, copy);
    check(bytes_of(copy, 0, all.size()) == all, name + ": a copy");
    const auto other = random_weights(type, 23 * 3, 512, 2);
    for (std::size_t i = 0; i < other.size(); i += 1000)
        ggml_backend_tensor_set(w, other.data() + i, i, std::min<std::size_t>(1000, other.size() - i));
    check(bytes_of(w, 0, other.size()) == other, name + ": set piece by piece");
    ggml_backend_tensor_set(w, all.data(), 0, all.size());
    ggml_backend_tensor_memset(w, 0, w->nb[1], w->nb[1]);
    auto expected = all;
    std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(w->nb[1]), w->nb[1], '\0');
    check(bytes_of(w, 0, all.size()) == expected, name + ": filled in part");
    ggml_backend_buffer_clear(buffer.get(), 0);
    check(bytes_of(w, 0, 100) == std::vector<char>(100), name + ": cleared");
}

/// The largest difference from products with the weights' values, relative to the norms of rows.
void test_product(ggml_backend_t backend, ggml_backend_buffer_type_t type_of_buffer, ggml_type type,
                  bool in_pieces) {
    const std::string name = ggml_type_name(type);
    constexpr std::int64_t k = 512, n = 23, rows = 5;
    const context_ptr c = new_context(), c2 = new_context();
    ggml_tensor* w = ggml_new_tensor_2d(c.get(), type, k, n);
    ggml_tensor* x = ggml_new_tensor_2d(c2.get(), GGML_TYPE_F32, k, rows);
    const buffer_ptr weights(ggml_backend_alloc_ctx_tensors_from_buft(c.get(), type_of_buffer));
    ggml_tensor* y = ggml_mul_mat(c2.get(), w, x);
    const buffer_ptr others(
        ggml_backend_alloc_ctx_tensors_from_buft(c2.get(), ggml_backend_cpu_buffer_type()));
    if (!weights || !others || !ggml_backend_supports_op(backend, y))
        return check(false, name + ": the product is not supported");
    const auto bytes = random_weights(type, n, k, 3);
    const std::size_t piece = in_pieces ? 777 : bytes.size();
    for (std::size_t i = 0; i < bytes.size(); i += piece)
        ggml_backend_tensor_set(w, bytes.data() + i, i, std::min(piece, bytes.size() - i));
    std::mt19937 random(4);
    std::normal_distribution<float> normal;
    auto* input = static_cast<float*>(x->data);
    std::generate_n(input, k * rows, [&] { return normal(random); });
    ggml_cgraph* graph = ggml_new_graph(c2.get());
    ggml_build_forward_expand(graph, y);
    if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS)
        return check(false, name + ": the product has failed");
    std::vector<float> values(static_cast<std::size_t>(k * n));
    if (const auto to_float = ggml_get_type_traits(type)->to_float)
        to_float(bytes.data(), values.data(), k * n);
    else
        std::memcpy(values.data(), bytes.data(), bytes.size());
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t o = 0; o < n; ++o) {
            // An input moves by at most half a step: 1/254 of the largest of its group of 32 or 256.
            double sum = 0, bound = 0;
            for (std::int64_t i = 0; i < k; ++i) {
                const std::int64_t group = i / 256 * 256;
                float most = 0;
                for (std::int64_t j = group; j < group + 256; ++j)
                    most = std::max(most, std::fabs(input[r * k + j]));
                const double weight = static_cast<double>(values[static_cast<std::size_t>(o * k + i)]);
                sum += weight * static_cast<double>(input[r * k + i]);
                bound += std::fabs(weight) * static_cast<double>(most) / 253;
            }
            const double is = static_cast<double>(static_cast<const float*>(y->data)[r * n + o]);
            if (!(std::fabs(is - sum) <= bound))
                return check(false, name + ": " + std::to_string(is) + " is not " + std::to_string(sum));
        }
}

void test_not_finite(ggml_backend_t backend, ggml_backend_buffer_type_t type_of_buffer) {
    const context_ptr c = new_context(), c2 = new_context();
    ggml_tensor* w = ggml_new_tensor_2d(c.get(), GGML_TYPE_Q8_0, 64, 20);
    const buffer_ptr weights(ggml_backend_alloc_ctx_tensors_from_buft(c.get(), type_of_buffer));
    auto bytes = random_weights(GGML_TYPE_Q8_0, 20, 64, 5);
    bytes[w->nb[1]] = 0;
    bytes[w->nb[1] + 1] = 0x7c; // the scale of a group of row 1 is infinite
    ggml_backend_tensor_set(w, bytes.data(), 0, bytes.size());
    check(bytes_of(w, 0, bytes.size()) == bytes, "an infinite scale is kept");
    ggml_tensor* x = ggml_new_tensor_2d(c2.get(), GGML_TYPE_F32, 64, 1);
    ggml_tensor* y = ggml_mul_mat(c2.get(), w, x);
    const buffer_ptr others(
        ggml_backend_alloc_ctx_tensors_from_buft(c2.get(), ggml_backend_cpu_buffer_type()));
    std::fill_n(static_cast<float*>(x->data), 64, 1.0f);
    ggml_cgraph* graph = ggml_new_graph(c2.get());
    ggml_build_forward_expand(graph, y);
    check(ggml_backend_graph_compute(backend, graph) == GGML_STATUS_SUCCESS,
          "an infinite scale is multiplied");
    const auto* out = static_cast<const float*>(y->data);
    check(std::isfinite(out[0]) && !std::isfinite(out[1]) && std::isfinite(out[19]), "in its own row only");
}

} // namespace

int main(int count, char** arguments) {
    if (count != 2 || ggml_backend_load(arguments[1]) == nullptr) {
        std::fprintf(stderr, "usage: buffer_test libggml-crumb.so\n");
        return 2;
    }
    const ggml_backend_dev_t device = ggml_backend_dev_by_name("CRUMB");
    const backend_ptr backend(ggml_backend_dev_init(device, nullptr));
    const ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(device);
    int types = 0;
    for (int t = 0; t < GGML_TYPE_COUNT; ++t) {
        const auto which = static_cast<ggml_type>(t);
        const context_ptr c = new_context();
        if (ggml_blck_size(which) == 0 || (!ggml_is_quantized(which) && which != GGML_TYPE_F32 &&
                                           which != GGML_TYPE_F16 && which != GGML_TYPE_BF16))
            continue;
        ggml_tensor* w = ggml_new_tensor_2d(c.get(), which, 512, 16);
        ggml_tensor* y = ggml_mul_mat(c.get(), w, ggml_new_tensor_2d(c.get(), GGML_TYPE_F32, 512, 1));
        w->buffer = ggml_backend_buft_alloc_buffer(type, 0);
        const bool is_taken = ggml_backend_dev_supports_op(device, y);
        ggml_backend_buffer_free(w->buffer);
        if (!is_taken)
            continue;
        ++types;
        test_bytes(type, which);
        test_product(backend.get(), type, which, false);
        test_product(backend.get(), type, which, true);
    }
    check(types == 21, "21 types are taken, not " + std::to_string(types));
    test_not_finite(backend.get(), type);
    std::printf("%d types, %d failed\n", types, failures);
    return failures == 0 ? 0 : 1;
}
