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
                      (o.default_codebooks ? ": taking default ones, which know nothing of the model"
                                           : ": training them on text that the model writes"));
    if (o.default_codebooks)
        return crumb::default_kv_codebooks(o.kv.codec, m.shape().head_size);
    kv_training how;
    how.text = "self";
    how.chunks = 16;
    how.sinks = o.kv.sinks;
    how.threads = team(o.threads).size();
    return train_codebooks(m, o.kv.codec, how, events.progress);
}

/// The packed file beside a model, made now unless there is one that fits.
result<std::string> cached_file(const std::string& model, const load_events& events) {
    const auto file = gguf::open(model);
    if (!file)
        return file.error();
    if (is_packed(*file))
        return model;
    const std::string path = cache_path(model);
    if (const auto cached = gguf::open(path);
        cached && is_packed(*cached) && check_source(*cached).ok() && is_packed_from(*cached, model))
        return path;
    const auto made = pack_model(model);
    if (!made)
        return made.error();
    if (events.notice)
        events.notice("writing " + path + ", to be used from now on");
    if (const status s = made->file.write(path, one_stage(events.progress, "bytes written")); !s)
        return s;
    return path;
}

} // namespace

result<loaded_model> load(const load_options& asked, const load_events& events) {
    load_options options = asked;
    if (options.cache) {
        auto path = cached_file(options.model, events);
        if (!path)
            return path.error();
        options.model = std::move(*path);
        options.cache = false;
    }
    const bool is_rounded = options.weights != weight_type::nested &&
                            (!is_leveled(options.weights) || is_rounding(options.weights));
    const auto read = [&]() -> result<model> {
        if (is_rounded)
            return model::load(options.model,
                               {options.weights, options.activations, options.ffn, options.ffn_by_lists});
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
    auto s = session::make(*l.weights, team(options.threads), options.kv,
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
