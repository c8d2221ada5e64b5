// Valid parts of model files, made of random numbers: what seeds consist of, and what the mutator puts in.
#pragma once

#include "gguf/gguf_writer.hpp"
#include "model/matrix.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lm::fuzz {

using bytes = std::vector<std::byte>;

/// Numbers from a seed (splitmix64); cheap to make, unlike the standard's engines.
class dice {
  public:
    explicit dice(std::uint64_t seed) noexcept : state_(seed) {}
    std::uint64_t operator()() noexcept {
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return z ^ z >> 31;
    }
    /// One of 0 .. n - 1; n is not 0.
    std::size_t below(std::size_t n) noexcept { return static_cast<std::size_t>((*this)() % n); }
    bool one_in(std::size_t n) noexcept { return below(n) == 0; }
    float real(float most) noexcept { return most * (static_cast<float>((*this)() >> 40) * 0x1p-23f - 1.0f); }
    template <class T>
    auto& of(T& all) noexcept {
        return all[below(std::size(all))];
    }

  private:
    std::uint64_t state_;
};

/// Floats of magnitude `most` or less around `center`.
std::vector<float> floats(std::size_t count, float most, dice& random, float center = 0);
/// n x k weights of a format of `crumb::all_format_list`, packed.
bytes packed(weight_type type, std::size_t n, std::size_t k, dice& random);
bytes nested(std::size_t n, std::size_t k, int seed, int parent, dice& random);
/// Empty if the shape is impossible.
bytes neurons(const crumb::neuron_shape& shape, dice& random);
/// Whether this program computes with a type.
bool is_computed(ggml_type type);
/// The elements of a tensor of such a type; of others, zeros.
bytes elements(ggml_type type, std::size_t count, dice& random);

/// `packed` or `nested` by the header that stands at the beginning of `like`, with other sizes; empty if that
/// is not possible or more than `most` bytes.
bytes packed_like(std::span<const std::byte> like, std::size_t n, std::size_t k, std::size_t most,
                  dice& random);

/// A writer that keeps the bytes of its tensors.
class maker {
  public:
    explicit maker(std::uint32_t version = 3) : to(version, crumb::alignment) {}
    gguf_writer to;

    void add(std::string_view name, ggml_type type, std::span<const std::uint64_t> dims, bytes data) {
        kept_.push_back(std::move(data));
        to.add_tensor(name, type, dims, kept_.back());
    }
    /// A row of bytes.
    void add(std::string_view name, bytes data) {
        const std::uint64_t dims[] = {data.size()};
        add(name, ggml_type::i8, dims, std::move(data));
    }
    void add(std::string_view name, const std::vector<float>& values) {
        const std::uint64_t dims[] = {values.size()};
        const auto raw = std::as_bytes(std::span(values));
        add(name, ggml_type::f32, dims, bytes(raw.begin(), raw.end()));
    }

  private:
    std::deque<bytes> kept_;
};

} // namespace lm::fuzz
