// What the program prints: text, JSON objects, progress.
#pragma once

#include "machine/seconds.hpp"
#include "text/unicode.hpp"

#include <crumb/core/status.hpp>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include <unistd.h>

namespace lm {

/// Prints to stdout, through its buffer. The first failure is kept for `printed`, and nothing is printed
/// behind it.
CRUMB_PRINTF(1, 2) void print(const char* format, ...);
void print_text(std::string_view text);
/// Empties the buffer, and says whether everything has been taken that was printed since the program began: a
/// full disk and a closed pipe are errors.
[[nodiscard]] crumb::status printed();

/// One JSON object, built key by key: valid UTF-8, with U+FFFD for every byte of a text that is no part of
/// well-formed UTF-8. Paths can have any bytes, and so has the text of a bytewise model.
class json_object {
  public:
    json_object& put(std::string_view key, std::string_view value) {
        begin(key);
        text_ += quoted(value);
        return *this;
    }
    /// NaN and infinity, which JSON does not know, become null.
    json_object& put(std::string_view key, double value) {
        char number[32] = "null";
        if (std::isfinite(value))
            std::snprintf(number, sizeof number, "%.8g", value);
        begin(key);
        text_ += number;
        return *this;
    }
    json_object& put(std::string_view key, std::size_t value) {
        begin(key);
        text_ += std::to_string(value);
        return *this;
    }
    json_object& put(std::string_view key, const json_object& value) {
        begin(key);
        text_ += value.text();
        return *this;
    }
    std::string text() const { return "{" + text_ + "}"; }

  private:
    void begin(std::string_view key) {
        if (!text_.empty())
            text_ += ", ";
        text_ += quoted(key) + ": ";
    }
    static std::string quoted(std::string_view s) {
        std::string out = "\"";
        for (std::size_t at = 0; at < s.size();) {
            const utf8_char c = decode_utf8(s, at);
            if (c.value == '"' || c.value == '\\') {
                out += '\\';
                out += s[at];
            } else if (c.value < 0x20) {
                char escape[8];
                std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c.value));
                out += escape;
            } else if (c.value == 0xFFFD) {
                out += "\xEF\xBF\xBD";
            } else {
                out += s.substr(at, c.size);
            }
            at += c.size;
        }
        return out + '"';
    }
    std::string text_;
};

/// A line on stderr that says how far a long task is; silent when stderr is not a terminal.
class progress_line {
  public:
    explicit progress_line(std::string what) : what_(std::move(what)), shown_(isatty(STDERR_FILENO) != 0) {}
    ~progress_line() { clear(); }

    void operator()(std::size_t done, std::size_t all) {
        if (!shown_)
            return;
        const double passed = seconds_since(start_);
        const double left = passed / static_cast<double>(done) * static_cast<double>(all - done);
        std::fprintf(stderr, "\r%s: %zu of %zu, %.0f s left \x1b[K", what_.c_str(), done, all, left);
        std::fflush(stderr);
        dirty_ = true;
    }
    void clear() {
        if (dirty_)
            std::fputs("\r\x1b[K", stderr);
        dirty_ = false;
    }

  private:
    std::string what_;
    bool shown_, dirty_ = false;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// The same for a task in stages, each with a line of its own.
class stage_progress {
  public:
    void operator()(const char* stage, std::size_t done, std::size_t all) {
        if (!line_ || stage_ != stage) {
            line_.emplace(stage);
            stage_ = stage;
        }
        (*line_)(done, all);
    }
    void clear() { line_.reset(); }

  private:
    std::optional<progress_line> line_;
    std::string stage_;
};

} // namespace lm
