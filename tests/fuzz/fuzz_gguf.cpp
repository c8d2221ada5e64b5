// libFuzzer target: whatever the bytes are, the reader refuses them or what it hands out lies within them.
// What it reads is written and read again, and is the same.
#include "gguf/gguf_writer.hpp"
#include "parsed_file.hpp"

namespace lm::fuzz {
namespace {

void read_all(const gguf_value& value) {
    std::uint64_t sum = value.key.size();
    for (std::size_t i = 0; i < value.count && value.kind != gguf_kind::string; ++i) {
        sum += value.integer<std::uint64_t>(i).value_or(1);
        sum += static_cast<std::uint64_t>(value.integer<std::int8_t>(i).value_or(1));
        sum += value.real(i).has_value() ? 1 : 0;
        sum += value.boolean(i).value_or(false) ? 1 : 0;
    }
    std::size_t strings = 0;
    for (const std::string_view text : value.strings()) {
        ++strings;
        consume(std::as_bytes(std::span(text)));
    }
    check(value.kind != gguf_kind::string || strings == value.count, "strings are lost");
    consume(sum);
}

template <class T>
void check_getter(const crumb::result<T>& got) {
    if (!got)
        check_refusal(got.error());
}

void get_all(const gguf& file, std::string_view key) {
    check_getter(file.get_u32(key));
    check_getter(file.get_i32(key));
    check_getter(file.get_u64(key));
    check_getter(file.get_bool(key));
    check_getter(file.get_string(key));
    check_getter(file.get_strings(key));
    check_getter(file.get_i32s(key));
    if (const auto real = file.get_f32(key, 1.0f))
        check(std::isfinite(*real), "a float that is not finite");
    if (const auto reals = file.get_f32s(key))
        check(all_finite(*reals), "floats that are not finite");
    check(file.get_u32(key, 1).ok() == (file.find(key) == nullptr || file.get_u32(key).ok()),
          "a fallback is taken for a key that is there, or not for one that is missing");
    consume(file.get_i32(key, -1).ok() + file.get_u64(key, 1).ok() + file.get_bool(key, true).ok() +
            file.get_string(key, "").ok());
}

void compare(const gguf& a, const gguf& b) {
    check(a.values().size() <= b.values().size() + 1 && a.tensors().size() == b.tensors().size(),
          "written and read, the file has other contents");
    for (const gguf_value& v : a.values()) {
        const gguf_value* w = b.find(v.key);
        if (v.key == "general.alignment")
            continue;
        check(w != nullptr && w->kind == v.kind && w->is_array == v.is_array && w->count == v.count &&
                  std::equal(v.bytes.begin(), v.bytes.end(), w->bytes.begin(), w->bytes.end()),
              "written and read, a key is another");
    }
    for (const gguf_tensor& t : a.tensors()) {
        const gguf_tensor* u = b.find_tensor(t.name);
        check(u != nullptr && u->type == t.type && u->rank == t.rank && u->dims == t.dims &&
                  std::equal(t.data.begin(), t.data.end(), u->data.begin(), u->data.end()),
              "written and read, a tensor is another");
    }
}

void check_file(const gguf& file) {
    for (const gguf_value& value : file.values()) {
        read_all(value);
        get_all(file, value.key);
    }
    get_all(file, "a key that no file has");
    bool known = true;
    for (const gguf_tensor& tensor : file.tensors()) {
        check(file.find_tensor(tensor.name) == &tensor && file.get_tensor(tensor.name).ok(),
              "a tensor is not found");
        check(tensor.elements() != 0, "a tensor without elements");
        check(tensor.data.empty() == (find_ggml_type(tensor.type) == nullptr), "bytes of an unknown type");
        known = known && !tensor.data.empty();
        consume(tensor.data);
        check_getter(tensor.numbers<float>(tensor.data.size() / sizeof(float)));
        check_getter(tensor.numbers<std::int8_t>(tensor.data.size()));
    }
    if (!known || file.alignment() > 4096)
        return;
    gguf_writer writer(file.version(), file.alignment());
    for (const gguf_value& value : file.values())
        writer.set(value);
    for (const gguf_tensor& tensor : file.tensors())
        writer.add_tensor(tensor);
    const auto again = writer.bytes();
    check(again.ok(), "what was read cannot be written");
    const exact_copy second(*again);
    const auto reread = gguf::parse(second.bytes());
    check(reread.ok(), "what was written cannot be read");
    compare(file, *reread);
}

} // namespace

void run(std::span<const std::byte> input) { with_file(input, check_file); }

} // namespace lm::fuzz
