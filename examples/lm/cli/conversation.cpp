#include "cli/conversation.hpp"

#include "machine/seconds.hpp"
#include "text/utf8_stream.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

namespace {

/// Tokens of a prompt that are fed between two looks at whether to go on.
constexpr std::size_t portion = 512;

} // namespace

std::string_view name_of(chat_answer::end why) noexcept {
    constexpr std::string_view names[] = {"end of sequence", "length", "context is full", "stopped"};
    return names[static_cast<std::size_t>(why)];
}

conversation::conversation(session& s, const chat_format& format, const sampling& how, std::size_t most)
    : session_(&s), format_(format), next_(how), most_(most) {}

void conversation::reset(std::string_view system) {
    session_->reset();
    messages_.clear();
    pending_.clear();
    if (!system.empty())
        messages_.push_back({chat_role::system, std::string(system)});
}

result<std::vector<std::int32_t>> conversation::tokens_of(std::string_view message, std::size_t& dropped) {
    const tokenizer& vocabulary = session_->of().vocabulary();
    const std::size_t context = session_->context();
    if (session_->length() != 0) {
        const chat_text text = format_.next(message);
        std::vector<std::int32_t> tokens = pending_;
        const auto added = vocabulary.encode_prompt(text.text, false, text.quoted);
        tokens.insert(tokens.end(), added.begin(), added.end());
        // One more, or there would be no answer.
        if (session_->length() + tokens.size() < context)
            return tokens;
        session_->reset();
    }
    const std::size_t first = !messages_.empty() && messages_.front().role == chat_role::system ? 1 : 0;
    for (;;) {
        std::vector<chat_message> all = messages_;
        all.push_back({chat_role::user, std::string(message)});
        const chat_text text = format_.prompt(all);
        auto tokens = vocabulary.encode_prompt(text.text, true, text.quoted);
        const bool is_alone = messages_.size() == first;
        if (tokens.size() <= context / 2 || (is_alone && tokens.size() < context))
            return tokens;
        if (is_alone)
            return status::error(errc::invalid_argument,
                                 "the message has %zu tokens with what is around it, the context is %zu",
                                 tokens.size(), context);
        messages_.erase(messages_.begin() + static_cast<std::ptrdiff_t>(first),
                        messages_.begin() + static_cast<std::ptrdiff_t>(first + 2));
        dropped += 2;
    }
}

status conversation::write(std::span<const float> logits, chat_answer& answer,
                           const std::function<bool(std::string_view)>& show) {
    const tokenizer& vocabulary = session_->of().vocabulary();
    utf8_stream shown;
    for (bool is_first = true;; is_first = false) {
        const std::int32_t token = next_(logits);
        if (vocabulary.ends_text(token)) {
            answer.why = chat_answer::end::of_text;
            break;
        }
        ++answer.tokens;
        std::string piece = vocabulary.decode(token);
        answer.text += piece;
        // Where words carry the space before them, the first one has none that means anything.
        const bool goes_on = show(shown.push(is_first && piece.starts_with(' ') ? piece.substr(1) : piece));
        pending_ = {token};
        if (!goes_on || answer.tokens == most_ || session_->length() == session_->context()) {
            answer.why = !goes_on                 ? chat_answer::end::stopped
                         : answer.tokens == most_ ? chat_answer::end::limit
                                                  : chat_answer::end::context;
            break;
        }
        const auto more = session_->feed(pending_, 1);
        if (!more)
            return more.error();
        pending_.clear();
        logits = *more;
    }
    return {};
}

/// An error behind which the cache does not hold what has been said; the next prompt is all of it.
status conversation::forgotten(const status& error) {
    session_->reset();
    pending_.clear();
    return error;
}

result<chat_answer> conversation::ask(std::string_view message,
                                      const std::function<bool(std::string_view)>& show) {
    chat_answer answer;
    const std::size_t before = session_->length();
    const auto tokens = tokens_of(message, answer.dropped);
    if (!tokens)
        return tokens.error();
    const bool is_anew = session_->length() == 0;
    auto start = std::chrono::steady_clock::now();
    std::span<const float> logits;
    for (std::size_t at = 0; at < tokens->size(); at += portion) {
        const auto part = std::span(*tokens).subspan(at, std::min(portion, tokens->size() - at));
        const auto fed = session_->feed(part, at + part.size() == tokens->size() ? 1 : 0);
        if (!fed)
            return forgotten(fed.error());
        logits = *fed;
        if (!show({})) {
            // As if it had not been asked.
            session_->rewind(is_anew ? 0 : before);
            answer.why = chat_answer::end::stopped;
            return answer;
        }
    }
    pending_.clear();
    for (const std::int32_t token : *tokens)
        next_.saw(token);
    answer.prompt_tokens = tokens->size();
    answer.prompt_seconds = seconds_since(start);
    start = std::chrono::steady_clock::now();
    if (const status written = write(logits, answer, show); !written)
        return forgotten(written);
    answer.seconds = seconds_since(start);
    messages_.push_back({chat_role::user, std::string(message)});
    // A prompt of all messages has this space itself, or can do without.
    messages_.push_back(
        {chat_role::assistant, answer.text.starts_with(' ') ? answer.text.substr(1) : answer.text});
    return answer;
}

} // namespace lm
