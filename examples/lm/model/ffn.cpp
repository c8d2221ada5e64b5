#include "model/ffn.hpp"

#include "gguf/shown_text.hpp"
#include "model/option_number.hpp"

#include <algorithm>
#include <vector>

namespace lm {

using crumb::errc;
using crumb::row_codec;
using crumb::status;

namespace {

/// What is wrong with `--ffn text`.
status wrong(std::string_view text, const std::string& what) {
    return status::error(errc::invalid_argument, "--ffn %s: %s", shown_text(text).c_str(), what.c_str());
}

bool read(std::string_view text, double& to) { return parse_number(text, to) && to >= 0 && to <= 1; }
bool read(std::string_view text, weight_type& to) {
    for (auto t = static_cast<std::size_t>(weight_type::f32); t < weight_names.size(); ++t)
        if (const auto type = static_cast<weight_type>(t);
            name_of(type) == text && (type == weight_type::f32 || is_leveled(type))) {
            to = type;
            return true;
        }
    return false;
}
bool read(std::string_view text, row_codec& to) {
    for (std::size_t c = 0; c < crumb::row_codecs; ++c)
        if (crumb::row_codec_names[c] == text) {
            to = static_cast<row_codec>(c);
            return true;
        }
    return false;
}
std::string digits(double x) {
    char text[32];
    return {text, std::to_chars(text, text + sizeof text, x).ptr};
}
const char* name_of(row_codec c) { return crumb::row_codec_names[static_cast<std::size_t>(c)]; }

} // namespace

crumb::result<ffn_recipe> ffn_recipe::parse(std::string_view text) {
    constexpr const char* formats = "q8_0, q4_0, cb4, cb3, cb2, cb2s, u2 and iq4_nl";
    ffn_recipe r;
    std::string_view rest = text;
    std::vector<std::string_view> seen;
    for (bool first = true, more = true; more; first = false) {
        const auto colon = rest.find(':');
        const std::string_view option = rest.substr(0, colon);
        more = colon != rest.npos;
        rest.remove_prefix(more ? colon + 1 : rest.size());
        if (first && option == "tardis")
            continue;
        const auto equals = option.find('=');
        const std::string_view key = option.substr(0, equals);
        const std::string_view value = equals == option.npos ? std::string_view() : option.substr(equals + 1);
        row_codec rows = row_codec::u2;
        if (first) {
            return wrong(
                text, "known is tardis, then :coverage=C, :parameters=P, :predictor=F, :residual=R, :sound, "
                      ":fold=F, :rows=R, :miss=M, :uniform, :greedy, :plain");
        } else if (key == "coverage") {
            if (!read(value, r.coverage))
                return wrong(text, "coverage is a share from 0 to 1");
        } else if (key == "parameters") {
            if (!read(value, r.parameters) || r.parameters == 0)
                return wrong(text, "parameters are a share above 0, at most 1");
        } else if (key == "predictor") {
            if (!read(value, r.predictor) || r.predictor == weight_type::f32)
                return wrong(text, std::string("predictors are ") + formats);
        } else if (key == "fold") {
            if (!read(value, r.fold))
                return wrong(text, std::string("folds are f32, ") + formats);
        } else if (key == "miss") {
            if (!read(value, r.miss) || r.miss >= 0.5)
                return wrong(text, "miss is a share from 0 to below 0.5");
        } else if (key == "residual") {
            if (!read(value, rows) || rows == row_codec::f32 || rows == row_codec::f16)
                return wrong(text, "residuals are q8_0, q4_0 and u2");
            r.residual = rows;
        } else if (key == "rows") {
            if (!read(value, rows) || rows == row_codec::u2)
                return wrong(text, "rows are f32, f16, q8_0 and q4_0");
            r.in = r.out = rows;
        } else if (option == "sound") {
            r.sound = true;
        } else if (option == "uniform") {
            r.uniform = true;
        } else if (option == "greedy") {
            r.greedy = true;
        } else if (option == "plain") {
            r.refit = false;
        } else {
            return status::error(
                errc::invalid_argument,
                "--ffn tardis:%s is unknown; known are coverage=C, parameters=P, predictor=F, "
                "residual=R, sound, fold=F, rows=R, miss=M, uniform, greedy and plain",
                shown_text(option).c_str());
        }
        if (std::find(seen.begin(), seen.end(), key) != seen.end())
            return wrong(text, std::string(key) + " is given twice");
        seen.push_back(key);
    }
    const auto is_given = [&](std::string_view key) {
        return std::find(seen.begin(), seen.end(), key) != seen.end();
    };
    if (is_given("coverage") && is_given("parameters"))
        return wrong(text, "coverage and parameters exclude each other");
    if (r.sound)
        r.predictor = weight_type::q8_0;
    if (r.sound && (r.miss >= 0 || r.residual))
        return status::error(errc::invalid_argument,
                             "--ffn: a sound predictor misses nothing and has no residual");
    return r;
}

std::string ffn_recipe::name() const {
    std::string text("tardis");
    const auto add = [&](std::string_view key, std::string_view value) {
        text.append(":").append(key).append("=").append(value);
    };
    if (parameters > 0)
        add("parameters", digits(parameters));
    else
        add("coverage", digits(coverage));
    if (sound)
        text.append(":sound");
    else
        add("predictor", name_of(predictor));
    if (residual)
        add("residual", name_of(*residual));
    add("fold", name_of(fold));
    add("rows", name_of(out));
    if (miss >= 0)
        add("miss", digits(miss));
    for (const auto& [is_set, word] :
         {std::pair{uniform, ":uniform"}, {greedy, ":greedy"}, {!refit, ":plain"}})
        if (is_set)
            text.append(word);
    return text;
}

double ffn_recipe::left(std::size_t width, std::size_t hidden, double fixed) const {
    double bits = 16;
    with_leveled_format(predictor, [&]<class F>(std::type_identity<F>) {
        if constexpr (crumb::codebook_entries<F> != 0)
            bits = F::codes::bits;
        else
            bits = F::codes::maximum == 7 ? 4 : 8;
    });
    const double d = static_cast<double>(width), h = static_cast<double>(hidden);
    return d / (2 * h) + bits / 32 + fixed;
}

double ffn_recipe::target(std::size_t width, std::size_t hidden) const {
    return parameters > 0 ? std::clamp(1 - (parameters - left(width, hidden, 0)), 0.0, 1.0) : coverage;
}

} // namespace lm
