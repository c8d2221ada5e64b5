#include "ggml/weight_format.hpp"

#include <crumb/format/list.hpp>
#include <crumb/format/packed.hpp>

#include <array>
#include <cctype>
#include <cstring>

namespace crumb_ggml {
namespace {

template <class F>
constexpr weight_format functions_of{
    F::name,
    crumb::block_inputs<F>,
    sizeof(typename F::block),
    [](std::size_t n, std::size_t k) noexcept { return crumb::packed_bytes<F>(n, k); },
    [](const void* blocks, std::size_t n, std::size_t k, std::span<std::byte> to,
       crumb::range channels) noexcept {
        const crumb::storage_view<F> stored{static_cast<const typename F::block*>(blocks), n, k,
                                            k / crumb::block_inputs<F>};
        return crumb::pack_channels(stored, to, channels);
    },
    [](std::span<const std::byte> packed, crumb::range rows, void* blocks) noexcept -> crumb::status {
        const auto weights = crumb::packed_view<F>::open(packed);
        if (!weights)
            return weights.error();
        const std::size_t row_blocks = weights->k() / crumb::block_inputs<F>;
        auto* to = static_cast<std::byte*>(blocks);
        for (std::size_t row = rows.begin; row < rows.end; ++row)
            for (std::size_t b = 0; b < row_blocks; ++b, to += sizeof(typename F::block)) {
                const typename F::block block = crumb::unpack(*weights, row, b);
                std::memcpy(to, &block, sizeof block);
            }
        return {};
    },
};

bool same_name(const char* a, const char* b) noexcept {
    for (; *a != '\0' && *b != '\0'; ++a, ++b)
        if (std::tolower(static_cast<unsigned char>(*a)) != std::tolower(static_cast<unsigned char>(*b)))
            return false;
    return *a == *b;
}

} // namespace

const weight_format* format_of(ggml_type type) noexcept {
    static const auto table = [] {
        std::array<const weight_format*, GGML_TYPE_COUNT> formats{};
        const auto isa = crumb::choose_isa();
        for (std::size_t t = 0; t < formats.size(); ++t) {
            const ggml_type_traits* traits = ggml_get_type_traits(static_cast<ggml_type>(t));
            if (traits == nullptr || traits->type_name == nullptr || !traits->is_quantized)
                continue;
            crumb::all_format_list::for_each([&]<class F>() {
                const weight_format& f = functions_of<F>;
                // A program may do without the kernels of a format.
                const bool has_kernels = isa && crumb::dispatch::functions_of<F>(0, *isa).isa != nullptr;
                if (has_kernels && same_name(traits->type_name, f.name) &&
                    traits->type_size == f.block_bytes &&
                    traits->blck_size == static_cast<std::int64_t>(f.block_inputs))
                    formats[t] = &f;
            });
        }
        return formats;
    }();
    return type >= 0 && type < GGML_TYPE_COUNT ? table[static_cast<std::size_t>(type)] : nullptr;
}

} // namespace crumb_ggml
