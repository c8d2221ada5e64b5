#include "cli/commands.hpp"
#include "cli/open_model.hpp"
#include "cli/report.hpp"
#include "eval/evaluate.hpp"
#include "machine/seconds.hpp"
#include "model/ffn_file.hpp"
#include "model/input_text.hpp"
#include "model/precision.hpp"
#include "train/ffn_training.hpp"
#include "train/kv_training.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <utility>

namespace lm {
namespace {

using logits_result = crumb::result<std::span<const float>>;

/// Tokens per second of tokens 1 to 256 of a text, or all of a context, one by one: the median of three runs,
/// of which each takes a moment only. `begin` reads token 0 into an empty cache, `step` the next one.
crumb::result<double> median_speed(std::span<const std::int32_t> text, std::size_t ctx,
                                   const std::function<logits_result(std::span<const std::int32_t>)>& begin,
                                   const std::function<logits_result(std::int32_t)>& step) {
    const auto tokens = text.subspan(1, std::min<std::size_t>(256, ctx - 1));
    std::array<double, 3> speeds{};
    for (double& speed : speeds) {
        if (const auto begun = begin(text.first(1)); !begun)
            return begun.error();
        const auto start = std::chrono::steady_clock::now();
        for (const std::int32_t token : tokens)
            if (const auto taken = step(token); !taken)
                return taken.error();
        speed = static_cast<double>(tokens.size()) / seconds_since(start);
    }
    std::sort(speeds.begin(), speeds.end());
    return speeds[1];
}

/// The same of a session at its own precision.
crumb::result<double> generation_speed(session& s, std::span<const std::int32_t> text, std::size_t ctx) {
    return median_speed(
        text, ctx,
        [&](std::span<const std::int32_t> prompt) {
            s.reset();
            return s.feed(prompt, 1);
        },
        [&](std::int32_t token) { return s.feed({&token, 1}, 1); });
}

/// One copy of nested weights at every precision, and under a schedule that falls as a text goes on.
crumb::status show_precisions(const load_options& of, session& reference, std::span<const std::int32_t> text,
                              std::size_t ctx) {
    load_options o = of;
    o.weights = weight_type::nested;
    auto nested = open_model(o, 0, 512);
    if (!nested)
        return nested.error();
    session& s = *nested->run;
    const model& m = *nested->weights;
    print("\n  %-20s %12s %14s %12s %12s\n", "nested weights", "bits", "generation", "KL", "top-1");
    print("  %-20s %12s %14s %12s %12s\n", "prompt/decoding", "average", "tokens/s", "nats", "agreement");
    for (const char* precision : {"4", "3", "2", "4/3", "4/2", "4,3@85,2@170"}) {
        const auto source = source_of(*precision_option::parse(precision), m, ctx);
        if (!source)
            return source.error();
        progress_line measuring(precision);
        const auto e = evaluate(
            s, &reference, text, ctx, 2, [&](std::size_t done, std::size_t all) { measuring(done, all); },
            &*source);
        measuring.clear();
        if (!e)
            return e.error();
        decoder d(s, *source);
        const auto speed = median_speed(
            text, ctx, [&](std::span<const std::int32_t> prompt) { return d.begin(prompt); },
            [&](std::int32_t token) { return d.step(token); });
        if (!speed)
            return speed.error();
        print("  %-20s %12.3f %14.0f %12.6f %11.2f%%\n", precision, e->bits, *speed, e->kl,
              100 * e->agreement);
        if (const auto p = printed(); !p)
            return p;
    }
    return {};
}

/// A line about the feed-forward networks of a model. `share`: of the parameters that folding leaves, by the
/// share of neurons that are fixed; nothing for networks as they are.
crumb::status show_network(const load_options& of, const model& m, const std::function<double(double)>& share,
                           session& reference, std::span<const std::int32_t> text, std::size_t ctx) {
    auto s = session::make(m, team(of.threads), kv_type::f16, ctx, ctx);
    if (!s)
        return s.error();
    s->count_ffn(true);
    progress_line measuring("folded networks");
    const auto e = evaluate(*s, &reference, text, ctx, 4,
                            [&](std::size_t done, std::size_t all) { measuring(done, all); });
    measuring.clear();
    if (!e)
        return e.error();
    const ffn_counts counts = s->ffn();
    double bytes = counts.tokens == 0 ? 0 : counts.bytes / static_cast<double>(counts.tokens);
    for (const model_layer& l : m.layers())
        bytes += static_cast<double>(l.up.stored_bytes() + l.down.stored_bytes());
    s->count_ffn(false);
    const auto speed = generation_speed(*s, text, ctx);
    if (!speed)
        return speed.error();
    char name[32] = "as they are, 8 bits";
    const double all = static_cast<double>(std::max<std::size_t>(counts.neurons, 1)) / 100;
    const double fixed = share ? static_cast<double>(counts.fixed) / all : 100;
    if (share)
        std::snprintf(name, sizeof name, "folded, %.3f", share(fixed / 100));
    print("  %-26s %10.2f %10.2f %14.1f %14.0f %12.6f %11.2f%%\n", name, fixed,
          static_cast<double>(counts.missed.value_or(0)) / all, bytes / 1e3, *speed, e->kl,
          100 * e->agreement);
    return printed();
}

/// Feed-forward networks as they are, and folded so that less and less of them is read.
crumb::status show_networks(const load_options& of, const model& full, session& reference,
                            std::span<const std::int32_t> text, std::size_t ctx) {
    const auto& d = full.shape();
    print("\n  %-26s %10s %10s %14s %14s %12s %12s\n", "feed-forward networks", "fixed", "missed",
          "read per token", "generation", "KL", "top-1");
    print("  %-26s %10s %10s %14s %14s %12s %12s\n", "parameters read", "%", "%", "KB", "tokens/s", "nats",
          "agreement");
    model_options as{weight_type::stored, activation_type::int8, ffn_type::dense, true};
    const auto dense = model::load(of.model, as);
    if (!dense)
        return dense.error();
    if (const auto shown = show_network(of, *dense, {}, reference, text, ctx); !shown)
        return shown;
    as.ffn = ffn_type::tardis;
    auto reader = session::make(full, team(of.threads), kv_type::f16, ctx, ctx);
    if (!reader)
        return reader.error();
    ffn_training how;
    how.text = "self";
    how.chunks = 8;
    how.seed = 5;
    how.threads = of.threads;
    stage_progress folding;
    const auto show_folded = [&](const stored_ffns& ffns) -> crumb::status {
        folding.clear();
        gguf_writer writer(3, crumb::alignment);
        writer.copy(full.file(), ffn_prefix);
        write_ffns(writer, full, ffns);
        const auto bytes = writer.bytes();
        if (!bytes)
            return bytes.error();
        buffer file(bytes->size());
        std::memcpy(file.bytes().data(), bytes->data(), bytes->size());
        const auto m = model::load(std::move(file), of.model, as);
        if (!m)
            return m.error();
        const auto share = [&](double fixed) { return ffns.recipe.left(d.width, d.hidden, fixed); };
        return show_network(of, *m, share, reference, text, ctx);
    };
    return fold_ffns(full, *reader, how, std::array{0.35, 0.25}, show_folded, std::ref(folding));
}

/// Caches of one model, fed token by token, so that as much of them is coded as in generation.
crumb::status show_caches(const load_options& of, std::span<const std::int32_t> text, std::size_t ctx) {
    auto halves = open_model(of, ctx, ctx);
    if (!halves)
        return halves.error();
    const model& m = *halves->weights;
    const auto& d = m.shape();
    kv_training how;
    how.text = "self";
    how.chunks = 2;
    how.seed = 11;
    how.threads = halves->run->threads().size();
    stage_progress training;
    const auto samples = collect_samples(m, how, std::ref(training));
    training.clear();
    if (!samples)
        return samples.error();
    print("\n  %-8s %12s %12s %12s %12s %12s\n", "cache", "bits/channel", "bytes/token", "KL", "top-1",
          "training");
    print("  %-8s %12s %12s %12s %12s %12s\n", "", "", "", "nats", "agreement", "s");
    for (const char* name : {"f16", "q8_0", "kivi4", "pq4", "pq2"}) {
        const kv_type kv = *kv_type::parse(name);
        crumb::kv_codebooks books;
        double trained = 0;
        if (kv.codec.has_codebooks()) {
            const auto start = std::chrono::steady_clock::now();
            auto made = train_codebooks(*samples, kv.codec, how, std::ref(training));
            training.clear();
            if (!made)
                return made.error();
            books = std::move(*made);
            trained = seconds_since(start);
        }
        const auto tables = books.view();
        if (!tables)
            return tables.error();
        auto s = session::make(m, team(how.threads), kv, ctx, 1, *tables);
        if (!s)
            return s.error();
        progress_line measuring(name);
        const auto e = evaluate(*s, &*halves->run, text, ctx, 2,
                                [&](std::size_t done, std::size_t all) { measuring(done, all); });
        measuring.clear();
        if (!e)
            return e.error();
        const double bytes = s->kv_bytes_per_token();
        print("  %-8s %12.3f %12.0f %12.6f %11.2f%%", name,
              8 * bytes / static_cast<double>(2 * d.layers * d.kv_heads * d.head_size), bytes, e->kl,
              100 * e->agreement);
        if (trained > 0)
            print(" %12.1f\n", trained);
        else
            print(" %12s\n", "-");
        if (const auto p = printed(); !p)
            return p;
    }
    return {};
}

crumb::status show(const std::string& path, std::size_t threads) {
    load_options full;
    full.model = path;
    full.weights = weight_type::f32;
    full.activations = activation_type::f32;
    full.threads = threads;
    full.calibration_windows = 4;
    auto reference = open_model(full, 0, 512);
    if (!reference)
        return reference.error();
    const model& m = *reference->weights;
    const auto& d = m.shape();
    print("\n%s: %zu layers, width %zu, %zu query and %zu key-value heads, %s feed-forward of %zu\n\n",
          std::filesystem::path(path).stem().c_str(), d.layers, d.width, d.heads, d.kv_heads,
          d.traits.gate != gate_type::none ? "gated" : "GELU", d.hidden);

    load_options stored = full;
    stored.weights = weight_type::stored;
    stored.activations = activation_type::int8;
    auto writer = open_model(stored, 0, 512);
    if (!writer)
        return writer.error();
    const std::string prompt = "It was a dark evening, and ";
    print("  %s", prompt.c_str());
    std::size_t column = prompt.size();
    crumb::status shown;
    const auto show_token = [&](std::int32_t token) {
        for (const char c : m.vocabulary().decode(token)) {
            const bool wrap = c == '\n' || (c == ' ' && column > 90);
            print_text(wrap ? std::string_view("\n  ") : std::string_view(&c, 1));
            column = wrap ? 0 : column + 1;
        }
        shown = printed();
    };
    const auto begun =
        write_text(*writer->run, m.vocabulary().encode(prompt, true), 400, 0.7f, 20, 3, show_token);
    for (const crumb::status& s : {begun.error(), shown})
        if (!s)
            return s;
    print("\n\n");

    const std::size_t windows = 4, ctx = std::min<std::size_t>(d.context, 512);
    progress_line writing("the full-precision model writes a text");
    std::size_t written = 0;
    const auto sample = write_text(*reference->run, m.vocabulary().encode(" ", true), windows * ctx, 1.0f, 0,
                                   7, [&](std::int32_t) { writing(++written, windows * ctx); });
    writing.clear();
    if (!sample)
        return sample.error();
    const std::vector<std::int32_t>& text = *sample;

    print("  %-8s %-12s %12s %10s %14s %14s %12s %12s\n", "weights", "activations", "bits/weight", "size",
          "prompt", "generation", "KL", "top-1");
    print("  %-8s %-12s %12s %10s %14s %14s %12s %12s\n", "", "", "", "MB", "tokens/s", "tokens/s", "nats",
          "agreement");
    constexpr std::pair<weight_type, activation_type> compared[] = {
        {weight_type::f32, activation_type::f32},   {weight_type::q8_0, activation_type::int8},
        {weight_type::q4_0, activation_type::int8}, {weight_type::q4_0, activation_type::panels},
        {weight_type::cb4, activation_type::int8},  {weight_type::cb3, activation_type::int8},
        {weight_type::cb2s, activation_type::int8}};
    for (const auto& [type, activations] : compared) {
        load_options o = stored;
        o.weights = type;
        o.activations = activations;
        auto each = open_model(o, 0, 512);
        if (!each && activations == activation_type::panels &&
            each.error().code() == crumb::errc::unsupported)
            continue;
        if (!each)
            return each.error();
        session& s = *each->run;
        progress_line measuring(std::string{weight_names[static_cast<std::size_t>(type)]});
        const auto e = evaluate(s, &*reference->run, text, ctx, windows,
                                [&](std::size_t done, std::size_t all) { measuring(done, all); });
        measuring.clear();
        if (!e)
            return e.error();
        const auto speed = generation_speed(s, text, ctx);
        if (!speed)
            return speed.error();
        print("  %-8s %-12s %12.3f %10.2f %14.0f %14.0f %12.6f %11.2f%%\n",
              weight_names[static_cast<std::size_t>(type)].data(),
              activation_names[static_cast<std::size_t>(o.activations)].data(),
              each->weights->bits_per_weight(), static_cast<double>(each->weights->weight_bytes()) / 1e6,
              static_cast<double>(e->fed) / e->seconds, *speed, e->kl, 100 * e->agreement);
        if (const auto p = printed(); !p)
            return p;
    }
    if (const crumb::status done = show_precisions(stored, *reference->run, text, ctx); !done)
        return done;
    if (d.traits.gate == gate_type::none)
        if (const crumb::status done = show_networks(stored, m, *reference->run, text, ctx); !done)
            return done;
    // Rounded activations would differ with every digit of the cache, and hide what it loses.
    load_options eight_bits = stored;
    eight_bits.weights = weight_type::q8_0;
    eight_bits.activations = activation_type::f32;
    return show_caches(eight_bits, text, ctx);
}

} // namespace

crumb::status demo(const demo_options& options) {
    const std::string directory = !options.models.empty() ? options.models : CRUMB_MODEL_DIR;
    std::vector<std::string> models;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(directory, error))
        if (entry.path().extension() == ".gguf")
            models.push_back(entry.path().string());
    if (error || models.empty())
        return crumb::status::error(crumb::errc::invalid_argument,
                                    "no models in '%s': give the directory with --models", directory.c_str());
    std::sort(models.begin(), models.end());
    const auto isa = crumb::choose_isa();
    if (!isa)
        return isa.error();
    print("crumb on %s, %zu threads. The models are bytewise, 5 million weights, trained on "
          "public-domain novels.\n",
          crumb::isa_names()[*isa], team(options.threads).size());
    if (const auto p = printed(); !p)
        return p;
    for (const auto& path : models)
        if (const crumb::status s = show(path, options.threads); !s)
            return s;
    print(
        "\nKL: mean Kullback-Leibler divergence from the full-precision model (f32 weights, f16 "
        "cache) on text that it wrote\n"
        "itself; top-1: share of positions where both models' likeliest bytes agree. Size: all "
        "matrices, embedding included.\n"
        "Attention and feed-forward matrices have the stated precision; embedding and output stay as "
        "the file has them.\n"
        "cb4, cb3 and cb2s are codebooks, made here on random tokens; on a text they come two to four "
        "times closer:\n"
        "crumb-lm quantize MODEL --weights cb2s --calibrate TEXT --out FILE\n"
        "Nested weights: one copy of 4 bits whose upper bits are a model of 3 and of 2 bits; 4,3@85,2@170 "
        "lowers the precision\n"
        "at steps 85 and 170 of decoding. Made here on random tokens; on a text: crumb-lm quantize MODEL "
        "--weights nested:2-4\n"
        "--calibrate TEXT --out FILE\n"
        "Folded networks: one matrix for both, 2 bits to predict which neurons have to be fixed, and those; "
        "parameters as TARDIS\n"
        "counts them, of 8 d^2. Folded here on 8 windows of the model's own text; on a text: crumb-lm "
        "calibrate "
        "MODEL --ffn tardis\n"
        "--text TEXT --out FILE\n"
        "Caches: q8_0 weights, float activations, KL from the same with an f16 cache; 4 sinks and the "
        "newest 32 to 95 tokens are\n"
        "fp16. The codebooks of pq4 and pq2 are trained here on 1024 tokens; on more: crumb-lm calibrate "
        "MODEL --kv pq4 --text\n"
        "TEXT --out FILE\n");
    return {};
}

} // namespace lm
