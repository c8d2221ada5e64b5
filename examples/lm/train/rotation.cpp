#include "train/rotation.hpp"

#include "gguf/gguf_writer.hpp"
#include "gguf/shown_text.hpp"
#include "model/model_identity.hpp"

#include <crumb/offline/common/random.hpp>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>
#include <string>
#include <string_view>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

rotation::rotation(std::size_t width, std::uint64_t seed) : signs_(width) {
    crumb::splitmix64 random(seed);
    for (double& sign : signs_)
        sign = (random.next() >> 63) != 0 ? -1.0 : 1.0;
    while (width % (2 * block_) == 0)
        block_ *= 2;
    // The orthonormal transform of cosines (DCT-II).
    const std::size_t m = width / block_;
    cosines_.resize(m * m);
    for (std::size_t row = 0; row < m; ++row)
        for (std::size_t i = 0; i < m; ++i)
            cosines_[row * m + i] = std::sqrt((i == 0 ? 1.0 : 2.0) / static_cast<double>(m)) *
                                    std::cos(std::numbers::pi * (static_cast<double>(row) + 0.5) *
                                             static_cast<double>(i) / static_cast<double>(m));
}

void rotation::apply(std::span<double> x) const {
    for (std::size_t i = 0; i < x.size(); ++i)
        x[i] *= signs_[i];
    for (std::size_t step = 1; step < block_; step *= 2)
        for (std::size_t first = 0; first < x.size(); first += 2 * step)
            for (std::size_t i = first; i < first + step; ++i) {
                const double a = x[i], b = x[i + step];
                x[i] = a + b;
                x[i + step] = a - b;
            }
    const std::size_t m = x.size() / block_;
    const double scale = 1 / std::sqrt(static_cast<double>(block_));
    std::vector<double> mixed(m);
    for (std::size_t i = 0; i < block_; ++i) {
        std::fill(mixed.begin(), mixed.end(), 0.0);
        for (std::size_t from = 0; from < m; ++from)
            for (std::size_t to = 0; to < m; ++to)
                mixed[to] += x[from * block_ + i] * cosines_[from * m + to];
        for (std::size_t to = 0; to < m; ++to)
            x[to * block_ + i] = scale * mixed[to];
    }
}

namespace {

/// Numbers that become halves.
class halves {
  public:
    explicit halves(std::size_t count) : values_(count) {}
    void put(std::size_t at, double x) {
        values_[at] = crumb::to_half(static_cast<float>(x));
        is_finite_ = is_finite_ && std::fabs(x) < 65504;
    }
    bool is_finite() const noexcept { return is_finite_; }
    std::span<const std::byte> bytes() const noexcept { return std::as_bytes(std::span(values_)); }

  private:
    std::vector<crumb::half> values_;
    bool is_finite_ = true;
};

class rotator {
  public:
    rotator(const model& m, std::uint64_t seed) : m_(m), r_(m.shape().width, seed), seed_(seed) {}

    status check() const {
        const char* why = nullptr;
        const architecture_traits& t = m_.shape().traits;
        if (t.norms != norm_type::rms)
            why = "its norms subtract means";
        else if (t.post_norms)
            why = "it norms what is added to the residual stream";
        else if (t.learned_positions)
            why = "it adds learned positions";
        else if (m_.precisions())
            why = "its weights are nested";
        else if (m_.file().find(rotation_key) != nullptr)
            why = "it is rotated already";
        return why == nullptr
                   ? status()
                   : status::error(errc::unsupported, "%s: its residual stream cannot be rotated: %s",
                                   shown_path(m_.path()).c_str(), why);
    }

    status write(gguf_writer& to) {
        for (const gguf_value& value : m_.file().values())
            if (value.key != "general.file_type" && !value.key.starts_with(matrix_extras::codebook_key("")))
                to.set(value);
        to.set(rotation_key, model_identity(m_) * 0x9e3779b97f4a7c15u + seed_);
        for (const gguf_tensor& t : m_.file().tensors())
            if (const status s = add(to, t); !s)
                return s;
        if (m_.output_tensor() == std::string_view("token_embd.weight"))
            add_basis(to);
        return {};
    }

  private:
    enum class change { none, reads, writes, ones };

    /// What happens to a tensor, and the norm before it.
    change change_of(std::string_view name, const std::vector<float>*& norm) const {
        norm = nullptr;
        if (name == "token_embd.weight")
            return change::reads;
        if (name == "output.weight") {
            norm = &m_.output_norm();
            return change::reads;
        }
        if (name == "output_norm.weight" || name.ends_with(".attn_norm.weight") ||
            name.ends_with(".ffn_norm.weight"))
            return change::ones;
        if (const auto role = find_role(name)) {
            const model_layer& l = m_.layers()[role->layer];
            norm = role->reads == 0 ? &l.attention_norm : role->reads == 2 ? &l.ffn_norm : nullptr;
            return norm != nullptr ? change::reads : change::writes;
        }
        if (name.ends_with(".attn_output.bias") || name.ends_with(".ffn_down.bias"))
            return change::reads;
        return change::none;
    }

    status add(gguf_writer& to, const gguf_tensor& t) {
        const std::vector<float>* norm = nullptr;
        const change what = change_of(t.name, norm);
        if (what == change::none) {
            // What belongs to a tensor that has become another is not read any more.
            if (!t.name.ends_with(".scale") && !t.name.ends_with(".input_scale"))
                to.add_tensor(t);
            return {};
        }
        const matrix_shape shape = shape_of(t);
        const std::uint64_t dims[] = {shape.k, shape.n};
        if (what == change::ones) {
            ones_.assign(m_.shape().width, 1.0f);
            to.add_tensor(t.name, ggml_type::f32, std::span(dims).first(1), std::as_bytes(std::span(ones_)));
            return {};
        }
        const bool is_bias = t.name.ends_with(".bias");
        if ((what == change::reads ? shape.k : shape.n) != r_.width())
            return status::error(errc::bad_shape,
                                 "tensor %s: %zu x %zu, the residual stream has %zu channels",
                                 std::string(t.name).c_str(), shape.n, shape.k, r_.width());
        // One matrix at a time is there while it is written.
        auto now = std::make_shared<std::unique_ptr<halves>>();
        to.add_generated(t.name, ggml_type::f16, std::span(dims).first(is_bias ? 1 : 2),
                         [this, &t, what, norm, now](std::uint64_t at, std::span<std::byte> out) {
                             if (at == 0) {
                                 auto made = rotated(t, what, norm);
                                 if (!made)
                                     return std::string(made.message());
                                 *now = std::make_unique<halves>(std::move(*made));
                             }
                             const auto all = (*now)->bytes();
                             const auto piece = all.subspan(at, out.size());
                             std::copy(piece.begin(), piece.end(), out.begin());
                             if (at + out.size() == all.size())
                                 now->reset();
                             return std::string();
                         });
        return {};
    }

    result<halves> rotated(const gguf_tensor& t, change what, const std::vector<float>* norm) const {
        const auto floats = to_floats(t, m_.extras());
        if (!floats)
            return floats.error();
        const matrix_shape shape = shape_of(t);
        halves out(shape.n * shape.k);
        const std::size_t width = r_.width(), lines = shape.n * shape.k / width;
        // A row of what reads the stream, a column of what writes to it.
        const std::size_t step = what == change::reads ? 1 : shape.k,
                          next = what == change::reads ? width : 1;
        std::vector<double> line(width);
        for (std::size_t l = 0; l < lines; ++l) {
            for (std::size_t i = 0; i < width; ++i)
                line[i] =
                    double{(*floats)[l * next + i * step]} * (norm != nullptr ? double{(*norm)[i]} : 1.0);
            r_.apply(line);
            for (std::size_t i = 0; i < width; ++i)
                out.put(l * next + i * step, line[i]);
        }
        if (!out.is_finite())
            return status::error(errc::not_finite,
                                 "tensor %s: rotated weights are beyond the range of halves",
                                 std::string(t.name).c_str());
        return out;
    }

    /// R^T diag(norm) R.
    void add_basis(gguf_writer& to) {
        const std::size_t width = r_.width();
        // Rows of diag(norm) R, then columns of R^T times that.
        std::vector<double> scaled(width * width);
        for (std::size_t i = 0; i < width; ++i) {
            scaled[i * width + i] = double{m_.output_norm()[i]};
            r_.apply(std::span(scaled).subspan(i * width, width));
        }
        std::vector<double> column(width);
        basis_ = std::make_unique<halves>(width * width);
        for (std::size_t j = 0; j < width; ++j) {
            for (std::size_t i = 0; i < width; ++i)
                column[i] = scaled[i * width + j];
            r_.apply(column);
            for (std::size_t i = 0; i < width; ++i)
                basis_->put(i * width + j, column[i]);
        }
        const std::uint64_t dims[] = {width, width};
        to.add_tensor(output_basis_tensor, ggml_type::f16, dims, basis_->bytes());
    }

    const model& m_;
    rotation r_;
    std::uint64_t seed_;
    std::vector<float> ones_;
    std::unique_ptr<halves> basis_;
};

} // namespace

status write_rotated(const model& m, std::uint64_t seed, const std::string& path,
                     const progress_function& progress) {
    rotator r(m, seed);
    if (const status s = r.check(); !s)
        return s;
    gguf_writer file;
    if (const status s = r.write(file); !s)
        return s;
    return file.write(path, progress);
}

} // namespace lm
