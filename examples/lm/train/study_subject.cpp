#include "train/study_subject.hpp"

#include "gguf/shown_text.hpp"

#include <algorithm>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

result<study_subject> study_subject::load(const load_options& o, const std::string& text,
                                          const schedule_options& how, const load_events& events) {
    study_subject s;
    auto nested = lm::load(o, how.prompt + how.tokens, how.prompt, events);
    if (!nested)
        return nested.error();
    s.nested = std::move(*nested);
    const model& m = *s.nested.weights;
    if (!m.precisions())
        return status::error(errc::unsupported,
                             "the weights of %s are not nested (quantize --weights nested:...)",
                             shown_path(m.path()).c_str());
    s.stored = *m.precisions();
    auto full = load_against(how.against, m, o, how.prompt + how.tokens, how.prompt, events);
    if (!full)
        return full.error();
    s.full = std::move(*full);
    const auto books = s.nested.codebooks ? s.nested.codebooks->view() : crumb::pq_codebooks();
    if (!books)
        return books.error();
    auto prompts = study::make(m, s.full.weights.get(), o.kv, *books, text, how, o.threads, events.progress);
    if (!prompts)
        return prompts.error();
    s.prompts.emplace(std::move(*prompts));
    return s;
}

crumb::schedule_levels study_subject::learned_levels(const schedule_options& how) const {
    return {.stored = stored,
            .prefill = stored.parent,
            .high = stored.parent,
            .low = how.low != 0 ? how.low : std::max(stored.seed, stored.parent - 1),
            .length = prompts->steps()};
}

} // namespace lm
