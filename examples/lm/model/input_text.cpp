#include "model/input_text.hpp"

#include "gguf/shown_text.hpp"
#include "text/sampler.hpp"

#include <limits>
#include <random>

namespace lm {

using crumb::result;
using crumb::status;

result<std::vector<std::int32_t>> write_text(session& s, const std::vector<std::int32_t>& start,
                                             std::size_t count, float temperature, std::size_t top_k,
                                             std::uint64_t seed,
                                             const std::function<void(std::int32_t)>& each) {
    sampler next({.temperature = temperature, .top_k = top_k, .seed = seed});
    std::vector<std::int32_t> text;
    while (text.size() < count) {
        s.reset();
        auto logits = s.feed(start, 1);
        while (text.size() < count) {
            if (!logits)
                return logits.error();
            const std::int32_t token = next(*logits);
            text.push_back(token);
            if (each)
                each(token);
            if (s.length() == s.context())
                break;
            logits = s.feed({&token, 1}, 1);
        }
    }
    return text;
}

std::vector<std::int32_t> read_windows(const mapped_file& file, const model& m, std::size_t window,
                                       std::size_t chunks) {
    const auto bytes = file.bytes();
    constexpr std::size_t whole = std::numeric_limits<std::size_t>::max();
    const std::size_t most = chunks == 0 || chunks > whole / window ? whole : chunks * window;
    return m.vocabulary().encode_first({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, false,
                                       most);
}

result<std::vector<std::int32_t>> calibration_text(const std::string& text, const model& m, session& s,
                                                   std::size_t window, std::size_t chunks, std::uint64_t seed,
                                                   const stage_function& progress) {
    std::vector<std::int32_t> tokens;
    if (text.empty()) {
        std::mt19937_64 random(seed);
        for (std::size_t i = 0; i < chunks * window; ++i)
            tokens.push_back(static_cast<std::int32_t>(random() % m.shape().vocabulary));
    } else if (text == "self") {
        const progress_function written_tokens = one_stage(progress, "the model writes a text");
        std::size_t done = 0;
        auto written = write_text(s, m.vocabulary().encode(" ", true), chunks * window, 1.0f, 0, seed,
                                  [&](std::int32_t) {
                                      if (written_tokens)
                                          written_tokens(++done, chunks * window);
                                  });
        if (!written)
            return written.error();
        tokens = std::move(*written);
    } else {
        std::string error;
        const auto file = mapped_file::open(text, error);
        if (!file)
            return status::error(crumb::errc::invalid_argument, "%s", error.c_str());
        tokens = read_windows(*file, m, window, chunks);
    }
    if (tokens.size() < window)
        return status::error(crumb::errc::invalid_argument,
                             "%s: the calibration text has %zu tokens, a window takes %zu",
                             shown_path(text).c_str(), tokens.size(), window);
    tokens.resize(std::min(tokens.size(), chunks * window) / window * window);
    return tokens;
}

} // namespace lm
