// libFuzzer target: nested weights are refused, or all precisions that they say they have are there.
#include "fuzz.hpp"
#include "products.hpp"

namespace lm::fuzz {

void run(std::span<const std::byte> input) {
    const exact_copy copy(input);
    const auto view = crumb::nested_view::open(copy.bytes());
    if (!view)
        return check_refusal(view.error());
    const crumb::nested_levels& levels = view->levels();
    check(view->bytes() <= input.size() && levels.seed >= crumb::min_nested_bits &&
              levels.parent <= crumb::max_nested_bits && levels.seed <= levels.parent,
          "a view of more than its bytes or of precisions that do not exist");
    if (view->n() * view->k() == 0 || view->n() * view->k() > max_weights)
        return;
    check(!crumb::nested_view::open(copy.bytes(), view->n(), view->k() + 1).ok() &&
              crumb::nested_view::open(copy.bytes(), view->n(), view->k()).ok(),
          "weights of another shape than asked for");
    const auto bias = inputs(view->n(), 7);
    const auto plan = crumb::nested_linear::plan(*view, {.bias = bias});
    if (!plan)
        return check_refusal(plan.error());
    check(plan->seed() == levels.seed && plan->parent() == levels.parent, "a plan of other precisions");
    for (int bits = levels.seed; bits <= levels.parent; ++bits) {
        std::vector<double> weights;
        std::vector<float> constants;
        for (std::size_t row = 0; row < view->n(); ++row) {
            for (std::size_t i = 0; i < view->k(); ++i)
                weights.push_back(view->weight(row, i, bits));
            constants.push_back(bias[row] + crumb::to_float(view->corrections(bits)[row]));
        }
        check(view->bytes_at(bits) <= view->bytes(), "a precision beyond the bytes");
        const crumb::any_linear any(*plan, bits);
        check_products(any, weights, constants);
        check_unpacked(any, weights);
        check(all_finite(constants), "a correction that is not finite");
        const one_product direct(*plan, bits), through(any);
        check(same_results(direct.y, through.y), "any_linear is another product");
    }
}

} // namespace lm::fuzz
