// Errors as values: a code and a message that names the argument at fault.
#pragma once

#include <crumb/config.hpp>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

namespace crumb::inline CRUMB_ABI {

/// The kind of an error.
enum class errc : std::uint8_t {
    ok,
    invalid_argument, ///< a parameter outside its domain
    bad_shape,        ///< dimensions that do not fit each other
    buffer_too_small, ///< the caller's memory is smaller than what `*_bytes` says
    misaligned,       ///< the caller's memory is not aligned to `crumb::alignment`
    not_finite,       ///< NaN or infinity where a number is needed
    wrong_format,     ///< bytes that carry another format's tag
    wrong_version,    ///< bytes of a layout version this build does not read
    corrupt,          ///< bytes that contradict themselves, or hold what their format does not allow
    unsupported ///< what this CPU, this build or the library does not have: an ISA, a mode, a combination
};

/// Success, or an error code with a message. The text is stored in the object, without allocation; messages
/// that are too long for it end in "...".
class [[nodiscard]] status {
  public:
    status() noexcept = default;

    /// An error with a printf-style message.
    CRUMB_PRINTF(2, 3) static status error(errc code, const char* format, ...) noexcept {
        status s;
        s.code_ = code;
        va_list args;
        va_start(args, format);
        const int length = std::vsnprintf(s.message_, sizeof s.message_, format, args);
        va_end(args);
        if (length >= static_cast<int>(sizeof s.message_))
            std::memcpy(s.message_ + sizeof s.message_ - 4, "...", 4);
        return s;
    }

    /// Whether it is success; so says its conversion to bool.
    [[nodiscard]] bool ok() const noexcept { return code_ == errc::ok; }
    /// Whether it is success.
    explicit operator bool() const noexcept { return ok(); }
    /// What kind of error; `errc::ok` of success.
    [[nodiscard]] errc code() const noexcept { return code_; }
    /// What was wrong; empty of success. As long as the object lives.
    [[nodiscard]] const char* message() const noexcept { return message_; }

  private:
    errc code_ = errc::ok;
    char message_[383] = {};
};

/// A value, or the status that says why there is none.
template <class T>
class [[nodiscard]] result {
  public:
    /// So a function of type result<T> returns a T or a status. The status has to be an error.
    result(T value) noexcept : value_(std::move(value)), has_value_(true) {}
    /// Why there is no value: an error.
    result(status error) noexcept : nothing_(), has_value_(false), status_(error) {}
    /// The value or the status of another one.
    result(const result& other) noexcept
    requires std::is_copy_constructible_v<T>
        : nothing_(), has_value_(other.has_value_), status_(other.status_) {
        if (has_value_)
            ::new (static_cast<void*>(&value_)) T(other.value_);
    }
    /// Likewise; the value is moved from.
    result(result&& other) noexcept : nothing_(), has_value_(other.has_value_), status_(other.status_) {
        if (has_value_)
            ::new (static_cast<void*>(&value_)) T(std::move(other.value_));
    }
    /// Likewise.
    result& operator=(result other) noexcept {
        this->~result();
        return *::new (static_cast<void*>(this)) result(std::move(other));
    }
    ~result() {
        if (has_value_)
            value_.~T();
    }

    /// Whether there is a value; so says its conversion to bool.
    explicit operator bool() const noexcept { return has_value_; }
    /// Whether there is a value.
    [[nodiscard]] bool ok() const noexcept { return has_value_; }
    /// Why there is none; success if there is one.
    [[nodiscard]] const status& error() const noexcept { return status_; }
    /// The message of error().
    [[nodiscard]] const char* message() const noexcept { return status_.message(); }

    /// The value; aborts with the message when there is none.
    T& value() noexcept {
        require();
        return value_;
    }
    /// The value; aborts with the message when there is none.
    const T& value() const noexcept {
        require();
        return value_;
    }
    /// The value; aborts with the message when there is none.
    T& operator*() noexcept { return value(); }
    /// The value; aborts with the message when there is none.
    const T& operator*() const noexcept { return value(); }
    /// A member of the value; aborts with the message when there is none.
    T* operator->() noexcept { return &value(); }
    /// A member of the value; aborts with the message when there is none.
    const T* operator->() const noexcept { return &value(); }

  private:
    void require() const noexcept {
        if (!has_value_) {
            std::fprintf(stderr, "crumb: value of a failed result: %s\n", status_.message());
            std::abort();
        }
    }
    // std::optional would add a seventh to the time that the headers take to compile.
    union {
        char nothing_;
        T value_;
    };
    bool has_value_;
    status status_;
};

/// Aborts with a printf-style message; called by checks.
[[noreturn]] CRUMB_PRINTF(3, 4) inline void fail_check(const char* file, int line, const char* format,
                                                       ...) noexcept {
    std::fprintf(stderr, "%s:%d: crumb: precondition violated: ", file, line);
    va_list args;
    va_start(args, format);
    std::vfprintf(stderr, format, args);
    va_end(args);
    std::fputc('\n', stderr);
    std::abort();
}

} // namespace crumb::inline CRUMB_ABI

/// Aborts unless the condition holds, with a printf-style message, in every build: where memory would be read
/// or written that belongs to others.
#define CRUMB_REQUIRE(condition, ...)                                                                        \
    (static_cast<bool>(condition) ? void(0) : ::crumb::fail_check(__FILE__, __LINE__, __VA_ARGS__))
/// Likewise, with debug checks only; without them the arguments are compiled but never evaluated.
#if CRUMB_DEBUG_CHECKS
#define CRUMB_CHECK(...) CRUMB_REQUIRE(__VA_ARGS__)
#else
#define CRUMB_CHECK(...) (true ? void(0) : CRUMB_REQUIRE(__VA_ARGS__))
#endif
