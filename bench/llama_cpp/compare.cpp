// Logits of crumb-lm beside those of llama.cpp, for the same token ids: for every architecture that `crumb-lm
// synth --arch` writes, or for one file. Built with -D CRUMB_LLAMA_CPP=<its libraries> -D
// CRUMB_LLAMA_CPP_SOURCE=<its source, of the same release>.
//
//     crumb-compare [--golden FILE]       a table of all small models, in F32; FILE: for the tests
//     crumb-compare MODEL [TOKENS]        one file, weights as stored, float activations
#include "model/session.hpp"
#include "train/synth.hpp"

#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <unistd.h>

namespace {

struct deleter {
    void operator()(llama_model* m) const { llama_model_free(m); }
    void operator()(llama_context* c) const { llama_free(c); }
};

/// Batches that neither program is given at once, so that windows slide within them and between them.
constexpr std::size_t batch = 64;

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "crumb-compare: %s\n", what.c_str());
    std::exit(1);
}
template <class T>
T value_of(crumb::result<T> r) {
    if (!r)
        fail(r.message());
    return std::move(*r);
}

/// The same ids for everybody; the first tokens of a vocabulary may have a meaning.
std::vector<std::int32_t> tokens_of(std::size_t count, std::size_t vocabulary) {
    std::vector<std::int32_t> out;
    std::uint32_t x = 1;
    for (std::size_t i = 0; i < count; ++i) {
        x = x * 1664525u + 1013904223u;
        out.push_back(static_cast<std::int32_t>(5 + (x >> 8) % (vocabulary - 10)));
    }
    return out;
}

std::vector<float> of_llama_cpp(const std::string& path, const std::vector<std::int32_t>& tokens,
                                std::size_t context) {
    llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = 0;
    const std::unique_ptr<llama_model, deleter> m(llama_model_load_from_file(path.c_str(), mp));
    if (!m)
        fail(path + ": llama.cpp does not load it");
    llama_context_params cp = llama_context_default_params();
    cp.n_ctx = static_cast<std::uint32_t>(context);
    cp.n_batch = cp.n_ubatch = batch;
    cp.n_threads = cp.n_threads_batch = 1;
    cp.type_k = cp.type_v = GGML_TYPE_F32;
    cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    const std::unique_ptr<llama_context, deleter> c(llama_init_from_model(m.get(), cp));
    if (!c)
        fail(path + ": llama.cpp makes no context");
    const auto vocabulary = static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(m.get())));
    std::vector<float> out;
    llama_batch b = llama_batch_init(batch, 0, 1);
    for (std::size_t first = 0; first < tokens.size(); first += batch) {
        const std::size_t n = std::min(batch, tokens.size() - first);
        b.n_tokens = static_cast<std::int32_t>(n);
        for (std::size_t i = 0; i < n; ++i) {
            b.token[i] = tokens[first + i];
            b.pos[i] = static_cast<llama_pos>(first + i);
            b.n_seq_id[i] = 1;
            b.seq_id[i][0] = 0;
            b.logits[i] = 1;
        }
        if (llama_decode(c.get(), b) != 0)
            fail(path + ": llama.cpp does not decode it");
        for (std::size_t i = 0; i < n; ++i) {
            const float* row = llama_get_logits_ith(c.get(), static_cast<std::int32_t>(i));
            out.insert(out.end(), row, row + vocabulary);
        }
    }
    llama_batch_free(b);
    return out;
}

std::vector<float> of_crumb(const std::string& path, const std::vector<std::int32_t>& tokens,
                            std::size_t context) {
    const lm::model m = value_of(lm::model::load(path, {.activations = lm::activation_type::f32}));
    lm::session s = value_of(
        lm::session::make(m, lm::team(1), lm::kv_type::f32, std::min(context, m.shape().context), batch));
    const auto logits = value_of(s.feed(tokens, tokens.size()));
    return {logits.begin(), logits.end()};
}

struct difference {
    double mean = 0, worst = 0; ///< KL divergence from the first to the second, in nats
    std::size_t same = 0;       ///< tokens after which both think the same one likeliest
};

/// Of rows of `vocabulary` logits.
difference compare(const std::vector<float>& p, const std::vector<float>& q, std::size_t vocabulary) {
    if (p.size() != q.size())
        fail("vocabularies differ");
    difference d;
    const std::size_t rows = p.size() / vocabulary;
    const auto log_sum = [&](const float* x) {
        const double most = double{*std::max_element(x, x + vocabulary)};
        return most + std::log(std::accumulate(x, x + vocabulary, 0.0, [&](double sum, float each) {
                   return sum + std::exp(double{each} - most);
               }));
    };
    for (std::size_t r = 0; r < rows; ++r) {
        const float *a = p.data() + r * vocabulary, *b = q.data() + r * vocabulary;
        const double of_a = log_sum(a), of_b = log_sum(b);
        double kl = 0;
        for (std::size_t i = 0; i < vocabulary; ++i)
            kl += std::exp(double{a[i]} - of_a) * ((double{a[i]} - of_a) - (double{b[i]} - of_b));
        d.mean += kl / static_cast<double>(rows);
        d.worst = std::max(d.worst, kl);
        d.same += std::max_element(a, a + vocabulary) - a == std::max_element(b, b + vocabulary) - b;
    }
    return d;
}

/// Positions whose logits the tests compare with: in the first batch, behind windows, and the last one.
constexpr std::size_t golden_positions[] = {0, 40, 90, 699};

bool table(const char* golden) {
    std::ofstream file;
    if (golden != nullptr)
        file.open(golden, std::ios::binary);
    std::printf("| model | tokens | window | mean KL, nats | largest | same first token |\n"
                "|---|---|---|---|---|---|\n");
    bool good = true;
    for (const std::string_view name : lm::small_shape_names()) {
        const lm::synth_shape shape = value_of(lm::find_small_shape(name));
        const std::string path =
            "/tmp/crumb-compare-" + std::to_string(::getpid()) + "-" + std::string(name) + ".gguf";
        if (const auto s = value_of(lm::synthesize(shape, name, lm::ggml_type::f32, 1)).write(path); !s)
            fail(s.message());
        // llama.cpp leaves the window of `llama` out: both see the same tokens as long as it holds all.
        const bool is_left_out = shape.window != 0 && shape.arch == lm::architecture::llama;
        const auto tokens = tokens_of(is_left_out ? shape.window : 700, shape.vocabulary);
        const auto theirs = of_llama_cpp(path, tokens, shape.context);
        const auto ours = of_crumb(path, tokens, shape.context);
        std::remove(path.c_str());
        const difference d = compare(theirs, ours, shape.vocabulary);
        std::printf("| %s | %zu | %s | %.2g | %.2g | %zu |\n", std::string(name).c_str(), tokens.size(),
                    shape.window == 0 ? "" : std::to_string(shape.window).c_str(), d.mean, d.worst, d.same);
        good = good && d.mean <= 1e-5;
        if (golden != nullptr)
            for (const std::size_t at : golden_positions)
                file.write(reinterpret_cast<const char*>(theirs.data() +
                                                         std::min(at, tokens.size() - 1) * shape.vocabulary),
                           static_cast<std::streamsize>(shape.vocabulary * sizeof(float)));
    }
    if (golden != nullptr && !file.flush())
        fail(std::string(golden) + ": cannot be written");
    return good;
}

void quiet(ggml_log_level level, const char* text, void*) {
    if (level >= GGML_LOG_LEVEL_ERROR && level != GGML_LOG_LEVEL_CONT)
        std::fputs(text, stderr);
}

} // namespace

int main(int argc, char** argv) {
    llama_log_set(quiet, nullptr);
    ggml_backend_load_all_from_path(CRUMB_LLAMA_CPP);
    llama_backend_init();
    const bool one_file = argc > 1 && argv[1][0] != '-';
    if (!one_file)
        return table(argc == 3 && std::string(argv[1]) == "--golden" ? argv[2] : nullptr) ? 0 : 1;
    const lm::model m = value_of(lm::model::load(argv[1], {}));
    const std::size_t vocabulary = m.shape().vocabulary;
    const auto count = argc > 2 ? static_cast<std::size_t>(std::atoll(argv[2])) : 700;
    const auto tokens = tokens_of(count, vocabulary);
    const difference d =
        compare(of_llama_cpp(argv[1], tokens, count + 64), of_crumb(argv[1], tokens, count + 64), vocabulary);
    std::printf("mean KL %.3g nats, largest %.3g, same first token after %zu of %zu\n", d.mean, d.worst,
                d.same, count);
}
