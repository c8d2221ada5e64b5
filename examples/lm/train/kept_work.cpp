#include "train/kept_work.hpp"

#include "gguf/shown_text.hpp"
#include "gguf/word_hash.hpp"
#include "model/model_identity.hpp"
#include "train/level_choice.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

namespace {

enum kind : std::uint32_t { a_text = 1, some_levels, a_tensor, some_curves };

class byte_writer {
  public:
    template <class T>
    void add(const T& value) {
        static_assert(std::is_trivially_copyable_v<T>);
        add_bytes(std::as_bytes(std::span(&value, 1)));
    }
    /// Behind their number.
    template <class T>
    void add_all(std::span<const T> values) {
        add(std::uint64_t{values.size()});
        add_bytes(std::as_bytes(values));
    }
    void add_text(std::string_view text) { add_all(std::span(text)); }
    void add_bytes(std::span<const std::byte> b) { bytes_.insert(bytes_.end(), b.begin(), b.end()); }
    std::span<const std::byte> bytes() const { return bytes_; }

  private:
    std::vector<std::byte> bytes_;
};

/// Reads the same; false once there is too little, and from then on.
class byte_reader {
  public:
    explicit byte_reader(std::span<const std::byte> bytes) : left_(bytes) {}

    template <class T>
    bool take(T& value) {
        const auto bytes = take_bytes(sizeof value);
        if (bytes.size() == sizeof value)
            std::memcpy(&value, bytes.data(), sizeof value);
        return ok_;
    }
    template <class Container>
    bool take_all(Container& values) {
        using T = typename Container::value_type;
        std::uint64_t count = 0;
        if (!take(count))
            return false;
        const auto bytes = count > left_.size() / sizeof(T) ? refuse() : take_bytes(count * sizeof(T));
        if (!ok_)
            return false;
        values.resize(static_cast<std::size_t>(count));
        if (!bytes.empty())
            std::memcpy(values.data(), bytes.data(), bytes.size());
        return true;
    }
    bool is_at_end() const noexcept { return ok_ && left_.empty(); }
    std::span<const std::byte> rest() { return take_bytes(left_.size()); }

  private:
    std::span<const std::byte> refuse() {
        ok_ = false;
        return {};
    }
    std::span<const std::byte> take_bytes(std::size_t count) {
        if (!ok_ || count > left_.size())
            return refuse();
        const auto out = left_.first(count);
        left_ = left_.subspan(count);
        return out;
    }
    std::span<const std::byte> left_;
    bool ok_ = true;
};

std::string hexadecimal(std::uint64_t x) {
    std::array<char, 20> text;
    std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(x));
    return text.data();
}
std::string decimal(double x) {
    std::array<char, 32> text;
    std::snprintf(text.data(), text.size(), "%.17g", x);
    return text.data();
}

/// Of all that a file holds.
std::uint64_t contents_of(const model& m) {
    word_hash h;
    h.add(model_identity(m));
    h.add_values(m.file());
    for (const gguf_tensor& t : m.file().tensors()) {
        h.add(t.name);
        h.add(static_cast<std::uint64_t>(t.type));
        for (const std::uint64_t dim : t.dims)
            h.add(dim);
        h.add(t.data);
    }
    return h.value();
}

status damaged(const std::string& path) {
    return status::error(errc::corrupt, "%s: a record is damaged: remove the file to begin anew",
                         shown_path(path).c_str());
}

/// All that decides what is written.
std::vector<partial_file::property> describe(const quantization& how, const model& m,
                                             std::span<const std::int32_t> text) {
    const std::string none = "none";
    word_hash tokens;
    tokens.add(std::as_bytes(text));
    const bool is_nested = how.weights == weight_type::nested;
    return {
        {"model", hexadecimal(contents_of(m))},
        {"--weights", is_nested ? how.nested.name() : std::string(name_of(how.weights))},
        {"--vocabulary", std::string(name_of(how.vocabulary))},
        {"--bits", how.bits ? decimal(*how.bits) : none},
        {"--size", how.size ? std::to_string(*how.size) : none},
        {"calibration text", how.calibrate == "self"
                                 ? how.calibrate
                                 : std::to_string(text.size()) + " tokens, " + hexadecimal(tokens.value())},
        {"--chunks", std::to_string(how.chunks)},
        {"--sweeps", std::to_string(how.sweeps)},
        {"--towards", how.towards ? decimal(*how.towards) : "off"},
        {"--seed", std::to_string(how.seed)},
    };
}

std::optional<weight_type> type_named(std::string_view name) {
    const auto* const found = std::find(weight_names.begin(), weight_names.end(), name);
    return found == weight_names.end()
               ? std::nullopt
               : std::optional(static_cast<weight_type>(found - weight_names.begin()));
}

using codebook_sets = std::map<weight_type, std::vector<std::int8_t>>;

/// Entries of a type's table set; 0 of types that bring their own or need none.
std::size_t codebook_size(weight_type type) {
    std::size_t size = 0;
    with_leveled_format(type, [&]<class F>(std::type_identity<F>) {
        if constexpr (crumb::needs_codebooks<F>)
            size = crumb::codebook_entries<F>;
    });
    return size;
}
/// Whether there is every table set that the options need.
bool are_complete(const codebook_sets& codebooks, const quantization& how) {
    const auto types = types_to_train(how);
    return std::all_of(types.begin(), types.end(),
                       [&](weight_type type) { return codebooks.contains(type); });
}

void add_codebooks(byte_writer& out, const codebook_sets& codebooks) {
    out.add(std::uint64_t{codebooks.size()});
    for (const auto& [type, entries] : codebooks) {
        out.add_text(name_of(type));
        out.add_all(std::span<const std::int8_t>(entries));
    }
}
bool take_codebooks(byte_reader& in, codebook_sets& codebooks) {
    std::uint64_t count = 0;
    if (!in.take(count))
        return false;
    for (std::uint64_t i = 0; i < count; ++i) {
        std::string type;
        std::vector<std::int8_t> entries;
        if (!in.take_all(type) || !in.take_all(entries) || !type_named(type) ||
            entries.size() != codebook_size(*type_named(type)))
            return false;
        codebooks[*type_named(type)] = std::move(entries);
    }
    return true;
}

/// `sizes`: what the curves have to be of.
std::optional<measured_formats> read_curves(byte_reader in, std::span<const format_curve> sizes) {
    measured_formats out{{}, {sizes.begin(), sizes.end()}};
    if (!take_codebooks(in, out.codebooks))
        return {};
    std::string name, type;
    for (format_curve& each : out.curves) {
        if (!in.take_all(name) || name != each.tensor)
            return {};
        for (std::size_t i = 0; i < each.types.size(); ++i)
            if (!in.take_all(type) || type != name_of(each.types[i]) || !in.take(each.options[i].loss))
                return {};
    }
    return in.is_at_end() ? std::optional(std::move(out)) : std::nullopt;
}

std::optional<trained_levels> read_levels(byte_reader in) {
    trained_levels out;
    std::uint64_t count = 0;
    std::string name, type;
    if (!in.take(out.nested) || !crumb::check_levels(out.nested) || !take_codebooks(in, out.codebooks) ||
        !in.take(count))
        return {};
    for (std::uint64_t i = 0; i < count; ++i) {
        if (!in.take_all(name) || !in.take_all(type) || !type_named(type))
            return {};
        out.formats[name] = *type_named(type);
    }
    return in.is_at_end() ? std::optional(std::move(out)) : std::nullopt;
}

std::optional<written_tensor> read_tensor(byte_reader& in, std::string& name) {
    written_tensor out;
    std::uint32_t type = 0;
    if (!in.take_all(name) || !in.take(type) || !in.take_all(out.dims) || out.dims.empty() ||
        out.dims.size() > std::tuple_size_v<decltype(gguf_tensor::dims)>)
        return {};
    out.type = static_cast<ggml_type>(type);
    const auto bytes = in.rest();
    out.size = bytes.size();
    if (const auto wanted = ggml_bytes(out.type, out.dims); !wanted || *wanted != out.size)
        return {};
    out.memory = crumb::buffer(out.size, crumb::buffer::untouched);
    std::copy(bytes.begin(), bytes.end(), out.memory.data());
    return out;
}

/// Whether a tensor can be what one of the model's matrices has become, with these levels.
bool is_made_of(const model& m, const std::set<std::string>& matrices, const std::string& name,
                const written_tensor& tensor, const std::optional<trained_levels>& levels) {
    const gguf_tensor* from = m.file().find_tensor(name);
    const gguf_tensor now = tensor.as_read(name);
    if (from == nullptr || !matrices.contains(name) || now.dims[2] * now.dims[3] != 1 ||
        !(shape_of(now) == shape_of(*from)))
        return false;
    const auto packed = find_packed(now);
    if (!packed || packed->type != weight_type::nested)
        return true;
    const auto weights = crumb::nested_view::open(now.data);
    return weights && levels && weights->levels().seed == levels->nested.seed &&
           weights->levels().parent == levels->nested.parent;
}

} // namespace

result<kept_curves> kept_curves::open(const quantization& how, const model& m,
                                      std::span<const std::int32_t> text,
                                      std::span<const format_curve> sizes) {
    kept_curves out;
    if (how.curves.empty())
        return out;
    auto properties = describe(how, m, text);
    std::erase_if(properties, [](const partial_file::property& each) {
        return each.name == "--weights" || each.name == "--vocabulary" || each.name == "--bits" ||
               each.name == "--size";
    });
    const auto take = [&](std::uint32_t what, std::span<const std::byte> record) {
        out.found_ = what == some_curves ? read_curves(byte_reader(record), sizes) : std::nullopt;
        return out.found_ && are_complete(out.found_->codebooks, how) ? status() : damaged(how.curves);
    };
    auto file = partial_file::open(how.curves, std::move(properties), take, "name another one");
    if (!file)
        return file.error();
    out.file_ = std::move(*file);
    return out;
}

status kept_curves::keep(const measured_formats& measured) {
    byte_writer out;
    add_codebooks(out, measured.codebooks);
    for (const format_curve& each : measured.curves) {
        out.add_text(each.tensor);
        for (std::size_t i = 0; i < each.types.size(); ++i) {
            out.add_text(name_of(each.types[i]));
            out.add(each.options[i].loss);
        }
    }
    return file_.append(some_curves, out.bytes());
}

result<kept_work> kept_work::open(const quantization& how, const model& m, std::span<const std::int32_t> text,
                                  quantized_tensors& tensors) {
    kept_work out;
    out.tensors_ = &tensors;
    if (how.partial.empty())
        return out;
    std::set<std::string> matrices{"token_embd.weight", "output.weight"};
    for (const named_matrix& each : m.matrices())
        matrices.insert(each.name);
    const auto take = [&](std::uint32_t what, std::span<const std::byte> record) {
        bool ok = false;
        byte_reader in(record);
        std::string name;
        if (what == a_text) {
            out.text_.emplace();
            ok = in.take_all(*out.text_) && in.is_at_end();
        } else if (what == some_levels) {
            out.levels_ = read_levels(in);
            ok = out.levels_ && are_complete(out.levels_->codebooks, how) &&
                 (how.weights != weight_type::nested || (out.levels_->nested.seed == how.nested.seed &&
                                                         out.levels_->nested.parent == how.nested.parent));
        } else if (what == a_tensor) {
            auto tensor = read_tensor(in, name);
            ok = tensor && is_made_of(m, matrices, name, *tensor, out.levels_);
            if (ok)
                tensors.keep(name, std::move(*tensor));
        }
        return ok ? status() : damaged(how.partial);
    };
    auto file = partial_file::open(how.partial, describe(how, m, text), take);
    if (!file)
        return file.error();
    out.file_ = std::move(*file);
    return out;
}

status kept_work::keep(std::span<const std::int32_t> text) {
    byte_writer out;
    out.add_all(text);
    return file_.append(a_text, out.bytes());
}

status kept_work::keep(const trained_levels& levels) {
    byte_writer out;
    out.add(levels.nested);
    add_codebooks(out, levels.codebooks);
    out.add(std::uint64_t{levels.formats.size()});
    for (const auto& [name, type] : levels.formats) {
        out.add_text(name);
        out.add_text(name_of(type));
    }
    return file_.append(some_levels, out.bytes());
}

status kept_work::keep(const std::string& tensor) {
    const written_tensor* t = file_ ? tensors_->find(tensor) : nullptr;
    if (t == nullptr)
        return {};
    byte_writer out;
    out.add_text(tensor);
    out.add(static_cast<std::uint32_t>(t->type));
    out.add_all(std::span<const std::uint64_t>(t->dims));
    out.add_bytes(t->bytes());
    return file_.append(a_tensor, out.bytes());
}

} // namespace lm
