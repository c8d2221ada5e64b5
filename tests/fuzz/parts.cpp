#include "parts.hpp"

#include "gguf/iq_decode.hpp"

#include <cstring>
#include <type_traits>

namespace lm::fuzz {
namespace {

/// A scale of small weights.
void make(crumb::half& scale, dice& random) { scale = crumb::to_half(random.real(0.02f)); }
void make(crumb::block_scale& scale, dice& random) {
    scale = {static_cast<std::uint8_t>(112 + random.below(4)),
             static_cast<std::int8_t>(static_cast<int>(random.below(201)) - 100)};
}
void make(crumb::e8m0& scale, dice& random) { scale = {static_cast<std::uint8_t>(118 + random.below(4))}; }
void make(crumb::ue4m3& scale, dice& random) { scale = {static_cast<std::uint8_t>(random.below(24))}; }
/// Keeps the unit, which is that of a block.
void make(crumb::half_multiple& scale, dice& random) {
    scale.multiplier = static_cast<std::int8_t>(random.below(16));
}

void fill(void* at, std::size_t size, dice& random) {
    auto* bytes = static_cast<std::uint8_t*>(at);
    for (std::size_t i = 0; i < size; ++i)
        bytes[i] = static_cast<std::uint8_t>(random());
}

/// Any codes under scales of small weights.
template <class F>
typename F::block block(dice& random) {
    using scale_type = typename F::scales::value;
    typename F::block any{}, out{};
    fill(&any, sizeof any, random);
    scale_type scale{};
    if constexpr (std::is_same_v<scale_type, crumb::half_multiple>)
        scale.unit = crumb::to_half(random.real(0.002f));
    for (std::size_t g = 0; g < F::scales::block_groups; ++g) {
        make(scale, random);
        int codes[crumb::block_inputs<F>];
        for (std::size_t i = 0; i < F::scales::group; ++i)
            codes[i] = F::code(any, g * F::scales::group + i);
        if constexpr (crumb::has_minima<F>) {
            auto minimum = scale;
            make(minimum, random);
            if constexpr (std::is_same_v<scale_type, crumb::half_multiple>)
                minimum.multiplier = static_cast<std::int8_t>(-minimum.multiplier);
            F::set(out, scale, minimum, codes, g);
        } else {
            F::set(out, scale, codes, g);
        }
    }
    return out;
}

/// Any bytes of a type that is only decoded, under a scale of small weights.
void put_decoded(ggml_type type, std::byte* at, dice& random) {
    const std::uint32_t bytes = find_ggml_type(type)->block_bytes;
    fill(at, bytes, random);
    const crumb::half small{0x1400}; // 2^-10
    const float single = 0x1p-10f;
    if (type == ggml_type::q8_k) {
        std::memcpy(at, &single, sizeof single);
    } else if (type == ggml_type::iq1_m) {
        // Four of its bits lead each of the last four numbers.
        for (std::size_t i = 0; i < 4; ++i) {
            std::byte& lead = at[bytes - 7 + 2 * i];
            lead = (lead & std::byte{15}) | static_cast<std::byte>(small.bits >> 4 * i << 4);
        }
    } else {
        std::memcpy(at, &small, sizeof small);
    }
}

bytes copied(const crumb::buffer& from, std::size_t size) {
    const auto all = from.bytes().first(size);
    return {all.begin(), all.end()};
}

} // namespace

std::vector<float> floats(std::size_t count, float most, dice& random, float center) {
    std::vector<float> out(count);
    for (float& x : out)
        x = center + random.real(most);
    return out;
}

bytes packed(weight_type type, std::size_t n, std::size_t k, dice& random) {
    bytes out;
    with_format(type, [&]<class F>(std::type_identity<F>) {
        const std::size_t in_row = (k + crumb::block_inputs<F> - 1) / crumb::block_inputs<F>;
        std::vector<typename F::block> blocks(n * in_row);
        for (auto& each : blocks)
            each = block<F>(random);
        const crumb::buffer memory(crumb::packed_bytes<F>(n, k));
        const auto view = crumb::pack(*crumb::storage<F>(blocks, n, k), memory.bytes());
        if (view)
            out = copied(memory, view->bytes());
    });
    return out;
}

bytes nested(std::size_t n, std::size_t k, int seed, int parent, dice& random) {
    const std::size_t groups = (k + crumb::group_size - 1) / crumb::group_size;
    std::vector<std::uint8_t> codes(n * k);
    for (auto& code : codes)
        code = static_cast<std::uint8_t>(random.below(std::size_t{1} << parent));
    std::vector<crumb::half> scales(n * groups);
    for (auto& scale : scales)
        make(scale, random);
    std::vector<crumb::half> corrections(n * static_cast<std::size_t>(parent - 1));
    for (auto& c : corrections)
        make(c, random);
    const crumb::nested_storage_view view{
        codes.data(), scales.data(), corrections.data(), n, k, crumb::nested_levels::uniform(seed, parent)};
    const crumb::buffer memory(crumb::nested_packed_bytes(n, k, parent));
    const auto done = crumb::pack(view, memory.bytes());
    return done ? copied(memory, done->bytes()) : bytes();
}

bytes neurons(const crumb::neuron_shape& shape, dice& random) {
    const auto layout = crumb::neuron_layout::of(shape);
    if (!layout)
        return {};
    const crumb::buffer memory(layout->bytes);
    const auto writer = crumb::neuron_writer::create(memory.bytes(), shape);
    if (!writer)
        return {};
    for (std::size_t n = 0; n < shape.neurons; ++n) {
        // Some neurons are always fixed, some hardly ever, for most it depends on the input.
        const float width = n % 4 == 0 ? 0.0f : n % 4 == 1 ? 8.0f : 0.3f;
        writer->thresholds(n, -width, width);
        writer->line(n, {0.5f + random.real(0.2f), random.real(0.1f), random.real(0.1f), -width, width, {}});
        const auto in = floats(shape.inputs, 0.1f, random), out = floats(shape.outputs, 0.1f, random);
        crumb::encode_row(shape.in, in.data(), shape.inputs, writer->in(n));
        crumb::encode_row(shape.out, out.data(), shape.outputs, writer->out(n));
    }
    return copied(memory, layout->bytes);
}

bool is_computed(ggml_type type) {
    return type == ggml_type::f32 || type == ggml_type::f16 || type == ggml_type::bf16 || format_of(type) ||
           is_decoded(type);
}

bytes elements(ggml_type type, std::size_t count, dice& random) {
    const std::uint64_t dims[] = {count};
    const auto size = ggml_bytes(type, dims);
    if (!size)
        return {};
    bytes out(static_cast<std::size_t>(*size));
    const auto values = floats(count, 0.15f, random);
    switch (type) {
    case ggml_type::f32:
        std::memcpy(out.data(), values.data(), out.size());
        break;
    case ggml_type::f16:
        for (std::size_t i = 0; i < count; ++i) {
            const crumb::half h = crumb::to_half(values[i]);
            std::memcpy(out.data() + i * sizeof h, &h, sizeof h);
        }
        break;
    case ggml_type::bf16:
        for (std::size_t i = 0; i < count; ++i)
            std::memcpy(out.data() + 2 * i, reinterpret_cast<const std::byte*>(&values[i]) + 2, 2);
        break;
    default:
        break;
    }
    if (const auto format = format_of(type))
        with_format(*format, [&]<class F>(std::type_identity<F>) {
            for (std::size_t at = 0; at < out.size(); at += sizeof(typename F::block)) {
                const auto made = block<F>(random);
                std::memcpy(out.data() + at, &made, sizeof made);
            }
        });
    for (std::size_t at = 0; is_decoded(type) && at < out.size(); at += find_ggml_type(type)->block_bytes)
        put_decoded(type, out.data() + at, random);
    return out;
}

bytes packed_like(std::span<const std::byte> like, std::size_t n, std::size_t k, std::size_t most,
                  dice& random) {
    crumb::packed_header header;
    if (like.size() < sizeof header || n == 0 || k == 0 || n > most || k > most)
        return {};
    std::memcpy(&header, like.data(), sizeof header);
    const std::string_view format(header.format, strnlen(header.format, sizeof header.format));
    if (format == crumb::nested_view::name) {
        const int seed = std::clamp(int{header.reserved[0]}, 2, 4);
        const int parent = std::clamp(int{header.reserved[1]}, seed, 4);
        const std::size_t size = crumb::nested_packed_bytes(n, k, parent);
        return size == 0 || size > most ? bytes() : nested(n, k, seed, parent, random);
    }
    bytes out;
    for (auto t = static_cast<std::size_t>(weight_type::q8_0); t < weight_names.size(); ++t)
        if (weight_names[t] == format)
            with_format(static_cast<weight_type>(t), [&]<class F>(std::type_identity<F>) {
                const std::size_t size = crumb::packed_bytes<F>(n, k);
                if (size != 0 && size <= most)
                    out = packed(static_cast<weight_type>(t), n, k, random);
            });
    return out;
}

} // namespace lm::fuzz
