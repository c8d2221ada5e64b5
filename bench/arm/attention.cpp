// crumb-arm-attention: a step of attention repeated, for count.py to count its instructions under an
// emulator.
#include "cache_problem.hpp"

#include <crumb/core/buffer.hpp>
#include <crumb/op/cache/int8_products.hpp>
#include <crumb/op/cache/kv_attention.hpp>

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace crumb::bench {
namespace {

constexpr std::size_t coded = 2048; ///< tokens

struct request {
    std::string_view codec, isa;
    std::size_t queries, rows; ///< query heads of the kv head, rows of the step
    bool int8;
    int repetitions;
};

std::vector<float> numbers(std::size_t n, std::mt19937& engine) {
    std::normal_distribution<float> normal;
    std::vector<float> x(n);
    for (float& value : x)
        value = normal(engine);
    return x;
}

int run(const kv_codec& codec, const request& r) {
    std::mt19937 engine(1);
    const random_codebooks codebooks(codec, 1, engine);
    const kv_cache_options options{.layers = 1,
                                   .kv_heads = 1,
                                   .head_size = head_size,
                                   .max_tokens = 2 * coded,
                                   .max_rows = std::max<std::size_t>(64, r.rows),
                                   .codec = codec,
                                   .codebooks = codebooks.view()};
    const buffer state(must(kv_cache::state_bytes(options)));
    kv_cache cache = must(kv_cache::create(options, state));
    const std::size_t pages = cache.pages_for(options.max_tokens);
    const std::size_t page_bytes = round_up(cache.page_bytes(), alignment);
    const buffer memory(pages * page_bytes), encoding(cache.encode_scratch_bytes());
    for (std::size_t p = 0; p < pages; ++p)
        must(cache.add_page({memory.data() + p * page_bytes, cache.page_bytes()}));
    const auto write = [&](std::size_t rows) {
        const std::vector<float> k = numbers(rows * head_size, engine), v = numbers(rows * head_size, engine);
        must(cache.write(0, matrix<const float>(k.data(), rows, head_size),
                         matrix<const float>(v.data(), rows, head_size)));
    };
    for (std::size_t t = 0; t < coded; t += 64) {
        write(64);
        must(cache.advance(64));
        cache.encode(encoding);
    }
    write(r.rows);

    const auto plan_of = [&](const kv_matrix_products& prompts) {
        return must(kv_attention::plan(options, {.heads = r.queries, .prompts = prompts}, {r.isa.data()}));
    };
    const kv_attention plan = plan_of(r.int8 ? must(int8_products({r.isa.data()})) : kv_matrix_products{});
    if (r.isa != plan.isa()) {
        std::fprintf(stderr, "crumb-arm-attention: the plan fell back to %s\n", plan.isa());
        return 1;
    }
    const std::size_t columns = r.queries * head_size;
    const std::vector<float> q = numbers(r.rows * columns, engine);
    const kv_attention by_floats = plan_of({});
    const buffer scratch(std::max(plan.scratch_bytes(r.rows), by_floats.scratch_bytes(r.rows)));
    const auto step = [&](const kv_attention& by, std::vector<float>& y, kv_error* errors) {
        must(by.run(matrix<const float>(q.data(), r.rows, columns), cache, 0,
                    matrix(y.data(), r.rows, columns), scratch, {.errors = errors}));
    };
    std::vector<float> y(q.size()), floats(q.size());
    for (int i = 0; i < r.repetitions; ++i)
        step(plan, y, nullptr);

    // The last query head of the last row sees all tokens; products of int8 matrices have no bound.
    std::vector<kv_error> errors(r.rows * r.queries);
    step(by_floats, floats, errors.data());
    const std::size_t last = q.size() - head_size;
    std::string wrong = check_attention(cache, 0, coded + r.rows, &q[last], &floats[last], errors.back());
    const double off = relative_difference(y, floats);
    if (wrong.empty() && !(off <= (r.int8 ? 1e-3 : 0)))
        wrong = "wrong result: " + std::to_string(off) + " of its square is off";
    if (!wrong.empty())
        std::fprintf(stderr, "crumb-arm-attention: %s\n", wrong.c_str());
    return wrong.empty() ? 0 : 1;
}

} // namespace
} // namespace crumb::bench

int main(int argc, char** argv) {
    using namespace crumb;
    if (argc == 7) {
        const std::string_view products = argv[5];
        const bench::request r{.codec = argv[1],
                               .isa = argv[2],
                               .queries = std::strtoul(argv[3], nullptr, 10),
                               .rows = std::strtoul(argv[4], nullptr, 10),
                               .int8 = products == "int8",
                               .repetitions = std::atoi(argv[6])};
        for (const named_kv_codec& each : kv_codecs)
            if (each.name == r.codec && r.queries >= 1 && r.queries <= 64 && r.rows >= 1 && r.rows <= 512 &&
                r.repetitions >= 1 && (r.int8 || products == "floats"))
                return bench::run(each.codec, r);
    }
    std::fputs("usage: crumb-arm-attention <codec> <isa> <queries> <rows> <floats|int8> <repetitions>\n",
               stderr);
    return 2;
}
