#include "model/kv.hpp"

#include "gguf/shown_text.hpp"
#include "model/option_number.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

namespace lm {

using crumb::errc;
using crumb::kv_codec;
using crumb::status;

namespace {

/// Takes what stands before the next colon.
std::string_view take(std::string_view& rest) {
    const auto colon = rest.find(':');
    const std::string_view first = rest.substr(0, colon);
    rest = colon == rest.npos ? std::string_view() : rest.substr(colon + 1);
    return first;
}

/// What is wrong with `--kv text`.
status wrong(std::string_view text, const std::string& what) {
    return status::error(errc::invalid_argument, "--kv %s: %s", shown_text(text).c_str(), what.c_str());
}

status unknown(std::string_view text) {
    return wrong(text, "codecs are f32, f16, q8_0, kivi4, kivi2, pq4, pq3, pq2, pq:<1|2|4>x<4|6|8|4+4>, then "
                       ":sinks=S, :window=W, :exact, :prompts=int8, :skip=E, :limit=E, :scales=N");
}

/// Reads one of the options behind the codec's name.
status read_option(std::string_view text, std::string_view option, kv_type& to) {
    if (option == "exact") {
        to.exact = true;
    } else if (option.starts_with("prompts=")) {
        if (option.substr(8) != "int8")
            return wrong(text, "prompts can be int8");
        to.int8_prompts = true;
    } else if (option.starts_with("sinks=")) {
        if (!parse_number(option.substr(6), to.sinks) || to.sinks > kv_type::max_sinks)
            return wrong(text, "sinks are 0 to " + std::to_string(kv_type::max_sinks));
    } else if (option.starts_with("window=")) {
        if (!parse_number(option.substr(7), to.window) || to.window > kv_type::max_window)
            return wrong(text, "a window has 0 to " + std::to_string(kv_type::max_window) + " tokens");
    } else if (option.starts_with("skip=")) {
        if (!parse_number(option.substr(5), to.skip) || !(to.skip >= 0 && to.skip < 1))
            return wrong(text, "skip is a share from 0 to below 1");
    } else if (option.starts_with("limit=")) {
        float limit = 0;
        if (!parse_number(option.substr(6), limit) || !(limit >= 0) || !std::isfinite(limit))
            return wrong(text, "limit is a number from 0 on");
        to.limit = limit;
    } else if (option.starts_with("scales=")) {
        if (!parse_number(option.substr(7), to.scales) || to.scales == 0 ||
            to.scales > crumb::kv_scale_trials)
            return wrong(text, "scales are 1 to " + std::to_string(crumb::kv_scale_trials));
    } else {
        return wrong(text, "'" + shown_text(option) +
                               "' is unknown; known are sinks=S, window=W, exact, prompts=int8, skip=E, "
                               "limit=E and scales=N");
    }
    return {};
}

} // namespace

crumb::result<kv_type> kv_type::parse(std::string_view text) {
    if (text.ends_with(':'))
        return unknown(text);
    std::string_view rest = text;
    kv_type out;
    const std::string_view name = take(rest);
    if (name == "pq") {
        const std::string_view shape = take(rest);
        const auto x = shape.find('x');
        std::size_t dims = 0, bits = 0;
        if (x == shape.npos || !parse_number(shape.substr(0, x), dims))
            return unknown(text);
        const std::string_view width = shape.substr(x + 1);
        const bool additive = width == "4+4";
        if ((!additive && !parse_number(width, bits)) || dims > 4 || bits > 8)
            return unknown(text);
        out.codec = kv_codec::pq(static_cast<std::uint8_t>(dims),
                                 static_cast<std::uint8_t>(additive ? 8 : bits), additive, false);
        if (!crumb::is_known(out.codec))
            return unknown(text);
    } else {
        const auto* found = std::find_if(std::begin(crumb::kv_codecs), std::end(crumb::kv_codecs),
                                         [&](const crumb::named_kv_codec& c) { return c.name == name; });
        if (found == std::end(crumb::kv_codecs))
            return unknown(text);
        out.codec = found->codec;
    }
    std::vector<std::string_view> seen;
    while (!rest.empty()) {
        const std::string_view option = take(rest);
        if (const status error = read_option(text, option, out); !error)
            return error;
        const std::string_view name_of_it = option.substr(0, option.find('='));
        if (std::find(seen.begin(), seen.end(), name_of_it) != seen.end())
            return wrong(text, std::string(name_of_it) + " is given twice");
        seen.push_back(name_of_it);
    }
    constexpr std::string_view of_codes[] = {"sinks", "window", "exact"};
    if (out.codec.is_uncoded() &&
        std::find_first_of(seen.begin(), seen.end(), std::begin(of_codes), std::end(of_codes)) != seen.end())
        return wrong(text, "sinks, window and exact are for codes, not for f32 and f16");
    if (out.int8_prompts && out.codec.kind == crumb::kv_kind::f32)
        return wrong(text, "int8 products are for halves and codes, not for f32");
    if (out.skip > 0 && (!out.codec.has_codebooks() || out.exact))
        return wrong(text, "skip is for pq codecs that are not exact");
    const bool has_planes = out.codec.kind == crumb::kv_kind::pq || out.codec.kind == crumb::kv_kind::uniform;
    if (out.limit && (!has_planes || out.exact))
        return wrong(text, "a limit of planes is for pq and kivi codecs that are not exact");
    if (out.scales != crumb::kv_scale_trials && !out.codec.residual)
        return wrong(text, "scales are tried for pq4, pq3 and pq2");
    return out;
}

std::string kv_type::name() const {
    std::string out;
    for (const crumb::named_kv_codec& c : crumb::kv_codecs)
        if (c.codec == codec)
            out = c.name;
    if (out.empty())
        out =
            "pq:" + std::to_string(codec.dims) + "x" + (codec.additive ? "4+4" : std::to_string(codec.bits));
    if (!codec.is_uncoded())
        out += ":sinks=" + std::to_string(sinks) + ":window=" + std::to_string(window);
    const auto append = [&](const char* option, float x) {
        char digits[32]; // as few as read back to the same number
        out.append(option).append(digits, std::to_chars(digits, digits + sizeof digits, x).ptr);
    };
    if (skip > 0)
        append(":skip=", skip);
    if (limit)
        append(":limit=", *limit);
    if (scales != crumb::kv_scale_trials)
        out += ":scales=" + std::to_string(scales);
    if (int8_prompts)
        out += ":prompts=int8";
    return exact ? out + ":exact" : out;
}

} // namespace lm
