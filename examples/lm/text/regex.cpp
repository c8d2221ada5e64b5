#include "text/regex.hpp"

#include <cstdint>
#include <new>
#include <string>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

namespace {

/// The pattern with Unicode's name for what `\s` means: PCRE2's own list has a character more, U+180E.
std::string with_white_space(std::string_view pattern) {
    std::string out;
    for (std::size_t i = 0; i < pattern.size(); ++i) {
        const char next = pattern[i] == '\\' && i + 1 < pattern.size() ? pattern[i + 1] : '\0';
        if (next == 's' || next == 'S')
            out += next == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
        else if (next != '\0')
            out += pattern.substr(i, 2);
        else
            out += pattern[i];
        i += next != '\0' ? 1 : 0;
    }
    return out;
}

} // namespace

result<regex> regex::compile(std::string_view pattern) {
    const std::string text = with_white_space(pattern);
    int error = 0;
    PCRE2_SIZE at = 0;
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), PCRE2_UTF,
                                     &error, &at, nullptr);
    if (code == nullptr) {
        PCRE2_UCHAR message[128] = {};
        pcre2_get_error_message(error, message, sizeof message);
        return status::error(errc::invalid_argument, "PCRE2 refuses the expression %s at byte %zu: %s",
                             text.c_str(), at, reinterpret_cast<const char*>(message));
    }
    // Where memory must not be executable, expressions are interpreted.
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    regex out;
    out.code_ = {code, [](const pcre2_code* p) { pcre2_code_free(const_cast<pcre2_code*>(p)); }};
    return out;
}

void regex::matcher::free_data::operator()(pcre2_match_data* p) const noexcept { pcre2_match_data_free(p); }
void regex::matcher::free_data::operator()(pcre2_match_context* p) const noexcept {
    pcre2_match_context_free(p);
}

regex::matcher::matcher(const regex& of)
    : code_(of.code_), data_(pcre2_match_data_create(1, nullptr)),
      context_(pcre2_match_context_create(nullptr)) {
    if (data_ == nullptr || context_ == nullptr)
        throw std::bad_alloc();
    // Long texts take many steps; each of our expressions takes a number that grows with the text only.
    pcre2_set_match_limit(context_.get(), UINT32_MAX);
}

std::optional<text_range> regex::matcher::find(std::string_view text, std::size_t from) {
    const auto* begin = reinterpret_cast<PCRE2_SPTR>(text.data());
    int found = PCRE2_ERROR_JIT_STACKLIMIT;
    for (const std::uint32_t how : {0u, PCRE2_NO_JIT})
        if (found == PCRE2_ERROR_JIT_STACKLIMIT)
            found = pcre2_match(code_.get(), begin, text.size(), from, PCRE2_NO_UTF_CHECK | how, data_.get(),
                                context_.get());
    if (found == PCRE2_ERROR_NOMATCH)
        return std::nullopt;
    // What else can go wrong is that there is no memory to go back in.
    if (found < 0)
        throw std::bad_alloc();
    const PCRE2_SIZE* at = pcre2_get_ovector_pointer(data_.get());
    return text_range{at[0], at[1]};
}

} // namespace lm
