// The activation between the two products of a feed-forward network, by value.
#pragma once

#include <crumb/op/float_ops.hpp>

#include <array>
#include <cstring>
#include <type_traits>

namespace crumb::inline CRUMB_ABI {

/// s = sigma(u), element by element. Copy it freely.
class activation_function {
  public:
    /// The functions of `float_ops`, ReLU, and any other.
    enum class kind : std::uint8_t { gelu_tanh, gelu_erf, silu, relu, custom };

    /// One of the library's own; errors as of `float_ops`, ReLU is exact.
    activation_function(kind k = kind::gelu_tanh) noexcept : kind_(k), apply_(&relu) {}

    /// Any function float(float) noexcept that is trivially copyable and no larger than 16 bytes.
    template <class F>
    requires(std::is_nothrow_invocable_r_v<float, const F&, float> && std::is_trivially_copyable_v<F> &&
             sizeof(F) <= 16)
    activation_function(const F& f) noexcept
        : kind_(kind::custom),
          apply_([](const void* object, const float* u, float* s, std::size_t n) noexcept {
              std::array<std::byte, sizeof(F)> bytes;
              std::memcpy(bytes.data(), object, sizeof(F));
              const F function = std::bit_cast<F>(bytes);
              for (std::size_t i = 0; i < n; ++i)
                  s[i] = function(u[i]);
          }) {
        std::memcpy(object_.data(), &f, sizeof(F));
    }

    /// Which function it is.
    kind of() const noexcept { return kind_; }

    /// s[i] = sigma(u[i]), i < n; s may be u.
    void apply(const float_ops& ops, const float* u, float* s, std::size_t n) const noexcept {
        const auto from = matrix<const float>(u, 1, n);
        const auto to = matrix(s, 1, n);
        switch (kind_) {
        case kind::gelu_tanh:
            return ops.gelu_tanh(from, to);
        case kind::gelu_erf:
            return ops.gelu_erf(from, to);
        case kind::silu:
            return ops.silu(from, to);
        default:
            return apply_(object_.data(), u, s, n);
        }
    }

  private:
    static void relu(const void*, const float* u, float* s, std::size_t n) noexcept {
        for (std::size_t i = 0; i < n; ++i)
            s[i] = u[i] < 0 ? 0.0f : u[i];
    }

    kind kind_;
    alignas(8) std::array<std::byte, 16> object_{};
    void (*apply_)(const void*, const float*, float*, std::size_t) noexcept;
};

} // namespace crumb::inline CRUMB_ABI
