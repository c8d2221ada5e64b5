// What llama.cpp computes with or without the plug-in, printed for check.py and bench.py. The plug-in is in
// it if GGML_BACKEND_PATH names it; LLAMA_LIBS is the folder of llama.cpp's libraries, which have its CPU
// backends.
//
//   llama_probe bench MODEL THREADS PROMPT GENERATED REPEATS [DEPTH]
//   llama_probe batches MODEL THREADS REPEATS SIZE...
//   llama_probe perplexity MODEL THREADS WINDOWS TEXT_FILE
//   llama_probe greedy MODEL THREADS TOKENS PROMPT...
//   llama_probe sequences MODEL THREADS TOKENS PROMPT...
//   llama_probe contexts MODEL THREADS TOKENS PROMPT OTHER_MODEL
//   llama_probe memory MODEL THREADS
//   llama_probe quantize MODEL TYPE OUT
#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

using tokens = std::vector<llama_token>;

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "llama_probe: %s\n", what.c_str());
    std::exit(1);
}

int number(const char* text) {
    char* end = nullptr;
    const long value = std::strtol(text, &end, 10);
    if (end == text || *end != '\0' || value < 0 || value > 1'000'000)
        fail(std::string("'") + text + "' is no number");
    return static_cast<int>(value);
}

struct deleter {
    void operator()(llama_model* m) const { llama_model_free(m); }
    void operator()(llama_context* c) const { llama_free(c); }
};
using model_ptr = std::unique_ptr<llama_model, deleter>;
using context_ptr = std::unique_ptr<llama_context, deleter>;

model_ptr load(const char* path) {
    llama_model_params p = llama_model_default_params();
    p.n_gpu_layers = 0;
    model_ptr m(llama_model_load_from_file(path, p));
    if (!m)
        fail(std::string("no model ") + path);
    return m;
}

ggml_type type_named(const char* name) {
    for (int type = 0; type < GGML_TYPE_COUNT; ++type)
        if (std::strcmp(ggml_type_name(static_cast<ggml_type>(type)), name) == 0)
            return static_cast<ggml_type>(type);
    fail(std::string("no type ") + name);
}

struct shape {
    int context = 1024, batch = 512, sequences = 1;
};
context_ptr context_of(llama_model* m, int threads, const shape& s = {}) {
    llama_context_params p = llama_context_default_params();
    p.n_ctx = static_cast<std::uint32_t>(s.context);
    p.n_batch = p.n_ubatch = static_cast<std::uint32_t>(s.batch);
    p.n_seq_max = static_cast<std::uint32_t>(s.sequences);
    p.n_threads = p.n_threads_batch = threads;
    if (const char* cache = std::getenv("PROBE_CACHE"))
        p.type_k = p.type_v = type_named(cache);
    if (const char* flash = std::getenv("PROBE_FLASH"))
        p.flash_attn_type =
            std::strcmp(flash, "1") == 0 ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    if (const char* unified = std::getenv("PROBE_UNIFIED"))
        p.kv_unified = std::strcmp(unified, "1") == 0;
    context_ptr c(llama_init_from_model(m, p));
    if (!c)
        fail("no context");
    return c;
}

tokens tokens_of(const llama_model* m, const std::string& text) {
    const llama_vocab* v = llama_model_get_vocab(m);
    tokens out(text.size() + 8);
    const int n = llama_tokenize(v, text.data(), static_cast<int>(text.size()), out.data(),
                                 static_cast<int>(out.size()), false, false);
    if (n <= 0)
        fail("no tokens");
    out.resize(static_cast<std::size_t>(n));
    return out;
}

/// A batch that is filled token by token.
class batch {
  public:
    explicit batch(int size) : b_(llama_batch_init(size, 0, 1)) { b_.n_tokens = 0; }
    ~batch() { llama_batch_free(b_); }
    batch(const batch&) = delete;
    batch& operator=(const batch&) = delete;
    void clear() { b_.n_tokens = 0; }
    void add(llama_token token, int position, int sequence, bool logits) {
        const int i = b_.n_tokens++;
        b_.token[i] = token;
        b_.pos[i] = position;
        b_.n_seq_id[i] = 1;
        b_.seq_id[i][0] = sequence;
        b_.logits[i] = logits;
    }
    int size() const { return b_.n_tokens; }
    void decode(llama_context* c) const {
        if (llama_decode(c, b_) != 0)
            fail("llama_decode has failed");
    }

  private:
    llama_batch b_;
};

struct candidate {
    llama_token token;
    double log_probability;
};
/// The likeliest tokens.
std::vector<candidate> best(llama_context* c, int i, std::size_t count = 8) {
    const float* logits = llama_get_logits_ith(c, i);
    const int n = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(c)));
    double most = -1e300, sum = 0;
    for (int t = 0; t < n; ++t)
        most = std::max(most, static_cast<double>(logits[t]));
    std::vector<candidate> all;
    for (int t = 0; t < n; ++t) {
        sum += std::exp(static_cast<double>(logits[t]) - most);
        all.push_back({t, static_cast<double>(logits[t])});
    }
    if (!std::isfinite(sum))
        fail("logits are not finite");
    std::partial_sort(
        all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count), all.end(),
        [](const candidate& a, const candidate& b) { return a.log_probability > b.log_probability; });
    all.resize(count);
    for (candidate& one : all)
        one.log_probability -= most + std::log(sum);
    return all;
}

void print(const std::vector<candidate>& of) {
    for (const candidate& c : of)
        std::printf("%d:%.5f ", c.token, c.log_probability);
    std::printf("\n");
}

double seconds_since(std::chrono::steady_clock::time_point t) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
}

void decode_all(llama_context* c, const tokens& t, int from, int sequence = 0) {
    batch b(static_cast<int>(t.size()));
    for (std::size_t i = 0; i < t.size(); ++i)
        b.add(t[i], from + static_cast<int>(i), sequence, i + 1 == t.size());
    b.decode(c);
}

/// In batches, from position `from` on.
void decode_batches(llama_context* c, const tokens& t, int from) {
    const int most = static_cast<int>(llama_n_batch(c)), all = static_cast<int>(t.size());
    for (int i = 0; i < all; i += most)
        decode_all(c, tokens(t.begin() + i, t.begin() + std::min(all, i + most)), from + i);
}

tokens some_tokens(const llama_model* m, int n) {
    const int all = llama_vocab_n_tokens(llama_model_get_vocab(m));
    tokens t;
    for (int i = 0; i < n; ++i)
        t.push_back(static_cast<llama_token>((static_cast<long>(i) * 7919 + 11) % all));
    return t;
}

void bench(char** a, int n) {
    const model_ptr m = load(a[0]);
    const int threads = number(a[1]), prompt = number(a[2]), generated = number(a[3]), repeats = number(a[4]);
    const int depth = n > 5 ? number(a[5]) : 0;
    const context_ptr c = context_of(m.get(), threads, {.context = depth + prompt + generated + 64});
    const tokens text = some_tokens(m.get(), std::max({prompt, depth, 64}));
    for (int r = -1; r < repeats; ++r) { // the first one warms up
        llama_memory_clear(llama_get_memory(c.get()), true);
        decode_batches(c.get(), tokens(text.begin(), text.begin() + depth), 0);
        int at = depth;
        if (prompt > 0) {
            const auto begin = std::chrono::steady_clock::now();
            decode_batches(c.get(), tokens(text.begin(), text.begin() + prompt), at);
            const double taken = seconds_since(begin);
            at += prompt;
            if (r >= 0)
                std::printf("prompt %.3f\n", prompt / taken);
        }
        if (generated > 0) {
            decode_all(c.get(), {text[0]}, at++);
            const auto begin = std::chrono::steady_clock::now();
            for (int i = 0; i < generated; ++i)
                decode_all(c.get(), {text[static_cast<std::size_t>(i) % text.size()]}, at++);
            if (r >= 0)
                std::printf("generation %.3f\n", generated / seconds_since(begin));
        }
        std::fflush(stdout);
    }
}

void batches(char** a, int n) {
    const model_ptr m = load(a[0]);
    const context_ptr c = context_of(m.get(), number(a[1]));
    const int repeats = number(a[2]);
    for (int s = 3; s < n; ++s) {
        const int size = number(a[s]);
        const tokens text = some_tokens(m.get(), size);
        for (int r = -1; r < repeats; ++r) {
            llama_memory_clear(llama_get_memory(c.get()), true);
            const auto begin = std::chrono::steady_clock::now();
            decode_all(c.get(), text, 0);
            if (r >= 0)
                std::printf("batch%d %.3f\n", size, size / seconds_since(begin));
        }
        std::fflush(stdout);
    }
}

void perplexity(char** a, int) {
    const model_ptr m = load(a[0]);
    const context_ptr c = context_of(m.get(), number(a[1]), {.context = 512});
    std::ifstream file(a[3], std::ios::binary);
    const tokens t = tokens_of(m.get(), {std::istreambuf_iterator<char>(file), {}});
    const int windows = std::min(number(a[2]), static_cast<int>(t.size() / 512));
    const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(m.get()));
    double sum = 0;
    int count = 0;
    for (int w = 0; w < windows; ++w) {
        llama_memory_clear(llama_get_memory(c.get()), true);
        batch b(512);
        const llama_token* window = t.data() + w * 512;
        for (int i = 0; i < 512; ++i)
            b.add(window[i], i, 0, i >= 256);
        b.decode(c.get());
        for (int i = 256; i < 511; ++i, ++count) {
            const float* logits = llama_get_logits_ith(c.get(), i);
            double most = -1e300, all = 0;
            for (int v = 0; v < vocabulary; ++v)
                most = std::max(most, static_cast<double>(logits[v]));
            for (int v = 0; v < vocabulary; ++v)
                all += std::exp(static_cast<double>(logits[v]) - most);
            sum += most + std::log(all) - static_cast<double>(logits[window[i + 1]]);
        }
    }
    std::printf("perplexity %.5f\n", std::exp(sum / count));
}

/// Continues a text by the likeliest tokens; prints the candidates of every step.
void continue_text(llama_context* c, const std::string& prompt, int n) {
    const tokens t = tokens_of(llama_get_model(c), prompt);
    llama_memory_clear(llama_get_memory(c), true);
    decode_all(c, t, 0);
    int at = static_cast<int>(t.size());
    for (int i = 0; i < n; ++i) {
        const auto likely = best(c, -1);
        print(likely);
        decode_all(c, {likely[0].token}, at++);
    }
    std::printf("end\n");
}

void greedy(char** a, int n) {
    const model_ptr m = load(a[0]);
    const context_ptr c = context_of(m.get(), number(a[1]));
    for (int p = 3; p < n; ++p)
        continue_text(c.get(), a[p], number(a[2]));
}

/// All prompts in one batch, then their continuations in batches of a token each.
void sequences(char** a, int n) {
    const model_ptr m = load(a[0]);
    const int count = n - 3, steps = number(a[2]);
    const context_ptr c =
        context_of(m.get(), number(a[1]), {.context = 512 * count, .batch = 512, .sequences = count});
    batch b(512);
    std::vector<int> at, last;
    for (int s = 0; s < count; ++s) {
        const tokens t = tokens_of(m.get(), a[3 + s]);
        for (std::size_t i = 0; i < t.size(); ++i)
            b.add(t[i], static_cast<int>(i), s, i + 1 == t.size());
        at.push_back(static_cast<int>(t.size()));
        last.push_back(b.size() - 1);
    }
    std::vector<std::vector<std::vector<candidate>>> texts(static_cast<std::size_t>(count));
    for (int i = 0; i < steps; ++i) {
        b.decode(c.get());
        b.clear();
        for (std::size_t s = 0; s < texts.size(); ++s) {
            texts[s].push_back(best(c.get(), last[s]));
            last[s] = b.size();
            b.add(texts[s].back()[0].token, at[s]++, static_cast<int>(s), true);
        }
    }
    for (const auto& text : texts) {
        for (const auto& step : text)
            print(step);
        std::printf("end\n");
    }
}

/// The same text by one context after the other, two at once in two threads, and beside another model.
void contexts(char** a, int) {
    const int threads = number(a[1]), steps = number(a[2]);
    const model_ptr m = load(a[0]);
    for (int i = 0; i < 4; ++i)
        continue_text(context_of(m.get(), threads).get(), a[3], steps);
    const model_ptr other = load(a[4]);
    const context_ptr first = context_of(m.get(), threads), second = context_of(other.get(), threads);
    std::atomic<bool> is_done = false;
    std::thread beside([&] {
        while (!is_done)
            decode_all(second.get(), some_tokens(other.get(), 16), 0),
                llama_memory_clear(llama_get_memory(second.get()), true);
    });
    continue_text(first.get(), a[3], steps);
    is_done = true;
    beside.join();
}

/// Kilobytes of memory that is no file's.
long anonymous() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
        if (line.rfind("RssAnon:", 0) == 0)
            return std::strtol(line.c_str() + 8, nullptr, 10);
    return 0;
}

void memory(char** a, int) {
    const long before = anonymous();
    std::atomic<bool> is_done = false;
    std::atomic<long> most = 0;
    std::thread watch([&] {
        while (!is_done) {
            most = std::max(most.load(), anonymous());
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    });
    const auto begin = std::chrono::steady_clock::now();
    const model_ptr m = load(a[0]);
    std::printf("load_seconds %.3f\n", seconds_since(begin));
    std::printf("loaded_kb %ld\n", anonymous() - before);
    is_done = true;
    watch.join();
    std::printf("peak_kb %ld\n", most - before);
    const context_ptr c = context_of(m.get(), number(a[1]));
    decode_all(c.get(), some_tokens(m.get(), 512), 0);
    std::printf("context_kb %ld\n", anonymous() - before);
}

/// All matrices of the layers, and the embedding, in a type of ggml by its name.
void quantize(char** a, int) {
    const ggml_type type = type_named(a[1]);
    llama_model_quantize_params p = llama_model_quantize_default_params();
    p.allow_requantize = p.pure = true;
    p.ftype = LLAMA_FTYPE_MOSTLY_Q8_0;
    const llama_model_tensor_override all[] = {{"attn_|ffn_", type}, {nullptr, GGML_TYPE_COUNT}};
    p.tt_overrides = all;
    if (llama_model_quantize(a[0], a[2], &p) != 0)
        fail("llama_model_quantize has failed");
}

void quiet(ggml_log_level level, const char* text, void*) {
    static const bool all = std::getenv("PROBE_LOG") != nullptr;
    if (all || level == GGML_LOG_LEVEL_ERROR || std::strncmp(text, "crumb", 5) == 0)
        std::fputs(text, stderr);
}

} // namespace

int main(int count, char** arguments) {
    llama_log_set(quiet, nullptr);
    const struct {
        const char* name;
        int least;
        void (*run)(char**, int);
    } commands[] = {{"bench", 5, bench},   {"batches", 4, batches},     {"perplexity", 4, perplexity},
                    {"greedy", 4, greedy}, {"sequences", 4, sequences}, {"contexts", 5, contexts},
                    {"memory", 2, memory}, {"quantize", 3, quantize}};
    for (const auto& c : commands)
        if (count > 1 && std::strcmp(arguments[1], c.name) == 0 && count - 2 >= c.least) {
            ggml_backend_load_all_from_path(std::getenv("LLAMA_LIBS"));
            llama_backend_init();
            c.run(arguments + 2, count - 2);
            llama_backend_free();
            return 0;
        }
    fail("which command, of what? See the beginning of its source.");
}
