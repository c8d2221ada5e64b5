#include "text/tokenizer.hpp"

#include "text/readable_text.hpp"
#include "text/spm_text.hpp"
#include "text/unicode.hpp"

#include <algorithm>
#include <iterator>
#include <limits>

namespace lm {

namespace {

constexpr std::size_t block_bytes = std::size_t{1} << 16;

/// Makes room for the tokens of `next` more bytes, which are at most as many. Behind the first 64 KiB of a
/// text, it is made for the rest as well, at the rate so far: doubling would take twice the tokens' memory.
void make_room(std::size_t next, std::size_t done, std::size_t all, std::size_t most,
               std::vector<std::int32_t>& out) {
    if (out.capacity() - out.size() >= next)
        return;
    std::size_t more = out.size() / 2 + 256;
    if (done >= block_bytes) {
        const double rate = static_cast<double>(out.size()) / static_cast<double>(done);
        const auto expected = static_cast<std::size_t>(1.02 * rate * static_cast<double>(all - done)) + 256;
        more = std::min({expected, all - done, most - out.size()});
        more = std::max(more, out.size() / 16);
    }
    out.reserve(out.size() + std::max(more, next));
}

} // namespace

// Text may be cut between two characters unless they may join, and every part be merged by itself. The first
// merge across the cut would be of a symbol that ends with the left one and a symbol that begins with the
// right one: what `joined_bytes_` has of every merge of BPE, and `joined_` of all neighbours within the
// pieces of SentencePiece, which merges only what is such a piece. Merges on either side are not affected by
// those on the other, and keep their order.
bool tokenizer::may_join(char32_t left, char32_t right) const {
    return is_bpe_ ? joined_bytes_[left << 8 | right] : joined_.find(left, right) != nullptr;
}

void tokenizer::encode_word(std::string_view word, symbol_merger& merger, token_list& out) const {
    if (pre_->ignores_merges())
        if (const std::int32_t token = pieces_.find(word); token != none)
            return out.push_back(token);
    const auto byte_at = [word](std::size_t at) { return static_cast<std::uint8_t>(word[at]); };
    for (std::size_t at = 0, end = 0; at < word.size(); at = end) {
        end = at + 1;
        while (end < word.size() && may_join(byte_at(end - 1), byte_at(end)))
            ++end;
        if (end == at + 1) {
            if (const std::int32_t token = byte_tokens_[byte_at(at)]; token != none)
                out.push_back(token);
            continue;
        }
        merger.clear();
        for (std::size_t i = at; i < end; ++i)
            merger.add(i, 1, byte_tokens_[byte_at(i)]);
        merger.run([this](const text_symbol& left, const text_symbol& right) -> std::optional<symbol_merge> {
            if (left.id == none || right.id == none)
                return std::nullopt;
            const bpe_merge* found =
                merges_.find(static_cast<std::uint32_t>(left.id), static_cast<std::uint32_t>(right.id));
            return found != nullptr ? std::optional(symbol_merge{double(found->rank), found->token})
                                    : std::nullopt;
        });
        merger.for_each([&](const text_symbol& s) {
            if (s.id != none)
                out.push_back(s.id);
        });
    }
}

void tokenizer::encode_bpe(std::string_view text, std::size_t most, token_list& out) const {
    const readable_text readable(text);
    symbol_merger merger;
    // Without merges, words do not matter.
    if (merges_.size() == 0 && !pre_->ignores_merges())
        return encode_word(readable.bytes(), merger, out);
    const std::string_view shown = readable.shown();
    pre_tokenizer::splitter(*pre_).for_each(shown, [&](std::string_view word) {
        encode_word(
            readable.bytes().substr(static_cast<std::size_t>(word.data() - shown.data()), word.size()),
            merger, out);
        return out.size() < most;
    });
}

void tokenizer::append_spm(std::int32_t token, std::string_view bytes, token_list& out) const {
    const auto byte_token = [this](char c) { return byte_tokens_[static_cast<std::uint8_t>(c)]; };
    if (token != none)
        out.push_back(token);
    else if (std::any_of(bytes.begin(), bytes.end(), [&](char c) { return byte_token(c) == none; }))
        out.push_back(*unknown_);
    else
        std::transform(bytes.begin(), bytes.end(), std::back_inserter(out), byte_token);
}

void tokenizer::encode_spm(std::string_view text, bool with_prefix, std::size_t most, token_list& out) const {
    const std::string marked = with_marks(with_prefix, text);
    const std::string_view all = marked;
    symbol_merger merger;
    const auto rule = [&](const text_symbol& left, const text_symbol& right) -> std::optional<symbol_merge> {
        const std::size_t size = left.size + right.size;
        const std::int32_t token = size <= longest_piece_ ? pieces_.find(all.substr(left.start, size)) : none;
        if (token == none)
            return std::nullopt;
        return symbol_merge{-static_cast<double>(scores_[static_cast<std::size_t>(token)]), token};
    };
    utf8_char c = all.empty() ? utf8_char{} : spm_char(all, 0);
    for (std::size_t at = 0; at < all.size() && out.size() < most;) {
        merger.add(at, c.size, pieces_.find(all.substr(at, c.size)));
        at += c.size;
        const char32_t last = c.value;
        if (at < all.size()) {
            c = spm_char(all, at);
            if (may_join(last, c.value))
                continue;
        }
        merger.run(rule);
        merger.for_each([&](const text_symbol& s) { append_spm(s.id, all.substr(s.start, s.size), out); });
        merger.clear();
    }
}

// Behind a letter a line's end begins a word whatever the expressions are, and no expression looks that far
// ahead of a letter.
std::size_t tokenizer::block_end(std::string_view text, std::size_t at, const special_tokens& names) const {
    if (names.crosses_lines())
        return text.size();
    for (std::size_t end = at + block_bytes; end < text.size(); ++end)
        if (text[end] == '\n' && is_letter(text[end - 1]) &&
            (is_bpe_ || !may_join(static_cast<unsigned char>(text[end - 1]), U'\n')))
            return end;
    return text.size();
}

void tokenizer::encode_all(std::string_view text, bool add_special, const special_tokens& names,
                           std::span<const text_range> quoted, std::size_t most, token_list& out) const {
    if (add_special && add_bos_)
        out.push_back(*bos_);
    std::vector<text_fragment> fragments;
    std::vector<text_range> quoted_here;
    bool behind_special = true;
    for (std::size_t at = 0, end = 0; at < text.size() && out.size() < most; at = end) {
        end = block_end(text, at, names);
        quoted_here.clear();
        for (const text_range& q : quoted)
            if (q.begin < end && q.end > at)
                quoted_here.push_back({std::max(q.begin, at) - at, std::min(q.end, end) - at});
        const std::string_view block = text.substr(at, end - at);
        names.cut(block, quoted_here, fragments);
        make_room(std::min(block.size(), block_bytes), at, text.size(), most, out);
        for (const text_fragment& f : fragments) {
            if (out.size() >= most)
                break;
            const std::string_view part = block.substr(f.at.begin, f.at.end - f.at.begin);
            if (f.token != none)
                out.push_back(f.token);
            else if (is_bpe_)
                encode_bpe(part, most, out);
            else
                encode_spm(part, add_space_prefix_ && behind_special, most, out);
            behind_special = f.token != none;
        }
    }
    if (add_special && add_eos_)
        out.push_back(*eos_);
    // The last piece may have more tokens than are wanted. EOS is wanted only if all others are.
    out.resize(std::min(out.size(), most));
}

std::vector<std::int32_t> tokenizer::encode(std::string_view text, bool add_special) const {
    return encode_first(text, add_special, std::numeric_limits<std::size_t>::max());
}

std::vector<std::int32_t> tokenizer::encode_first(std::string_view text, bool add_special,
                                                  std::size_t most) const {
    token_list out;
    encode_all(text, add_special, always_, {}, most, out);
    return out;
}

std::vector<std::int32_t> tokenizer::encode_prompt(std::string_view text, bool add_special,
                                                   std::span<const text_range> quoted) const {
    token_list out;
    encode_all(text, add_special, in_prompts_, quoted, std::numeric_limits<std::size_t>::max(), out);
    return out;
}

std::string tokenizer::decode(std::int32_t token) const {
    if (token < 0 || static_cast<std::size_t>(token) >= pieces_.size())
        return {};
    return is_bpe_ ? std::string(pieces_[token]) : with_spaces(pieces_[token]);
}

std::string tokenizer::decode(std::span<const std::int32_t> tokens) const {
    std::string text;
    for (std::int32_t token : tokens)
        text += decode(token);
    return text;
}

bool tokenizer::ends_text(std::int32_t token) const noexcept {
    return std::binary_search(ends_.begin(), ends_.end(), token);
}

} // namespace lm
