#include "text/chat_format.hpp"

#include "gguf/gguf_value.hpp"

#include <algorithm>
#include <iterator>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

/// A format as the texts around messages.
struct chat_rules {
    enum class trimming { none, answers, all };

    std::string_view name;
    bool system_in_turn; ///< the system's message is part of the first user's
    std::string_view before_system, behind_system;
    std::string_view before_user, before_later_user;
    std::string_view behind_user;   ///< up to the answer
    std::string_view before_answer; ///< what the model writes itself before an answer
    std::string_view behind_answer;
    trimming trims = trimming::none;
};

namespace {

using enum chat_rules::trimming;

constexpr chat_rules formats[] = {
    {"chatml", false, "<|im_start|>system\n", "<|im_end|>\n", "<|im_start|>user\n", "<|im_start|>user\n",
     "<|im_end|>\n<|im_start|>assistant\n", "", "<|im_end|>\n"},
    {"llama2", true, "", "\n", "[INST] ", "[INST] ", " [/INST]", "", "</s>"},
    {"llama2-sys", true, "<<SYS>>\n", "\n<</SYS>>\n\n", "[INST] ", "[INST] ", " [/INST]", "", "</s>"},
    {"llama2-sys-bos", true, "<<SYS>>\n", "\n<</SYS>>\n\n", "[INST] ", "<s>[INST] ", " [/INST]", "", "</s>"},
    {"llama2-sys-strip", true, "<<SYS>>\n", "\n<</SYS>>\n\n", "[INST] ", "[INST] ", " [/INST]", "", "</s>",
     all},
    {"llama3", false, "<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>",
     "<|start_header_id|>user<|end_header_id|>\n\n", "<|start_header_id|>user<|end_header_id|>\n\n",
     "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n", "", "<|eot_id|>", all},
    {"gemma", true, "", "\n\n", "<start_of_turn>user\n", "<start_of_turn>user\n",
     "<end_of_turn>\n<start_of_turn>model\n", "", "<end_of_turn>\n", all},
    {"mistral-v1", true, "", "\n\n", " [INST] ", " [INST] ", " [/INST]", " ", "</s>"},
    {"mistral-v3", true, "", "\n\n", "[INST] ", "[INST] ", "[/INST]", " ", "</s>", answers},
    {"mistral-v3-tekken", true, "", "\n\n", "[INST]", "[INST]", "[/INST]", "", "</s>"},
    {"mistral-v7", false, "[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]", "[INST] ", "[INST] ", "[/INST]", " ",
     "</s>"},
    {"mistral-v7-tekken", false, "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[INST]", "[INST]", "[/INST]", "",
     "</s>"},
    {"phi3", false, "<|system|>\n", "<|end|>\n", "<|user|>\n", "<|user|>\n", "<|end|>\n<|assistant|>\n", "",
     "<|end|>\n"},
    {"phi4", false, "<|im_start|>system<|im_sep|>", "<|im_end|>", "<|im_start|>user<|im_sep|>",
     "<|im_start|>user<|im_sep|>", "<|im_end|><|im_start|>assistant<|im_sep|>", "", "<|im_end|>"},
    {"deepseek3", false, "", "\n\n", "<｜User｜>", "<｜User｜>", "<｜Assistant｜>", "",
     "<｜end▁of▁sentence｜>"},
    {"zephyr", false, "<|system|>\n", "</s>\n", "<|user|>\n", "<|user|>\n", "</s>\n<|assistant|>\n", "",
     "</s>\n"},
};

std::string_view trimmed(std::string_view text) noexcept {
    const auto is_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
    while (!text.empty() && is_space(text.front()))
        text.remove_prefix(1);
    while (!text.empty() && is_space(text.back()))
        text.remove_suffix(1);
    return text;
}

void add_message(chat_text& to, std::string_view text, bool trims) {
    const std::string_view shown = trims ? trimmed(text) : text;
    to.quoted.push_back({to.text.size(), to.text.size() + shown.size()});
    to.text += shown;
}

/// The name of the format that a template writes, or nothing.
std::string_view recognized(std::string_view text) noexcept {
    const auto has = [text](std::string_view part) { return text.find(part) != text.npos; };
    if (has("<|im_start|>"))
        return has("<|im_sep|>") ? "phi4" : has("<end_of_utterance>") ? "" : "chatml";
    if (has("[INST]")) {
        if (has("[SYSTEM_PROMPT]"))
            return "mistral-v7";
        if (has("' [INST] ' + system_message") || has("[AVAILABLE_TOOLS]"))
            return has(" [INST]") ? "mistral-v1" : has("\"[INST]\"") ? "mistral-v3-tekken" : "mistral-v3";
        if (has("content.strip()"))
            return "llama2-sys-strip";
        return has("bos_token + '[INST]") ? "llama2-sys-bos" : has("<<SYS>>") ? "llama2-sys" : "llama2";
    }
    if (has("<|assistant|>") && has("<|end|>"))
        return "phi3";
    if (has("<|assistant|>") && has("<|user|>") && has("+ eos_token") && !has("[gMASK]"))
        return "zephyr";
    if (has("<start_of_turn>"))
        return "gemma";
    if (has("<｜Assistant｜>") && has("<｜User｜>") && has("<｜end▁of▁sentence｜>"))
        return "deepseek3";
    return has("<|start_header_id|>") && has("<|end_header_id|>") ? "llama3" : "";
}

} // namespace

std::string chat_format::names() {
    std::string out;
    for (const chat_rules& each : formats)
        out += (out.empty() ? "" : ", ") + std::string(each.name);
    return out;
}

result<chat_format> chat_format::named(std::string_view name) {
    const auto found = std::find_if(std::begin(formats), std::end(formats),
                                    [name](const chat_rules& each) { return each.name == name; });
    if (found != std::end(formats))
        return chat_format(*found);
    return status::error(errc::invalid_argument, "%s is no format of chats; those are %s",
                         quoted(name).c_str(), names().c_str());
}

result<chat_format> chat_format::of_template(std::string_view text) {
    if (const std::string_view name = recognized(text); !name.empty())
        return named(name);
    return status::error(errc::unsupported,
                         "%s: pass --template with the format that the model was trained on, one of %s",
                         text.empty() ? "the file has no 'tokenizer.chat_template'"
                                      : "key 'tokenizer.chat_template' writes no format that is known",
                         names().c_str());
}

std::string_view chat_format::name() const noexcept { return rules_->name; }

chat_text chat_format::prompt(std::span<const chat_message> messages) const {
    const chat_rules& r = *rules_;
    chat_text out;
    const bool has_system = !messages.empty() && messages.front().role == chat_role::system;
    const auto add_system = [&] {
        out.text += r.before_system;
        add_message(out, messages.front().text, r.trims == all);
        out.text += r.behind_system;
    };
    if (has_system && !r.system_in_turn)
        add_system();
    bool is_first = true;
    for (const chat_message& each : messages.subspan(has_system ? 1 : 0)) {
        if (each.role == chat_role::assistant) {
            out.text += r.before_answer;
            add_message(out, each.text, r.trims != none);
            out.text += r.behind_answer;
            continue;
        }
        out.text += is_first ? r.before_user : r.before_later_user;
        if (is_first && has_system && r.system_in_turn)
            add_system();
        add_message(out, each.text, r.trims == all);
        out.text += r.behind_user;
        is_first = false;
    }
    return out;
}

chat_text chat_format::next(std::string_view message) const {
    chat_text out;
    out.text += rules_->behind_answer;
    out.text += rules_->before_later_user;
    add_message(out, message, rules_->trims == all);
    out.text += rules_->behind_user;
    return out;
}

} // namespace lm
