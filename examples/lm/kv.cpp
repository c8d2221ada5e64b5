#include "kv.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>

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

bool read(std::string_view text, std::size_t& to) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), to);
    return error == std::errc() && end == text.data() + text.size();
}

bool read(std::string_view text, float& to) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), to);
    return error == std::errc() && end == text.data() + text.size() && to >= 0 && to < 1;
}

status unknown(std::string_view text) {
    return status::error(
        errc::invalid_argument,
        "--kv %.*s: known are f32, f16, q8_0, kivi4, kivi2, pq4, pq3, pq2, pq:<1|2|4>x<4|6|8|4+4>, "
        "with :sinks=S, :window=W, :exact, and :skip=E below 1 for pq codecs that are not exact",
        static_cast<int>(std::min<std::size_t>(text.size(), 40)), text.data());
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
        if (x == shape.npos || !read(shape.substr(0, x), dims))
            return unknown(text);
        const std::string_view width = shape.substr(x + 1);
        const bool additive = width == "4+4";
        if ((!additive && !read(width, bits)) || dims > 4 || bits > 8)
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
    while (!rest.empty()) {
        const std::string_view option = take(rest);
        const bool read_it = option.starts_with("sinks=")    ? read(option.substr(6), out.sinks)
                             : option.starts_with("window=") ? read(option.substr(7), out.window)
                             : option.starts_with("skip=")   ? read(option.substr(5), out.skip)
                                                             : (out.exact = option == "exact");
        if (!read_it || out.sinks > 4096 || out.window > 65536)
            return unknown(text);
    }
    if (out.skip > 0 && (!out.codec.has_codebooks() || out.exact))
        return unknown(text);
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
    if (!codec.is_plain())
        out += ":sinks=" + std::to_string(sinks) + ":window=" + std::to_string(window);
    if (skip > 0) {
        char digits[32]; // as few as read back to the same number
        out.append(":skip=").append(digits, std::to_chars(digits, digits + sizeof digits, skip).ptr);
    }
    return exact ? out + ":exact" : out;
}

} // namespace lm
