#include "gguf/gguf_writer.hpp"

#include "gguf/gguf.hpp"
#include "gguf/output_file.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace lm {

using crumb::errc;
using crumb::status;

namespace {

void append_bytes(std::vector<std::byte>& out, const void* bytes, std::size_t size) {
    if (size == 0)
        return;
    const std::size_t at = out.size();
    out.resize(at + size);
    std::memcpy(out.data() + at, bytes, size);
}

template <class T>
void append(std::vector<std::byte>& out, T value) {
    append_bytes(out, &value, sizeof value);
}

void append_string(std::vector<std::byte>& out, std::string_view text) {
    append(out, std::uint64_t{text.size()});
    append_bytes(out, text.data(), text.size());
}

bool is_name(std::string_view name) noexcept { return !name.empty() && name.size() <= 65535; }

} // namespace

gguf_writer::gguf_writer(std::uint32_t version, std::uint32_t alignment)
    : version_(version), alignment_(alignment) {
    if (version != 2 && version != 3)
        fail(status::error(errc::invalid_argument, "version %u cannot be written (2 and 3 can)", version));
    if (!std::has_single_bit(alignment) || alignment < 8)
        fail(status::error(errc::invalid_argument, "alignment %u is not a power of two of at least 8",
                           alignment));
}

void gguf_writer::fail(status error) {
    if (error_.ok())
        error_ = error;
}

void gguf_writer::set(std::string_view key, std::string_view value) {
    std::vector<std::byte> bytes;
    append_string(bytes, value);
    put(key, gguf_kind::string, false, 1, std::move(bytes));
}

void gguf_writer::set_strings(std::string_view key, std::span<const std::string> values) {
    std::vector<std::byte> bytes;
    for (const std::string& value : values)
        append_string(bytes, value);
    put(key, gguf_kind::string, true, values.size(), std::move(bytes));
}

void gguf_writer::set(const gguf_value& value) {
    put(value.key, value.kind, value.is_array, value.count, {value.bytes.begin(), value.bytes.end()});
}

void gguf_writer::put(std::string_view key, gguf_kind kind, bool is_array, std::uint64_t count,
                      std::vector<std::byte> bytes) {
    if (!is_name(key))
        return fail(status::error(errc::invalid_argument, "a key of %zu bytes (1 to 65535 are possible)",
                                  key.size()));
    if (key == "general.alignment")
        return;
    const auto [found, is_new] = index_.try_emplace(std::string(key), entries_.size());
    entry value{std::string(key), kind, is_array, count, std::move(bytes)};
    if (is_new)
        entries_.push_back(std::move(value));
    else
        entries_[found->second] = std::move(value);
}

std::optional<std::uint64_t> gguf_writer::check(std::string_view name, ggml_type type,
                                                std::span<const std::uint64_t> dims) {
    const std::string what = quoted(name);
    const auto size = ggml_bytes(type, dims);
    if (!is_name(name))
        fail(status::error(errc::invalid_argument, "a tensor's name of %zu bytes (1 to 65535 are possible)",
                           name.size()));
    else if (!size)
        fail(status::error(size.error().code(), "tensor %s %s", what.c_str(), size.message()));
    else if (find_ggml_type(type) == nullptr)
        fail(status::error(errc::unsupported, "tensor %s: %s is unknown", what.c_str(),
                           ggml_type_name(type).c_str()));
    else
        return *size;
    return std::nullopt;
}

void gguf_writer::add_tensor(const gguf_tensor& t) {
    add_tensor(t.name, t.type, std::span(t.dims).first(t.rank), t.data);
}

void gguf_writer::copy(const gguf& file, std::string_view without) {
    for (const gguf_value& value : file.values())
        if (!value.key.starts_with(without))
            set(value);
    for (const gguf_tensor& t : file.tensors())
        if (!t.name.starts_with(without))
            add_tensor(t);
}

void gguf_writer::add_tensor(std::string_view name, ggml_type type, std::span<const std::uint64_t> dims,
                             std::span<const std::byte> data) {
    const auto size = check(name, type, dims);
    if (!size)
        return;
    const std::string what = quoted(name);
    if (data.size() != *size)
        return fail(status::error(errc::bad_shape, "tensor %s has %zu bytes of data, its shape needs %llu",
                                  what.c_str(), data.size(), static_cast<unsigned long long>(*size)));
    if (!names_.emplace(name).second)
        return fail(status::error(errc::invalid_argument, "tensor %s is added twice", what.c_str()));
    tensors_.push_back({std::string(name), type, {dims.begin(), dims.end()}, *size, data, {}});
}

void gguf_writer::add_generated(std::string_view name, ggml_type type, std::span<const std::uint64_t> dims,
                                source data) {
    const auto size = check(name, type, dims);
    if (!size)
        return;
    if (!names_.emplace(name).second)
        return fail(status::error(errc::invalid_argument, "tensor %s is added twice", quoted(name).c_str()));
    tensors_.push_back({std::string(name), type, {dims.begin(), dims.end()}, *size, {}, std::move(data)});
}

template <class F>
status gguf_writer::for_each_piece(const tensor& t, F&& f) {
    if (!t.generated)
        return f(t.data);
    const std::uint64_t most =
        (std::uint64_t{4} << 20) / find_ggml_type(t.type)->block_bytes * find_ggml_type(t.type)->block_bytes;
    std::vector<std::byte> piece(static_cast<std::size_t>(std::min(most, t.size)));
    for (std::uint64_t at = 0; at < t.size; at += piece.size()) {
        const auto part = std::span(piece).first(
            static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), t.size - at)));
        if (const std::string wrong = t.generated(at, part); !wrong.empty())
            return status::error(crumb::errc::invalid_argument, "%s", wrong.c_str());
        if (const status s = f(std::span<const std::byte>(part)); !s)
            return s;
    }
    return {};
}

std::size_t gguf_writer::padding(std::size_t size) const noexcept {
    return (std::size_t{alignment_} - size % alignment_) % alignment_;
}

std::vector<std::byte> gguf_writer::header() const {
    const bool write_alignment = alignment_ != 32;
    std::vector<std::byte> out;
    append_bytes(out, "GGUF", 4);
    append(out, version_);
    append(out, std::uint64_t{tensors_.size()});
    append(out, std::uint64_t{entries_.size() + (write_alignment ? 1 : 0)});
    if (write_alignment) {
        append_string(out, "general.alignment");
        append(out, gguf_kind::u32);
        append(out, alignment_);
    }
    for (const entry& value : entries_) {
        append_string(out, value.key);
        if (value.is_array)
            append(out, gguf_kind::array);
        append(out, value.kind);
        if (value.is_array)
            append(out, value.count);
        append_bytes(out, value.bytes.data(), value.bytes.size());
    }
    std::uint64_t offset = 0;
    for (const tensor& t : tensors_) {
        append_string(out, t.name);
        append(out, static_cast<std::uint32_t>(t.dims.size()));
        for (std::uint64_t dim : t.dims)
            append(out, dim);
        append(out, t.type);
        append(out, offset);
        offset += t.size + padding(static_cast<std::size_t>(t.size));
    }
    if (!tensors_.empty())
        out.resize(out.size() + padding(out.size()));
    return out;
}

crumb::result<std::vector<std::byte>> gguf_writer::bytes() const {
    if (!error_.ok())
        return error_;
    std::vector<std::byte> out = header();
    for (const tensor& t : tensors_) {
        const status s = for_each_piece(t, [&](std::span<const std::byte> piece) {
            append_bytes(out, piece.data(), piece.size());
            return status();
        });
        if (!s)
            return s;
        out.resize(out.size() + padding(static_cast<std::size_t>(t.size)));
    }
    return out;
}

status gguf_writer::write(const std::string& path,
                          const std::function<void(std::size_t, std::size_t)>& progress) const {
    if (!error_.ok())
        return error_;
    auto file = output_file::create(path);
    if (!file)
        return file.error();
    const std::vector<std::byte> zeros(alignment_);
    std::size_t all = 0, done = 0;
    for (const tensor& t : tensors_)
        all += static_cast<std::size_t>(t.size);
    const auto put = [&](std::span<const std::byte> piece) {
        file->write(piece);
        done += piece.size();
        if (progress)
            progress(done, all);
        return file->ok() ? status() : file->commit();
    };
    file->write(header());
    for (const tensor& t : tensors_) {
        if (const status s = for_each_piece(t, put); !s)
            return s;
        file->write(std::span(zeros).first(padding(static_cast<std::size_t>(t.size))));
    }
    return file->commit();
}

} // namespace lm
