// A llama in one file: reads a GGUF model and continues a text. Threads, memory and the order of a forward
// pass are here, the arithmetic is crumb's, crumb_lm_io (examples/lm/gguf and text) reads files and text.
//
//   g++ -std=c++20 -O2 -Iinclude -Iexamples/lm examples/minimal_llama.cpp examples/lm/gguf/*.cpp
//       examples/lm/text/*.cpp -lpcre2-8 -pthread -o minimal_llama
//   ./minimal_llama examples/models/novels-llama-5m-q8_0.gguf "It was a dark evening" --kv kivi4
//
// That compiles the kernels for all ISAs; -DCRUMB_TWO_ISAS=avx2, for two of them, takes half as long.
#include "gguf/kv_codebooks.hpp"
#include "gguf/packed_weights.hpp"
#include "text/sampler.hpp"
#include "text/tokenizer.hpp"

#include <crumb/cache.hpp>
#include <crumb/float_ops.hpp>
#include <crumb/linear.hpp>
#include <crumb/offline/weights/quantize.hpp>
#include <crumb/util.hpp>

#include <algorithm>
#include <barrier>
#include <charconv>
#include <cmath>
#include <functional>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace {

using crumb::matrix_view, crumb::or_exit, crumb::range, crumb::status;
using lm::ggml_type, lm::gguf_tensor;

float to_float(float x) { return x; }

void require(bool holds, const std::string& message) {
    if (!holds)
        or_exit(status::error(crumb::errc::invalid_argument, "%s", message.c_str()));
}

// ---- threads ----

/// Threads that begin together and wait for each other: a `crumb::thread_pool`. The thread that calls `run`
/// takes part 0.
class workers {
  public:
    explicit workers(std::size_t size) : barrier_(static_cast<std::ptrdiff_t>(size)) {
        for (std::size_t part = 1; part < size; ++part)
            threads_.emplace_back([this, part] {
                for (barrier_.arrive_and_wait(); work_; barrier_.arrive_and_wait()) {
                    work_(part, this->size());
                    barrier_.arrive_and_wait(); // until all are done
                }
            });
    }
    ~workers() {
        work_ = nullptr;
        barrier_.arrive_and_wait();
        for (std::thread& t : threads_)
            t.join();
    }
    std::size_t size() const noexcept { return threads_.size() + 1; }
    void run(auto&& f) {
        work_ = std::ref(f);
        barrier_.arrive_and_wait();
        work_(0, size());
        barrier_.arrive_and_wait();
    }

  private:
    std::barrier<> barrier_;
    std::function<void(std::size_t, std::size_t)> work_;
    std::vector<std::thread> threads_;
};
static_assert(crumb::thread_pool<workers>);

// ---- the model ----

struct layer {
    std::vector<float> attention_norm, ffn_norm;
    crumb::any_linear q, k, v, output, gate, up, down;
};
struct model {
    lm::gguf file;        ///< mapped, as long as the model lives
    crumb::arena weights; ///< packed, those that the file's own bytes do not serve for
    std::size_t context, width, hidden, heads, kv_heads, head_size, rope_dims;
    float norm_epsilon, rope_base;
    std::vector<layer> layers;
    std::vector<float> embedding, output_norm;
    crumb::any_linear output_basis, output; ///< the first one of models whose stream is rotated
};

/// Calls f with a tensor's matrix as it lies in the file: a view of floats, or of a format's blocks.
void with_weights(const gguf_tensor& t, auto&& f) {
    const auto view = [&]<class T>(ggml_type type, T) {
        if (t.type == type)
            f(crumb::matrix(reinterpret_cast<const T*>(t.data.data()), t.dims[1], t.dims[0]));
    };
    view(ggml_type::f32, float());
    view(ggml_type::f16, crumb::half());
    view(ggml_type::bf16, crumb::bf16());
    crumb::all_format_list::for_each([&]<class F>() {
        const auto* blocks = reinterpret_cast<const typename F::block*>(t.data.data());
        if (lm::ggml_type_named(F::name) == t.type)
            f(or_exit(crumb::storage<F>({blocks, t.data.size() / sizeof *blocks}, t.dims[1], t.dims[0])));
    });
}

std::vector<float> floats(const gguf_tensor& t) {
    std::vector<float> out;
    with_weights(t, [&](const auto& w) {
        for (std::size_t r = 0; r < t.dims[1]; ++r)
            for (std::size_t i = 0; i < t.dims[0]; ++i)
                if constexpr (requires { w.weight(r, i); })
                    out.push_back(static_cast<float>(w.weight(r, i)));
                else
                    out.push_back(to_float(w.row(r)[i]));
    });
    require(!out.empty(), "tensor " + std::string(t.name) + " has packed numbers, or of an unknown type");
    return out;
}

template <class F>
crumb::any_linear packed(const crumb::storage_view<F>& w, crumb::arena& weights) {
    const auto place = weights.take(crumb::packed_bytes<F>(w.n, w.k));
    return or_exit(crumb::linear<F>::plan(or_exit(crumb::pack(w, place))));
}
/// The product with a tensor in a format; empty: the one that it is stored in. What crumb-lm has quantized to
/// crumb's own formats lies in the file as the kernels read it.
crumb::any_linear make_matrix(model& m, const gguf_tensor& t, std::string_view format) {
    crumb::any_linear out;
    const auto header = lm::find_packed_header(t);
    if (header && (format.empty() || format == lm::format_name(*header)))
        out = or_exit(lm::open_packed(m.file, t));
    else if (format.empty() || lm::ggml_type_named(format) == t.type)
        with_weights(t, [&](const auto& w) {
            if constexpr (requires { w.weight(0, 0); })
                out = packed(w, m.weights);
            else
                out = or_exit(crumb::dense_linear<std::remove_cvref_t<decltype(*w.data)>>::plan(w));
        });
    crumb::all_format_list::for_each([&]<class F>() {
        if constexpr (crumb::rounding_format<F>) // others are made with codebooks, of a whole model
            if (!out && format == F::name)
                out = packed<F>(
                    or_exit(crumb::quantize<F>(crumb::matrix(floats(t).data(), t.dims[1], t.dims[0]))),
                    m.weights);
    });
    require(bool(out), "tensor " + std::string(t.name) + ", " + lm::ggml_type_name(t.type) +
                           ", is not multiplied: --weights is q8_0, q4_k, ...; see crumb-lm quantize");
    return out;
}

model load(const std::string& path, std::string_view format) {
    model m;
    m.file = or_exit(lm::gguf::open(path));
    const auto number = [&](const char* key) { return std::size_t{or_exit(m.file.get_u32(key))}; };
    require(or_exit(m.file.get_string("general.architecture")) == "llama", "the model is no llama");
    m.context = number("llama.context_length");
    m.width = number("llama.embedding_length");
    m.hidden = number("llama.feed_forward_length");
    m.heads = number("llama.attention.head_count");
    m.kv_heads = or_exit(m.file.get_u32("llama.attention.head_count_kv", std::uint32_t(m.heads)));
    require(m.heads != 0 && m.width % m.heads == 0 && m.kv_heads != 0 && m.heads % m.kv_heads == 0,
            "the model's width is not made of whole heads");
    m.head_size = m.width / m.heads;
    m.rope_dims = or_exit(m.file.get_u32("llama.rope.dimension_count", std::uint32_t(m.head_size)));
    require(m.rope_dims <= m.head_size, "llama.rope.dimension_count is larger than a head");
    m.rope_base = or_exit(m.file.get_f32("llama.rope.freq_base", 10000.0f));
    m.norm_epsilon = or_exit(m.file.get_f32("llama.attention.layer_norm_rms_epsilon"));
    for (const char* key : {"rope.scaling.type", "rope.scaling.factor", "rope.scale_linear"})
        require(!m.file.find(std::string("llama.") + key), "scaled rotary embeddings: see crumb-lm");

    std::set<std::string_view> used;
    const auto tensor = [&](const std::string& name, std::size_t n, std::size_t k) -> const gguf_tensor& {
        const gguf_tensor& t = *or_exit(m.file.get_tensor(name));
        used.insert(t.name);
        require(lm::shape_of(t) == lm::matrix_shape{n, k} && t.rank <= 2, name + " has another shape");
        return t;
    };
    const std::size_t w = m.width, kv = m.kv_heads * m.head_size;
    const std::size_t tokens = or_exit(m.file.get_array("tokenizer.ggml.tokens"))->count;
    const gguf_tensor& embedding = tensor("token_embd.weight", tokens, w);
    m.embedding = lm::find_packed_header(embedding) ? or_exit(lm::read_packed_floats(m.file, embedding))
                                                    : floats(embedding);
    const bool is_tied = m.file.find_tensor("output.weight") == nullptr;
    m.output = make_matrix(m, is_tied ? embedding : tensor("output.weight", tokens, w), "");
    if (m.file.find_tensor("output_basis.weight"))
        m.output_basis = make_matrix(m, tensor("output_basis.weight", w, w), "");
    m.output_norm = floats(tensor("output_norm.weight", 1, w));
    for (std::size_t i = 0, layers = number("llama.block_count"); i < layers; ++i) {
        const auto get = [&](const char* name, std::size_t n, std::size_t k) -> const gguf_tensor& {
            return tensor("blk." + std::to_string(i) + "." + name + ".weight", n, k);
        };
        const auto product = [&](const char* name, std::size_t n, std::size_t k) {
            return make_matrix(m, get(name, n, k), format);
        };
        m.layers.push_back({.attention_norm = floats(get("attn_norm", 1, w)),
                            .ffn_norm = floats(get("ffn_norm", 1, w)),
                            .q = product("attn_q", w, w),
                            .k = product("attn_k", kv, w),
                            .v = product("attn_v", kv, w),
                            .output = product("attn_output", w, w),
                            .gate = product("ffn_gate", m.hidden, w),
                            .up = product("ffn_up", m.hidden, w),
                            .down = product("ffn_down", w, m.hidden)});
    }
    // Biases, experts, factors of frequencies: without them the results would be others.
    for (const gguf_tensor& t : m.file.tensors())
        require(t.name.starts_with("crumb.") || used.contains(t.name),
                "tensor " + std::string(t.name) + " is none of a plain llama");
    return m;
}

// ---- a sequence of tokens ----

class session {
  public:
    session(const model& m, workers& threads, const crumb::kv_codebooks& books, std::size_t max_tokens)
        : m_(m), threads_(threads), ops_(or_exit(crumb::float_ops::plan())) {
        const std::size_t batch = std::min(max_tokens, max_batch);
        const crumb::kv_cache_options options{.layers = m.layers.size(),
                                              .kv_heads = m.kv_heads,
                                              .head_size = m.head_size,
                                              .max_tokens = max_tokens,
                                              .max_rows = batch,
                                              .page_tokens =
                                                  crumb::round_up(max_tokens, crumb::kv_part_tokens),
                                              .codec = books.codec,
                                              .codebooks = or_exit(books.view())};
        cache_state_ = crumb::buffer(or_exit(crumb::kv_cache::state_bytes(options)));
        cache_ = or_exit(crumb::kv_cache::create(options, cache_state_));
        page_ = crumb::buffer(cache_.page_bytes(), crumb::buffer::untouched);
        or_exit(cache_.add_page(page_));
        attention_ = or_exit(crumb::kv_attention::plan(options, {.heads = m.heads}));
        const std::size_t scratch = std::max(attention_.scratch_bytes(batch), cache_.encode_scratch_bytes());
        for (std::size_t i = 0; i < threads.size(); ++i)
            scratch_.emplace_back(scratch);
        rope_memory_ = crumb::buffer(crumb::rope_table_bytes(max_tokens, m.rope_dims));
        rope_ = or_exit(crumb::rope_table::create(rope_memory_, max_tokens,
                                                  {.dims = m.rope_dims, .base = double(m.rope_base)}));
    }

    /// Appends tokens and returns the logits behind the last one.
    std::span<const float> append(std::span<const std::int32_t> tokens) {
        for (; tokens.size() > max_batch; tokens = tokens.subspan(max_batch))
            append(tokens.first(max_batch));
        const std::size_t n = tokens.size(), width = m_.width, kv = m_.kv_heads * m_.head_size;
        const auto view = [](std::vector<float>& of, std::size_t r, std::size_t c) {
            of.resize(std::max(of.size(), r * c));
            return crumb::matrix(of.data(), r, c);
        };
        const auto x = view(hidden_, n, width), normed = view(normed_, n, width);
        const auto q = view(q_, n, width), k = view(k_, n, kv), v = view(v_, n, kv);
        const auto attended = view(attended_, n, width), added = view(added_, n, width);
        const auto gate = view(gate_, n, m_.hidden), up = view(up_, n, m_.hidden);
        for (std::size_t r = 0; r < n; ++r)
            std::copy_n(m_.embedding.data() + static_cast<std::size_t>(tokens[r]) * width, width, x.row(r));
        for (std::size_t i = 0; i < m_.layers.size(); ++i) {
            const layer& l = m_.layers[i];
            ops_.rms_norm(x, l.attention_norm, m_.norm_epsilon, normed);
            multiply(normed, {{l.q, q}, {l.k, k}, {l.v, v}});
            attend(i, q, k, v, attended);
            multiply(attended, {{l.output, added}});
            ops_.add(x, added, x);

            ops_.rms_norm(x, l.ffn_norm, m_.norm_epsilon, normed);
            multiply(normed, {{l.up, up}, {l.gate, gate}});
            crumb::parallel_for(threads_, m_.hidden, crumb::tile_channels, [&](range c) {
                ops_.silu_gated(columns(gate, c), columns(up, c), columns(up, c));
            });
            multiply(up, {{l.down, added}});
            ops_.add(x, added, x);
        }
        or_exit(cache_.advance(n));
        cache_.encode(scratch_[0]); // tokens that the window has left behind
        auto last = rows(normed, {0, 1});
        ops_.rms_norm(rows(x, {n - 1, n}), m_.output_norm, m_.norm_epsilon, last);
        if (m_.output_basis) {
            multiply(last, {{m_.output_basis, rows(added, {0, 1})}});
            last = rows(added, {0, 1});
        }
        multiply(last, {{m_.output, view(logits_, 1, m_.output.n())}});
        return logits_;
    }

  private:
    static constexpr std::size_t max_batch = 128; ///< tokens that are computed together
    struct product {
        const crumb::any_linear& w;
        matrix_view<float> y;
    };

    /// y = x W^T for matrices that read the same x; those of equal layouts share its quantized copy.
    void multiply(const matrix_view<const float>& x, std::initializer_list<product> products) {
        crumb::activations quantized;
        for (const product& p : products) {
            const crumb::any_linear& w = p.w;
            if (w.reads_activations() && quantized.layout() != w.input_plan().layout) {
                if (const auto bytes = crumb::activation_bytes(w.input_plan(), x.rows); copy_.size() < bytes)
                    copy_ = crumb::buffer(bytes);
                quantized = or_exit(crumb::activations::create(copy_, w.input_plan(), x.rows));
                quantized.quantize(x);
            }
            crumb::parallel_for(threads_, w.n(), crumb::tile_channels,
                                [&](range part) { w.run(x, quantized, p.y, {.channels = part}); });
        }
    }

    /// Turns queries and keys by their positions, puts keys and values into the cache, and attends to all of
    /// it. A thread does all that for its own heads, so it waits for nobody in between.
    void attend(std::size_t i, const matrix_view<float>& q, const matrix_view<float>& k,
                const matrix_view<float>& v, const matrix_view<float>& y) {
        or_exit(crumb::parallel_for(threads_, m_.kv_heads, 1, [&](range heads, std::size_t part) {
            const std::size_t size = m_.head_size, group = m_.heads / m_.kv_heads * size;
            ops_.rope(columns(q, {heads.begin * group, heads.end * group}), size, rope_, cache_.length());
            ops_.rope(columns(k, {heads.begin * size, heads.end * size}), size, rope_, cache_.length());
            const status written = cache_.write(i, k, v, heads);
            return written ? attention_.run(q, cache_, i, y, scratch_[part], {.kv_heads = heads}) : written;
        }));
    }

    const model& m_;
    workers& threads_;
    crumb::float_ops ops_;
    crumb::buffer cache_state_, page_, rope_memory_, copy_;
    crumb::kv_cache cache_;
    crumb::kv_attention attention_;
    crumb::rope_table rope_;
    std::vector<crumb::buffer> scratch_; ///< a thread's own
    std::vector<float> hidden_, normed_, q_, k_, v_, attended_, gate_, up_, added_, logits_;
};

// ---- the program ----

void print(const std::string& text) {
    require(bool(std::cout << text << std::flush), "standard output cannot be written");
}

template <class T = std::size_t>
T number(const std::string& text) {
    T n = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    require(error == std::errc() && *end == '\0', "'" + text + "' is not a number");
    return n;
}

} // namespace

int main(int argc, char** argv) try {
    const std::string cores = std::to_string(std::max(1u, std::thread::hardware_concurrency()));
    std::map<std::string, std::string> options = {{"--tokens", "200"},
                                                  {"--weights", ""},
                                                  {"--kv", "f16"},
                                                  {"--threads", cores},
                                                  {"--temperature", "0"}};
    std::vector<std::string> texts;
    for (int i = 1; i < argc; ++i)
        if (const auto option = options.find(argv[i]); option == options.end())
            texts.push_back(argv[i]);
        else
            option->second = ++i < argc ? argv[i] : "";
    require(texts.size() == 2,
            "usage: minimal_llama MODEL.gguf PROMPT [--tokens N] [--weights F] [--kv CODEC] [--threads N] "
            "[--temperature T]");
    const std::size_t tokens = number(options["--tokens"]), threads = number(options["--threads"]);
    lm::sampler choose({.temperature = number<float>(options["--temperature"]), .top_k = 0});
    require(threads >= 1 && threads <= 256, "--threads is 1 to 256");
    const auto codec = or_exit(crumb::kv_codec::named(options["--kv"]));

    const model m = load(texts[0], options["--weights"]);
    const auto vocabulary = or_exit(lm::tokenizer::make(m.file));
    std::vector<std::int32_t> next = vocabulary.encode(texts[1], true);
    const std::size_t room = m.context - next.size();
    require(!next.empty() && next.size() <= m.context, "the prompt is empty, or longer than the context");
    workers pool(threads);
    const auto books = or_exit(
        lm::read_kv_codebooks(m.file, options["--kv"], codec, m.layers.size(), m.kv_heads, m.head_size));
    session s(m, pool, books, next.size() + std::min(tokens, room));
    print(texts[1]);
    for (std::size_t i = 0; i < std::min(tokens, room + 1); ++i) {
        const std::span<const float> logits = s.append(next);
        require(std::isfinite(*std::ranges::max_element(logits)), "a logit is not finite");
        next = {choose(logits)};
        const std::string piece = vocabulary.decode(next);
        if (next[0] == vocabulary.eos() && piece.empty())
            break;
        print(piece);
    }
    print("\n\n");
} catch (const std::exception& e) { // no memory, no threads
    std::cerr << e.what() << '\n';
    return 1;
}
