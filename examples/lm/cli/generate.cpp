#include "cli/commands.hpp"
#include "cli/report.hpp"
#include "eval/evaluate.hpp"
#include "model/kv_file.hpp"
#include "model/sampler.hpp"
#include "train/quantizer.hpp"

#include <chrono>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

namespace {

/// The codebooks of the file, or such as are trained on a text that the model writes now.
result<crumb::kv_codebooks> codebooks_for(const model& m, const common_options& o) {
    auto stored = read_codebooks(m, o.kv.codec);
    if (!stored)
        return stored.error();
    if (*stored)
        return std::move(**stored);
    std::fprintf(stderr, "crumb-lm: %s has no codebooks of %s: training them on text that the model writes\n",
                 m.path().c_str(), codec_name(o.kv.codec).c_str());
    kv_training how;
    how.text = "self";
    how.chunks = 16;
    how.sinks = o.kv.sinks;
    how.threads = team(o.threads).size();
    stage_progress progress;
    auto books = train_codebooks(m, o.kv.codec, how, std::ref(progress));
    progress.clear();
    return books;
}

} // namespace

result<loaded_model> load(const common_options& options) {
    bool is_rounded = options.weights != weight_type::nested;
    with_format(options.weights,
                [&]<class F>(std::type_identity<F>) { is_rounded = crumb::rounding_format<F>; });
    const auto read = [&]() -> result<model> {
        if (is_rounded)
            return model::load(options.model,
                               {options.weights, options.activations, options.ffn, options.ffn_by_lists});
        // Codebooks and error feedback take the whole model at once.
        common_options stored = options;
        stored.weights = weight_type::stored;
        stored.ffn = ffn_type::dense;
        auto source = load(stored, 0, 512);
        if (!source)
            return source.error();
        quantize_options how;
        how.weights = options.weights;
        how.vocabulary = weight_type::stored;
        how.chunks = 16;
        how.sweeps = 0;
        auto file = quantized_file(how, *source->weights, *source->run);
        if (!file)
            return file.error();
        return model::load(std::move(*file), options.model,
                           {weight_type::stored, options.activations, options.ffn, options.ffn_by_lists});
    };
    auto m = read();
    if (!m)
        return m.error();
    loaded_model l;
    l.weights = std::make_unique<model>(std::move(*m));
    if (options.kv.codec.has_codebooks()) {
        auto books = codebooks_for(*l.weights, options);
        if (!books)
            return books.error();
        l.codebooks = std::make_unique<crumb::kv_codebooks>(std::move(*books));
    }
    return l;
}

status start(loaded_model& l, const common_options& options, std::size_t context, std::size_t batch) {
    const auto books = l.codebooks ? l.codebooks->view() : crumb::pq_codebooks();
    if (!books)
        return books.error();
    auto s = session::make(*l.weights, team(options.threads), options.kv,
                           context == 0 ? l.weights->shape().context : context, batch, *books);
    if (!s)
        return s.error();
    if (const status fits = context == 0 ? status() : s->fits(context); !fits)
        return fits;
    l.run.emplace(std::move(*s));
    return {};
}

result<loaded_model> load(const common_options& options, std::size_t context, std::size_t batch) {
    auto l = load(options);
    if (!l)
        return l;
    if (const status started = start(*l, options, context, batch); !started)
        return started;
    return l;
}

result<loaded_model> load_against(const std::string& against, const model& other,
                                  const common_options& options, std::size_t context, std::size_t batch) {
    if (against.empty())
        return loaded_model();
    common_options full = options;
    full.model = against;
    full.weights = weight_type::f32;
    full.activations = activation_type::f32;
    full.kv = kv_type::f16;
    full.ffn = ffn_type::dense;
    auto reference = load(full, context, batch);
    if (reference && reference->weights->shape().vocabulary != other.shape().vocabulary)
        return status::error(errc::bad_shape, "--against: the vocabularies have %zu and %zu tokens",
                             reference->weights->shape().vocabulary, other.shape().vocabulary);
    return reference;
}

result<std::vector<std::int32_t>> write_text(session& s, const std::vector<std::int32_t>& start,
                                             std::size_t count, float temperature, std::size_t top_k,
                                             std::uint64_t seed,
                                             const std::function<void(std::int32_t)>& each) {
    sampler next(temperature, top_k, seed);
    std::vector<std::int32_t> text;
    while (text.size() < count) {
        s.reset();
        auto logits = s.feed(start, 1);
        while (text.size() < count) {
            if (!logits)
                return logits.error();
            const std::int32_t token = next(*logits);
            text.push_back(token);
            if (each)
                each(token);
            if (s.length() == s.context())
                break;
            logits = s.feed({&token, 1}, 1);
        }
    }
    return text;
}

void put_ffn(json_object& out, const session& s) {
    double dense = 0;
    ffn_type type = ffn_type::dense;
    for (const model_layer& l : s.of().layers()) {
        dense += static_cast<double>(l.up.stored_bytes() + l.down.stored_bytes() + l.gate.stored_bytes());
        if (l.folded != nullptr)
            type = l.up.n() == 0 ? ffn_type::tardis : ffn_type::both;
    }
    out.put("ffn", ffn_names[static_cast<std::size_t>(type)]);
    if (type == ffn_type::dense) {
        out.put("ffn_bytes_per_token", dense);
        return;
    }
    const ffn_counts c = s.ffn();
    out.put("ffn_bytes_per_token", c.bytes / static_cast<double>(c.tokens));
    out.put("fixed", static_cast<double>(c.fixed) / static_cast<double>(c.neurons));
    if (c.missed)
        out.put("missed", static_cast<double>(*c.missed) / static_cast<double>(c.neurons));
}

std::string ffn_line(const session& s) {
    const ffn_counts c = s.ffn();
    if (c.neurons == 0)
        return {};
    char text[160];
    const double all = static_cast<double>(c.neurons) / 100;
    int size =
        std::snprintf(text, sizeof text, "%.1f KB per token, %.2f %% of the neurons fixed",
                      c.bytes / static_cast<double>(c.tokens) / 1e3, static_cast<double>(c.fixed) / all);
    if (c.missed)
        size += std::snprintf(text + size, sizeof text - static_cast<std::size_t>(size), ", %.3f %% missed",
                              static_cast<double>(*c.missed) / all);
    return {text, static_cast<std::size_t>(size)};
}

std::string weights_name(const model& m, weight_type type) {
    return type == weight_type::stored ? m.stored_type()
                                       : std::string(weight_names[static_cast<std::size_t>(type)]);
}

status generate(const generate_options& o) {
    auto loaded = load(o);
    if (!loaded)
        return loaded.error();
    const model& m = *loaded->weights;
    const auto prompt = m.vocabulary().encode(o.prompt, true);
    if (prompt.empty())
        return status::error(errc::invalid_argument, "the prompt is empty");
    if (prompt.size() > m.shape().context)
        return status::error(errc::invalid_argument, "the prompt has %zu tokens, the model's context is %zu",
                             prompt.size(), m.shape().context);
    // What is used, and no more.
    const std::size_t left = m.shape().context - prompt.size();
    if (const status started = start(*loaded, o, prompt.size() + std::min(o.tokens, left), 128); !started)
        return started;
    session& s = *loaded->run;
    s.count_ffn(false);

    std::optional<schedule_source> source;
    std::optional<decoder> steps;
    if (m.precisions() || o.precision.prefill != 0 || o.precision.from_file) {
        auto found = source_of(o.precision, m, std::max<std::size_t>(o.tokens, 1));
        if (!found)
            return found.error();
        source = std::move(*found);
        steps.emplace(s, *source);
    }

    using clock = std::chrono::steady_clock;
    const auto seconds = [](clock::duration d) { return std::chrono::duration<double>(d).count(); };
    const auto start = clock::now();
    auto logits = steps ? steps->begin(prompt) : s.feed(prompt, 1);
    const double prompt_seconds = seconds(clock::now() - start);

    sampler next(o.temperature, o.top_k, o.seed);
    std::string text;
    std::size_t produced = 0;
    double nll = 0;
    if (!o.json) {
        print_text(o.prompt);
        if (const status p = printed(); !p)
            return p;
    }
    const auto generation_start = clock::now();
    const char* stop = "length";
    while (produced < o.tokens) {
        if (!logits)
            return logits.error();
        const std::int32_t token = next(*logits);
        nll += (surprise(*logits, token) - nll) / static_cast<double>(++produced);
        // Byte-level models have every byte as text, and their end-of-sequence number is one of them.
        if (m.vocabulary().eos() == token && m.vocabulary().decode(token).empty()) {
            stop = "end of sequence";
            break;
        }
        const std::string piece = m.vocabulary().decode(token);
        text += piece;
        if (!o.json) {
            print_text(piece);
            if (const status p = printed(); !p)
                return p;
        }
        if (s.length() == m.shape().context) {
            stop = "context is full";
            break;
        }
        if (produced < o.tokens)
            logits = steps ? steps->step(token) : s.feed({&token, 1}, 1);
    }
    const double generation_seconds = seconds(clock::now() - generation_start);
    const double prompt_speed = static_cast<double>(prompt.size()) / prompt_seconds;
    const double speed = produced == 0 ? 0.0 : static_cast<double>(produced) / generation_seconds;
    if (o.json) {
        json_object out;
        out.put("model", o.model)
            .put("weights", weights_name(m, o.weights))
            .put("activations", activation_names[static_cast<std::size_t>(o.activations)])
            .put("kv", o.kv.name());
        out.put("text", text).put("stop", stop);
        out.put("prompt_tokens", prompt.size()).put("tokens", produced);
        out.put("nll", nll).put("ppl", std::exp(nll));
        out.put("bits_per_weight", m.bits_per_weight()).put("kv_bytes_per_token", s.kv_bytes_per_token());
        put_ffn(out, s);
        if (steps)
            out.put("precision", o.precision.name()).put("average_bits", steps->average_bits());
        out.put("prompt_tokens_per_second", prompt_speed).put("tokens_per_second", speed);
        print("%s\n", out.text().c_str());
        return {};
    }
    print("\n\n");
    if (const status p = printed(); !p)
        return p;
    std::fprintf(stderr, "prompt:     %5zu tokens, %9.1f tokens/s\n", prompt.size(), prompt_speed);
    std::fprintf(stderr, "generation: %5zu tokens, %9.1f tokens/s (stopped: %s)\n", produced, speed, stop);
    if (const std::string folded = ffn_line(s); !folded.empty())
        std::fprintf(stderr, "networks:   %s\n", folded.c_str());
    if (steps)
        std::fprintf(stderr, "precision:  %5.2f bits on average\n", steps->average_bits());
    return {};
}

} // namespace lm
