#include "model/precision.hpp"

#include "gguf/shown_text.hpp"
#include "model/option_number.hpp"
#include "model/schedule_file.hpp"

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

namespace {

bool read(std::string_view text, std::size_t& to) { return parse_number(text, to) && to < (1u << 30); }

} // namespace

result<precision_option> precision_option::parse(std::string_view text) {
    const status unknown = status::error(
        errc::invalid_argument, "--precision %s: known are schedule and [<prompt>/]<bits>{,<bits>@<step>}",
        shown_text(text).c_str());
    precision_option out;
    if (text == "schedule") {
        out.from_file = true;
        return out;
    }
    std::size_t bits = 0;
    if (const auto slash = text.find('/'); slash != text.npos) {
        if (!read(text.substr(0, slash), bits) || bits == 0)
            return unknown;
        out.prefill = static_cast<int>(bits);
        text.remove_prefix(slash + 1);
    }
    for (bool more = true; more;) {
        const auto comma = text.find(',');
        std::string_view phase = text.substr(0, comma);
        more = comma != text.npos;
        text.remove_prefix(more ? comma + 1 : text.size());
        std::size_t step = 0;
        if (!out.phases.empty()) {
            const auto at = phase.find('@');
            if (at == phase.npos || !read(phase.substr(at + 1), step))
                return unknown;
            phase = phase.substr(0, at);
        }
        if (!read(phase, bits) || bits == 0)
            return unknown;
        out.phases.push_back({step, static_cast<int>(bits)});
    }
    if (out.prefill == 0)
        out.prefill = out.phases[0].bits;
    return out;
}

std::string precision_option::name() const {
    if (from_file)
        return "schedule";
    if (phases.empty())
        return "highest";
    return (is_constant() ? std::string() : std::to_string(prefill) + "/") + phases_text(phases);
}

std::string phases_text(std::span<const crumb::precision_phase> phases) {
    std::string out;
    for (const crumb::precision_phase& p : phases) {
        if (p.first != 0)
            out.append(",");
        out.append(std::to_string(p.bits));
        if (p.first != 0)
            out.append("@").append(std::to_string(p.first));
    }
    return out;
}

step_precision steps_of(const crumb::precision_schedule& schedule) {
    return [schedule](std::size_t step, std::span<const float>) { return schedule.next(step); };
}

schedule_source constant_source(std::string name, const crumb::precision_schedule& schedule) {
    return {std::move(name), schedule.prefill(),
            [schedule](const session&, std::size_t) { return steps_of(schedule); }};
}

result<schedule_source> source_of(const precision_option& option, const model& m, std::size_t length) {
    const auto stored = m.precisions();
    if (!stored)
        return status::error(
            errc::unsupported,
            "--precision %s: the weights of %s are not nested (quantize --weights nested:...)",
            shown_text(option.name()).c_str(), shown_path(m.path()).c_str());
    if (option.from_file) {
        auto found = read_schedule(m);
        if (!found)
            return found.error();
        if (!*found)
            return status::error(errc::invalid_argument,
                                 "--precision schedule: %s has none (calibrate --schedule ...)",
                                 shown_path(m.path()).c_str());
        return std::move(**found);
    }
    const int highest = stored->parent;
    const auto schedule =
        option.phases.empty()
            ? crumb::precision_schedule::constant(*stored, highest, highest, length)
            : crumb::precision_schedule::make(*stored, option.prefill, option.phases, length);
    if (!schedule)
        return schedule.error();
    return constant_source(option.name(), *schedule);
}

result<std::span<const float>> decoder::begin(std::span<const std::int32_t> prompt, std::size_t number) {
    s_.reset();
    s_.precision(source_.prefill);
    const auto fed = s_.feed(prompt, 1);
    if (!fed)
        return fed.error();
    logits_ = *fed;
    auto next = source_.choose(s_, number);
    if (!next)
        return next.error();
    next_ = std::move(*next);
    at_ = 0;
    return logits_;
}

result<std::span<const float>> decoder::step(std::int32_t token) {
    const int bits = next_(at_, logits_);
    ++at_;
    ++steps_;
    bits_ += static_cast<std::size_t>(bits);
    s_.precision(bits);
    auto fed = s_.feed({&token, 1}, 1);
    if (fed)
        logits_ = *fed;
    return fed;
}

} // namespace lm
