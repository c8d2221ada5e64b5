// A model that talks: messages in, answers out, one cache for all of it.
#pragma once

#include "model/session.hpp"
#include "text/chat_format.hpp"
#include "text/sampler.hpp"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace lm {

/// An answer, and what it took.
struct chat_answer {
    enum class end { of_text, limit, context, stopped };

    std::string text;
    end why = end::of_text;
    std::size_t prompt_tokens = 0, tokens = 0; ///< fed before it; written
    double prompt_seconds = 0, seconds = 0;
    std::size_t dropped = 0; ///< messages and answers, the oldest, which did not fit any more
};
std::string_view name_of(chat_answer::end why) noexcept;

/// A conversation over a session, which it refers to. Only tokens that are new are fed.
class conversation {
  public:
    /// `most`: tokens of an answer; 0 has no limit but the context.
    conversation(session& s, const chat_format& format, const sampling& how, std::size_t most);

    /// Begins anew; the system's message may be empty, which is none.
    void reset(std::string_view system);

    /// Answers a message. `show` gets the answer as it comes, in whole characters, and says whether to go on;
    /// it is asked between parts of the prompt as well, with nothing. What does not fit into the context
    /// loses its oldest messages and answers, and is fed again at half the context or less. An error if the
    /// message alone does not fit.
    crumb::result<chat_answer> ask(std::string_view message,
                                   const std::function<bool(std::string_view)>& show);

  private:
    crumb::result<std::vector<std::int32_t>> tokens_of(std::string_view message, std::size_t& dropped);
    crumb::status forgotten(const crumb::status& error);
    crumb::status write(std::span<const float> logits, chat_answer& answer,
                        const std::function<bool(std::string_view)>& show);

    session* session_;
    chat_format format_;
    sampler next_;
    std::size_t most_;
    std::vector<chat_message> messages_;
    std::vector<std::int32_t> pending_; ///< the end of the last answer, which has not been fed
};

} // namespace lm
