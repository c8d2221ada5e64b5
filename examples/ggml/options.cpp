#include "ggml/options.hpp"

#include "ggml/log.hpp"
#include "ggml/replaced_weights.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace crumb_ggml {
namespace {

std::string lower(std::string_view text) {
    std::string out(text);
    std::transform(out.begin(), out.end(), out.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return out;
}

/// Calls f for the words of a text between `separator`.
template <class F>
void for_each_word(std::string_view text, char separator, F&& f) {
    while (!text.empty()) {
        const std::size_t end = std::min(text.find(separator), text.size());
        if (end != 0)
            f(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
}

} // namespace

bool options::takes(std::string_view type) const {
    return types.empty() || std::find(types.begin(), types.end(), lower(type)) != types.end();
}

crumb::result<options> options::parse(std::string_view text) {
    options out;
    std::string unknown;
    for_each_word(text, ',', [&](std::string_view word) {
        constexpr std::string_view types_are = "types=", weights_are = "weights=";
        if (word == "off")
            out.off = true;
        else if (word == "verbose")
            out.verbose = true;
        else if (word == "products")
            out.products_only = true;
        else if (word == "steady")
            out.steady = true;
        else if (word == "whole")
            out.whole = out.own_buffers = true;
        else if (word == "own-buffers")
            out.own_buffers = true;
        else if (word.substr(0, types_are.size()) == types_are)
            for_each_word(word.substr(types_are.size()), '+',
                          [&](std::string_view type) { out.types.push_back(lower(type)); });
        else if (word.substr(0, weights_are.size()) == weights_are)
            out.weights = word.substr(weights_are.size());
        else if (unknown.empty())
            unknown = word;
    });
    if (!unknown.empty())
        return crumb::status::error(crumb::errc::invalid_argument,
                                    "CRUMB_GGML has the word '%.40s'; it may have off, verbose, products, "
                                    "steady, whole, own-buffers, types=q4_0+q8_0... and weights=FILE",
                                    unknown.c_str());
    return out;
}

const options& the_options() {
    static const options parsed = [] {
        const char* text = std::getenv("CRUMB_GGML");
        const auto read = options::parse(text == nullptr ? "" : text);
        crumb::status s = read.error();
        if (read && !read->off && !read->weights.empty())
            s = open_replacements(read->weights);
        if (s)
            return *read;
        log(GGML_LOG_LEVEL_ERROR, "%s", s.message());
        options none;
        none.off = true;
        return none;
    }();
    return parsed;
}

} // namespace crumb_ggml
