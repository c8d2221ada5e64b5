// A transformer in double precision, straight from the tensors of a GGUF file. It runs none of the library's
// kernels.
#pragma once

#include "gguf/gguf.hpp"
#include "gguf/iq_decode.hpp"
#include "model/matrix.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace lm::test {

using vector = std::vector<double>;

inline double norm_of(const vector& x) {
    double squares = 0;
    for (const double v : x)
        squares += v * v;
    return std::sqrt(squares);
}
inline double largest_of(std::span<const double> x) {
    double most = 0;
    for (const double v : x)
        most = std::max(most, std::fabs(v));
    return most;
}
inline double distance(const vector& x, vector y) {
    for (std::size_t i = 0; i < y.size(); ++i)
        y[i] -= x[i];
    return norm_of(y);
}

struct naive_options {
    weight_type weights = weight_type::stored;
    bool half_cache = false;
    bool int8_activations = false;
};

/// Besides the exact logits it gives disturbed ones: every result of every operation is moved by the whole
/// error that the library documents for it, in a random direction. Worst cases of whole models grow far
/// beyond anything that happens, layer by layer; this is how far off errors of the documented size get.
class naive_model {
  public:
    explicit naive_model(const gguf& file, const naive_options& options = {})
        : file_(file), options_(options), arch_(*file.get_string("general.architecture")) {
        is_llama_ = arch_ == "llama";
        width_ = key("embedding_length");
        heads_ = key("attention.head_count");
        kv_heads_ = *file_.get_u32(arch_ + ".attention.head_count_kv", static_cast<std::uint32_t>(heads_));
        head_ = width_ / heads_;
        epsilon_ = *file_.get_f32(
            arch_ + (is_llama_ ? ".attention.layer_norm_rms_epsilon" : ".attention.layer_norm_epsilon"));
    }

    /// The logits behind every token.
    std::vector<vector> logits(std::span<const std::int32_t> tokens) {
        is_disturbed_ = false;
        return run(tokens);
    }
    /// For every token how far disturbed logits are from `exact` (Euclidean norm), the most of several tries.
    vector tolerance(std::span<const std::int32_t> tokens, const std::vector<vector>& exact) {
        is_disturbed_ = true;
        vector most(tokens.size());
        for (int i = 0; i < 16; ++i) {
            const auto off = run(tokens);
            for (std::size_t t = 0; t < most.size(); ++t)
                most[t] = std::max(most[t], distance(off[t], exact[t]));
        }
        return most;
    }

  private:
    struct matrix {
        std::size_t n = 0, k = 0;
        vector w;
        vector terms;                     ///< magnitudes of what weights are sums of; empty: of weights
        std::size_t activation_group = 0; ///< inputs that share a scale; 0: inputs are not quantized
    };

    // Twice the unit roundoff of float, as ISAs without fused multiply-add need it.
    static constexpr double eps = 0x1p-23;

    std::size_t key(const char* name) const { return *file_.get_u32(arch_ + "." + name); }

    void disturb(double& x, double error) {
        if (is_disturbed_)
            x += (random_() >> 63) != 0 ? error : -error;
    }

    static double half_value(const std::byte* at) {
        std::uint16_t bits;
        std::memcpy(&bits, at, sizeof bits);
        const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
        const double magnitude =
            exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
        return (bits & 0x8000) != 0 ? -magnitude : magnitude;
    }

    /// The numbers of a tensor, and if somebody wants them, the magnitudes of the terms that each is a sum
    /// of.
    vector decode(const gguf_tensor& t, vector* terms = nullptr) const {
        vector out(t.elements());
        const std::byte* data = t.data.data();
        if (const auto format = format_of(t.type)) {
            const double scale = tensor_scale(t);
            with_format(*format, [&]<class F>(std::type_identity<F>) {
                for (std::size_t i = 0; i < out.size(); ++i) {
                    typename F::block block;
                    std::memcpy(&block, data + i / crumb::block_inputs<F> * sizeof block, sizeof block);
                    out[i] = scale * weight<F>(block, i % crumb::block_inputs<F>);
                    if (terms != nullptr)
                        terms->push_back(std::fabs(out[i]) +
                                         2 * scale * minimum<F>(block, i % crumb::block_inputs<F>));
                }
            });
            return out;
        }
        if (is_decoded(t.type)) {
            std::vector<float> floats(out.size());
            (void)lm::decode(t.type, t.data, floats.data());
            return {floats.begin(), floats.end()};
        }
        for (std::size_t i = 0; i < out.size(); ++i) {
            if (t.type == ggml_type::f32) {
                float x;
                std::memcpy(&x, data + 4 * i, sizeof x);
                out[i] = double{x};
            } else if (t.type == ggml_type::bf16) {
                const std::byte four[4] = {{}, {}, data[2 * i], data[2 * i + 1]};
                float x;
                std::memcpy(&x, four, sizeof x);
                out[i] = double{x};
            } else {
                out[i] = half_value(data + 2 * i);
            }
        }
        return out;
    }
    double tensor_scale(const gguf_tensor& t) const {
        const std::string name(t.name.substr(0, t.name.rfind('.')));
        const gguf_tensor* scale = file_.find_tensor(name + ".scale");
        return t.type == ggml_type::nvfp4 && scale != nullptr ? decode(*scale)[0] : 1;
    }

    /// Weight i of a block, and the magnitude of what it begins at, under the scale of the tensor.
    template <class F>
    static double weight(const typename F::block& block, std::size_t i) {
        return crumb::storage_view<F>{&block, 1, crumb::block_inputs<F>, 1}.weight(0, i);
    }
    template <class F>
    static double minimum(const typename F::block& block, std::size_t i) {
        if constexpr (crumb::has_minima<F>)
            return std::fabs(double{to_float(F::minimum(block, i / F::scales::group))});
        else
            return 0;
    }

    /// To format F and back, block by block of each row; the last block of a row may be short.
    template <class F>
    static void round_to(matrix& m) {
        m.terms.clear();
        for (std::size_t at = 0; at < m.w.size();) {
            const std::size_t size = std::min(crumb::block_inputs<F>, m.k - at % m.k);
            float x[crumb::block_inputs<F>] = {};
            std::transform(m.w.data() + at, m.w.data() + at + size, x,
                           [](double v) { return static_cast<float>(v); });
            typename F::block block;
            F::encode(x, block);
            for (std::size_t i = 0; i < size; ++i) {
                m.w[at + i] = weight<F>(block, i);
                m.terms.push_back(std::fabs(m.w[at + i]) + 2 * minimum<F>(block, i));
            }
            at += size;
        }
    }

    const matrix& load(const std::string& name, weight_type type = weight_type::stored) {
        const auto [found, is_new] = matrices_.try_emplace(name);
        matrix& m = found->second;
        if (!is_new)
            return m;
        const gguf_tensor& t = **file_.get_tensor(name);
        m.n = t.dims[1];
        m.k = t.dims[0];
        m.w = decode(t, &m.terms);
        auto runs_as = type == weight_type::stored ? format_of(t.type) : std::optional(type);
        // What is only decoded runs as what the others become.
        if (type == weight_type::stored && is_decoded(t.type))
            runs_as = options_.weights == weight_type::stored ? weight_type::q8_0 : options_.weights;
        if (!runs_as)
            return m;
        with_format(*runs_as, [&]<class F>(std::type_identity<F>) {
            if constexpr (crumb::rounding_format<F>)
                if (ggml_type_of<F> != t.type)
                    round_to<F>(m);
            // Formats with records may have a scale of activations per block.
            m.activation_group = crumb::has_records<F> && crumb::block_inputs<F> == crumb::record_inputs
                                     ? crumb::record_inputs
                                     : crumb::group_size;
        });
        return m;
    }

    /// A row of the embedding or of the positions, which are not multiplied.
    vector row_of(const std::string& name, std::size_t row) {
        const auto [found, is_new] = rows_.try_emplace(name);
        if (is_new)
            found->second = decode(**file_.get_tensor(name));
        const auto begin = found->second.begin() + static_cast<std::ptrdiff_t>(row * width_);
        return {begin, begin + static_cast<std::ptrdiff_t>(width_)};
    }

    void add(vector& x, const vector& y) {
        for (std::size_t i = 0; i < x.size(); ++i) {
            x[i] += y[i];
            disturb(x[i], eps * std::fabs(x[i]));
        }
    }

    vector product(const matrix& m, vector x, const vector& bias) {
        if (m.activation_group != 0 && options_.int8_activations) {
            for (std::size_t begin = 0; begin < x.size(); begin += m.activation_group) {
                const auto group =
                    std::span(x).subspan(begin, std::min(m.activation_group, x.size() - begin));
                const double step = largest_of(group) / 127;
                for (double& v : group)
                    disturb(v, step / 2 + eps * std::fabs(v));
            }
        }
        vector y(m.n);
        for (std::size_t r = 0; r < m.n; ++r) {
            y[r] = bias.empty() ? 0 : bias[r];
            double magnitude = std::fabs(y[r]);
            for (std::size_t i = 0; i < m.k; ++i) {
                y[r] += m.w[r * m.k + i] * x[i];
                magnitude += std::fabs((m.terms.empty() ? m.w[r * m.k + i] : m.terms[r * m.k + i]) * x[i]);
            }
            // k / lanes + lanes roundings with 4 to 16 lanes, and the bias.
            disturb(y[r], (static_cast<double>(m.k) / 4 + 17) * eps * magnitude);
        }
        return y;
    }

    vector norm(const std::string& name, const vector& x) {
        const vector w = decode(**file_.get_tensor(name + ".weight"));
        const vector bias = is_llama_ ? vector(width_) : decode(**file_.get_tensor(name + ".bias"));
        const auto n = static_cast<double>(width_);
        double mean = 0, variance = 0;
        for (const double v : x)
            mean += is_llama_ ? 0 : v / n;
        for (const double v : x)
            variance += (v - mean) * (v - mean) / n;
        const double size = std::sqrt(variance + epsilon_), most = largest_of(x);
        vector y(width_);
        for (std::size_t i = 0; i < width_; ++i) {
            y[i] = w[i] * (x[i] - mean) / size + bias[i];
            disturb(y[i], is_llama_ ? (n / 16 + 14) * eps * std::fabs(y[i])
                                    : (n / 8 + 24) * eps *
                                          (std::fabs(w[i]) * (std::fabs(x[i] - mean) + most) / size +
                                           std::fabs(y[i])));
        }
        return y;
    }

    /// Turns every head of the token at `position`, in place.
    void rope(vector& x, std::size_t position) {
        const std::size_t dims =
            *file_.get_u32("llama.rope.dimension_count", static_cast<std::uint32_t>(head_));
        const double base = *file_.get_f32("llama.rope.freq_base", 10000.0f);
        for (std::size_t start = 0; start < x.size(); start += head_) {
            for (std::size_t i = 0; i < dims; i += 2) {
                const double angle = static_cast<double>(position) *
                                     std::pow(base, -static_cast<double>(i) / static_cast<double>(dims));
                const double a = x[start + i], b = x[start + i + 1];
                x[start + i] = a * std::cos(angle) - b * std::sin(angle);
                x[start + i + 1] = a * std::sin(angle) + b * std::cos(angle);
                disturb(x[start + i], 3 * eps * (std::fabs(a) + std::fabs(b)));
                disturb(x[start + i + 1], 3 * eps * (std::fabs(a) + std::fabs(b)));
            }
        }
    }

    void keep(vector& x) {
        if (options_.half_cache)
            for (double& v : x)
                disturb(v, 0x1p-11 * std::fabs(v) + 0x1p-25);
    }

    /// All heads of one query over the keys and values of the first `tokens`.
    vector attend(const vector& q, const std::vector<vector>& k, const std::vector<vector>& v,
                  std::size_t tokens) {
        const double scale = 1 / std::sqrt(static_cast<double>(head_));
        vector y(width_);
        for (std::size_t h = 0; h < heads_; ++h) {
            const std::size_t at = h / (heads_ / kv_heads_) * head_;
            vector p(tokens);
            double most = -1e300, magnitude = 0, largest = 0, total = 0;
            for (std::size_t t = 0; t < tokens; ++t) {
                double terms = 0;
                for (std::size_t i = 0; i < head_; ++i) {
                    const double term = scale * q[h * head_ + i] * k[t][at + i];
                    p[t] += term;
                    terms += std::fabs(term);
                    largest = std::max(largest, std::fabs(v[t][at + i]));
                }
                most = std::max(most, p[t]);
                magnitude = std::max(magnitude, terms);
            }
            for (double& each : p)
                total += each = std::exp(each - most);
            for (std::size_t i = 0; i < head_; ++i) {
                double& out = y[h * head_ + i];
                for (std::size_t t = 0; t < tokens; ++t)
                    out += p[t] / total * v[t][at + i];
                disturb(out, ((4 + 2 * static_cast<double>(head_)) * magnitude + static_cast<double>(tokens) +
                              32) *
                                 eps * largest);
            }
        }
        return y;
    }

    void layer(const std::string& blk, std::vector<vector>& h) {
        const auto through = [&](const char* name, const vector& x) {
            const vector bias = is_llama_ ? vector() : decode(**file_.get_tensor(blk + name + ".bias"));
            return product(load(blk + name + ".weight", options_.weights), x, bias);
        };
        std::vector<vector> q, k, v;
        for (std::size_t t = 0; t < h.size(); ++t) {
            const vector x = norm(blk + "attn_norm", h[t]);
            if (is_llama_) {
                q.push_back(through("attn_q", x));
                k.push_back(through("attn_k", x));
                v.push_back(through("attn_v", x));
                rope(q[t], t);
                rope(k[t], t);
            } else {
                const vector qkv = through("attn_qkv", x);
                const auto begin = qkv.begin();
                const auto size = static_cast<std::ptrdiff_t>(width_);
                q.emplace_back(begin, begin + size);
                k.emplace_back(begin + size, begin + 2 * size);
                v.emplace_back(begin + 2 * size, qkv.end());
            }
            keep(k[t]);
            keep(v[t]);
        }
        for (std::size_t t = 0; t < h.size(); ++t) {
            add(h[t], through("attn_output", attend(q[t], k, v, t + 1)));
            const vector x = norm(blk + "ffn_norm", h[t]);
            vector inner = through("ffn_up", x);
            const vector gate = is_llama_ ? through("ffn_gate", x) : vector();
            for (std::size_t i = 0; i < inner.size(); ++i) {
                double& y = inner[i];
                if (is_llama_) {
                    y *= gate[i] / (1 + std::exp(-gate[i]));
                    disturb(y, 9 * eps * std::fabs(y));
                } else {
                    const double u = std::sqrt(2 / 3.14159265358979323846) * (y + 0.044715 * y * y * y);
                    y = y / 2 * (1 + std::tanh(u));
                    disturb(y, (24 + 12 * std::fabs(u)) * eps * std::fabs(y));
                }
            }
            add(h[t], through("ffn_down", inner));
        }
    }

    std::vector<vector> run(std::span<const std::int32_t> tokens) {
        std::vector<vector> h;
        for (std::size_t t = 0; t < tokens.size(); ++t) {
            h.push_back(row_of("token_embd.weight", static_cast<std::size_t>(tokens[t])));
            if (!is_llama_)
                add(h[t], row_of("position_embd.weight", t));
        }
        for (std::size_t l = 0; l < key("block_count"); ++l)
            layer("blk." + std::to_string(l) + ".", h);
        const bool tied = file_.find_tensor("output.weight") == nullptr;
        for (vector& row : h)
            row = product(load(tied ? "token_embd.weight" : "output.weight"), norm("output_norm", row), {});
        return h;
    }

    const gguf& file_;
    naive_options options_;
    std::string arch_;
    bool is_llama_ = false, is_disturbed_ = false;
    std::size_t width_ = 0, heads_ = 0, kv_heads_ = 0, head_ = 0;
    double epsilon_ = 0;
    std::map<std::string, matrix> matrices_;
    std::map<std::string, vector> rows_;
    std::mt19937_64 random_{1};
};

} // namespace lm::test
