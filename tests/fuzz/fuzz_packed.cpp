// libFuzzer target: packed weights of every format are refused or lie within their bytes, and their products
// are what the weights say.
#include "fuzz.hpp"
#include "products.hpp"

namespace lm::fuzz {
namespace {

template <class F>
void multiply(std::span<const std::byte> bytes) {
    const auto view = crumb::packed_view<F>::open(bytes);
    if (!view)
        return check_refusal(view.error());
    check(view->bytes() <= bytes.size(), "a view of more than its bytes");
    // A few bytes may stand for many empty rows.
    if (view->n() * view->k() == 0 || view->n() * view->k() > max_weights)
        return;
    std::vector<std::int8_t> tables;
    if constexpr (crumb::needs_codebooks<F>)
        for (int i = 0; i < static_cast<int>(crumb::codebook_entries<F>); ++i)
            tables.push_back(static_cast<std::int8_t>(i * 16 - 127));
    check(!crumb::packed_view<F>::open(bytes, view->n() + 1, view->k()).ok() &&
              crumb::packed_view<F>::open(bytes, view->n(), view->k()).ok(),
          "weights of another shape than asked for");
    // Every scale, exponent and code, of real channels and of those that pad the last tile. With minima the
    // terms of a weight may be larger than what is left of them.
    std::vector<double> weights, terms;
    for (std::size_t row = 0; row < crumb::round_up(view->n(), crumb::tile_channels); ++row)
        for (std::size_t b = 0; b < view->blocks(); ++b) {
            const auto block = crumb::unpack(*view, row, b);
            const std::size_t first = b * crumb::block_inputs<F>;
            const std::size_t size = std::min(view->k() - first, crumb::block_inputs<F>);
            auto stored = *crumb::storage<F>({&block, 1}, 1, size, tables);
            stored.tensor_scale = view->tensor_scale();
            for (std::size_t i = 0; i < size; ++i)
                if (const double w = stored.weight(0, i); row < view->n()) {
                    check(std::isfinite(static_cast<float>(w)), "a weight that is not finite");
                    weights.push_back(w);
                    double most = std::fabs(w);
                    if constexpr (crumb::has_minima<F>)
                        most += 2 * std::fabs(double(to_float(stored.minimum(0, i / F::scales::group))));
                    terms.push_back(most);
                }
        }
    const auto bias = inputs(view->n(), 7);
    const auto plan = crumb::linear<F>::plan(*view, {.bias = bias, .codebooks = tables});
    if (!plan)
        return check_refusal(plan.error());
    check_products(*plan, terms, bias);
    const crumb::any_linear any(*plan);
    check_equal(any, *plan);
    check(any.can_unpack() == !crumb::has_records<F>, "weights that can be unpacked, or cannot");
    if (any.can_unpack())
        check_unpacked(any, weights);
    const auto refused = crumb::linear<F>::plan(*view, {.bias = inputs(view->n() + 1)});
    check_refusal(refused.error());
}

} // namespace

void run(std::span<const std::byte> input) {
    const exact_copy copy(input);
    [&]<class... F>(crumb::type_list<F...>) { (multiply<F>(copy.bytes()), ...); }(crumb::all_format_list{});
}

} // namespace lm::fuzz
