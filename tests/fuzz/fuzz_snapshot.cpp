// libFuzzer target: a saved cache is refused, with the cache as it was, or restored: saved again it is the
// same bytes, and attention over it reads nothing else.
#include "fuzz.hpp"

#include "caches.hpp"

namespace lm::fuzz {
namespace {

void attend(cache_of& c) {
    const std::size_t length = c.cache.length();
    if (length == 0)
        return;
    const crumb::kv_cache_options& s = c.cache.options();
    const std::size_t heads = 2 * s.kv_heads;
    const auto q = inputs(heads * s.head_size);
    std::vector<float> y(q.size());
    for (const crumb::kv_mode mode : {crumb::kv_mode::fast, crumb::kv_mode::exact}) {
        const auto plan = crumb::kv_attention::plan(s, {.heads = heads, .mode = mode}).value();
        const std::vector<std::byte> zeros(plan.scratch_bytes(1));
        const exact_copy scratch(zeros);
        for (std::size_t layer = 0; layer < s.layers; ++layer) {
            const crumb::status done =
                plan.run(crumb::matrix<const float>(q.data(), 1, q.size()), c.cache, layer,
                         crumb::matrix(y.data(), 1, y.size()), scratch.bytes(), {.position = length - 1});
            // Floats may add up to more than floats hold; halves, and what codes stand for, do not.
            if (!done)
                check_refusal(done);
            else if (s.codec.kind != crumb::kv_kind::f32)
                check(all_finite(y), "attention over a restored cache is not finite");
        }
    }
}

/// Tokens, until the oldest ones of them become codes.
void append(cache_of& c, std::size_t rows) {
    const crumb::kv_cache_options& s = c.cache.options();
    const std::size_t width = s.kv_heads * s.head_size;
    const auto keys = inputs(rows * width, 3), values = inputs(rows * width, 4);
    for (std::size_t layer = 0; layer < s.layers; ++layer) {
        const crumb::status written =
            c.cache.write(layer, crumb::matrix<const float>(keys.data(), rows, width),
                          crumb::matrix<const float>(values.data(), rows, width));
        if (!written)
            return check_refusal(written);
    }
    check(c.cache.advance(rows).ok(), "rows that were written are refused");
    const std::vector<std::byte> zeros(c.cache.encode_scratch_bytes());
    const exact_copy scratch(zeros);
    c.cache.encode(scratch.bytes());
}

} // namespace

void run(std::span<const std::byte> input) {
    choices choose(input);
    cache_of& c = choose.of(all_caches());
    const bool right_content = choose.flag(), more = choose.flag();
    const std::size_t kept = choose.below(700);
    c.clear();
    const exact_copy copy(input);
    // The hash finds damage, and keeps nobody away who can compute it.
    if (crumb::kv_snapshot_header h; right_content && input.size() >= sizeof h) {
        std::memcpy(&h, input.data(), sizeof h);
        if (h.bytes >= sizeof h && h.bytes <= input.size())
            h.content = content_hash(c.cache, h,
                                     input.subspan(sizeof h, static_cast<std::size_t>(h.bytes) - sizeof h));
        std::memcpy(copy.bytes().data(), &h, sizeof h);
    }
    const auto length = crumb::snapshot_length(copy.bytes());
    if (length)
        c.add_pages(*length);
    const crumb::status restored = crumb::restore(c.cache, copy.bytes());
    if (!restored) {
        check_refusal(restored);
        check(c.cache.length() == 0 && c.cache.coded() == 0, "refused, and the cache is another");
        return;
    }
    check(length && c.cache.length() == *length, "another length than the snapshot's");
    const std::size_t size = crumb::snapshot_bytes(c.cache);
    check(size <= input.size(), "restored from fewer bytes than it takes");
    const std::vector<std::byte> zeros(size);
    const exact_copy again(zeros);
    check(crumb::save(c.cache, again.bytes()).ok(), "what was restored cannot be saved");
    check(std::memcmp(again.bytes().data(), copy.bytes().data(), size) == 0, "saved again, it is another");
    attend(c);
    if (more) {
        c.add_pages(*length + 80);
        append(c, c.cache.options().max_rows);
        attend(c);
    }
    c.cache.truncate(kept);
    attend(c);
    append(c, 1);
    attend(c);
}

} // namespace lm::fuzz
