// Everything that a program instantiates, for compilers with all their warnings.
#include <crumb/crumb.hpp>
#include <crumb/util.hpp>

namespace {

[[maybe_unused]] auto any(std::span<const std::byte> bytes) { return crumb::any_linear::open(bytes); }
[[maybe_unused]] auto attention(const crumb::kv_cache_options& cache) {
    return crumb::kv_attention::plan(cache, {.heads = 8, .prompts = crumb::int8_products().value()});
}
[[maybe_unused]] auto cache(const crumb::kv_cache_options& options, std::span<std::byte> state) {
    return crumb::kv_cache::create(options, state);
}
[[maybe_unused]] auto folded(const crumb::ffn_shape& shape, const crumb::folded_ffn_parts& parts) {
    return crumb::folded_ffn::plan(shape, parts);
}
[[maybe_unused]] auto schedule(const crumb::learned_shape& shape, const crumb::learned_weights& weights,
                               const crumb::schedule_levels& levels) {
    return crumb::learned_schedule::plan(shape, weights, levels);
}
[[maybe_unused]] auto floats() { return crumb::float_ops::plan(); }

} // namespace
