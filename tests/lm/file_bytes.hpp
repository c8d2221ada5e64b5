// GGUF files in memory, to be damaged by the tests.
#pragma once

#include "gguf/gguf.hpp"
#include "gguf/gguf_writer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lm::test {

using bytes = std::vector<std::byte>;

inline bytes ramp(std::size_t size, int start = 0) {
    bytes data(size);
    for (std::size_t i = 0; i < size; ++i)
        data[i] = static_cast<std::byte>(static_cast<int>(i) + start);
    return data;
}

/// A block of memory of exactly the right size, so that the sanitizer sees any read beyond it.
class exact {
  public:
    explicit exact(std::span<const std::byte> from)
        : data_(static_cast<std::byte*>(std::malloc(std::max<std::size_t>(from.size(), 1)))),
          size_(from.size()) {
        std::copy(from.begin(), from.end(), data_);
    }
    exact(const exact&) = delete;
    exact& operator=(const exact&) = delete;
    ~exact() { std::free(data_); }
    [[nodiscard]] std::span<const std::byte> get() const noexcept { return {data_, size_}; }

  private:
    std::byte* data_;
    std::size_t size_;
};

/// A small file: keys n, b and s, tensors `first` (Q8_0, 64x2) and `second` (F32, 8).
inline bytes small_file(std::uint32_t version = 3, std::uint32_t alignment = 32) {
    const bytes data = ramp(136);
    const std::uint64_t first[] = {64, 2};
    const std::uint64_t second[] = {8};
    lm::gguf_writer file(version, alignment);
    file.set("number", std::uint32_t{7});
    file.set("truth", true);
    file.set("string", "text");
    file.add_tensor("first", lm::ggml_type::q8_0, first, data);
    file.add_tensor("second", lm::ggml_type::f32, second, std::span(data).first(32));
    return *file.bytes();
}

/// Where `text` begins in the file.
inline std::size_t find(const bytes& file, std::string_view text) {
    const auto raw = std::as_bytes(std::span(text));
    const auto found = std::search(file.begin(), file.end(), raw.begin(), raw.end());
    EXPECT_NE(found, file.end()) << text;
    return static_cast<std::size_t>(found - file.begin());
}

template <class T>
void poke(bytes& file, std::size_t at, T value) {
    ASSERT_LE(at + sizeof value, file.size());
    std::memcpy(file.data() + at, &value, sizeof value);
}

/// The error of a file, or an empty text.
inline std::string error_of(const bytes& file) {
    const exact copy(file);
    const auto parsed = lm::gguf::parse(copy.get());
    return parsed ? "" : parsed.message();
}

} // namespace lm::test
