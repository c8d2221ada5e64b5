#include "cli/open_model.hpp"

#include "cli/program.hpp"

namespace lm {

using crumb::result;

namespace {

/// Lets `load` report to the terminal.
template <class F>
result<loaded_model> watched(F&& load) {
    stage_progress progress;
    return load(terminal_events(progress));
}

} // namespace

load_events terminal_events(stage_progress& line) {
    return {std::ref(line), [&line](const std::string& text) {
                line.clear();
                complain("%s", text.c_str());
            }};
}

result<loaded_model> open_model(const load_options& options) {
    return watched([&](const load_events& events) { return load(options, events); });
}

result<loaded_model> open_model(const load_options& options, std::size_t context, std::size_t batch) {
    return watched([&](const load_events& events) { return load(options, context, batch, events); });
}

result<loaded_model> open_against(const std::string& against, const model& other, const load_options& options,
                                  std::size_t context, std::size_t batch) {
    return watched([&](const load_events& events) {
        return load_against(against, other, options, context, batch, events);
    });
}

void trace_encoding(session& s) {
    s.trace_encoding([](const encoded_block& b) {
        complain(
            "tokens %zu to %zu are codes from token %zu on: of %zu pieces %zu were encoded within the steps "
            "since token %zu, %zu between them, %zu now",
            b.first, b.first + crumb::kv_block_tokens - 1, b.coded, b.items, b.beside, b.begun, b.between,
            b.items - b.beside - b.between);
    });
}

} // namespace lm
