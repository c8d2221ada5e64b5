#include "cli/commands.hpp"
#include "cli/model_report.hpp"
#include "cli/open_model.hpp"
#include "cli/report.hpp"
#include "machine/machine.hpp"
#include "machine/seconds.hpp"

#include <algorithm>
#include <cmath>

namespace lm {

using crumb::errc;
using crumb::status;

namespace {

/// Weights that take part in products, per token.
struct work {
    double bytes = 0; ///< of one generated token
    double macs = 0;  ///< of one token of a prompt, without the vocabulary
    double vocabulary_macs = 0;
};

work work_of(const model& m) {
    work w;
    for (const model_layer& l : m.layers()) {
        for (const matrix* x : {&l.q, &l.k, &l.v, &l.qkv, &l.output, &l.up, &l.gate, &l.down}) {
            // A token goes through the folded network; what that reads is counted as it runs.
            if (l.folded == nullptr || (x != &l.up && x != &l.down))
                w.bytes += static_cast<double>(x->stored_bytes());
            w.macs += static_cast<double>(x->n()) * static_cast<double>(x->k());
        }
    }
    w.bytes += static_cast<double>(m.output().stored_bytes());
    w.vocabulary_macs = static_cast<double>(m.output().n()) * static_cast<double>(m.output().k());
    return w;
}

/// Tokens per second of the measured runs, and where the time of one more run went.
struct measurement {
    std::vector<double> speeds;
    section_times times = {};

    double mean() const {
        double sum = 0;
        for (const double s : speeds)
            sum += s;
        return speeds.empty() ? std::nan("") : sum / static_cast<double>(speeds.size());
    }
    double deviation() const {
        double squares = 0;
        for (const double s : speeds)
            squares += (s - mean()) * (s - mean());
        return speeds.empty()      ? std::nan("")
               : speeds.size() < 2 ? 0.0
                                   : std::sqrt(squares / static_cast<double>(speeds.size() - 1));
    }
};

class benchmark {
  public:
    benchmark(session& s, const model& m, const bench_options& o, progress_line& progress)
        : s_(s), o_(o), progress_(progress),
          all_((o.repeat + 1 + (o.profile ? 1 : 0)) * ((o.prompt != 0 ? 1 : 0) + (o.generate != 0 ? 1 : 0))) {
        std::uint64_t x = 1;
        for (std::size_t i = 0; i < std::max({o.prompt, o.generate, o.depth}); ++i) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            text_.push_back(static_cast<std::int32_t>((x >> 33) % m.shape().vocabulary));
        }
    }

    void fill() {
        s_.reset();
        feed(std::span(text_).first(o_.depth), 0);
    }
    measurement prompt() {
        return measure(o_.prompt, [&] { feed(std::span(text_).first(o_.prompt), 1); });
    }
    measurement generation() {
        return measure(o_.generate, [&] {
            for (std::size_t i = 0; i < o_.generate; ++i)
                feed({&text_[i], 1}, 1);
        });
    }
    /// What has gone wrong first, if something has.
    const crumb::status& error() const { return error_; }

  private:
    void feed(std::span<const std::int32_t> tokens, std::size_t wanted) {
        if (const auto fed = s_.feed(tokens, wanted); !fed && error_)
            error_ = fed.error();
    }
    template <class F>
    measurement measure(std::size_t tokens, F&& f) {
        measurement out;
        for (std::size_t i = 0; tokens != 0 && i < o_.repeat + 1 + (o_.profile ? 1 : 0); ++i) {
            s_.rewind(o_.depth);
            // Windows do not keep what they have left behind.
            if (s_.length() != o_.depth)
                fill();
            const bool is_profile = i == o_.repeat + 1;
            s_.profile(is_profile);
            const auto start = std::chrono::steady_clock::now();
            f();
            const double seconds = seconds_since(start);
            if (is_profile)
                out.times = s_.times();
            else if (i != 0)
                out.speeds.push_back(static_cast<double>(tokens) / seconds);
            progress_(++done_, all_);
        }
        s_.profile(false);
        for (double& t : out.times)
            t /= static_cast<double>(std::max<std::size_t>(1, tokens));
        return out;
    }

    session& s_;
    const bench_options& o_;
    progress_line& progress_;
    std::size_t all_, done_ = 0;
    std::vector<std::int32_t> text_;
    crumb::status error_;
};

std::string test_name(const char* kind, std::size_t tokens, std::size_t depth) {
    return kind + std::to_string(tokens) + (depth != 0 ? " @ d" + std::to_string(depth) : "");
}

void print_row(const std::string& test, const measurement& m, double bandwidth, double peak) {
    const auto share = [](double x) {
        char text[16] = "-";
        if (std::isfinite(x))
            std::snprintf(text, sizeof text, "%.1f %%", 100 * x);
        return std::string(text);
    };
    print("%-16s %10.2f ± %-8.2f %18s %12s\n", test.c_str(), m.mean(), m.deviation(),
          share(bandwidth).c_str(), share(peak).c_str());
}

void print_profile(const measurement& prompt, const measurement& generation) {
    const auto sum = [](const section_times& times) {
        double all = 0;
        for (const double t : times)
            all += t;
        return all;
    };
    const double p = sum(prompt.times), g = sum(generation.times);
    print("\n%-26s %22s %22s\n", "microseconds per token", "prompt", "generation");
    for (std::size_t i = 0; i <= sections; ++i) {
        const double a = i < sections ? prompt.times[i] : p, b = i < sections ? generation.times[i] : g;
        print("%-26s", i < sections ? section_names[i].data() : "sum");
        for (const auto& [time, all] : {std::pair(a, p), std::pair(b, g)})
            print(" %12.2f %7.1f %%", 1e6 * time, all > 0 ? 100 * time / all : 0.0);
        print("\n");
    }
}

json_object profile_object(const section_times& times) {
    json_object out;
    for (std::size_t i = 0; i < sections; ++i)
        out.put(section_names[i], 1e6 * times[i]);
    return out;
}

} // namespace

status bench(const bench_options& o) {
    if (o.prompt == 0 && o.generate == 0)
        return status::error(errc::invalid_argument, "--prompt and --generate are both 0");
    constexpr std::size_t most = std::size_t{1} << 30;
    if (o.prompt > most || o.generate > most || o.depth > most)
        return status::error(errc::invalid_argument, "more than 2^30 tokens");
    const auto isa = crumb::choose_isa();
    if (!isa)
        return isa.error();
    // Speed depends on no codebook's entries.
    load_options fast = o;
    fast.default_codebooks = true;
    auto loaded = open_model(fast, o.depth + std::max(o.prompt, o.generate), 512);
    if (!loaded)
        return loaded.error();
    const model& m = *loaded->weights;
    session& s = *loaded->run;
    work w = work_of(m);
    const std::string weights = weights_name(m, o.weights);
    const bool is_q4_0 = weights == "q4_0";
    const auto matrices = m.matrices();
    const bool is_int8 = std::any_of(matrices.begin(), matrices.end(),
                                     [](const named_matrix& each) { return each.m->reads_activations(); });

    machine best(s.threads(), static_cast<std::size_t>(w.bytes), *isa, is_q4_0);
    best.measure();
    progress_line progress("runs");
    benchmark run(s, m, o, progress);
    run.fill();
    const measurement prompt = run.prompt();
    s.count_ffn(false);
    const measurement generation = run.generation();
    if (const ffn_counts ffn = s.ffn(); ffn.tokens != 0)
        w.bytes += ffn.bytes / static_cast<double>(ffn.tokens);
    progress.clear();
    best.measure();
    if (!run.error())
        return run.error();

    // A generated token reads every weight, and the keys and values of all tokens before it.
    const double cached = static_cast<double>(o.depth) + 0.5 * static_cast<double>(o.generate + 1);
    const double token_bytes = w.bytes + cached * s.kv_bytes_per_token();
    const double of_bandwidth = generation.mean() * token_bytes / best.bytes_per_second();
    const double prompt_macs =
        w.macs + w.vocabulary_macs / static_cast<double>(std::max<std::size_t>(1, o.prompt));
    const double of_peak = is_int8 ? prompt.mean() * prompt_macs / best.macs_per_second() : std::nan("");
    const std::string kv = o.kv.name();

    if (o.json) {
        json_object out;
        out.put("model", o.model)
            .put("weights", weights)
            .put("activations", activation_names[static_cast<std::size_t>(o.activations)])
            .put("kv", kv)
            .put("isa", crumb::isa_names()[*isa])
            .put("threads", s.threads().size())
            .put("prompt_tokens", o.prompt)
            .put("generated", o.generate)
            .put("depth", o.depth)
            .put("repeat", o.repeat);
        out.put("prompt_tokens_per_second", prompt.mean())
            .put("prompt_deviation", prompt.deviation())
            .put("generation_tokens_per_second", generation.mean())
            .put("generation_deviation", generation.deviation())
            .put("of_read_bandwidth", of_bandwidth)
            .put("of_mac_peak", of_peak)
            .put("read_bandwidth", best.bytes_per_second())
            .put("mac_peak", best.macs_per_second())
            .put("weight_bytes", m.weight_bytes())
            .put("weight_bytes_per_token", static_cast<std::size_t>(w.bytes))
            .put("kv_bytes_per_token", s.kv_bytes_per_token());
        put_ffn(out, s);
        if (o.profile)
            out.put("prompt_profile", profile_object(prompt.times))
                .put("generation_profile", profile_object(generation.times));
        print("%s\n", out.text().c_str());
        return {};
    }
    print("%s: weights %s, %.1f MB, of which a token reads %.1f; cache %s, %.0f bytes per token\n",
          o.model.c_str(), weights.c_str(), static_cast<double>(m.weight_bytes()) / 1e6, w.bytes / 1e6,
          kv.c_str(), s.kv_bytes_per_token());
    print("%s, %zu thread%s: %.2f GB/s read, %.1f GMAC/s at best\n\n", crumb::isa_names()[*isa],
          s.threads().size(), s.threads().size() == 1 ? "" : "s", best.bytes_per_second() / 1e9,
          best.macs_per_second() / 1e9);
    print("%-16s %21s %18s %12s\n", "test", "tokens/s", "of read bandwidth", "of MAC peak");
    if (o.prompt != 0)
        print_row(test_name("pp", o.prompt, o.depth), prompt, std::nan(""), of_peak);
    if (o.generate != 0)
        print_row(test_name("tg", o.generate, o.depth), generation, of_bandwidth, std::nan(""));
    if (o.profile)
        print_profile(prompt, generation);
    return {};
}

} // namespace lm
