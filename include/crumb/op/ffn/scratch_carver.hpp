// How the scratch memory of folded networks is carved.
#pragma once

#include <crumb/op/linear/any_linear.hpp>

namespace crumb::inline CRUMB_ABI::detail {

/// Carves scratch memory, and measures how much there has to be: what does not fit is null.
class scratch_carver {
  public:
    explicit scratch_carver(std::span<std::byte> memory) noexcept : memory_(memory) {}

    std::size_t bytes() const noexcept { return at_; }
    template <class T>
    T* take(std::size_t count) noexcept {
        const std::size_t begin = at_;
        at_ += round_up(count * sizeof(T), alignment);
        return at_ <= memory_.size() ? reinterpret_cast<T*>(memory_.data() + begin) : nullptr;
    }
    std::span<std::byte> take_bytes(std::size_t bytes) noexcept {
        std::byte* p = take<std::byte>(bytes);
        return {p, p == nullptr ? 0 : bytes};
    }
    /// Activations for a product, or empty ones for a product that reads floats.
    activations take_activations(const activation_plan& plan, std::size_t rows) noexcept {
        const std::span<std::byte> memory = take_bytes(activation_bytes(plan, rows));
        return memory.empty() ? activations() : *activations::attach(memory, plan, rows);
    }
    activations take_activations(const any_linear& weights, std::size_t rows) noexcept {
        return weights.reads_activations() ? take_activations(weights.input_plan(), rows) : activations();
    }

  private:
    std::span<std::byte> memory_;
    std::size_t at_ = 0;
};

} // namespace crumb::inline CRUMB_ABI::detail
