// Logits of crumb-lm beside those of llama.cpp, for the same token ids: for every architecture that `crumb-lm
// synth --arch` writes, or for one file. Built with -D CRUMB_LLAMA_CPP=<its libraries> -D
// CRUMB_LLAMA_CPP_SOURCE=<its source, of the same release>.
//
//     crumb-compare [--golden FILE]       a table of all small models, in F32; FILE: for the tests
//     crumb-compare MODEL [TOKENS [TEXT]] one file, weights as stored: how far int8 of either is from floats
#include "llama_cpp/engines.hpp"
#include "train/synth.hpp"

#include <cmath>
#include <fstream>
#include <iterator>
#include <numeric>

#include <unistd.h>

namespace {

using beside::fail, beside::value_of;

/// Batches that neither program is given at once, so that windows slide within them and between them.
constexpr std::size_t batch = 64;

/// Logits behind all tokens, in batches.
std::vector<float> logits_of(beside::engine& e, std::span<const std::int32_t> tokens) {
    std::vector<float> out;
    for (; !tokens.empty(); tokens = tokens.subspan(std::min(batch, tokens.size()))) {
        const auto part = tokens.first(std::min(batch, tokens.size()));
        const auto rows = e.feed(part, part.size());
        out.insert(out.end(), rows.begin(), rows.end());
    }
    return out;
}

beside::engine_options exact(std::size_t context) {
    return {.context = context, .batch = batch, .exact = true};
}
std::vector<float> of_llama_cpp(const std::string& path, const std::vector<std::int32_t>& tokens,
                                std::size_t context) {
    beside::llama_engine e(path, exact(context));
    return logits_of(e, tokens);
}
std::vector<float> of_crumb(const std::string& path, const std::vector<std::int32_t>& tokens,
                            std::size_t context, lm::activation_type activations = lm::activation_type::f32) {
    beside::crumb_engine e(path, activations, exact(context));
    return logits_of(e, tokens);
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
        const auto tokens = lm::arbitrary_tokens(is_left_out ? shape.window : 700, shape.vocabulary);
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

/// KL divergences of the programs for one file, weights as stored; crumb-lm with floats for activations is
/// what both are measured by.
void one_file(const std::string& path, std::size_t count, const char* text) {
    std::vector<std::int32_t> tokens;
    std::size_t vocabulary = 0;
    {
        const lm::model m = value_of(lm::model::load(path, {}));
        vocabulary = m.shape().vocabulary;
        if (text == nullptr) {
            tokens = lm::arbitrary_tokens(count, vocabulary);
        } else {
            std::ifstream file(text, std::ios::binary);
            const std::string all{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
            tokens = m.vocabulary().encode(all.substr(0, 16 * count), false);
            tokens.resize(std::min(tokens.size(), count));
        }
    }
    if (tokens.empty())
        fail("there are no tokens");
    const std::size_t context = tokens.size() + batch;
    const auto floats = of_crumb(path, tokens, context);
    const auto row = [&](const char* name, const std::vector<float>& other) {
        const difference d = compare(floats, other, vocabulary);
        std::printf("| %s | %.3g | %.3g | %zu of %zu |\n", name, d.mean, d.worst, d.same, tokens.size());
    };
    std::printf(
        "| from crumb-lm with floats to | mean KL, nats | largest | same first token |\n|---|---|---|---|\n");
    row("crumb-lm, int8", of_crumb(path, tokens, context, lm::activation_type::int8));
    row("llama.cpp", of_llama_cpp(path, tokens, context));
}

} // namespace

int main(int argc, char** argv) {
    beside::start_llama_cpp(CRUMB_LLAMA_CPP);
    if (argc < 2 || argv[1][0] == '-')
        return table(argc == 3 && std::string(argv[1]) == "--golden" ? argv[2] : nullptr) ? 0 : 1;
    one_file(argv[1], argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 700, argc > 3 ? argv[3] : nullptr);
}
