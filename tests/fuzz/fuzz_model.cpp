// libFuzzer target: a file is refused, or its model runs: logits for every token of a short text, with every
// kind of activations, weights, cache, folded networks and precisions. All are finite, or there is an error.
#include "model/kv_file.hpp"
#include "model/schedule_file.hpp"
#include "model/session.hpp"
#include "small_model.hpp"

namespace lm::fuzz {
namespace {

constexpr const char* caches[] = {"f16",
                                  "f32",
                                  "q8_0:sinks=0:window=1",
                                  "kivi4:sinks=1:window=1",
                                  "kivi2:sinks=0:window=2",
                                  "pq4:sinks=1:window=1",
                                  "pq3:sinks=0:window=1",
                                  "pq2:sinks=0:window=1:exact",
                                  "pq:1x4:sinks=0:window=1",
                                  "pq4:sinks=0:window=1:skip=0.1"};

} // namespace

void run(std::span<const std::byte> input) {
    choices choose(input);
    model_options options;
    options.ffn = choose.of({ffn_type::dense, ffn_type::tardis, ffn_type::both, ffn_type::dense});
    options.activations = choose.of(
        {activation_type::int8, activation_type::f32, activation_type::int8, activation_type::panels});
    options.weights = choose.below(8) == 7 ? static_cast<weight_type>(choose.below(weight_names.size()))
                                           : weight_type::stored;
    options.ffn_by_lists = choose.flag();
    const auto kv = kv_type::parse(choose.of(caches));
    check(kv.ok(), "a cache that does not exist");
    // Tokens become codes when there are 64 of them that are old enough; that takes as long as dozens of
    // others.
    const bool is_long = !kv->codec.is_uncoded() && choose.below(8) == 7;
    const std::size_t batch = choose.below(4) + 1, prompt = is_long ? 70 : choose.below(4) + 1;
    const bool by_schedule = choose.flag();

    auto m = small_model(input, options);
    if (!m)
        return;
    consume(static_cast<std::uint64_t>(m->bits_per_weight()));
    const std::size_t steps = 2;
    const std::size_t context = std::min(prompt + steps, m->shape().context);
    crumb::kv_codebooks codebooks;
    if (kv->codec.has_codebooks()) {
        auto books = read_codebooks(*m, kv->codec);
        if (!books)
            return check_refusal(books.error());
        if (*books)
            codebooks = std::move(**books);
    }
    auto s = session::make(*m, team(1), *kv, context, is_long ? 70 : batch,
                           codebooks.sets != 0 ? codebooks.view().value() : crumb::pq_codebooks());
    if (!s)
        return check_refusal(s.error());
    s->count_ffn(true);
    const auto tokens = tokens_of(*m, context);
    const std::size_t vocabulary = m->shape().vocabulary;
    const auto feed = [&](std::span<const std::int32_t> some, std::size_t wanted) {
        const std::size_t before = s->length();
        const auto logits = s->feed(some, wanted);
        if (!logits) {
            check_refusal(logits.error());
            check(s->length() >= before && s->length() < before + some.size(),
                  "tokens of a pass that failed");
            return false;
        }
        check(logits->size() == wanted * vocabulary && s->length() == before + some.size(),
              "logits of other tokens");
        check(all_finite(*logits), "logits that are not finite");
        return true;
    };
    step_precision schedule;
    std::optional<schedule_source> source;
    if (by_schedule) {
        auto read = read_schedule(*m);
        if (!read)
            check_refusal(read.error());
        else if (*read)
            source = std::move(**read);
    }
    if (m->precisions())
        s->precision(source ? source->prefill : m->precisions()->seed);
    const std::size_t first = std::min(prompt, context);
    if (!feed(std::span(tokens).first(first), std::min<std::size_t>(first, 2)))
        return;
    if (source) {
        const auto chosen = source->choose(*s, 0);
        if (!chosen)
            return check_refusal(chosen.error());
        schedule = *chosen;
    }
    for (std::size_t i = first; i < context; ++i) {
        if (m->precisions())
            s->precision(schedule ? schedule(i - first, {}) : m->precisions()->parent);
        if (!feed(std::span(tokens).subspan(i, 1), 1))
            return;
    }
    // A part of it again.
    s->rewind(first / 2);
    if (s->length() < context)
        (void)feed(std::span(tokens).subspan(s->length(), 1), 1);
}

} // namespace lm::fuzz
