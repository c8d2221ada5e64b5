#include "gguf/gguf.hpp"

#include "gguf/shown_text.hpp"

#include <algorithm>
#include <bit>

namespace lm {

using crumb::errc;
using crumb::status;
using namespace detail;

namespace {

constexpr std::uint64_t header_bytes = 24;
constexpr std::uint64_t smallest_key_bytes = 8 + 1 + 4 + 1;
constexpr std::uint64_t smallest_tensor_bytes = 8 + 1 + 4 + 8 + 4 + 8;
constexpr std::uint64_t longest_name = 65535;

unsigned long long ull(std::uint64_t value) noexcept { return value; }

status truncated(const std::string& what) {
    return status::error(errc::corrupt, "%s is truncated", what.c_str());
}

} // namespace

/// Fills a `gguf` from its bytes. Every read goes through `take`.
class gguf::parser {
  public:
    parser(std::span<const std::byte> bytes, gguf& out) noexcept : bytes_(bytes), out_(out) {}

    status run() {
        for (status (parser::*step)() : {&parser::header, &parser::keys, &parser::alignment, &parser::tensors,
                                         &parser::tensor_data, &parser::overlaps})
            if (status s = (this->*step)(); !s)
                return s;
        return {};
    }

  private:
    [[nodiscard]] std::uint64_t left() const noexcept { return bytes_.size() - at_; }

    std::optional<std::span<const std::byte>> take(std::uint64_t size) noexcept {
        if (size > left())
            return std::nullopt;
        const auto taken = bytes_.subspan(at_, static_cast<std::size_t>(size));
        at_ += static_cast<std::size_t>(size);
        return taken;
    }

    template <class T>
    bool read(T& value) noexcept {
        const auto taken = take(sizeof value);
        if (taken)
            std::memcpy(&value, taken->data(), sizeof value);
        return taken.has_value();
    }

    status name(std::string_view& text, const std::string& what) {
        std::uint64_t size = 0;
        if (!read(size))
            return truncated(what + ": its name");
        if (size == 0 || size > longest_name)
            return status::error(errc::corrupt, "%s: a name of %llu bytes (1 to 65535 are possible)",
                                 what.c_str(), ull(size));
        const auto taken = take(size);
        if (!taken)
            return truncated(what + ": its name");
        text = {reinterpret_cast<const char*>(taken->data()), taken->size()};
        return {};
    }

    status header() {
        if (bytes_.empty())
            return status::error(errc::corrupt, "the file is empty");
        if (reinterpret_cast<std::uintptr_t>(bytes_.data()) % 8 != 0)
            return status::error(errc::misaligned, "the file's bytes are not aligned to 8 in memory");
        constexpr std::string_view magic = "GGUF";
        if (std::memcmp(bytes_.data(), magic.data(), std::min(bytes_.size(), magic.size())) != 0)
            return status::error(errc::wrong_format, "not a GGUF file: wrong magic");
        if (bytes_.size() < header_bytes)
            return truncated("the header");
        at_ = magic.size();
        if (!read(out_.version_) || !read(tensor_count_) || !read(key_count_))
            return truncated("the header");
        if ((out_.version_ & 0xFFFF) == 0 && out_.version_ != 0)
            return status::error(errc::unsupported,
                                 "a big-endian GGUF file (only little-endian ones are read)");
        if (out_.version_ != 2 && out_.version_ != 3)
            return status::error(errc::wrong_version, "GGUF version %u (only 2 and 3 are read)",
                                 out_.version_);
        if (key_count_ > left() / smallest_key_bytes)
            return status::error(errc::corrupt, "%llu keys do not fit into a file of %llu bytes",
                                 ull(key_count_), ull(bytes_.size()));
        if (tensor_count_ > left() / smallest_tensor_bytes)
            return status::error(errc::corrupt, "%llu tensors do not fit into a file of %llu bytes",
                                 ull(tensor_count_), ull(bytes_.size()));
        return {};
    }

    status keys() {
        for (std::uint64_t i = 0; i < key_count_; ++i) {
            gguf_value value;
            if (status s = name(value.key, "key " + std::to_string(i)); !s)
                return s;
            if (status s = key_value(value, "key " + quoted(value.key)); !s)
                return s;
            if (!out_.value_index_.try_emplace(value.key, out_.values_.size()).second)
                return status::error(errc::corrupt, "key %s appears twice", quoted(value.key).c_str());
            out_.values_.push_back(value);
        }
        return {};
    }

    status key_value(gguf_value& value, const std::string& what) {
        if (!read(value.kind))
            return truncated(what);
        std::uint64_t count = 1;
        value.is_array = value.kind == gguf_kind::array;
        if (value.is_array && (!read(value.kind) || !read(count)))
            return truncated(what);
        if (value.kind == gguf_kind::array)
            return status::error(errc::unsupported, "%s: arrays of arrays are not read", what.c_str());
        const std::size_t size = gguf_kind_bytes(value.kind);
        const bool strings = value.kind == gguf_kind::string;
        if (size == 0 && !strings)
            return status::error(errc::corrupt, "%s: unknown kind %u", what.c_str(),
                                 static_cast<unsigned>(value.kind));
        if (count > left() / (strings ? sizeof(std::uint64_t) : size))
            return status::error(errc::corrupt, "%s: %llu values do not fit into the file", what.c_str(),
                                 ull(count));
        value.count = static_cast<std::size_t>(count);
        const std::size_t start = at_;
        if (strings) {
            for (std::uint64_t i = 0; i < count; ++i)
                if (std::uint64_t length = 0; !read(length) || !take(length))
                    return status::error(errc::corrupt, "%s: string %llu does not fit into the file",
                                         what.c_str(), ull(i));
        } else {
            at_ += value.count * size;
        }
        value.bytes = bytes_.subspan(start, at_ - start);
        if (value.kind == gguf_kind::boolean)
            for (std::byte b : value.bytes)
                if (b > std::byte{1})
                    return status::error(errc::corrupt, "%s: a bool of %u", what.c_str(),
                                         static_cast<unsigned>(b));
        return {};
    }

    status alignment() {
        constexpr std::string_view key = "general.alignment";
        const auto value = out_.get_u32(key, out_.alignment_);
        if (!value)
            return value.error();
        if (!std::has_single_bit(*value) || *value < 8)
            return status::error(errc::corrupt, "key %s is %u, not a power of two of at least 8",
                                 quoted(key).c_str(), *value);
        out_.alignment_ = *value;
        return {};
    }

    status tensors() {
        if (tensor_count_ > left() / smallest_tensor_bytes)
            return status::error(errc::corrupt, "%llu tensors do not fit into the file", ull(tensor_count_));
        for (std::uint64_t i = 0; i < tensor_count_; ++i) {
            gguf_tensor tensor;
            if (status s = name(tensor.name, "tensor " + std::to_string(i)); !s)
                return s;
            const std::string what = "tensor " + quoted(tensor.name);
            if (!read(tensor.rank))
                return truncated(what);
            if (tensor.rank == 0 || tensor.rank > tensor.dims.size())
                return status::error(errc::bad_shape, "%s has %u dimensions (1 to 4 are possible)",
                                     what.c_str(), tensor.rank);
            for (std::uint32_t d = 0; d < tensor.rank; ++d)
                if (!read(tensor.dims[d]))
                    return truncated(what);
            if (!read(tensor.type) || !read(tensor.offset))
                return truncated(what);
            if (!out_.tensor_index_.try_emplace(tensor.name, out_.tensors_.size()).second)
                return status::error(errc::corrupt, "%s appears twice", what.c_str());
            out_.tensors_.push_back(tensor);
        }
        return {};
    }

    status tensor_data() {
        const std::uint64_t mask = out_.alignment_ - 1;
        const std::uint64_t start = (at_ + mask) & ~mask;
        const std::uint64_t available = start < bytes_.size() ? bytes_.size() - start : 0;
        for (gguf_tensor& tensor : out_.tensors_) {
            const std::string what = quoted(tensor.name);
            const auto size = ggml_bytes(tensor.type, std::span(tensor.dims).first(tensor.rank));
            if (!size)
                return status::error(size.error().code(), "tensor %s %s", what.c_str(), size.message());
            if ((tensor.offset & mask) != 0)
                return status::error(errc::misaligned, "tensor %s: offset %llu is not a multiple of %u",
                                     what.c_str(), ull(tensor.offset), out_.alignment_);
            if (tensor.offset > available || *size > available - tensor.offset)
                return status::error(errc::corrupt, "tensor %s: its %llu bytes at %llu end beyond the file",
                                     what.c_str(), ull(*size), ull(tensor.offset));
            if (*size > 0)
                tensor.data = bytes_.subspan(static_cast<std::size_t>(start + tensor.offset),
                                             static_cast<std::size_t>(*size));
        }
        return {};
    }

    status overlaps() {
        std::vector<const gguf_tensor*> sorted;
        for (const gguf_tensor& tensor : out_.tensors_)
            if (!tensor.data.empty())
                sorted.push_back(&tensor);
        std::sort(sorted.begin(), sorted.end(),
                  [](const auto* a, const auto* b) { return a->offset < b->offset; });
        for (std::size_t i = 1; i < sorted.size(); ++i)
            if (sorted[i]->offset - sorted[i - 1]->offset < sorted[i - 1]->data.size())
                return status::error(errc::corrupt, "tensors %s and %s overlap",
                                     quoted(sorted[i - 1]->name).c_str(), quoted(sorted[i]->name).c_str());
        return {};
    }

    std::span<const std::byte> bytes_;
    gguf& out_;
    std::size_t at_ = 0;
    std::uint64_t key_count_ = 0;
    std::uint64_t tensor_count_ = 0;
};

crumb::result<gguf> gguf::parse(std::span<const std::byte> bytes) {
    gguf out;
    if (status s = parser(bytes, out).run(); !s)
        return s;
    return out;
}

crumb::result<gguf> gguf::open(const std::string& path) {
    std::string error;
    auto file = mapped_file::open(path, error);
    if (!file)
        return status::error(errc::invalid_argument, "%s", error.c_str());
    auto parsed = parse(file->bytes());
    if (!parsed)
        return status::error(parsed.error().code(), "%s: %s", shown_path(path).c_str(), parsed.message());
    parsed->file_ = std::move(*file);
    return parsed;
}

const gguf_value* gguf::find(std::string_view key) const noexcept {
    const auto found = value_index_.find(key);
    return found != value_index_.end() ? &values_[found->second] : nullptr;
}

const gguf_tensor* gguf::find_tensor(std::string_view name) const noexcept {
    const auto found = tensor_index_.find(name);
    return found != tensor_index_.end() ? &tensors_[found->second] : nullptr;
}

crumb::result<const gguf_tensor*> gguf::get_tensor(std::string_view name) const {
    if (const gguf_tensor* tensor = find_tensor(name))
        return tensor;
    return status::error(errc::invalid_argument, "tensor %s is missing", quoted(name).c_str());
}

crumb::result<const gguf_value*> gguf::get_array(std::string_view key) const {
    const gguf_value* value = find(key);
    if (value == nullptr)
        return missing(key);
    if (!value->is_array)
        return wrong_kind(*value, "an array");
    return value;
}

crumb::result<gguf_strings> gguf::get_strings(std::string_view key) const {
    const auto value = get_array(key);
    if (!value)
        return value.error();
    if ((*value)->kind != gguf_kind::string)
        return wrong_kind(**value, "an array of strings");
    return (*value)->strings();
}

crumb::result<std::vector<std::int32_t>> gguf::get_i32s(std::string_view key) const {
    const auto value = get_array(key);
    if (!value)
        return value.error();
    if (!is_integer((*value)->kind))
        return wrong_kind(**value, "an array of integers");
    return elements<std::int32_t>(**value, integer_of<std::int32_t>);
}

crumb::result<std::vector<float>> gguf::get_f32s(std::string_view key) const {
    const auto value = get_array(key);
    if (!value)
        return value.error();
    if (!is_real((*value)->kind))
        return wrong_kind(**value, "an array of floats");
    return elements<float>(**value, real_of);
}

crumb::result<std::uint32_t> gguf::get_u32(std::string_view key) const {
    return scalar<std::uint32_t>(find(key), key);
}
crumb::result<std::uint32_t> gguf::get_u32(std::string_view key, std::uint32_t fallback) const {
    return find(key) != nullptr ? get_u32(key) : fallback;
}
crumb::result<std::int32_t> gguf::get_i32(std::string_view key) const {
    return scalar<std::int32_t>(find(key), key);
}
crumb::result<std::int32_t> gguf::get_i32(std::string_view key, std::int32_t fallback) const {
    return find(key) != nullptr ? get_i32(key) : fallback;
}
crumb::result<std::uint64_t> gguf::get_u64(std::string_view key) const {
    return scalar<std::uint64_t>(find(key), key);
}
crumb::result<std::uint64_t> gguf::get_u64(std::string_view key, std::uint64_t fallback) const {
    return find(key) != nullptr ? get_u64(key) : fallback;
}
crumb::result<float> gguf::get_f32(std::string_view key) const { return scalar<float>(find(key), key); }
crumb::result<float> gguf::get_f32(std::string_view key, float fallback) const {
    return find(key) != nullptr ? get_f32(key) : fallback;
}
crumb::result<bool> gguf::get_bool(std::string_view key) const { return scalar<bool>(find(key), key); }
crumb::result<bool> gguf::get_bool(std::string_view key, bool fallback) const {
    return find(key) != nullptr ? get_bool(key) : fallback;
}
crumb::result<std::string_view> gguf::get_string(std::string_view key) const {
    return scalar<std::string_view>(find(key), key);
}
crumb::result<std::string_view> gguf::get_string(std::string_view key, std::string_view fallback) const {
    return find(key) != nullptr ? get_string(key) : fallback;
}

} // namespace lm
