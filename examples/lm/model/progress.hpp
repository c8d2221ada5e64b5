// How long tasks report how far they are.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace lm {

/// Called now and then with what is done and what there is to do.
using progress_function = std::function<void(std::size_t done, std::size_t all)>;

/// The same for a task in stages; `stage` is valid during the call.
using stage_function = std::function<void(const char* stage, std::size_t done, std::size_t all)>;

/// Reports to one stage of `to`, which must outlive it; empty if `to` is.
inline progress_function one_stage(const stage_function& to, std::string stage) {
    if (!to)
        return {};
    return
        [&to, stage = std::move(stage)](std::size_t done, std::size_t all) { to(stage.c_str(), done, all); };
}

} // namespace lm
