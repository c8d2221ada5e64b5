#include "text/special_tokens.hpp"

#include "text/unicode.hpp"

#include <algorithm>
#include <functional>
#include <iterator>

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
        names_.add(each.text, true);
        entries_.push_back({each.token, each.in_quotes, each.strips_right});
        auto& lengths = lengths_[static_cast<unsigned char>(each.text[0])];
        if (std::find(lengths.begin(), lengths.end(), each.text.size()) == lengths.end())
            lengths.push_back(each.text.size());
        for (std::size_t i = 0; i + 1 < each.text.size(); ++i)
            crosses_lines_ = crosses_lines_ || (is_letter(each.text[i]) && each.text[i + 1] == '\n');
        crosses_lines_ = crosses_lines_ || (each.strips_right && is_letter(each.text.back()));
    }
    for (auto& lengths : lengths_)
        std::sort(lengths.begin(), lengths.end(), std::greater<>());
}

void special_tokens::find(std::string_view text, std::span<const text_range> quoted,
                          std::vector<found>& out) const {
    // Where any name begins, and how long the longest is there.
    struct place {
        std::size_t begin;
        std::size_t longest;
    };
    std::vector<place> places;
    std::vector<std::size_t> lengths;
    for (std::size_t at = 0; at < text.size(); ++at) {
        if (!may_begin(text[at]))
            continue;
        for (const std::size_t length : lengths_[static_cast<unsigned char>(text[at])])
            if (length <= text.size() - at && names_.find(text.substr(at, length)) != piece_table::none) {
                places.push_back({at, length});
                break;
            }
    }
    if (places.empty())
        return;
    std::array<bool, 256> begins = {};
    for (const place& p : places)
        begins[static_cast<unsigned char>(text[p.begin])] = true;
    for (std::size_t c = 0; c < begins.size(); ++c)
        if (begins[c])
            lengths.insert(lengths.end(), lengths_[c].begin(), lengths_[c].end());
    std::sort(lengths.begin(), lengths.end(), std::greater<>());
    lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
    // What is taken is at least as long as what is looked for, so that both ends tell whether the latter is
    // free.
    std::vector<bool> taken(text.size());
    for (const std::size_t length : lengths) {
        for (const place& p : places) {
            const std::size_t end = p.begin + length;
            if (length > p.longest || taken[p.begin] || taken[end - 1])
                continue;
            const std::int32_t known = names_.find(text.substr(p.begin, length));
            if (known == piece_table::none)
                continue;
            const auto quote =
                std::upper_bound(quoted.begin(), quoted.end(), p.begin,
                                 [](std::size_t at, const text_range& q) { return at < q.end; });
            if (!entries_[static_cast<std::size_t>(known)].in_quotes && quote != quoted.end() &&
                quote->begin < end)
                continue;
            std::fill(taken.begin() + static_cast<std::ptrdiff_t>(p.begin),
                      taken.begin() + static_cast<std::ptrdiff_t>(end), true);
            out.push_back({p.begin, known});
        }
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
