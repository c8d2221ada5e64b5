#include "cli/commands.hpp"
#include "cli/conversation.hpp"
#include "cli/interrupts.hpp"
#include "cli/open_model.hpp"
#include "cli/program.hpp"
#include "cli/report.hpp"

#include <cerrno>
#include <cstdio>
#include <optional>
#include <utility>

#include <unistd.h>

namespace lm {

using crumb::result;
using crumb::status;

namespace {

constexpr const char* help =
    "/reset         forget the conversation\n"
    "/system TEXT   begin a new one with this message of the system, or without one\n"
    "/help          this list\n"
    "/quit          end, as the end of input does\n"
    "A line that ends in \\ goes on in the next one; one that begins with // is a message\n"
    "that begins with /. Ctrl-C stops an answer; between answers it ends the program.\n";

/// Lines of stdin. The terminal shows a prompt before each.
class input_lines {
  public:
    /// The next message: a line, or several that are joined by \ at their ends; nothing at the end of input
    /// or after Ctrl-C.
    std::optional<std::string> next() {
        std::string message;
        for (bool goes_on = false;; goes_on = true) {
            if (is_terminal_)
                std::fputs(goes_on ? "  " : "> ", stderr);
            std::optional<std::string> line = next_line();
            if (!line) {
                if (is_terminal_)
                    std::fputc('\n', stderr);
                // A last line without an end has been one.
                return goes_on && !interrupts::any() ? std::optional(message) : std::nullopt;
            }
            while (line->ends_with('\r'))
                line->pop_back();
            if (!line->ends_with('\\'))
                return message + *line;
            line->pop_back();
            message += *line + '\n';
        }
    }

  private:
    std::optional<std::string> next_line() {
        for (;;) {
            const std::size_t end = unread_.find('\n');
            if (end != std::string::npos) {
                std::string line = unread_.substr(0, end);
                unread_.erase(0, end + 1);
                return line;
            }
            if (!interrupts::wait_for_input(STDIN_FILENO))
                return std::nullopt;
            char bytes[4096];
            const ssize_t size = ::read(STDIN_FILENO, bytes, sizeof bytes);
            if (size > 0) {
                unread_.append(bytes, static_cast<std::size_t>(size));
            } else if (size == 0 || (errno != EINTR && errno != EAGAIN)) {
                const std::string line = std::exchange(unread_, {});
                return line.empty() ? std::nullopt : std::optional(line);
            }
        }
    }

    bool is_terminal_ = ::isatty(STDIN_FILENO) != 0;
    std::string unread_;
};

struct totals {
    std::size_t prompt_tokens = 0, tokens = 0;
    double prompt_seconds = 0, seconds = 0;

    void add(const chat_answer& a) {
        prompt_tokens += a.prompt_tokens;
        tokens += a.tokens;
        prompt_seconds += a.prompt_seconds;
        seconds += a.seconds;
    }
    void show() const {
        const auto line = [](const char* what, std::size_t count, double time) {
            std::fprintf(stderr, "%s %5zu tokens, %9.1f tokens/s\n", what, count,
                         time > 0 ? static_cast<double>(count) / time : 0.0);
        };
        line("prompts:   ", prompt_tokens, prompt_seconds);
        line("generation:", tokens, seconds);
    }
};

void show_json(const chat_answer& a) {
    const auto speed = [](std::size_t tokens, double seconds) {
        return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
    };
    json_object out;
    out.put("text", a.text).put("stop", name_of(a.why));
    out.put("prompt_tokens", a.prompt_tokens).put("tokens", a.tokens).put("dropped", a.dropped);
    out.put("prompt_tokens_per_second", speed(a.prompt_tokens, a.prompt_seconds));
    out.put("tokens_per_second", speed(a.tokens, a.seconds));
    print("%s\n", out.text().c_str());
}

/// Answers one message on the terminal or the pipe.
status answer(conversation& talk, const std::string& message, bool json, totals& all) {
    interrupts::forget();
    const auto told = talk.ask(message, [json](std::string_view piece) {
        if (!json && !piece.empty()) {
            print_text(piece);
            if (!printed())
                return false;
        }
        return !interrupts::any();
    });
    if (!told)
        return told.error();
    interrupts::forget();
    all.add(*told);
    if (json)
        show_json(*told);
    else
        print("\n");
    if (told->dropped != 0)
        complain(
            "the context is full: the oldest %zu messages and answers are forgotten (/reset forgets all)",
            told->dropped);
    if (told->why == chat_answer::end::context)
        complain("the context is full: the answer ends here; the next message makes room by forgetting the "
                 "oldest");
    return printed();
}

/// Does what a line that begins with / says; false if that is to end.
bool obey(std::string_view line, conversation& talk, std::string& system) {
    const std::size_t end = std::min(line.find(' '), line.size());
    const std::string_view command = line.substr(0, end);
    const std::string_view rest = line.substr(std::min(end + 1, line.size()));
    if (command == "/quit" || command == "/exit")
        return false;
    if (command == "/help") {
        std::fputs(help, stderr);
    } else if (command == "/reset" || command == "/system") {
        if (command == "/system")
            system = rest;
        talk.reset(system);
    } else {
        complain("there is no command %s; those are /reset, /system TEXT, /help, /quit (// begins a message)",
                 std::string(command.substr(0, 40)).c_str());
    }
    return true;
}

} // namespace

result<chat_format> format_of(const model& m, const std::string& name) {
    if (!name.empty())
        return chat_format::named(name);
    const auto text = m.file().get_string("tokenizer.chat_template", "");
    return text ? chat_format::of_template(*text) : text.error();
}

status chat(const chat_options& o) {
    auto loaded = open_model(o);
    if (!loaded)
        return loaded.error();
    const model& m = *loaded->weights;
    const auto format = format_of(m, o.format);
    if (!format)
        return format.error();
    if (o.context > m.shape().context)
        return status::error(crumb::errc::invalid_argument, "--context %zu: the model's context is %zu",
                             o.context, m.shape().context);
    if (const status started = start(*loaded, o, o.context, 128); !started)
        return started;
    conversation talk(*loaded->run, *format, o.how, o.tokens);
    std::string system = o.system;
    talk.reset(system);
    const interrupts remembered;
    input_lines lines;
    totals all;
    status result;
    while (const std::optional<std::string> line = lines.next()) {
        if (line->empty())
            continue;
        const bool is_command = line->starts_with('/') && !line->starts_with("//");
        if (is_command ? !obey(*line, talk, system) : false)
            break;
        if (is_command)
            continue;
        result = answer(talk, line->starts_with("//") ? line->substr(1) : *line, o.json, all);
        // What cannot be answered is no reason to end, but on a pipe, where nobody reads the complaint in
        // time.
        if (result)
            continue;
        if (::isatty(STDIN_FILENO) == 0 || !printed())
            break;
        complain("%s", result.message());
        result = {};
    }
    if (!o.json)
        all.show();
    return result;
}

} // namespace lm
