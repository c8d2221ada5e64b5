#include "model/schedule_file.hpp"

#include "gguf/shown_text.hpp"
#include "model/model_identity.hpp"

#include <cmath>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

namespace {

std::string key(std::string_view what) { return std::string(schedule_prefix) + std::string(what); }

/// Keys that hold numbers from 0 on.
class numbers {
  public:
    explicit numbers(const gguf& file) : file_(file) {}
    std::size_t operator()(const char* what) {
        const auto value = file_.get_u32(key(what));
        if (!value && error_)
            error_ = value.error();
        return value ? *value : 0;
    }
    int small(const char* what) { return static_cast<int>(std::min<std::size_t>((*this)(what), 1000)); }
    std::vector<std::int32_t> all(const char* what) {
        const auto values = file_.get_i32s(key(what));
        if (!values && error_)
            error_ = values.error();
        return values ? std::vector<std::int32_t>(values->begin(), values->end())
                      : std::vector<std::int32_t>();
    }
    const status& error() const { return error_; }

  private:
    const gguf& file_;
    status error_;
};

result<schedule_source> read_static(const model& m, numbers& read, std::size_t length) {
    const int prefill = read.small("prefill");
    const auto steps = read.all("steps"), bits = read.all("bits");
    if (!read.error())
        return read.error();
    if (steps.size() != bits.size())
        return status::error(errc::corrupt, "the schedule has %zu steps and %zu precisions", steps.size(),
                             bits.size());
    std::vector<crumb::precision_phase> phases;
    for (std::size_t i = 0; i < steps.size(); ++i)
        phases.push_back({static_cast<std::size_t>(std::max(steps[i], 0)), bits[i]});
    const auto s = crumb::precision_schedule::make(*m.precisions(), prefill, phases, length);
    if (!s)
        return s.error();
    return constant_source("static", *s);
}

result<schedule_source> read_learned(const model& m, numbers& read, std::size_t length) {
    auto stored = std::make_shared<stored_schedule>();
    stored->levels = {.stored = *m.precisions(),
                      .prefill = read.small("prefill"),
                      .high = read.small("high"),
                      .low = read.small("low"),
                      .length = length};
    crumb::learned_shape& shape = stored->trained.shape;
    shape = {.heads = read("heads"),
             .head_size = read("head_size"),
             .hidden = read("hidden"),
             .points = read("points")};
    if (!read.error())
        return read.error();
    if (const status s = crumb::check_shape(shape); !s)
        return s;
    if (shape.heads != m.shape().kv_heads || shape.head_size != m.shape().head_size)
        return status::error(errc::corrupt, "the schedule reads %zu heads of %zu, the model has %zu of %zu",
                             shape.heads, shape.head_size, m.shape().kv_heads, m.shape().head_size);
    crumb::trained_schedule& t = stored->trained;
    const struct {
        const char* what;
        std::size_t size;
        std::vector<float>& to;
    } parts[] = {{"query", shape.width(), t.query},
                 {"w1", shape.hidden * shape.width(), t.w1},
                 {"b1", shape.hidden, t.b1},
                 {"w2", shape.points * shape.hidden, t.w2},
                 {"b2", shape.points, t.b2}};
    for (const auto& part : parts) {
        const auto tensor = m.file().get_tensor(key(part.what));
        if (!tensor)
            return tensor.error();
        auto values = (*tensor)->numbers<float>(part.size);
        if (!values)
            return values.error();
        part.to = std::move(*values);
    }
    return learned_source("learned", std::move(stored));
}

void begin(gguf_writer& to, const model& m, std::string_view kind, std::size_t length, int prefill) {
    to.set(key("version"), std::uint32_t{1});
    to.set(key("model"), model_identity(m));
    to.set(key("kind"), kind);
    to.set(key("length"), static_cast<std::uint32_t>(length));
    to.set(key("prefill"), static_cast<std::uint32_t>(prefill));
}

} // namespace

result<schedule_source> learned_source(std::string name, std::shared_ptr<const stored_schedule> stored) {
    const auto plan =
        crumb::learned_schedule::plan(stored->trained.shape, stored->trained.weights(), stored->levels);
    if (!plan)
        return plan.error();
    schedule_source source;
    source.name = std::move(name);
    source.prefill = stored->levels.prefill;
    source.choose = [plan = *plan, stored](const session& s, std::size_t) -> result<step_precision> {
        const auto [cache, layer] = s.cached(s.of().shape().layers - 1);
        if (cache.options().span != 0)
            return status::error(errc::unsupported,
                                 "a learned schedule reads the whole prompt in the last layer, which has a "
                                 "window of %zu tokens here",
                                 cache.options().span);
        const auto bytes = plan.scratch_bytes(cache.options());
        if (!bytes)
            return bytes.error();
        const buffer scratch(*bytes);
        const auto choice = plan.run(cache, layer, scratch.bytes());
        if (!choice)
            return choice.error();
        return steps_of(choice->schedule);
    };
    return source;
}

result<std::optional<schedule_source>> read_schedule(const model& m) {
    const gguf& file = m.file();
    if (file.find(key("version")) == nullptr)
        return std::optional<schedule_source>();
    numbers read(file);
    const std::size_t version = read("version");
    const auto identity = file.get_u64(key("model"));
    const auto kind = file.get_string(key("kind"));
    const std::size_t length = read("length");
    for (const status& s : {read.error(), identity.error(), kind.error()})
        if (!s)
            return s;
    if (version != 1)
        return status::error(errc::wrong_version, "key %s is %zu, this program reads 1",
                             key("version").c_str(), version);
    if (*identity != model_identity(m))
        return status::error(errc::invalid_argument, "the schedule is of another model");
    if (!m.precisions())
        return status::error(errc::unsupported, "the schedule is for nested weights, which %s has not",
                             shown_path(m.path()).c_str());
    auto source = *kind == "static" ? read_static(m, read, length)
                  : *kind == "learned"
                      ? read_learned(m, read, length)
                      : result<schedule_source>(status::error(
                            errc::corrupt, "key %s is neither static nor learned", key("kind").c_str()));
    if (!source)
        return source.error();
    return std::optional<schedule_source>(std::move(*source));
}

void write_schedule(gguf_writer& to, const model& m, const crumb::precision_schedule& schedule) {
    begin(to, m, "static", schedule.length(), schedule.prefill());
    std::vector<std::int32_t> steps, bits;
    for (const crumb::precision_phase& p : schedule.phases()) {
        steps.push_back(static_cast<std::int32_t>(p.first));
        bits.push_back(p.bits);
    }
    to.set_array(key("steps"), std::span<const std::int32_t>(steps));
    to.set_array(key("bits"), std::span<const std::int32_t>(bits));
}

void write_schedule(gguf_writer& to, const model& m, const stored_schedule& schedule) {
    const crumb::schedule_levels& l = schedule.levels;
    const crumb::learned_shape& shape = schedule.trained.shape;
    begin(to, m, "learned", l.length, l.prefill);
    const auto set = [&](const char* what, std::size_t value) {
        to.set(key(what), static_cast<std::uint32_t>(value));
    };
    set("high", static_cast<std::size_t>(l.high));
    set("low", static_cast<std::size_t>(l.low));
    set("heads", shape.heads);
    set("head_size", shape.head_size);
    set("hidden", shape.hidden);
    set("points", shape.points);
    const crumb::trained_schedule& t = schedule.trained;
    for (const auto& [what, values] : {std::pair<const char*, const std::vector<float>*>{"query", &t.query},
                                       {"w1", &t.w1},
                                       {"b1", &t.b1},
                                       {"w2", &t.w2},
                                       {"b2", &t.b2}}) {
        const std::uint64_t dims[] = {values->size()};
        to.add_tensor(key(what), ggml_type::f32, dims, std::as_bytes(std::span(*values)));
    }
}

} // namespace lm
