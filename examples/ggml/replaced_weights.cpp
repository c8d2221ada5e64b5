#include "ggml/replaced_weights.hpp"

#include "ggml/log.hpp"
#include "ggml/options.hpp"
#include "gguf/shown_text.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace crumb_ggml {
namespace {

struct packed_file {
    lm::gguf file;
    std::vector<std::vector<std::int8_t>> codebooks; ///< that readers of rows refer to
    std::unordered_map<std::string_view, replacement> matrices;
};

std::unique_ptr<const packed_file>& opened() noexcept {
    static std::unique_ptr<const packed_file> file;
    return file;
}

/// Writes a row of a tensor as floats.
void read_row(ggml_type type, const void* blocks, std::size_t row, std::size_t k, float* out) {
    const auto* from =
        static_cast<const std::byte*>(blocks) + row * ggml_row_size(type, static_cast<std::int64_t>(k));
    if (type == GGML_TYPE_F32)
        std::memcpy(out, from, k * sizeof(float));
    else
        ggml_get_type_traits(type)->to_float(from, out, static_cast<std::int64_t>(k));
}

/// |W - Q|^2 / |W|^2 over rows that are evenly spaced. Below 1 of rounded weights, which are nearer to W than
/// zeros are; 2 of those of another model.
double distance(const replacement& w, const ggml_tensor* t, const void* blocks) {
    const std::size_t n = w.plan.n(), k = w.plan.k();
    std::vector<float> own(k), other(k);
    double apart = 0, whole = 0;
    const std::size_t step = std::max<std::size_t>(1, n / 64);
    for (std::size_t r = 0; r < n; r += step) {
        read_row(t->type, blocks, r, k, own.data());
        w.rows(r, other.data());
        for (std::size_t i = 0; i < k; ++i) {
            const double difference = double{own[i]} - double{other[i]};
            apart += difference * difference;
            whole += double{own[i]} * double{own[i]};
        }
    }
    return apart / whole;
}

} // namespace

crumb::status open_replacements(const std::string& path) {
    auto file = lm::gguf::open(path);
    if (!file)
        return file.error();
    auto made = std::make_unique<packed_file>();
    made->file = std::move(*file);
    for (const lm::gguf_tensor& t : made->file.tensors()) {
        const auto header = lm::find_packed_header(t);
        if (!header)
            continue;
        auto books = lm::read_weight_codebooks(made->file, lm::format_name(*header));
        if (!books)
            return books.error();
        made->codebooks.push_back(std::move(*books));
        const auto plan = lm::open_packed(made->file, t);
        if (!plan)
            return plan.error();
        auto rows = lm::read_packed_rows(t.data, made->codebooks.back());
        if (!rows)
            return rows.error();
        made->matrices.emplace(t.name, replacement{*plan, std::move(*rows), t.data.size()});
    }
    if (made->matrices.empty())
        return crumb::status::error(crumb::errc::invalid_argument,
                                    "%s has no packed weights: crumb-lm quantize makes some in crumb's own "
                                    "formats, such as cb2s",
                                    lm::shown_path(path).c_str());
    opened() = std::move(made);
    return {};
}

bool has_replacements() noexcept { return opened() != nullptr; }

const replacement* find_replacement(const ggml_tensor* t, const void* blocks) {
    if (!has_replacements())
        return nullptr;
    const auto at = opened()->matrices.find(t->name);
    if (at == opened()->matrices.end())
        return nullptr;
    const replacement& w = at->second;
    const auto n = static_cast<std::int64_t>(w.plan.n()), k = static_cast<std::int64_t>(w.plan.k());
    if (t->ne[0] != k || t->ne[1] != n || t->ne[2] != 1 || t->ne[3] != 1) {
        log(GGML_LOG_LEVEL_WARN, "%s is not replaced: the shape is not that of weights=", t->name);
        return nullptr;
    }
    const double apart = distance(w, t, blocks);
    if (!(apart < 1)) {
        log(GGML_LOG_LEVEL_WARN, "%s is not replaced: weights= has it of another model", t->name);
        return nullptr;
    }
    if (the_options().verbose)
        log(GGML_LOG_LEVEL_INFO, "%s: %s, replaced, %.1f %% apart", t->name, ggml_type_name(t->type),
            100 * std::sqrt(apart));
    return &w;
}

void write_rows(const replacement& w, ggml_type type, std::size_t k, crumb::range rows, std::byte* to) {
    std::vector<float> row(k);
    for (std::size_t r = rows.begin; r < rows.end; ++r) {
        w.rows(r, row.data());
        to += ggml_quantize_chunk(type, row.data(), to, 0, 1, static_cast<std::int64_t>(k), nullptr);
    }
}

crumb::status check_floats(const ggml_tensor* t) {
    const lm::gguf_tensor* has = has_replacements() ? opened()->file.find_tensor(t->name) : nullptr;
    if (has == nullptr || has->type != lm::ggml_type::f32 || t->type != GGML_TYPE_F32 ||
        !ggml_is_contiguous(t) ||
        (has->data.size() == ggml_nbytes(t) && std::memcmp(has->data.data(), t->data, ggml_nbytes(t)) == 0))
        return {};
    return crumb::status::error(crumb::errc::invalid_argument,
                                "the file of weights= was made of another model: its %s differs", t->name);
}

} // namespace crumb_ggml
