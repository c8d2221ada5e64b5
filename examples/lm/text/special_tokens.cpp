#include "text/special_tokens.hpp"

#include "text/unicode.hpp"

#include <algorithm>
#include <numeric>

namespace lm {

namespace {

bool is_space(char c) noexcept { return c == ' ' || (c >= '\t' && c <= '\r'); }

} // namespace

void special_tokens::assign(std::span<const name> names) {
    std::size_t bytes = 0;
    for (const name& each : names)
        bytes += each.text.size();
    *this = {};
    names_.reserve(names.size(), bytes);
    for (const name& each : names) {
        if (each.text.empty())
            continue;
        sorted_.push_back(static_cast<std::int32_t>(names_.size()));
        names_.add(each.text, false);
        entries_.push_back({each.token, each.in_quotes, each.strips_right});
        for (std::size_t i = 0; i + 1 < each.text.size(); ++i)
            crosses_lines_ = crosses_lines_ || (is_letter(each.text[i]) && each.text[i + 1] == '\n');
        crosses_lines_ = crosses_lines_ || (each.strips_right && is_letter(each.text.back()));
    }
    // Of equal names the first counts.
    std::sort(sorted_.begin(), sorted_.end(), [&](std::int32_t a, std::int32_t b) {
        const int order = names_[a].compare(names_[b]);
        return order != 0 ? order < 0 : a < b;
    });
    sorted_.erase(std::unique(sorted_.begin(), sorted_.end(),
                              [&](std::int32_t a, std::int32_t b) { return names_[a] == names_[b]; }),
                  sorted_.end());
    for (const std::int32_t name : sorted_)
        ++first_[static_cast<unsigned char>(names_[name][0]) + std::size_t{1}];
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
}

void special_tokens::find_at(std::string_view text, std::size_t at, std::vector<found>& out) const {
    const auto byte = static_cast<unsigned char>(text[at]);
    const auto begin = sorted_.begin();
    auto from = begin + static_cast<std::ptrdiff_t>(first_[byte]);
    auto to = begin + static_cast<std::ptrdiff_t>(first_[byte + std::size_t{1}]);
    // Names from .. to - 1 have the first `length` bytes of the text; one that is no longer comes first.
    for (std::size_t length = 1; from != to; ++length) {
        if (names_[*from].size() == length)
            out.push_back({at, *from++});
        if (at + length == text.size())
            return;
        const auto next = static_cast<unsigned char>(text[at + length]);
        const auto byte_of = [&](std::int32_t name) {
            return static_cast<unsigned char>(names_[name][length]);
        };
        from = std::lower_bound(from, to, next,
                                [&](std::int32_t name, unsigned char c) { return byte_of(name) < c; });
        to = std::upper_bound(from, to, next,
                              [&](unsigned char c, std::int32_t name) { return c < byte_of(name); });
    }
}

void special_tokens::find(std::string_view text, std::span<const text_range> quoted,
                          std::vector<found>& out) const {
    std::vector<found> places;
    for (std::size_t at = 0; at < text.size(); ++at)
        find_at(text, at, places);
    const auto length_of = [&](const found& f) { return names_[f.name].size(); };
    std::sort(places.begin(), places.end(), [&](const found& a, const found& b) {
        return length_of(a) != length_of(b) ? length_of(a) > length_of(b) : a.begin < b.begin;
    });
    // What is taken is at least as long as what is looked for, so that both ends tell whether the latter is
    // free.
    std::vector<bool> taken(places.empty() ? 0 : text.size());
    for (const found& p : places) {
        const std::size_t end = p.begin + length_of(p);
        if (taken[p.begin] || taken[end - 1])
            continue;
        const auto quote = std::upper_bound(quoted.begin(), quoted.end(), p.begin,
                                            [](std::size_t at, const text_range& q) { return at < q.end; });
        if (!entries_[static_cast<std::size_t>(p.name)].in_quotes && quote != quoted.end() &&
            quote->begin < end)
            continue;
        std::fill(taken.begin() + static_cast<std::ptrdiff_t>(p.begin),
                  taken.begin() + static_cast<std::ptrdiff_t>(end), true);
        out.push_back(p);
    }
    std::sort(out.begin(), out.end(), [](const found& a, const found& b) { return a.begin < b.begin; });
}

void special_tokens::cut(std::string_view text, std::span<const text_range> quoted,
                         std::vector<text_fragment>& out) const {
    out.clear();
    std::vector<found> all;
    if (names_.size() != 0)
        find(text, quoted, all);
    std::size_t done = 0;
    const auto add_text = [&](std::size_t end) {
        if (done < end)
            out.push_back({{done, end}, piece_table::none});
    };
    for (std::size_t i = 0; i < all.size(); ++i) {
        const std::size_t end = all[i].begin + names_[all[i].name].size();
        const entry& each = entries_[static_cast<std::size_t>(all[i].name)];
        add_text(all[i].begin);
        out.push_back({{all[i].begin, end}, each.token});
        done = end;
        const std::size_t next = i + 1 < all.size() ? all[i + 1].begin : text.size();
        while (each.strips_right && done < next && is_space(text[done]))
            ++done;
    }
    add_text(text.size());
}

} // namespace lm
