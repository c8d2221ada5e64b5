// libFuzzer target: whatever the bytes are, the reader and the tokenizer neither crash nor read outside of
// them.
#include "gguf.hpp"
#include "tokenizer.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace {

/// Depends on everything that was read, so that no read is optimized away.
volatile std::uint64_t sink;

void touch(const lm::gguf_value& value) {
    std::uint64_t sum = value.key.size();
    for (std::size_t i = 0; i < value.count && value.kind != lm::gguf_kind::string; ++i) {
        sum += value.integer<std::uint64_t>(i).value_or(1);
        sum += static_cast<std::uint64_t>(value.integer<std::int8_t>(i).value_or(1));
        sum += value.real(i).has_value() ? 1 : 0;
        sum += value.boolean(i).value_or(false) ? 1 : 0;
    }
    std::size_t strings = 0;
    for (std::string_view text : value.strings()) {
        ++strings;
        if (!text.empty())
            sum += static_cast<unsigned char>(text.front()) + static_cast<unsigned char>(text.back());
    }
    if (value.kind == lm::gguf_kind::string && strings != value.count)
        std::abort();
    sink = sink + sum;
}

void touch(const lm::gguf& file, std::string_view key) {
    const bool good[] = {file.get_u32(key).ok(),     file.get_i32(key).ok(),  file.get_u64(key).ok(),
                         file.get_f32(key).ok(),     file.get_bool(key).ok(), file.get_string(key).ok(),
                         file.get_strings(key).ok(), file.get_i32s(key).ok(), file.get_f32s(key).ok()};
    for (bool g : good)
        sink = sink + (g ? 1 : 0);
}

void tokenize(const lm::gguf& file) {
    const auto tokenizer = lm::tokenizer::make(file);
    if (!tokenizer)
        return;
    for (std::string_view text :
         {"Hello  world's 123 \n\xE2\x96\x81!", "", " ", "\xC3\xA9\xFF\x80 aaaaabbbb<s>"}) {
        for (std::int32_t token : tokenizer->encode(text, true)) {
            if (token < 0 || static_cast<std::size_t>(token) >= tokenizer->vocab_size())
                std::abort();
            sink = sink + tokenizer->decode(token).size();
        }
    }
    sink = sink + tokenizer->decode(-1).size() + static_cast<std::uint64_t>(tokenizer->bos().value_or(0));
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    // A copy at an aligned address with nothing behind it, so that reads beyond the end are noticed.
    auto* copy = static_cast<std::byte*>(std::malloc(size == 0 ? 1 : size));
    if (size > 0)
        std::memcpy(copy, data, size);
    if (const auto file = lm::gguf::parse({copy, size})) {
        for (const lm::gguf_value& value : file->values()) {
            touch(value);
            touch(*file, value.key);
        }
        for (const lm::gguf_tensor& tensor : file->tensors()) {
            if (file->find_tensor(tensor.name) != &tensor || tensor.elements() == 0)
                std::abort();
            if (!tensor.data.empty())
                sink = sink + static_cast<std::uint64_t>(tensor.data.front()) +
                       static_cast<std::uint64_t>(tensor.data.back());
        }
        tokenize(*file);
    } else if (file.message()[0] == '\0') {
        std::abort();
    }
    std::free(copy);
    return 0;
}
