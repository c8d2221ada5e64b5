#include "parts.hpp"

#include <cstring>

namespace lm::fuzz {
namespace {

/// A scale of small weights.
void make(crumb::half& scale, dice& random) { scale = crumb::to_half(random.real(0.02f)); }
void make(crumb::block_scale& scale, dice& random) {
    scale = {static_cast<std::uint8_t>(112 + random.below(4)),
             static_cast<std::int8_t>(static_cast<int>(random.below(201)) - 100)};
}

bytes copied(const buffer& from, std::size_t size) {
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
        constexpr auto range = static_cast<std::size_t>(F::codes::maximum - F::codes::minimum + 1);
        for (auto& block : blocks) {
            typename F::scales::value scale{};
            for (std::size_t g = 0; g < F::scales::block_groups; ++g) {
                make(scale, random);
                int codes[crumb::group_size];
                for (int& code : codes)
                    code = F::codes::minimum + static_cast<int>(random.below(range));
                F::set(block, scale, codes, g);
            }
        }
        const buffer memory(crumb::packed_bytes<F>(n, k));
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
    const buffer memory(crumb::nested_packed_bytes(n, k, parent));
    const auto done = crumb::pack(view, memory.bytes());
    return done ? copied(memory, done->bytes()) : bytes();
}

bytes neurons(const crumb::neuron_shape& shape, dice& random) {
    const auto layout = crumb::neuron_layout::of(shape);
    if (!layout)
        return {};
    const buffer memory(layout->bytes);
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

bytes elements(ggml_type type, std::size_t count, dice& random) {
    const std::uint64_t dims[] = {count};
    const auto size = ggml_bytes(type, dims);
    if (!size)
        return {};
    bytes out(static_cast<std::size_t>(*size));
    const auto values = floats(count, 0.15f, random);
    const auto blocks = [&](crumb::row_codec codec) {
        crumb::encode_row(codec, values.data(), count, out.data());
    };
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
    case ggml_type::q8_0:
        blocks(crumb::row_codec::q8_0);
        break;
    case ggml_type::q4_0:
        blocks(crumb::row_codec::q4_0);
        break;
    default:
        break;
    }
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
