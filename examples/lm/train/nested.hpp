// Nested weights by the name that `quantize --weights` takes.
#pragma once

#include "gguf/shown_text.hpp"

#include <crumb/format/nested_levels.hpp>

#include <algorithm>
#include <string>
#include <string_view>

namespace lm {

/// What nested weights are made with.
struct nested_type {
    int seed = crumb::min_nested_bits;
    int parent = crumb::max_nested_bits;
    bool uniform = false; ///< evenly spaced levels instead of trained ones

    friend bool operator==(const nested_type&, const nested_type&) = default;

    static bool is_meant(std::string_view text) { return text.starts_with("nested"); }
    /// From nested, or nested:<seed>-<parent>[:codebook|:uniform].
    static crumb::result<nested_type> parse(std::string_view text) {
        nested_type out;
        if (text == "nested")
            return out;
        std::string_view rest = text;
        const auto take = [&](std::string_view what) {
            const bool found = rest.starts_with(what);
            if (found)
                rest.remove_prefix(what.size());
            return found;
        };
        const auto digit = [&](int& to) {
            if (rest.empty() || rest[0] < '0' + crumb::min_nested_bits ||
                rest[0] > '0' + crumb::max_nested_bits)
                return false;
            to = rest[0] - '0';
            rest.remove_prefix(1);
            return true;
        };
        bool ok = take("nested:") && digit(out.seed) && take("-") && digit(out.parent);
        ok = ok && out.seed <= out.parent;
        out.uniform = take(":uniform");
        if (!out.uniform)
            (void)take(":codebook");
        if (!ok || !rest.empty())
            return crumb::status::error(crumb::errc::invalid_argument,
                                        "%s: nested weights are nested:<seed>-<parent> with 2 to 4 bits, "
                                        "then :codebook or :uniform",
                                        shown_text(text).c_str());
        return out;
    }
    std::string name() const {
        return "nested:" + std::to_string(seed) + "-" + std::to_string(parent) +
               (uniform ? ":uniform" : ":codebook");
    }
};

} // namespace lm
