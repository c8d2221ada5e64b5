#include "text/tokenizer_builder.hpp"

#include "text/spm_text.hpp"
#include "text/unicode.hpp"

#include <algorithm>
#include <cctype>
#include <iterator>

namespace lm {

using crumb::errc;
using crumb::status;

namespace {

// Files do not always say what these are, or call them normal.
constexpr std::string_view ends_of_turns[] = {"<|eot_id|>",
                                              "<|im_end|>",
                                              "<|end|>",
                                              "<|return|>",
                                              "<|call|>",
                                              "<|flush|>",
                                              "<|calls|>",
                                              "<end_of_turn>",
                                              "<|endoftext|>",
                                              "</s>",
                                              "<|eom_id|>",
                                              "<EOT>",
                                              "_<EOT>",
                                              "[EOT]",
                                              "[EOS]",
                                              "<|end_of_text|>",
                                              "<eos>",
                                              "<turn|>",
                                              "<end_of_utterance>",
                                              "<|tool_response>",
                                              "<｜end▁of▁sentence｜>",
                                              "[e~["};
constexpr std::string_view ends_of_files[] = {"<|fim_pad|>", "<fim-pad>",    "<fim_pad>",     "<PAD>",
                                              "[PAD]",       "<|fim_repo|>", "<|repo_name|>", "<fim-repo>",
                                              "<REPO>",      "<reponame>",   "<|file_sep|>"};
constexpr std::string_view parts_of_files[] = {
    "<|fim_prefix|>", "<fim-prefix>",    "<fim_prefix>",    "<｜fim▁begin｜>", "<PRE>",
    "▁<PRE>",         "<|code_prefix|>", "<|prefix|>",      "<|fim_suffix|>",  "<fim-suffix>",
    "<fim_suffix>",   "<｜fim▁hole｜>",  "<SUF>",           "▁<SUF>",          "<|code_suffix|>",
    "<|suffix|>",     "<|fim_middle|>",  "<fim-middle>",    "<fim_middle>",    "<｜fim▁end｜>",
    "<MID>",          "▁<MID>",          "<|code_middle|>", "<|middle|>"};
constexpr std::string_view shown_parts[] = {"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"};

/// Bytes that text hardly has, so that vocabularies trained on text may lack them: control characters, and
/// what begins no or rare characters of UTF-8.
bool is_rare_byte(std::size_t b) noexcept {
    return (b < 0x20 && b != '\t' && b != '\n' && b != '\r') || b == 0x7F || b == 0xC0 || b == 0xC1 ||
           b > 0xF0;
}

} // namespace

status tokenizer::builder::run() {
    const auto model = file_.get_string("tokenizer.ggml.model");
    if (!model)
        return model.error();
    if (*model != "gpt2" && *model != "llama")
        return status::error(errc::unsupported,
                             "key 'tokenizer.ggml.model': %s is unsupported (gpt2 and llama are)",
                             quoted(*model).c_str());
    out_.is_bpe_ = *model == "gpt2";
    if (out_.is_bpe_) {
        const auto name = file_.get_string("tokenizer.ggml.pre", "default");
        if (!name)
            return name.error();
        auto pre = pre_tokenizer::make(*name);
        if (!pre)
            return pre.error();
        out_.pre_ = std::move(*pre);
    }
    if (status s = read_tokens(); !s)
        return s;
    if (status s = read_ids(); !s)
        return s;
    correct_types();
    if (status s = out_.is_bpe_ ? read_bpe() : read_spm(); !s)
        return s;
    if (status s = read_names(); !s)
        return s;
    return out_.unknown_ ? status() : require_bytes();
}

status tokenizer::builder::read_tokens() {
    const auto tokens = file_.get_strings("tokenizer.ggml.tokens");
    if (!tokens)
        return tokens.error();
    if (tokens->size() == 0 || tokens->size() > INT32_MAX)
        return status::error(errc::corrupt, "key 'tokenizer.ggml.tokens' has %zu elements", tokens->size());
    std::size_t bytes = 0;
    for (const std::string_view each : *tokens)
        bytes += each.size();
    by_text_.reserve(tokens->size(), bytes);
    for (const std::string_view each : *tokens)
        by_text_.add(each, true);
    if (file_.find("tokenizer.ggml.token_type") == nullptr)
        return {};
    auto types = file_.get_i32s("tokenizer.ggml.token_type");
    if (!types)
        return types.error();
    types_ = std::move(*types);
    return same_length("tokenizer.ggml.token_type", types_.size());
}

status tokenizer::builder::same_length(const char* key, std::size_t size) const {
    if (size == by_text_.size())
        return {};
    return status::error(errc::corrupt, "key '%s' has %zu elements, but the vocabulary has %zu tokens", key,
                         size, by_text_.size());
}

status tokenizer::builder::read_id(const char* key, std::optional<std::int32_t>& to) const {
    if (file_.find(key) == nullptr)
        return {};
    const auto token = file_.get_u32(key);
    if (!token)
        return token.error();
    if (*token >= by_text_.size())
        return status::error(errc::corrupt, "key '%s' is %u, but the vocabulary has %zu tokens", key, *token,
                             by_text_.size());
    to = static_cast<std::int32_t>(*token);
    return {};
}

status tokenizer::builder::read_ids() {
    struct id {
        const char* key;
        std::string_view usual; ///< of SentencePiece
        std::optional<std::int32_t>& token;
    };
    for (const id& i :
         {id{"tokenizer.ggml.bos_token_id", "<s>", out_.bos_},
          id{"tokenizer.ggml.eos_token_id", "</s>", out_.eos_},
          id{"tokenizer.ggml.unknown_token_id", "<unk>", out_.unknown_},
          id{"tokenizer.ggml.eot_token_id", "", eot_}, id{"tokenizer.ggml.eom_token_id", "", eom_}}) {
        if (const std::int32_t found = by_text_.find(i.usual);
            !out_.is_bpe_ && !i.usual.empty() && found != none)
            i.token = found;
        if (status s = read_id(i.key, i.token); !s)
            return s;
    }
    const bool adds_bos = out_.is_bpe_ ? out_.pre_->adds_bos() : true;
    if (status s = read_flag("add_bos_token", adds_bos && out_.bos_, out_.add_bos_); !s)
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

status tokenizer::builder::read_flag(const char* name, bool fallback, bool& flag) const {
    const auto value = file_.get_bool(std::string("tokenizer.ggml.") + name, fallback);
    if (!value)
        return value.error();
    flag = *value;
    return {};
}

tokenizer::builder::token_type tokenizer::builder::guessed_type(std::size_t token) const noexcept {
    const auto id = static_cast<std::int32_t>(token);
    if (out_.is_bpe_)
        return normal;
    if (id == out_.unknown_)
        return unknown;
    if (id == out_.bos_ || id == out_.eos_)
        return control;
    return fallback_byte(text(id)) ? byte : normal;
}

void tokenizer::builder::correct_types() {
    if (types_.empty())
        for (std::size_t i = 0; i < by_text_.size(); ++i)
            types_.push_back(guessed_type(i));
    const auto set = [this](std::string_view name, token_type type) {
        const std::int32_t token = by_text_.find(name);
        if (token != none)
            types_[static_cast<std::size_t>(token)] = type;
        return token;
    };
    std::vector<std::int32_t>& ends = out_.ends_;
    for (const std::string_view name : ends_of_turns)
        ends.push_back(set(name, control));
    for (const std::string_view name : ends_of_files)
        ends.push_back(set(name, control));
    for (const std::string_view name : parts_of_files)
        set(name, control);
    for (const std::string_view name : shown_parts)
        set(name, user_defined);
    for (const std::optional<std::int32_t>& id : {out_.eos_, eot_, eom_})
        ends.push_back(id.value_or(none));
    // Where messages have parts, the end of a part is none of the turn's.
    if (by_text_.find("<|end|>") != none && by_text_.find("<|call|>") != none &&
        by_text_.find("<|return|>") != none)
        std::erase(ends, set("<|end|>", user_defined));
    // Where there are other names for it, this one is markup.
    if (by_text_.find("<|tool_response>") != none)
        std::erase(ends, set("</s>", normal));
    std::sort(ends.begin(), ends.end());
    ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
    // What is text cannot end one.
    std::erase_if(ends, [this](std::int32_t token) {
        return token == none || types_[static_cast<std::size_t>(token)] != control;
    });
}

status tokenizer::builder::read_bpe() {
    out_.pieces_.reserve(by_text_.size(), 2 * by_text_.size() + 64);
    for (std::size_t i = 0; i < by_text_.size(); ++i) {
        const std::string_view each = text(static_cast<std::int32_t>(i));
        if (types_[i] == control)
            out_.pieces_.add({}, false);
        else if (types_[i] == user_defined)
            out_.pieces_.add(each, false);
        else
            out_.pieces_.add(gpt2_bytes(each), true);
    }
    for (std::size_t b = 0; b < 256; ++b) {
        std::string name;
        append_utf8(name, gpt2_characters[b]);
        out_.byte_tokens_[b] = by_text_.find(name);
    }
    return read_merges();
}

/// What is between the words that a token may be merged of: its name read by bytes, whatever its type.
std::string tokenizer::builder::bytes_of(std::int32_t token) const {
    return types_[static_cast<std::size_t>(token)] == normal ? std::string(out_.pieces_[token])
                                                             : gpt2_bytes(text(token));
}

status tokenizer::builder::read_merges() {
    const auto merges = file_.get_strings("tokenizer.ggml.merges");
    if (!merges)
        return merges.error();
    out_.merges_.reserve(merges->size());
    std::size_t rank = 0;
    std::string whole;
    for (const std::string_view each : *merges) {
        const std::size_t space = each.find(' ');
        if (space == each.npos || space == 0 || space + 1 == each.size() ||
            each.find(' ', space + 1) != each.npos)
            return status::error(errc::corrupt,
                                 "key 'tokenizer.ggml.merges': element %zu is %s, not two symbols", rank,
                                 quoted(each).c_str());
        whole = each.substr(0, space);
        whole += each.substr(space + 1);
        const std::int32_t left = by_text_.find(each.substr(0, space));
        const std::int32_t right = by_text_.find(each.substr(space + 1));
        const std::int32_t token = by_text_.find(whole);
        if (left == none || right == none || token == none)
            return status::error(errc::corrupt,
                                 "key 'tokenizer.ggml.merges': element %zu is %s, but there is no token %s",
                                 rank, quoted(each).c_str(),
                                 quoted(left == none    ? each.substr(0, space)
                                        : right == none ? each.substr(space + 1)
                                                        : std::string_view(whole))
                                     .c_str());
        out_.merges_.add(static_cast<std::uint32_t>(left), static_cast<std::uint32_t>(right),
                         {static_cast<std::int32_t>(rank), token});
        const auto last = static_cast<std::uint8_t>(bytes_of(left).back());
        const auto first = static_cast<std::uint8_t>(bytes_of(right).front());
        out_.joined_bytes_.set(std::size_t{last} << 8 | first);
        ++rank;
    }
    return {};
}

status tokenizer::builder::read_spm() {
    auto scores = file_.get_f32s("tokenizer.ggml.scores");
    if (!scores)
        return scores.error();
    out_.scores_ = std::move(*scores);
    if (status s = same_length("tokenizer.ggml.scores", out_.scores_.size()); !s)
        return s;
    out_.byte_tokens_.fill(none);
    out_.pieces_.reserve(by_text_.size(), 8 * by_text_.size());
    for (std::size_t i = 0; i < by_text_.size(); ++i)
        if (status s = read_piece(i); !s)
            return s;
    for (std::size_t b = 0; b < 256; ++b) {
        const char c = static_cast<char>(b);
        if (out_.byte_tokens_[b] == none)
            out_.byte_tokens_[b] = out_.pieces_.find(std::string_view(&c, 1));
    }
    return {};
}

status tokenizer::builder::read_piece(std::size_t i) {
    const auto id = static_cast<std::int32_t>(i);
    const std::string_view name = text(id);
    switch (types_[i]) {
    case control:
        out_.pieces_.add({}, false);
        return {};
    case unknown:
        out_.pieces_.add(" \xE2\x81\x87 ", false);
        return {};
    case user_defined:
        out_.pieces_.add(name, false);
        return {};
    case byte: {
        const auto value = fallback_byte(name);
        if (!value)
            return status::error(errc::corrupt,
                                 "key 'tokenizer.ggml.tokens': byte token %zu is %s, not <0xXX>", i,
                                 quoted(name).c_str());
        const char c = static_cast<char>(*value);
        out_.pieces_.add({&c, 1}, false);
        out_.byte_tokens_[*value] = id;
        return {};
    }
    default:
        out_.pieces_.add(name, !name.empty());
        out_.longest_piece_ = std::max(out_.longest_piece_, name.size());
        join_characters(name);
        return {};
    }
}

void tokenizer::builder::join_characters(std::string_view piece) {
    if (piece.empty())
        return;
    utf8_char left = spm_char(piece, 0);
    for (std::size_t at = left.size; at < piece.size(); at += left.size) {
        const utf8_char right = spm_char(piece, at);
        out_.joined_.add(left.value, right.value, 1);
        left = right;
    }
}

status tokenizer::builder::read_names() {
    // The models of this name were trained so, and their files do not say it.
    const auto name = file_.get_string("general.name", "");
    if (!name)
        return name.error();
    std::string lower(*name);
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    const bool is_phi3 = lower.find("phi-3") != lower.npos || lower.find("phi3") != lower.npos;
    std::vector<special_tokens::name> always, in_prompts;
    for (std::size_t i = 0; i < types_.size(); ++i) {
        if (types_[i] != control && types_[i] != unknown && types_[i] != user_defined)
            continue;
        const auto id = static_cast<std::int32_t>(i);
        const bool strips =
            is_phi3 && text(id) != "<unk>" && text(id) != "<s>" && text(id) != "<|endoftext|>";
        const bool is_text = types_[i] == user_defined;
        in_prompts.push_back({text(id), id, is_text, strips});
        if (is_text)
            always.push_back(in_prompts.back());
    }
    out_.always_.assign(always);
    out_.in_prompts_.assign(in_prompts);
    return {};
}

/// Without an unknown token, bytes need tokens of their own.
status tokenizer::builder::require_bytes() const {
    for (std::size_t b = 0; b < 256; ++b)
        if (out_.byte_tokens_[b] == none && !(out_.is_bpe_ && is_rare_byte(b)))
            return status::error(
                errc::corrupt,
                "key 'tokenizer.ggml.tokens': no token for the byte 0x%02zX, and no unknown token", b);
    return {};
}

crumb::result<tokenizer> tokenizer::make(const gguf& file) {
    tokenizer out;
    if (status s = builder(file, out).run(); !s)
        return s;
    return out;
}

} // namespace lm
