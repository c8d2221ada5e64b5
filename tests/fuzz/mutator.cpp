#include "mutator.hpp"

#include "model/kv_file.hpp"
#include "model/model_identity.hpp"
#include "seeds.hpp"

#include <crumb/crumb.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <optional>

namespace lm::fuzz {
namespace {

/// Nothing larger is made.
constexpr std::size_t max_bytes = std::size_t{1} << 16;

template <class T>
std::optional<T> load(std::span<const std::byte> from, std::size_t at = 0) {
    if (from.size() < sizeof(T) || at > from.size() - sizeof(T))
        return {};
    T value;
    std::memcpy(&value, from.data() + at, sizeof value);
    return value;
}
template <class T>
void store(bytes& to, std::size_t at, const T& value) {
    if (to.size() >= sizeof value && at <= to.size() - sizeof value)
        std::memcpy(to.data() + at, &value, sizeof value);
}
template <class T>
void append(bytes& to, const T& value) {
    const auto raw = std::as_bytes(std::span(&value, 1));
    to.insert(to.end(), raw.begin(), raw.end());
}
void append(bytes& to, std::string_view text) {
    append(to, std::uint64_t{text.size()});
    const auto raw = std::as_bytes(std::span(text));
    to.insert(to.end(), raw.begin(), raw.end());
}

// ---- numbers ---------------------------------------------------------------------------------------------

/// A number near to, related to, or nothing like `from`.
std::uint64_t other_number(std::uint64_t from, std::span<const std::uint64_t> known, dice& random) {
    switch (random.below(10)) {
    case 0:
        return from + 1;
    case 1:
        return from - 1;
    case 2:
        return from * 2;
    case 3:
        return from / 2;
    case 4:
        return from + 16;
    case 5:
        return from - std::min<std::uint64_t>(from, 16);
    case 6: {
        constexpr std::uint64_t extremes[] = {
            0,          1,    2, 3, 255, 65535, 1u << 20, 0x7fffffff, 0xffffffff, std::uint64_t{1} << 40,
            1ull << 63, ~0ull};
        return random.of(extremes);
    }
    case 7:
        return 1 + random.below(96);
    default:
        return known.empty() ? from ^ 1u << random.below(8) : known[random.below(known.size())];
    }
}
/// The same, as a size that a small file can have.
std::uint64_t other_size(std::uint64_t from, std::span<const std::uint64_t> known, dice& random) {
    for (int i = 0; i < 8; ++i)
        if (const std::uint64_t d = other_number(from, known, random); d != from && d != 0 && d <= 256)
            return d;
    return from == 32 ? 64 : 32;
}

float bad_float(dice& random) {
    constexpr float inf = std::numeric_limits<float>::infinity();
    constexpr float all[] = {std::numeric_limits<float>::quiet_NaN(),
                             inf,
                             -inf,
                             3e38f,
                             -3e38f,
                             65504.0f,
                             1e6f,
                             0.0f,
                             -0.0f,
                             1e-40f,
                             1e-30f};
    return random.of(all);
}
crumb::half bad_half(dice& random) {
    constexpr std::uint16_t all[] = {0x7e00, 0x7c00, 0xfc00, 0x7bff, 0xfbff, 0x0001, 0x0000, 0x8000, 0x5000};
    return {random.of(all)};
}

// ---- packed weights and neurons --------------------------------------------------------------------------

bool is_packed(std::span<const std::byte> b) {
    return b.size() >= sizeof(crumb::packed_header) && std::memcmp(b.data(), "CRMB", 4) == 0;
}
bool is_neurons(std::span<const std::byte> b) {
    return b.size() >= sizeof(crumb::neuron_header) && std::memcmp(b.data(), "CRMN", 4) == 0;
}
bool is_snapshot(std::span<const std::byte> b) {
    return b.size() >= sizeof(crumb::kv_snapshot_header) && std::memcmp(b.data(), "crumbkv\n", 8) == 0;
}

std::optional<crumb::neuron_shape> shape_of_neurons(std::span<const std::byte> b) {
    const auto h = load<crumb::neuron_header>(b);
    if (!h || h->in >= crumb::row_codecs || h->out >= crumb::row_codecs)
        return {};
    return crumb::neuron_shape{h->neurons,
                               h->inputs,
                               h->outputs,
                               static_cast<crumb::row_codec>(h->in),
                               static_cast<crumb::row_codec>(h->out),
                               h->residual != 0};
}

/// Neurons of a shape, unless they are many.
bytes small_neurons(const crumb::neuron_shape& s, dice& random) {
    const auto layout = crumb::neuron_layout::of(s);
    return layout && layout->bytes <= max_bytes ? neurons(s, random) : bytes();
}

/// The sizes that a header names.
std::vector<std::uint64_t> sizes_in(std::span<const std::byte> b) {
    if (is_packed(b)) {
        const auto h = *load<crumb::packed_header>(b);
        return {h.n, h.k};
    }
    if (is_neurons(b)) {
        const auto h = *load<crumb::neuron_header>(b);
        return {h.neurons, h.inputs, h.outputs};
    }
    return {};
}

/// What `change(size)` makes of all sizes in a header, with contents for it.
template <class F>
void resize_blob(bytes& b, F&& change, dice& random) {
    bytes made;
    if (is_packed(b)) {
        const auto h = *load<crumb::packed_header>(b);
        const std::uint64_t n = change(h.n), k = change(h.k);
        if (n != h.n || k != h.k)
            made = packed_like(b, n, k, max_bytes, random);
    } else if (is_neurons(b)) {
        const auto s = shape_of_neurons(b);
        if (!s)
            return;
        crumb::neuron_shape t = *s;
        t.neurons = change(s->neurons);
        t.inputs = change(s->inputs);
        t.outputs = change(s->outputs);
        if (t != *s)
            made = small_neurons(t, random);
    }
    if (!made.empty())
        b = std::move(made);
}

/// A header field that contradicts the rest, or the bytes behind it.
void edit_packed(bytes& b, std::span<const std::uint64_t> known, dice& random) {
    auto h = *load<crumb::packed_header>(b);
    const std::string_view format(h.format, strnlen(h.format, sizeof h.format));
    switch (random.below(12)) {
    case 0:
        h.n = other_number(h.n, known, random);
        break;
    case 1:
        h.k = other_number(h.k, known, random);
        break;
    case 2:
        h.bytes = other_number(h.bytes, known, random);
        break;
    case 3:
        h.reserved[random.below(sizeof h.reserved)] = static_cast<std::uint8_t>(random.below(6));
        break;
    case 4: // another format of the same shape
    case 5: {
        const auto t = static_cast<weight_type>(2 + random.below(weight_names.size() - 2));
        if (h.n == 0 || h.k == 0 || h.n * h.k > max_bytes || h.n > max_bytes || h.k > max_bytes)
            return;
        if (t == weight_type::nested) {
            const int seed = 2 + static_cast<int>(random.below(3));
            b = nested(h.n, h.k, seed,
                       seed + static_cast<int>(random.below(static_cast<std::size_t>(5 - seed))), random);
        } else {
            b = packed(t, h.n, h.k, random);
        }
        return;
    }
    case 6: // the name of another format on the same bytes
        std::memset(h.format, 0, sizeof h.format);
        {
            const std::string_view name = weight_names[2 + random.below(weight_names.size() - 2)];
            std::memcpy(h.format, name.data(), name.size());
        }
        break;
    case 7: // levels and corrections
        if (format == crumb::nested_view::name && b.size() >= 192) {
            const std::size_t at = 64 + random.below(28);
            for (std::size_t i = 0; i < 1 + random.below(4); ++i)
                b[std::min<std::size_t>(at + i, 91)] = static_cast<std::byte>(random());
            return;
        }
        [[fallthrough]];
    default: { // scales and codes
        const std::size_t first = sizeof h, size = b.size() - first;
        if (size < 4)
            return;
        // Scales come first.
        const std::size_t span = random.one_in(2) ? std::min<std::size_t>(size, 256) : size;
        for (std::size_t i = 0, count = 1 + random.below(4); i < count; ++i) {
            const std::size_t at = first + random.below(span);
            if (random.one_in(2))
                store(b, at / 2 * 2, bad_half(random));
            else
                b[at] = random.one_in(2) ? std::byte{255} : static_cast<std::byte>(random());
        }
        return;
    }
    }
    store(b, 0, h);
    // The bytes of a format say its parent in the header; what follows from that is made right half of the
    // time.
    if (random.one_in(2))
        if (auto made = packed_like(b, h.n, h.k, max_bytes, random); !made.empty())
            b = std::move(made);
}

void edit_neurons(bytes& b, std::span<const std::uint64_t> known, dice& random) {
    auto h = *load<crumb::neuron_header>(b);
    const auto s = shape_of_neurons(b);
    const std::size_t what = random.below(12);
    std::uint64_t* const sizes[] = {&h.neurons, &h.inputs, &h.outputs};
    if (what < 4) {
        std::uint64_t& size = what == 3 ? h.bytes : *sizes[what];
        size = other_number(size, known, random);
    } else if (what == 4) {
        h.in = static_cast<std::uint8_t>(random.below(6));
    } else if (what == 5) {
        h.out = static_cast<std::uint8_t>(random.below(6));
    } else if (what == 6) {
        h.residual = static_cast<std::uint8_t>(h.residual == 0 ? 1 : random.below(3));
    } else if (s && what < 11) {
        const auto layout = crumb::neuron_layout::of(*s);
        if (!layout || layout->bytes > b.size())
            return;
        const std::size_t n = random.below(s->neurons);
        if (what < 9) {
            // Thresholds, those of padding included.
            store(b, crumb::alignment + random.below(2 * layout->padded) * sizeof(float),
                  random.one_in(2) ? bad_float(random) : random.real(1));
        } else if (what == 9) {
            store(b, layout->records_offset + n * layout->record_bytes + random.below(8) * sizeof(float),
                  bad_float(random));
        } else {
            const std::size_t at = layout->records_offset + n * layout->record_bytes + 32 +
                                   random.below(layout->record_bytes - 32) / 2 * 2;
            store(b, at, bad_half(random));
        }
        return;
    } else {
        b[random.below(b.size())] = static_cast<std::byte>(random());
        return;
    }
    store(b, 0, h);
    if (const auto t = shape_of_neurons(b); t && random.one_in(2))
        if (auto made = small_neurons(*t, random); !made.empty())
            b = std::move(made);
}

void edit_snapshot(bytes& b, dice& random) {
    auto h = *load<crumb::kv_snapshot_header>(b);
    std::uint64_t* const numbers[] = {&h.layers,   &h.kv_heads,    &h.head_size,  &h.sinks, &h.slots,
                                      &h.length,   &h.coded,       &h.parts,      &h.bytes, &h.content,
                                      &h.model_id, &h.codebook_id, &h.reserved[0]};
    const std::uint64_t steps[] = {1, 32, 63, 64, 65, 255, 256, 257};
    switch (random.below(8)) {
    case 0: {
        std::uint8_t* const small[] = {&h.kind, &h.bits, &h.dims, &h.flags};
        *random.of(small) = static_cast<std::uint8_t>(random.below(10));
        break;
    }
    case 1:
    case 2:
        *random.of(numbers) += random.of(steps);
        break;
    case 3:
        *random.of(numbers) -= random.of(steps);
        break;
    case 4: { // lengths that agree
        const std::uint64_t part =
            h.parts == 0 ? 0 : (h.bytes - std::min<std::uint64_t>(h.bytes, sizeof h)) / h.parts;
        h.length = h.sinks + random.below(600);
        h.coded = h.length > h.sinks ? (h.length - h.sinks) / 64 * 64 : 0;
        const std::uint64_t parts = (h.coded + 255) / 256;
        if (part < max_bytes && parts >= h.parts)
            h.bytes += (parts - h.parts) * part;
        h.parts = parts;
        break;
    }
    case 5: // halves and codes
        for (std::size_t i = 0, count = 1 + random.below(8); i < count; ++i)
            store(b, sizeof h + random.below(b.size() - sizeof h + 1) / 2 * 2, bad_half(random));
        return;
    case 6:
        store(b, b.size() - 4, static_cast<std::uint32_t>(random()));
        return;
    default:
        b[random.below(b.size())] = static_cast<std::byte>(random());
        return;
    }
    store(b, 0, h);
    if (h.bytes > b.size() && h.bytes < max_bytes && random.one_in(2)) {
        const bytes tail(b.end() - 4, b.end());
        b.resize(static_cast<std::size_t>(h.bytes));
        b.insert(b.end(), tail.begin(), tail.end());
    }
}

// ---- GGUF files ------------------------------------------------------------------------------------------

struct file_key {
    std::string name;
    gguf_kind kind = gguf_kind::u32;
    bool is_array = false;
    std::uint64_t count = 1;
    bytes value;
};
struct file_tensor {
    std::string name;
    ggml_type type = ggml_type::f32;
    std::vector<std::uint64_t> dims;
    bytes data;
};

/// A GGUF file in parts; `tail` is what lies behind them.
struct parts {
    std::uint32_t version = 3;
    std::vector<file_key> keys;
    std::vector<file_tensor> tensors;
    bytes tail;

    static std::optional<parts> read(std::span<const std::byte> input);
    bytes write() const;

    file_key* key(std::string_view name) {
        for (file_key& k : keys)
            if (k.name == name)
                return &k;
        return nullptr;
    }
    file_tensor* tensor(std::string_view name) {
        for (file_tensor& t : tensors)
            if (t.name == name)
                return &t;
        return nullptr;
    }
};

std::optional<parts> parts::read(std::span<const std::byte> input) {
    bytes aligned(input.begin(), input.end());
    const auto file = gguf::parse(aligned);
    if (!file)
        return {};
    parts out;
    out.version = file->version();
    for (const gguf_value& v : file->values())
        out.keys.push_back(
            {std::string(v.key), v.kind, v.is_array, v.count, {v.bytes.begin(), v.bytes.end()}});
    const std::byte* end = nullptr;
    for (const gguf_tensor& t : file->tensors()) {
        out.tensors.push_back({std::string(t.name),
                               t.type,
                               {t.dims.begin(), t.dims.begin() + t.rank},
                               {t.data.begin(), t.data.end()}});
        end = std::max(end, t.data.data() + t.data.size());
    }
    if (end != nullptr)
        out.tail.assign(end, static_cast<const std::byte*>(aligned.data()) + aligned.size());
    if (out.tail.size() > 256)
        out.tail.erase(out.tail.begin(), out.tail.end() - 256);
    return out;
}

bytes parts::write() const {
    std::uint32_t alignment = 32;
    for (const file_key& k : keys)
        if (k.name == "general.alignment" && k.kind == gguf_kind::u32)
            alignment = load<std::uint32_t>(k.value).value_or(32);
    if (!std::has_single_bit(alignment) || alignment < 8 || alignment > 4096)
        alignment = 32;
    bytes out;
    const auto pad = [&] { out.resize(crumb::round_up(out.size(), alignment)); };
    append(out, std::uint32_t{0x46554747});
    append(out, version);
    append(out, std::uint64_t{tensors.size()});
    append(out, std::uint64_t{keys.size()});
    for (const file_key& k : keys) {
        append(out, std::string_view(k.name));
        if (k.is_array)
            append(out, gguf_kind::array);
        append(out, k.kind);
        if (k.is_array)
            append(out, k.count);
        out.insert(out.end(), k.value.begin(), k.value.end());
    }
    std::uint64_t offset = 0;
    for (const file_tensor& t : tensors) {
        append(out, std::string_view(t.name));
        append(out, static_cast<std::uint32_t>(t.dims.size()));
        for (const std::uint64_t d : t.dims)
            append(out, d);
        append(out, t.type);
        append(out, offset);
        offset += crumb::round_up(t.data.size(), alignment);
    }
    for (const file_tensor& t : tensors) {
        pad();
        out.insert(out.end(), t.data.begin(), t.data.end());
    }
    out.insert(out.end(), tail.begin(), tail.end());
    return out;
}

/// Changes a file's parts in one of the ways that `mutated` promises.
class editor {
  public:
    editor(parts& file, dice& random) : f_(file), random_(random) {}

    void edit() {
        switch (random_.below(16)) {
        case 0:
        case 1:
        case 2:
            return set_size(true);
        case 3:
            return set_size(false);
        case 4:
        case 5:
            return edit_key();
        case 6:
            return edit_blob();
        case 7:
            return edit_blob();
        case 8:
            return edit_values();
        case 9:
            return edit_shape();
        case 10:
            return convert();
        case 11:
            return move_inside();
        case 12:
            return choose_again();
        default: {
            const auto all = donors();
            if (const auto other = parts::read(all[random_.below(all.size())]))
                combine(*other);
        }
        }
    }

    /// Takes something of another file.
    void combine(const parts& other) {
        switch (random_.below(5)) {
        case 0: // a tensor under its own name
            if (!other.tensors.empty())
                put(random_.of(other.tensors));
            return;
        case 1: // under the name of another
        case 2:
            if (!other.tensors.empty() && !f_.tensors.empty()) {
                const file_tensor& from = random_.of(other.tensors);
                if (file_tensor* to = partner(from)) {
                    const std::string name = to->name;
                    *to = from;
                    to->name = name;
                }
            }
            return;
        case 3: // a key
            if (!other.keys.empty())
                put(random_.of(other.keys));
            return;
        default: { // all that belongs together
            const std::string prefix = prefix_of(other);
            for (const file_tensor& t : other.tensors)
                if (t.name.starts_with(prefix))
                    put(t);
            for (const file_key& k : other.keys)
                if (k.name.starts_with(prefix) ||
                    (!random_.one_in(3) && k.name.starts_with("crumb.codebooks.")))
                    put(k);
        }
        }
    }

    /// What says that parts are of this file's model becomes right.
    void sign() {
        if (std::none_of(f_.keys.begin(), f_.keys.end(), is_identity))
            return;
        const bytes file = f_.write();
        if (file.size() > max_bytes)
            return;
        buffer memory(file.size());
        std::copy(file.begin(), file.end(), memory.bytes().begin());
        const auto m = model::load(std::move(memory), "", {});
        if (!m)
            return;
        for (file_key& k : f_.keys)
            if (is_identity(k)) {
                k.kind = gguf_kind::u64;
                k.is_array = false;
                k.count = 1;
                k.value.clear();
                append(k.value, model_identity(*m));
            }
    }

  private:
    static bool is_identity(const file_key& k) {
        return k.name.starts_with("crumb.") && k.name.ends_with(".model");
    }
    static bool is_u32(const file_key& k) {
        return !k.is_array && (k.kind == gguf_kind::u32 || k.kind == gguf_kind::i32) && k.value.size() == 4;
    }
    static std::uint64_t number(const file_key& k) { return *load<std::uint32_t>(k.value); }

    /// All sizes that the file names, each as often as it does.
    std::vector<std::uint64_t> sizes() const {
        std::vector<std::uint64_t> out;
        for (const file_key& k : f_.keys) {
            if (is_u32(k))
                out.push_back(number(k));
            else if (k.is_array)
                out.push_back(k.count);
        }
        for (const file_tensor& t : f_.tensors) {
            if (is_packed(t.data) || is_neurons(t.data)) {
                const auto inside = sizes_in(t.data);
                out.insert(out.end(), inside.begin(), inside.end());
            } else {
                out.insert(out.end(), t.dims.begin(), t.dims.end());
            }
        }
        return out;
    }

    /// A size becomes another, everywhere or in some places, with contents for it. Three times the size
    /// follows: queries, keys and values are one matrix.
    void set_size(bool everywhere) {
        const auto all = sizes();
        if (all.empty())
            return;
        const std::uint64_t from = random_.of(all);
        if (from == 0)
            return;
        const std::uint64_t to = other_size(from, all, random_);
        const auto change = [&](std::uint64_t x) {
            if (!everywhere && random_.one_in(2))
                return x;
            return x == from ? to : x == 3 * from ? 3 * to : x;
        };
        for (file_key& k : f_.keys) {
            if (is_u32(k))
                store(k.value, 0, static_cast<std::uint32_t>(change(number(k))));
            else if (k.is_array && change(k.count) != k.count)
                resize(k, to);
        }
        for (file_tensor& t : f_.tensors) {
            if (is_packed(t.data) || is_neurons(t.data)) {
                resize_blob(t.data, change, random_);
                t.dims = {t.data.size()};
                continue;
            }
            auto dims = t.dims;
            std::transform(dims.begin(), dims.end(), dims.begin(), change);
            if (dims != t.dims)
                reshape(t, std::move(dims));
        }
    }

    /// The elements of an array, or the one value of a key, each with its bytes in the file.
    static std::vector<bytes> elements_of(const file_key& k) {
        std::vector<bytes> out;
        const std::size_t size = gguf_kind_bytes(k.kind);
        for (std::size_t at = 0; at < k.value.size();) {
            const std::size_t length =
                size != 0 ? size : 8 + static_cast<std::size_t>(load<std::uint64_t>(k.value, at).value_or(0));
            if (length > k.value.size() - at)
                return {};
            const auto first = k.value.begin() + static_cast<std::ptrdiff_t>(at);
            out.emplace_back(first, first + static_cast<std::ptrdiff_t>(length));
            at += length;
        }
        return out;
    }
    static void set_elements(file_key& k, const std::vector<bytes>& elements) {
        k.count = elements.size();
        k.value.clear();
        for (const bytes& e : elements)
            k.value.insert(k.value.end(), e.begin(), e.end());
    }

    /// An array of another length: its beginning, or itself and its last element again and again.
    static void resize(file_key& k, std::uint64_t count) {
        auto all = elements_of(k);
        if (!all.empty() && count <= 1024) {
            const bytes last = all.back();
            all.resize(static_cast<std::size_t>(count), last);
            set_elements(k, all);
        }
    }

    /// Another text: of another element, shorter, or with other characters.
    void edit_strings(file_key& k) {
        auto all = elements_of(k);
        if (all.empty())
            return;
        bytes& e = random_.of(all);
        switch (random_.below(4)) {
        case 0:
            e = bytes(random_.of(all));
            break;
        case 1:
            e.resize(8 + random_.below(e.size() - 7));
            store(e, 0, std::uint64_t{e.size() - 8});
            break;
        case 2:
            append(e, static_cast<std::uint8_t>(random_()));
            store(e, 0, std::uint64_t{e.size() - 8});
            break;
        default:
            if (e.size() > 8)
                e[8 + random_.below(e.size() - 8)] = static_cast<std::byte>(random_());
        }
        set_elements(k, all);
    }

    /// A tensor with other dimensions and contents of that size, if there may be such a tensor.
    void reshape(file_tensor& t, std::vector<std::uint64_t> dims) {
        const auto size = ggml_bytes(t.type, dims);
        if (!size || *size > max_bytes)
            return;
        std::uint64_t count = 1;
        for (const std::uint64_t d : dims)
            count *= d;
        const bool is_known = is_computed(t.type);
        bytes data = is_known ? elements(t.type, static_cast<std::size_t>(count), random_)
                              : bytes(static_cast<std::size_t>(*size));
        if (!is_known)
            std::copy_n(t.data.begin(), std::min(t.data.size(), data.size()), data.begin());
        t.dims = std::move(dims);
        t.data = std::move(data);
    }

    void edit_key() {
        if (f_.keys.empty())
            return;
        const std::size_t at = random_.below(f_.keys.size());
        file_key& k = f_.keys[at];
        const auto all = sizes();
        switch (random_.below(8)) {
        case 0:
            f_.keys.erase(f_.keys.begin() + static_cast<std::ptrdiff_t>(at));
            return;
        case 1: { // the value of another key
            const file_key& from = random_.of(f_.keys);
            const std::string name = k.name;
            k = file_key(from);
            k.name = name;
            return;
        }
        case 2: // another kind of as many bytes
            if (gguf_kind_bytes(k.kind) == 4)
                k.kind = random_.one_in(2) ? gguf_kind::i32 : gguf_kind::f32;
            return;
        default:
            break;
        }
        if (k.kind == gguf_kind::string) {
            if (k.name.ends_with(".recipe") && !random_.one_in(4))
                edit_recipe(k);
            else
                edit_strings(k);
        } else if (is_u32(k)) {
            store(k.value, 0, static_cast<std::uint32_t>(other_number(number(k), all, random_)));
        } else if (k.kind == gguf_kind::f32 && k.value.size() >= 4) {
            store(k.value, random_.below(k.value.size() / 4) * 4, bad_float(random_));
        } else if (k.is_array && random_.one_in(3)) {
            resize(k, other_size(k.count, all, random_));
        } else if (k.kind == gguf_kind::i32 && k.value.size() >= 4) {
            const std::size_t element = random_.below(k.value.size() / 4) * 4;
            const auto old = load<std::uint32_t>(k.value, element).value_or(0);
            store(k.value, element, static_cast<std::uint32_t>(other_number(old, all, random_)));
        } else if (!k.value.empty()) {
            k.value[random_.below(k.value.size())] ^= static_cast<std::byte>(1u << random_.below(8));
        }
    }

    /// Another recipe that there is.
    void edit_recipe(file_key& k) {
        constexpr std::string_view options[] = {":predictor=q8_0",
                                                ":predictor=q4_0",
                                                ":predictor=cb4",
                                                ":predictor=cb3",
                                                ":predictor=cb2",
                                                ":predictor=cb2s",
                                                ":predictor=u2",
                                                ":fold=f32",
                                                ":fold=q8_0",
                                                ":fold=q4_0",
                                                ":fold=cb4",
                                                ":fold=u2",
                                                ":sound",
                                                ":residual=u2",
                                                ":residual=q8_0",
                                                ":rows=f32",
                                                ":rows=q4_0",
                                                ":miss=0.1",
                                                ":parameters=0.5",
                                                ":coverage=1",
                                                ":greedy",
                                                ":plain",
                                                ":odd"};
        std::string text(k.value.size() > 8 ? reinterpret_cast<const char*>(k.value.data()) + 8 : "",
                         k.value.size() > 8 ? k.value.size() - 8 : 0);
        text += random_.of(options);
        k.value.clear();
        append(k.value, std::string_view(text));
    }

    /// Something in packed weights or in neurons.
    void edit_blob() {
        std::vector<file_tensor*> blobs;
        for (file_tensor& t : f_.tensors)
            if (is_packed(t.data) || is_neurons(t.data))
                blobs.push_back(&t);
        if (blobs.empty())
            return edit_values();
        file_tensor& t = *random_.of(blobs);
        const auto all = sizes();
        if (is_packed(t.data))
            edit_packed(t.data, all, random_);
        else
            edit_neurons(t.data, all, random_);
        t.dims = {t.data.size()};
    }

    /// Values of a tensor that is no blob.
    void edit_values() {
        if (f_.tensors.empty())
            return;
        file_tensor& t = random_.of(f_.tensors);
        if (t.data.size() < 4)
            return;
        for (std::size_t i = 0, count = 1 + random_.below(4); i < count; ++i) {
            const std::size_t at = random_.below(t.data.size() / 2) * 2;
            if (t.type == ggml_type::f32)
                store(t.data, at / 4 * 4, bad_float(random_));
            else if (const auto* info = find_ggml_type(t.type);
                     info != nullptr && info->block > 1 && !random_.one_in(4)) {
                // Scales of blocks are their first numbers or their last.
                const std::size_t last = info->block_bytes - 2, block = at / info->block_bytes;
                const std::size_t places[] = {0, last, last - 2};
                const std::size_t place = block * info->block_bytes + random_.of(places);
                if (place + 2 <= t.data.size())
                    store(t.data, place, bad_half(random_));
            } else
                store(t.data, at, bad_half(random_));
        }
    }

    /// Dimensions, type or name of a tensor.
    void edit_shape() {
        if (f_.tensors.empty())
            return;
        const std::size_t at = random_.below(f_.tensors.size());
        file_tensor& t = f_.tensors[at];
        const auto all = sizes();
        switch (random_.below(6)) {
        case 0:
            f_.tensors.erase(f_.tensors.begin() + static_cast<std::ptrdiff_t>(at));
            return;
        case 1: { // the same numbers in another arrangement
            std::vector<std::uint64_t> dims(t.dims.rbegin(), t.dims.rend());
            if (dims.size() == 1 && !random_.one_in(3))
                dims.push_back(1);
            if (dims.size() > 1 && random_.one_in(2))
                dims = {dims[0] * dims[1], 1};
            return reshape(t, dims);
        }
        case 2: {
            t.type = random_.one_in(16) ? ggml_type{77} : ggml_type{random_.of(ggml_types).number};
            return reshape(t, t.dims);
        }
        default: {
            auto dims = t.dims;
            std::uint64_t& d = random_.of(dims);
            d = other_size(d, all, random_);
            return reshape(t, dims);
        }
        }
    }

    /// A matrix in another form, with the same numbers of rows and columns.
    void convert() {
        if (f_.tensors.empty())
            return;
        file_tensor& t = random_.of(f_.tensors);
        std::uint64_t n = t.dims.size() > 1 ? t.dims[1] : 1, k = t.dims[0];
        if (is_packed(t.data)) {
            const auto h = *load<crumb::packed_header>(t.data);
            n = h.n;
            k = h.k;
        } else if (t.type == ggml_type::i8) {
            return;
        }
        if (n == 0 || k == 0 || n > 1024 || k > 1024)
            return;
        const std::size_t what = random_.below(12);
        if (what < 4) {
            const auto type = ggml_type{random_.of(ggml_types).number};
            const std::vector<std::uint64_t> dims = {k, n};
            const auto size = ggml_bytes(type, dims);
            if (!is_computed(type) || !size || *size > max_bytes)
                return;
            t.type = type;
            t.dims = dims;
            t.data = elements(t.type, static_cast<std::size_t>(n * k), random_);
            return;
        }
        bytes made;
        if (what < 8) {
            const int seed = 2 + static_cast<int>(random_.below(3));
            made =
                nested(n, k, seed, seed + static_cast<int>(random_.below(static_cast<std::size_t>(5 - seed))),
                       random_);
        } else {
            made = packed(static_cast<weight_type>(2 + random_.below(7)), n, k, random_);
        }
        if (made.empty() || made.size() > max_bytes)
            return;
        t.type = ggml_type::i8;
        t.data = std::move(made);
        t.dims = {t.data.size()};
    }

    /// Contents of a tensor in place of another's, or both exchanged.
    void move_inside() {
        if (f_.tensors.size() < 2)
            return;
        file_tensor& a = random_.of(f_.tensors);
        file_tensor* b = partner(a);
        if (b == nullptr || b == &a)
            return;
        const bool exchange = random_.one_in(2);
        std::swap(a.data, b->data);
        std::swap(a.dims, b->dims);
        std::swap(a.type, b->type);
        if (!exchange) {
            a.data = b->data;
            a.dims = b->dims;
            a.type = b->type;
        }
    }

    /// Other choices of the target: its input's last bytes.
    void choose_again() {
        f_.tail.clear();
        append(f_.tail, static_cast<std::uint32_t>(random_()));
    }

    /// A tensor of this file of the same kind as `like`, if there is one; else any.
    file_tensor* partner(const file_tensor& like) {
        const auto kind = [](const file_tensor& t) {
            return is_packed(t.data) ? 1 : is_neurons(t.data) ? 2 : t.dims.size() > 1 ? 1 : 3;
        };
        std::vector<file_tensor*> same;
        for (file_tensor& t : f_.tensors)
            if (&t != &like && kind(t) == kind(like))
                same.push_back(&t);
        if (same.empty())
            return f_.tensors.empty() ? nullptr : &random_.of(f_.tensors);
        return random_.of(same);
    }

    void put(const file_tensor& t) {
        if (file_tensor* own = f_.tensor(t.name))
            *own = t;
        else
            f_.tensors.push_back(t);
    }
    void put(const file_key& k) {
        if (k.name == "general.alignment")
            return;
        if (file_key* own = f_.key(k.name))
            *own = k;
        else
            f_.keys.push_back(k);
    }

    /// What tensors and keys that belong together begin with.
    std::string prefix_of(const parts& other) {
        std::map<std::string, int> found;
        const auto add = [&](const std::string& name) {
            for (const char* start :
                 {"blk.", "crumb.ffn.", "crumb.kv.", "crumb.schedule.", "tokenizer.", "output"})
                if (const std::string_view s(start); name.starts_with(s)) {
                    ++found[std::string(s)];
                    if (const auto dot = name.find('.', s.size()); dot != name.npos && s.ends_with('.'))
                        ++found[name.substr(0, dot + 1)];
                }
        };
        for (const file_tensor& t : other.tensors)
            add(t.name);
        for (const file_key& k : other.keys)
            add(k.name);
        if (found.empty())
            return "no such prefix";
        auto at = found.begin();
        std::advance(at, static_cast<std::ptrdiff_t>(random_.below(found.size())));
        return at->first;
    }

    parts& f_;
    dice& random_;
};

} // namespace

std::span<const bytes> donors() {
    static const std::vector<bytes> all = [] {
        std::vector<bytes> out;
        for (const auto& seeds : {model_seeds(), folded_seeds()})
            for (const seed& s : seeds)
                out.push_back(s.content);
        return out;
    }();
    return all;
}

bytes mutated(std::span<const std::byte> input, dice& random) {
    const std::size_t edits = 1 + (random.one_in(2) ? random.below(4) : 0);
    bytes blob(input.begin(), input.end());
    if (is_packed(input) || is_neurons(input)) {
        for (std::size_t i = 0; i < edits && (is_packed(blob) || is_neurons(blob)); ++i) {
            const auto known = sizes_in(blob);
            if (random.one_in(4))
                resize_blob(
                    blob,
                    [&](std::uint64_t x) { return random.one_in(2) ? other_size(x, known, random) : x; },
                    random);
            else if (is_packed(blob))
                edit_packed(blob, known, random);
            else
                edit_neurons(blob, known, random);
        }
        return blob;
    }
    if (is_snapshot(input)) {
        for (std::size_t i = 0; i < edits; ++i)
            edit_snapshot(blob, random);
        return blob;
    }
    auto file = parts::read(input);
    if (!file)
        return {};
    editor e(*file, random);
    for (std::size_t i = 0; i < edits; ++i)
        e.edit();
    if (!random.one_in(4))
        e.sign();
    return file->write();
}

bytes crossed(std::span<const std::byte> a, std::span<const std::byte> b, dice& random) {
    auto first = parts::read(a);
    const auto second = parts::read(b);
    if (!first || !second)
        return {};
    editor e(*first, random);
    for (std::size_t i = 0, count = 1 + random.below(3); i < count; ++i)
        e.combine(*second);
    if (!random.one_in(4))
        e.sign();
    return first->write();
}

} // namespace lm::fuzz
