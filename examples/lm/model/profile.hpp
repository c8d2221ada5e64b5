// Where the time of a forward pass goes.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <string_view>

namespace lm {

/// The kinds of work of a forward pass.
enum class section { qkv, output, up, down, vocabulary, attention, floats, quantization, encoding, waiting };
inline constexpr std::string_view section_names[] = {"queries, keys, values",
                                                     "attention output",
                                                     "feed-forward up and gate",
                                                     "feed-forward down",
                                                     "vocabulary",
                                                     "attention",
                                                     "norms, rotary, cache",
                                                     "activation quantization",
                                                     "encoding the cache",
                                                     "waiting for threads"};
inline constexpr std::size_t sections = std::size(section_names);

/// Seconds per section.
using section_times = std::array<double, sections>;

/// One thread's stopwatch: the time between two laps belongs to the section of the second one.
class alignas(64) stopwatch {
  public:
    void enable(bool on) noexcept { on_ = on; }
    void clear() noexcept { times_ = {}; }
    const section_times& times() const noexcept { return times_; }

    void start() noexcept {
        if (on_)
            last_ = clock::now();
    }
    void lap(section s) noexcept {
        if (!on_)
            return;
        const auto now = clock::now();
        times_[static_cast<std::size_t>(s)] += std::chrono::duration<double>(now - last_).count();
        last_ = now;
    }

  private:
    using clock = std::chrono::steady_clock;
    bool on_ = false;
    clock::time_point last_;
    section_times times_ = {};
};

} // namespace lm
