#include "train/loading.hpp"

#include "model/kv_file.hpp"
#include "model/packed_file.hpp"
#include "train/kv_training.hpp"
#include "train/packing.hpp"
#include "train/quantizer.hpp"

#include <crumb/offline/cache/default_codebooks.hpp>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

namespace {

/// The codebooks of the file, or such as are trained on a text that the model writes now.
result<crumb::kv_codebooks> codebooks_for(const model& m, const load_options& o, const load_events& events) {
    auto stored = read_codebooks(m, o.kv.codec);
    if (!stored)
        return stored.error();
    if (*stored)
        return std::move(**stored);
    if (events.notice)
        events.notice(m.path() + " has no codebooks of " + codec_name(o.kv.codec) +
                      (o.default_codebooks
                           ? ": taking default ones, which know nothing of the model"
                           : ": training them on text that the model writes, which takes "
                             "minutes (calibrate keeps them, --default-codebooks does without)"));
    if (o.default_codebooks)
        return crumb::default_kv_codebooks(o.kv.codec, m.shape().head_size);
    kv_training how;
    how.text = "self";
    how.chunks = 16;
    how.sinks = o.kv.sinks;
    how.threads = team(o.threads).size();
    return train_codebooks(m, o.kv.codec, how, events.progress);
}

/// Puts the packed file beside a model in its place; it is made now unless there is one that fits.
status use_cache(load_options& options, const load_events& events) {
    auto file = gguf::open(options.model);
    if (!file)
        return file.error();
    if (is_packed(*file))
        return {};
    auto source = describe_source(options.model, *file);
    if (!source)
        return source.error();
    options.model = cache_path(options.model);
    options.source = std::move(*source);
    if (const auto cached = gguf::open(options.model);
        cached && is_packed(*cached) && is_packed_from(*cached, *options.source))
        return {};
    const auto made = pack_model(std::move(*file), *options.source);
    if (!made)
        return made.error();
    if (events.notice)
        events.notice("writing " + options.model + ", to be used from now on");
    return made->file.write(options.model, one_stage(events.progress, "bytes written"));
}

} // namespace

result<loaded_model> load(const load_options& asked, const load_events& events) {
    load_options options = asked;
    if (options.cache) {
        if (const status s = use_cache(options, events); !s)
            return s;
        options.cache = false;
    }
    const bool is_rounded = options.weights != weight_type::nested &&
                            (!is_leveled(options.weights) || is_rounding(options.weights));
    const auto read = [&]() -> result<model> {
        if (is_rounded)
            return model::load(options.model, {.weights = options.weights,
                                               .activations = options.activations,
                                               .ffn = options.ffn,
                                               .ffn_by_lists = options.ffn_by_lists,
                                               .floats_on_demand = options.floats_on_demand,
                                               .source = options.source ? &*options.source : nullptr});
        // Codebooks and error feedback take the whole model at once.
        load_options stored = options;
        stored.weights = weight_type::stored;
        stored.ffn = ffn_type::dense;
        auto source = load(stored, 0, 512, {events.progress, {}});
        if (!source)
            return source.error();
        quantization how;
        how.weights = options.weights;
        how.vocabulary = weight_type::stored;
        how.chunks = options.calibration_windows;
        how.sweeps = 0;
        how.towards.reset();
        auto file = quantized_file(how, *source->weights, *source->run, events.progress);
        if (!file)
            return file.error();
        return model::load(std::move(*file), options.model,
                           {weight_type::stored, options.activations, options.ffn, options.ffn_by_lists});
    };
    auto m = read();
    if (!m)
        return m.error();
    if (events.notice)
        for (const std::string& text : m->notices())
            events.notice(m->path() + ": " + text);
    loaded_model l;
    l.weights = std::make_unique<model>(std::move(*m));
    if (options.kv.codec.has_codebooks()) {
        auto books = codebooks_for(*l.weights, options, events);
        if (!books)
            return books.error();
        l.codebooks = std::make_unique<crumb::kv_codebooks>(std::move(*books));
    }
    return l;
}

status start(loaded_model& l, const load_options& options, std::size_t context, std::size_t batch) {
    const auto books = l.codebooks ? l.codebooks->view() : crumb::pq_codebooks();
    if (!books)
        return books.error();
    const team threads =
        options.always_shared ? team(options.threads, [] { return false; }) : team(options.threads);
    auto s = session::make(*l.weights, threads, options.kv,
                           context == 0 ? l.weights->shape().context : context, batch, *books);
    if (!s)
        return s.error();
    if (const status fits = context == 0 ? status() : s->fits(context); !fits)
        return fits;
    l.run.emplace(std::move(*s));
    return {};
}

result<loaded_model> load(const load_options& options, std::size_t context, std::size_t batch,
                          const load_events& events) {
    auto l = load(options, events);
    if (!l)
        return l;
    if (const status started = start(*l, options, context, batch); !started)
        return started;
    return l;
}

result<loaded_model> load_against(const std::string& against, const model& other, const load_options& options,
                                  std::size_t context, std::size_t batch, const load_events& events) {
    if (against.empty())
        return loaded_model();
    load_options full = options;
    full.model = against;
    full.weights = weight_type::f32;
    full.activations = activation_type::f32;
    full.kv = kv_type::f16;
    full.ffn = ffn_type::dense;
    full.cache = false;
    auto reference = load(full, context, batch, events);
    if (reference && reference->weights->shape().vocabulary != other.shape().vocabulary)
        return status::error(errc::bad_shape, "--against: the vocabularies have %zu and %zu tokens",
                             reference->weights->shape().vocabulary, other.shape().vocabulary);
    return reference;
}

} // namespace lm
