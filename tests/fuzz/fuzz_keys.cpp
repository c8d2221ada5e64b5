// libFuzzer target: what a file holds beside its model - codebooks of the cache, schedules of precision,
// folded networks - is refused, or fits the model and can be used.
#include "model/ffn_file.hpp"
#include "model/kv_file.hpp"
#include "model/schedule_file.hpp"
#include "model/session.hpp"
#include "small_model.hpp"

namespace lm::fuzz {
namespace {

/// Encodes and reads tokens with codebooks from a file.
void use(const crumb::kv_codebooks& books, const model& m) {
    const model_shape& d = m.shape();
    crumb::kv_cache_options shape{.layers = d.layers,
                                  .kv_heads = d.kv_heads,
                                  .head_size = d.head_size,
                                  .max_tokens = 80,
                                  .max_rows = 70,
                                  .codec = books.codec,
                                  .sinks = 1,
                                  .window = 1,
                                  .codebooks = books.view().value()};
    const auto bytes = crumb::kv_cache::state_bytes(shape);
    if (!bytes)
        return check_refusal(bytes.error());
    const buffer state(*bytes);
    auto cache = crumb::kv_cache::create(shape, state.bytes()).value();
    const buffer page(cache.page_bytes());
    check(cache.add_page(page.bytes()).ok(), "a page is refused");
    const std::size_t width = d.kv_heads * d.head_size;
    const auto x = inputs(70 * width);
    const auto rows = crumb::matrix<const float>(x.data(), 70, width);
    for (std::size_t l = 0; l < d.layers; ++l)
        check(cache.write(l, rows, rows).ok(), "small keys are refused");
    check(cache.advance(70).ok(), "rows that were written are refused");
    const buffer encoding(cache.encode_scratch_bytes());
    check(cache.encode(encoding.bytes()) == 64, "nothing is encoded");
    const auto q = inputs(width, 2);
    std::vector<float> y(width);
    for (const crumb::kv_mode mode : {crumb::kv_mode::fast, crumb::kv_mode::exact}) {
        const auto plan = crumb::kv_attention::plan(shape, {.heads = d.kv_heads, .mode = mode});
        check(plan.ok(), "no attention over a cache that exists");
        const buffer scratch(plan->scratch_bytes(1));
        const crumb::status done =
            plan->run(crumb::matrix<const float>(q.data(), 1, width), cache, d.layers - 1,
                      crumb::matrix(y.data(), 1, width), scratch.bytes(), {.position = 69});
        check(done.ok(), "attention refuses small queries");
    }
}

void use(const schedule_source& source, const model& m) {
    const crumb::precision_range stored = m.precisions().value();
    check(stored.has(source.prefill), "a schedule with a precision that is not stored");
    auto s = session::make(m, team(1), kv_type::f16, std::min<std::size_t>(4, m.shape().context), 4);
    if (!s)
        return check_refusal(s.error());
    s->precision(source.prefill);
    const auto tokens = tokens_of(m, std::min<std::size_t>(2, s->context()));
    if (const auto fed = s->feed(tokens, 1); !fed)
        return check_refusal(fed.error());
    const auto chosen = source.choose(*s, 0);
    if (!chosen)
        return check_refusal(chosen.error());
    for (std::size_t step = 0; step < 20; ++step)
        check(stored.has((*chosen)(step, {})), "a step with a precision that is not stored");
}

void use(const std::vector<folded_layer>& layers, const model& m) {
    const std::size_t width = m.shape().width;
    check(layers.size() == m.shape().layers, "folded networks of some layers only");
    const auto x = inputs(2 * width);
    std::vector<float> y(2 * width);
    for (const folded_layer& layer : layers)
        for (std::size_t rows = 1; rows <= std::min<std::size_t>(2, m.shape().context); ++rows) {
            const buffer scratch(layer.plan().scratch_bytes(rows));
            layer.plan().run({crumb::matrix<const float>(x.data(), rows, width),
                              crumb::matrix(y.data(), rows, width), scratch.bytes()});
        }
}

} // namespace

void run(std::span<const std::byte> input) {
    const auto m = small_model(input, {});
    if (!m)
        return;
    constexpr crumb::kv_codec codecs[] = {
        crumb::kv_codec::pq(2, 8, true, true), crumb::kv_codec::pq(2, 6, false, true),
        crumb::kv_codec::pq(4, 8, false, true), crumb::kv_codec::pq(1, 4, false, false)};
    for (const crumb::kv_codec& codec : codecs) {
        const auto books = read_codebooks(*m, codec);
        if (!books)
            check_refusal(books.error());
        else if (*books)
            use(**books, *m);
    }
    const auto schedule = read_schedule(*m);
    if (!schedule)
        check_refusal(schedule.error());
    else if (*schedule)
        use(**schedule, *m);
    for (const ffn_type ffn : {ffn_type::tardis, ffn_type::both}) {
        const auto layers = read_ffns(*m, {.ffn = ffn, .ffn_by_lists = ffn == ffn_type::tardis});
        if (layers)
            use(*layers, *m);
        else
            check_refusal(layers.error());
    }
}

} // namespace lm::fuzz
