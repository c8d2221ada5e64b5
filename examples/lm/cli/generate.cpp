#include "cli/commands.hpp"
#include "cli/model_report.hpp"
#include "cli/open_model.hpp"
#include "cli/report.hpp"
#include "eval/evaluate.hpp"
#include "text/sampler.hpp"
#include "text/utf8_stream.hpp"

#include <chrono>
#include <cmath>

namespace lm {

using crumb::errc;
using crumb::status;

status generate(const generate_options& o) {
    auto loaded = open_model(o);
    if (!loaded)
        return loaded.error();
    const model& m = *loaded->weights;
    chat_text text_before{o.prompt, {}};
    if (o.chat) {
        const auto format = format_of(m, o.format);
        if (!format)
            return format.error();
        std::vector<chat_message> messages;
        if (!o.system.empty())
            messages.push_back({chat_role::system, o.system});
        messages.push_back({chat_role::user, o.prompt});
        text_before = format->prompt(messages);
    }
    const auto prompt = m.vocabulary().encode_prompt(text_before.text, true, text_before.quoted);
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
    if (o.trace)
        trace_encoding(s);

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

    sampler next(o.how);
    for (const std::int32_t token : prompt)
        next.saw(token);
    utf8_stream shown;
    std::string text;
    std::size_t produced = 0;
    double nll = 0;
    if (!o.json && !o.chat) {
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
        if (m.vocabulary().ends_text(token)) {
            stop = "end of sequence";
            break;
        }
        const std::string piece = m.vocabulary().decode(token);
        text += piece;
        if (!o.json) {
            print_text(shown.push(piece));
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
