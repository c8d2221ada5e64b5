#include "text/tokenizer.hpp"

#include "text/unicode.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>

namespace lm {

using crumb::errc;
using crumb::status;

namespace {

/// Token types of `tokenizer.ggml.token_type`.
enum token_type : std::int32_t {
    normal = 1,
    unknown = 2,
    control = 3,
    user_defined = 4,
    unused = 5,
    byte = 6
};

constexpr std::string_view space_mark = "\xE2\x96\x81";

std::string with_spaces(std::string_view text) {
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
        const bool mark = text.substr(at).starts_with(space_mark);
        out += mark ? ' ' : text[at];
        at += mark ? space_mark.size() : 1;
    }
    return out;
}

/// The byte that a piece `<0xXX>` stands for.
std::optional<std::uint8_t> fallback_byte(std::string_view piece) noexcept {
    std::uint8_t value = 0;
    if (piece.size() != 6 || !piece.starts_with("<0x") || !piece.ends_with('>'))
        return std::nullopt;
    const auto [end, error] = std::from_chars(piece.data() + 3, piece.data() + 5, value, 16);
    return error == std::errc() && end == piece.data() + 5 ? std::optional(value) : std::nullopt;
}

constexpr std::uint64_t pair_key(std::uint32_t left, std::uint32_t right) noexcept {
    return std::uint64_t{left} << 32 | right;
}

constexpr std::uint64_t pair_key(std::int32_t left, std::int32_t right) noexcept {
    return pair_key(static_cast<std::uint32_t>(left), static_cast<std::uint32_t>(right));
}

/// The character at `text[at]`; a byte that is none has a number of its own, beyond Unicode's.
utf8_char distinct_char(std::string_view text, std::size_t at) noexcept {
    const utf8_char c = decode_utf8(text, at);
    if (c.value != 0xFFFD || c.size != 1)
        return c;
    return {char32_t{0x110000} + static_cast<std::uint8_t>(text[at]), 1};
}

/// Makes room for the tokens of `next` more bytes, which are at most as many. Behind the first 64 KiB of a
/// text, it is made for the rest as well, at the rate so far: doubling would take twice the tokens' memory.
void make_room(std::size_t next, std::size_t done, std::size_t all, std::size_t most,
               std::vector<std::int32_t>& out) {
    if (out.capacity() - out.size() >= next)
        return;
    std::size_t more = out.size() / 2 + 256;
    if (done >= (std::size_t{1} << 16)) {
        const double rate = static_cast<double>(out.size()) / static_cast<double>(done);
        const auto expected = static_cast<std::size_t>(1.02 * rate * static_cast<double>(all - done)) + 256;
        more = std::min({expected, all - done, most - out.size()});
        more = std::max(more, out.size() / 16);
    }
    out.reserve(out.size() + std::max(more, next));
}

} // namespace

/// Fills a `tokenizer` from the keys of a file.
class tokenizer::builder {
  public:
    builder(const gguf& file, tokenizer& out) noexcept : file_(file), out_(out) {}

    status run() {
        const auto model = file_.get_string("tokenizer.ggml.model");
        if (!model)
            return model.error();
        if (*model != "gpt2" && *model != "llama")
            return status::error(errc::unsupported,
                                 "key 'tokenizer.ggml.model': %s is unsupported (gpt2 and llama are)",
                                 quoted(*model).c_str());
        out_.is_bpe_ = *model == "gpt2";
        if (status s = read_tokens(); !s)
            return s;
        if (status s = read_ids(); !s)
            return s;
        if (status s = out_.is_bpe_ ? read_bpe() : read_spm(); !s)
            return s;
        return out_.unknown_ ? status() : require_bytes();
    }

  private:
    status read_tokens() {
        const auto tokens = file_.get_strings("tokenizer.ggml.tokens");
        if (!tokens)
            return tokens.error();
        if (tokens->size() == 0 || tokens->size() > INT32_MAX)
            return status::error(errc::corrupt, "key 'tokenizer.ggml.tokens' has %zu elements",
                                 tokens->size());
        texts_.assign(tokens->begin(), tokens->end());
        for (std::size_t i = 0; i < texts_.size(); ++i)
            by_text_.try_emplace(texts_[i], static_cast<std::int32_t>(i));
        if (file_.find("tokenizer.ggml.token_type") == nullptr)
            return {};
        auto types = file_.get_i32s("tokenizer.ggml.token_type");
        if (!types)
            return types.error();
        types_ = std::move(*types);
        return same_length("tokenizer.ggml.token_type", types_.size());
    }

    status same_length(const char* key, std::size_t size) const {
        if (size == texts_.size())
            return {};
        return status::error(errc::corrupt, "key '%s' has %zu elements, but the vocabulary has %zu tokens",
                             key, size, texts_.size());
    }

    status read_ids() {
        struct id {
            const char* key;
            const char* usual;
            std::optional<std::int32_t>& token;
        };
        for (const id& i : {id{"tokenizer.ggml.bos_token_id", "<s>", out_.bos_},
                            id{"tokenizer.ggml.eos_token_id", "</s>", out_.eos_},
                            id{"tokenizer.ggml.unknown_token_id", "<unk>", out_.unknown_}}) {
            if (file_.find(i.key) == nullptr) {
                if (const auto found = by_text_.find(i.usual); !out_.is_bpe_ && found != by_text_.end())
                    i.token = found->second;
                continue;
            }
            const auto token = file_.get_u32(i.key);
            if (!token)
                return token.error();
            if (*token >= texts_.size())
                return status::error(errc::corrupt, "key '%s' is %u, but the vocabulary has %zu tokens",
                                     i.key, *token, texts_.size());
            i.token = static_cast<std::int32_t>(*token);
        }
        if (status s = read_flag("add_bos_token", !out_.is_bpe_ && out_.bos_, out_.add_bos_); !s)
            return s;
        if (status s = read_flag("add_eos_token", false, out_.add_eos_); !s)
            return s;
        if (status s = read_flag("add_space_prefix", !out_.is_bpe_, out_.add_space_prefix_); !s)
            return s;
        if ((out_.add_bos_ && !out_.bos_) || (out_.add_eos_ && !out_.eos_))
            return status::error(errc::corrupt,
                                 "key 'tokenizer.ggml.add_%s_token' is set, but there is no such token",
                                 out_.add_bos_ && !out_.bos_ ? "bos" : "eos");
        return {};
    }

    status read_flag(const char* name, bool fallback, bool& flag) const {
        const auto value = file_.get_bool(std::string("tokenizer.ggml.") + name, fallback);
        if (!value)
            return value.error();
        flag = *value;
        return {};
    }

    [[nodiscard]] std::int32_t type(std::size_t token) const noexcept {
        if (!types_.empty())
            return types_[token];
        const auto id = static_cast<std::int32_t>(token);
        if (out_.is_bpe_)
            return normal;
        if (id == out_.unknown_)
            return unknown;
        if (id == out_.bos_ || id == out_.eos_)
            return control;
        return fallback_byte(texts_[token]) ? byte : normal;
    }

    status read_bpe() {
        const auto splitter = file_.get_string("tokenizer.ggml.pre", "gpt-2");
        if (!splitter)
            return splitter.error();
        if (*splitter != "gpt-2" && *splitter != "default")
            return status::error(errc::unsupported, "key 'tokenizer.ggml.pre': %s is unsupported (gpt-2 is)",
                                 quoted(*splitter).c_str());
        for (std::size_t i = 0; i < texts_.size(); ++i)
            out_.pieces_.push_back(type(i) == control ? std::string() : gpt2_bytes(texts_[i]));
        for (std::size_t b = 0; b < 256; ++b) {
            std::string text;
            append_utf8(text, gpt2_characters[b]);
            out_.byte_tokens_[b] = out_.symbol_tokens_[static_cast<std::size_t>(symbol_of(std::move(text)))];
        }
        return read_merges();
    }

    status read_merges() {
        const auto merges = file_.get_strings("tokenizer.ggml.merges");
        if (!merges)
            return merges.error();
        std::size_t rank = 0;
        for (std::string_view text : *merges) {
            const std::size_t space = text.find(' ');
            if (space == text.npos || space == 0 || space + 1 == text.size() ||
                text.find(' ', space + 1) != text.npos)
                return status::error(errc::corrupt,
                                     "key 'tokenizer.ggml.merges': element %zu is %s, not two symbols", rank,
                                     quoted(text).c_str());
            const std::string left(text.substr(0, space));
            const std::string right(text.substr(space + 1));
            const std::uint64_t key = pair_key(symbol_of(left), symbol_of(right));
            out_.merges_.try_emplace(key, symbol_merge{static_cast<double>(rank), symbol_of(left + right)});
            const auto last = static_cast<std::uint8_t>(gpt2_bytes(left).back());
            const auto first = static_cast<std::uint8_t>(gpt2_bytes(right).front());
            out_.joined_.insert(pair_key(std::uint32_t{last}, std::uint32_t{first}));
            ++rank;
        }
        return {};
    }

    std::int32_t symbol_of(std::string text) {
        const auto id = static_cast<std::int32_t>(symbols_.size());
        const auto [found, is_new] = symbols_.try_emplace(std::move(text), id);
        if (is_new) {
            const auto token = by_text_.find(found->first);
            out_.symbol_tokens_.push_back(token != by_text_.end() ? token->second : none);
        }
        return found->second;
    }

    status read_spm() {
        auto scores = file_.get_f32s("tokenizer.ggml.scores");
        if (!scores)
            return scores.error();
        out_.scores_ = std::move(*scores);
        if (status s = same_length("tokenizer.ggml.scores", out_.scores_.size()); !s)
            return s;
        out_.byte_tokens_.fill(none);
        out_.pieces_.resize(texts_.size());
        for (std::size_t i = 0; i < texts_.size(); ++i)
            if (status s = read_piece(i); !s)
                return s;
        for (std::size_t b = 0; b < 256; ++b) {
            const char c = static_cast<char>(b);
            const auto token = out_.tokens_.find(std::string_view(&c, 1));
            if (out_.byte_tokens_[b] == none && token != out_.tokens_.end())
                out_.byte_tokens_[b] = token->second;
        }
        return {};
    }

    status read_piece(std::size_t i) {
        const auto id = static_cast<std::int32_t>(i);
        std::string& piece = out_.pieces_[i];
        switch (type(i)) {
        case control:
            return {};
        case unknown:
            piece = " \xE2\x81\x87 ";
            return {};
        case byte: {
            const auto value = fallback_byte(texts_[i]);
            if (!value)
                return status::error(errc::corrupt,
                                     "key 'tokenizer.ggml.tokens': byte token %zu is %s, not <0xXX>", i,
                                     quoted(texts_[i]).c_str());
            piece = static_cast<char>(*value);
            out_.byte_tokens_[*value] = id;
            return {};
        }
        default:
            piece = with_spaces(texts_[i]);
            if (!piece.empty())
                out_.tokens_.try_emplace(piece, id);
            out_.longest_piece_ = std::max(out_.longest_piece_, piece.size());
            join_characters(piece);
            return {};
        }
    }

    void join_characters(std::string_view piece) {
        if (piece.empty())
            return;
        utf8_char left = distinct_char(piece, 0);
        for (std::size_t at = left.size; at < piece.size(); at += left.size) {
            const utf8_char right = distinct_char(piece, at);
            out_.joined_.insert(pair_key(std::uint32_t{left.value}, std::uint32_t{right.value}));
            left = right;
        }
    }

    /// Without an unknown token, every byte needs a token of its own.
    status require_bytes() const {
        for (std::size_t b = 0; b < 256; ++b)
            if (out_.byte_tokens_[b] == none)
                return status::error(
                    errc::corrupt,
                    "key 'tokenizer.ggml.tokens': no token for the byte 0x%02zX, and no unknown token", b);
        return {};
    }

    const gguf& file_;
    tokenizer& out_;
    std::vector<std::string_view> texts_;
    std::vector<std::int32_t> types_;
    std::unordered_map<std::string_view, std::int32_t> by_text_;
    std::unordered_map<std::string, std::int32_t> symbols_;
};

crumb::result<tokenizer> tokenizer::make(const gguf& file) {
    tokenizer out;
    if (status s = builder(file, out).run(); !s)
        return s;
    return out;
}

void tokenizer::append(std::int32_t token, std::string_view bytes, std::vector<std::int32_t>& out) const {
    const auto byte_token = [this](char c) { return byte_tokens_[static_cast<std::uint8_t>(c)]; };
    if (token != none)
        out.push_back(token);
    else if (std::any_of(bytes.begin(), bytes.end(), [&](char c) { return byte_token(c) == none; }))
        out.push_back(*unknown_);
    else
        std::transform(bytes.begin(), bytes.end(), std::back_inserter(out), byte_token);
}

// Text may be cut between two characters unless they may join, and every part be merged by itself. The first
// merge across the cut would be of a symbol that ends with the left one and a symbol that begins with the
// right one: what `joined_` has of every merge of BPE, and of all neighbours within the pieces of
// SentencePiece, which merges only what is such a piece. Merges on either side are not affected by those on
// the other, and keep their order.
bool tokenizer::may_join(char32_t left, char32_t right) const {
    return joined_.contains(pair_key(std::uint32_t{left}, std::uint32_t{right}));
}

void tokenizer::encode_bpe(std::string_view text, std::size_t most, std::vector<std::int32_t>& out) const {
    const auto byte_at = [text](std::size_t at) { return static_cast<std::uint8_t>(text[at]); };
    symbol_merger merger;
    for (std::size_t at = 0, end = 0, word_end = 0; at < text.size() && out.size() < most; at = end) {
        // Without merges, words do not matter.
        if (at == word_end)
            word_end = merges_.empty() ? text.size() : gpt2_word_end(text, at);
        end = at + 1;
        while (end < word_end && may_join(byte_at(end - 1), byte_at(end)))
            ++end;
        make_room(end - at, at, text.size(), most, out);
        merger.clear();
        // The symbols of the 256 bytes have the bytes' numbers.
        for (std::size_t i = at; i < end; ++i)
            merger.add(i, 1, byte_at(i));
        merger.run([this](const text_symbol& left, const text_symbol& right) -> std::optional<symbol_merge> {
            const auto found = merges_.find(pair_key(left.id, right.id));
            return found != merges_.end() ? std::optional(found->second) : std::nullopt;
        });
        merger.for_each([&](const text_symbol& s) {
            append(symbol_tokens_[static_cast<std::size_t>(s.id)], text.substr(s.start, s.size), out);
        });
    }
}

void tokenizer::encode_spm(std::string_view text, std::size_t most, std::vector<std::int32_t>& out) const {
    std::string piece;
    symbol_merger merger;
    char32_t last = 0;
    const auto add = [&](char32_t character, std::string_view bytes) {
        const auto found = tokens_.find(bytes);
        merger.add(piece.size(), bytes.size(), found != tokens_.end() ? found->second : none);
        piece += bytes;
        last = character;
    };
    const auto rule = [&](const text_symbol& left, const text_symbol& right) -> std::optional<symbol_merge> {
        const std::size_t size = left.size + right.size;
        const auto found = size <= longest_piece_
                               ? tokens_.find(std::string_view(piece).substr(left.start, size))
                               : tokens_.end();
        if (found == tokens_.end())
            return std::nullopt;
        const auto token = static_cast<std::size_t>(found->second);
        return symbol_merge{-static_cast<double>(scores_[token]), found->second};
    };
    if (add_space_prefix_ && !text.empty())
        add(U' ', " ");
    for (std::size_t at = 0; out.size() < most && (at < text.size() || !piece.empty());) {
        const bool more = at < text.size();
        const bool is_space = more && text.substr(at).starts_with(space_mark);
        const utf8_char c = !more ? utf8_char{} : is_space ? utf8_char{U' ', 3} : distinct_char(text, at);
        if (!piece.empty() && (!more || !may_join(last, c.value))) {
            make_room(piece.size(), at, text.size(), most, out);
            merger.run(rule);
            merger.for_each([&](const text_symbol& s) {
                append(s.id, std::string_view(piece).substr(s.start, s.size), out);
            });
            merger.clear();
            piece.clear();
        }
        if (more)
            add(c.value, is_space ? " " : text.substr(at, c.size));
        at += c.size;
    }
}

std::vector<std::int32_t> tokenizer::encode(std::string_view text, bool add_special) const {
    return encode_first(text, add_special, std::numeric_limits<std::size_t>::max());
}

std::vector<std::int32_t> tokenizer::encode_first(std::string_view text, bool add_special,
                                                  std::size_t most) const {
    std::vector<std::int32_t> out;
    if (add_special && add_bos_)
        out.push_back(*bos_);
    if (is_bpe_)
        encode_bpe(text, most, out);
    else
        encode_spm(text, most, out);
    if (add_special && add_eos_)
        out.push_back(*eos_);
    // The last piece may have more tokens than are wanted. EOS is wanted only if all others are.
    out.resize(std::min(out.size(), most));
    return out;
}

std::string tokenizer::decode(std::int32_t token) const {
    const auto index = static_cast<std::size_t>(static_cast<std::uint32_t>(token));
    return index < pieces_.size() ? pieces_[index] : std::string();
}

std::string tokenizer::decode(std::span<const std::int32_t> tokens) const {
    std::string text;
    for (std::int32_t token : tokens)
        text += decode(token);
    return text;
}

} // namespace lm
