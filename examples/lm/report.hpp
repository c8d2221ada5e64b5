// What the program prints: JSON objects, progress, tables.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include <unistd.h>

namespace lm {

/// One JSON object, built key by key.
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
        for (char c : s) {
            if (c == '"' || c == '\\') {
                out += '\\';
                out += c;
            } else if (static_cast<unsigned char>(c) < 0x20) {
                char escape[8];
                std::snprintf(escape, sizeof escape, "\\u%04x", c);
                out += escape;
            } else {
                out += c;
            }
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
        const double passed =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
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
    std::string_view stage_;
};

} // namespace lm
