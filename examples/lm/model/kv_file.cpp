#include "model/kv_file.hpp"

#include "cli/commands.hpp"
#include "cli/report.hpp"
#include "eval/entropy.hpp"
#include "gguf/output_file.hpp"

#include <bit>
#include <mutex>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

namespace {

std::string key_of(const crumb::kv_codec& codec, const char* what) {
    return "crumb.kv." + codec_name(codec) + "." + what;
}

/// The numbers of a tensor of one dimension; empty if there is none.
template <class T>
result<std::vector<T>> read_numbers(const gguf& file, const std::string& name, std::size_t count) {
    const gguf_tensor* t = file.find_tensor(name);
    return t == nullptr ? std::vector<T>() : t->numbers<T>(count);
}

} // namespace

std::uint64_t model_identity(const model& m) {
    std::uint64_t hash = 0xcbf29ce484222325u;
    const auto add = [&](std::uint64_t x) { hash = (hash ^ x) * 0x100000001b3u; };
    const model_shape& d = m.shape();
    for (const std::size_t x : {static_cast<std::size_t>(d.arch), d.width, d.layers, d.hidden, d.heads,
                                d.kv_heads, d.head_size, d.vocabulary})
        add(x);
    const auto add_all = [&](const std::vector<float>& v) {
        for (const float x : v)
            add(std::bit_cast<std::uint32_t>(x));
    };
    for (const model_layer& l : m.layers())
        for (const auto* v : {&l.attention_norm, &l.attention_norm_bias, &l.ffn_norm, &l.ffn_norm_bias,
                              &l.qkv_bias, &l.output_bias, &l.up_bias, &l.down_bias})
            add_all(*v);
    add_all(m.output_norm());
    return hash;
}

std::string codec_name(const crumb::kv_codec& codec) {
    const std::string name = kv_type{codec}.name();
    return name.substr(0, name.find(":sinks"));
}

result<std::optional<crumb::kv_codebooks>> read_codebooks(const model& m, const crumb::kv_codec& codec) {
    const gguf& file = m.file();
    const auto key = [&](const char* what) { return key_of(codec, what); };
    if (file.find(key("version")) == nullptr)
        return std::optional<crumb::kv_codebooks>();
    const auto version = file.get_u32(key("version"));
    if (!version)
        return version.error();
    if (*version != 1)
        return status::error(errc::wrong_version, "key %s is %u, this program reads 1",
                             key("version").c_str(), *version);
    const auto identity = file.get_u64(key("model"));
    if (!identity)
        return identity.error();
    if (*identity != model_identity(m))
        return status::error(errc::invalid_argument, "the codebooks of %s are of another model",
                             codec_name(codec).c_str());
    crumb::kv_codebooks books;
    books.codec = codec;
    for (const auto& [what, to] : {std::pair<const char*, std::size_t*>{"head_size", &books.head_size},
                                   {"layer_step", &books.layer_step},
                                   {"head_step", &books.head_step},
                                   {"sets", &books.sets}}) {
        const auto value = file.get_u32(key(what));
        if (!value)
            return value.error();
        *to = *value;
    }
    const model_shape& d = m.shape();
    if (books.head_size != d.head_size || books.sets > d.layers * d.kv_heads ||
        (d.layers - 1) * books.layer_step + (d.kv_heads - 1) * books.head_step >= books.sets)
        return status::error(errc::corrupt, "the codebooks of %s are not of this model's shape",
                             codec_name(codec).c_str());
    const std::size_t channels = 2 * books.sets * books.head_size;
    auto entries = read_numbers<std::int8_t>(file, key("entries"), channels * codec.entries());
    auto scales = read_numbers<float>(file, key("scales"), channels);
    auto metric = read_numbers<float>(file, key("metric"), channels * codec.dims);
    for (const status& s : {entries.error(), scales.error(), metric.error()})
        if (!s)
            return s;
    if (entries->empty() || scales->empty())
        return status::error(errc::corrupt, "the codebooks of %s are incomplete", codec_name(codec).c_str());
    books.entries = std::move(*entries);
    books.scales = std::move(*scales);
    books.metric = std::move(*metric);
    if (const auto view = books.view(); !view)
        return status::error(view.error().code(), "tensors %s: %s", key("*").c_str(), view.message());
    return std::optional<crumb::kv_codebooks>(std::move(books));
}

void write_codebooks(gguf_writer& to, const model& m, const crumb::kv_codebooks& books) {
    const auto key = [&](const char* what) { return key_of(books.codec, what); };
    to.set(key("version"), std::uint32_t{1});
    to.set(key("model"), model_identity(m));
    to.set(key("head_size"), static_cast<std::uint32_t>(books.head_size));
    to.set(key("layer_step"), static_cast<std::uint32_t>(books.layer_step));
    to.set(key("head_step"), static_cast<std::uint32_t>(books.head_step));
    to.set(key("sets"), static_cast<std::uint32_t>(books.sets));
    const auto add = [&](const char* what, ggml_type type, const auto& numbers) {
        const std::uint64_t dims[] = {numbers.size()};
        if (!numbers.empty())
            to.add_tensor(key(what), type, dims, std::as_bytes(std::span(numbers)));
    };
    add("entries", ggml_type::i8, books.entries);
    add("scales", ggml_type::f32, books.scales);
    add("metric", ggml_type::f32, books.metric);
}

result<crumb::kv_samples> collect_samples(const model& m, const kv_training& how,
                                          const kv_progress& progress) {
    const model_shape& d = m.shape();
    const std::size_t window = std::min<std::size_t>(d.context, 512);
    // One thread: the keys and values of all heads have to be there when they are observed.
    auto s = session::make(m, team(1), kv_type::f16, window, window);
    if (!s)
        return s.error();
    const auto text = calibration_text(how.text, m, *s, window, how.chunks, how.seed);
    if (!text)
        return text.error();
    auto samples = crumb::kv_samples::make({d.layers, d.kv_heads, d.head_size}, 512, how.seed);
    if (!samples)
        return samples.error();
    status error;
    s->observe_cache([&](std::size_t layer, const crumb::matrix_view<const float>& k,
                         const crumb::matrix_view<const float>& v) {
        if (const status added = samples->add(layer, k, v); !added)
            error = added;
    });
    const std::size_t windows = text->size() / window;
    for (std::size_t w = 0; w < windows; ++w) {
        s->reset();
        samples->begin_sequence(how.sinks);
        const auto fed = s->feed(std::span(*text).subspan(w * window, window), 0);
        for (const status& each : {error, fed.error()})
            if (!each)
                return each;
        if (progress)
            progress("calibration", w + 1, windows);
    }
    return samples;
}

result<crumb::kv_codebooks> train_codebooks(const crumb::kv_samples& samples, const crumb::kv_codec& codec,
                                            const kv_training& how, const kv_progress& progress) {
    crumb::kv_training_options options;
    options.sharing = how.sharing;
    options.seed = how.seed;
    const team threads(how.threads);
    options.for_each = [&](std::size_t n, const std::function<void(std::size_t)>& f) {
        threads.run([&](std::size_t part, std::size_t parts) {
            for (std::size_t i = part; i < n; i += parts)
                f(i);
        });
    };
    std::mutex guard;
    std::size_t trained = 0;
    if (progress)
        options.progress = [&](std::size_t, std::size_t all) {
            const std::lock_guard lock(guard);
            progress("codebooks", ++trained, all);
        };
    return crumb::train_kv_codebooks(samples, codec, options);
}

result<crumb::kv_codebooks> train_codebooks(const model& m, const crumb::kv_codec& codec,
                                            const kv_training& how, const kv_progress& progress) {
    const auto samples = collect_samples(m, how, progress);
    if (!samples)
        return samples.error();
    return train_codebooks(*samples, codec, how, progress);
}

status calibrate(const calibrate_options& o) {
    if (const status s = check_outputs({o.out, o.entropy, o.distributions}); !s)
        return s;
    if (!o.schedule.empty())
        return calibrate_schedule(o);
    if (o.ffn)
        return calibrate_ffn(o);
    if (!o.kv.codec.has_codebooks())
        return status::error(errc::invalid_argument, "--kv %s has no codebooks to calibrate",
                             o.kv.name().c_str());
    common_options full;
    full.model = o.model;
    full.weights = weight_type::stored;
    full.activations = activation_type::f32;
    full.threads = o.threads;
    auto loaded = load(full, 0, 512);
    if (!loaded)
        return loaded.error();
    const model& m = *loaded->weights;
    kv_training how;
    how.text = o.text;
    how.chunks = o.chunks;
    how.sinks = o.kv.sinks;
    how.sharing = o.sharing;
    how.seed = o.seed;
    how.threads = loaded->run->threads().size();
    stage_progress progress;
    const auto samples = collect_samples(m, how, std::ref(progress));
    if (!samples)
        return samples.error();
    const auto books = train_codebooks(*samples, o.kv.codec, how, std::ref(progress));
    progress.clear();
    if (!books)
        return books.error();
    if (!o.entropy.empty())
        if (const status s = write_entropies(o.entropy, *samples, *books); !s)
            return s;
    gguf_writer writer(3, crumb::alignment);
    writer.copy(m.file(), key_of(o.kv.codec, ""));
    write_codebooks(writer, m, *books);
    if (const status s = writer.write(o.out); !s)
        return s;
    const model_shape& d = m.shape();
    print("%s: codebooks of %s for %zu layers of %zu heads, %.2f MB, identity %016llx\n", o.out.c_str(),
          codec_name(o.kv.codec).c_str(), d.layers, d.kv_heads, static_cast<double>(books->bytes()) / 1e6,
          static_cast<unsigned long long>(books->identity()));
    return {};
}

} // namespace lm
