#include "train/partial_file.hpp"

#include "gguf/mapped_file.hpp"
#include "gguf/output_file.hpp"
#include "gguf/shown_text.hpp"
#include "gguf/word_hash.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <string_view>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

namespace {

/// With the version of everything that is in records.
constexpr std::string_view magic = "crumb-lm partial file, version 1\n";

/// In front of a record.
struct record_head {
    std::uint64_t kind, size;
};

/// Behind it.
std::uint64_t checksum(const record_head& head, std::span<const std::byte> record) {
    word_hash h;
    h.add(head.kind);
    h.add(record);
    return h.value();
}

/// Lines of names and values, and an empty one.
std::string head_of(const std::vector<partial_file::property>& properties) {
    std::string out(magic);
    for (const auto& each : properties) {
        std::string value = each.value;
        std::replace(value.begin(), value.end(), '\n', ' ');
        out += each.name + ": " + value + "\n";
    }
    return out + "\n";
}

std::vector<partial_file::property> properties_of(std::string_view head) {
    std::vector<partial_file::property> out;
    head.remove_prefix(magic.size());
    while (!head.empty() && head[0] != '\n') {
        const std::size_t end = head.find('\n'), colon = head.find(": ");
        if (end == std::string_view::npos || colon >= end)
            break;
        out.push_back(
            {std::string(head.substr(0, colon)), std::string(head.substr(colon + 2, end - colon - 2))});
        head.remove_prefix(end + 1);
    }
    return out;
}

/// What is wrong with a head that is not `wanted`.
status refused(const std::string& path, std::string_view found, const std::string& wanted,
               const char* advice) {
    const std::string shown = shown_path(path);
    if (!found.starts_with(magic))
        return status::error(errc::invalid_argument,
                             "%s is no partial file of this version of crumb-lm: remove it to begin anew",
                             shown.c_str());
    const auto there = properties_of(found), here = properties_of(wanted);
    for (const auto& each : here) {
        const auto same = std::find_if(there.begin(), there.end(),
                                       [&](const auto& other) { return other.name == each.name; });
        if (same == there.end() || same->value != each.value)
            return status::error(
                errc::invalid_argument,
                "%s is of a run with another %s (%s, now %s): remove the file to begin anew, "
                "or %s",
                shown.c_str(), each.name.c_str(),
                same == there.end() ? "none" : shown_text(same->value).c_str(),
                shown_text(each.value).c_str(), advice);
    }
    return status::error(errc::invalid_argument,
                         "%s is of a run with other options: remove the file to begin anew, or %s",
                         shown.c_str(), advice);
}

/// Calls f for all whole records. Returns where the last one ends.
result<std::uint64_t> read_records(std::span<const std::byte> bytes, std::uint64_t begin,
                                   const partial_file::function& f) {
    std::uint64_t at = begin;
    while (bytes.size() - at >= sizeof(record_head) + sizeof(std::uint64_t)) {
        record_head head;
        std::memcpy(&head, bytes.data() + at, sizeof head);
        const std::uint64_t room = bytes.size() - at - sizeof head - sizeof(std::uint64_t);
        if (head.size > room)
            break;
        const auto record = bytes.subspan(at + sizeof head, head.size);
        std::uint64_t sum = 0;
        std::memcpy(&sum, record.data() + record.size(), sizeof sum);
        if (sum != checksum(head, record))
            break;
        if (const status s = f(static_cast<std::uint32_t>(head.kind), record); !s)
            return s;
        at += sizeof head + head.size + sizeof sum;
    }
    return at;
}

status failed(const std::string& path, const char* what, int error) {
    return status::error(errc::invalid_argument, "%s: %s: %s", shown_path(path).c_str(), what,
                         std::strerror(error));
}

/// Writes all, or returns an error number.
int write_all(int file, std::span<const std::byte> bytes) noexcept {
    while (!bytes.empty()) {
        const ssize_t written = ::write(file, bytes.data(), bytes.size());
        if (written > 0)
            bytes = bytes.subspan(static_cast<std::size_t>(written));
        else if (written == 0 || errno != EINTR)
            return written == 0 ? EIO : errno;
    }
    return 0;
}

} // namespace

partial_file::partial_file(partial_file&& other) noexcept { *this = std::move(other); }

partial_file& partial_file::operator=(partial_file&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(head_, other.head_);
    std::swap(file_, other.file_);
    std::swap(end_, other.end_);
    return *this;
}

partial_file::~partial_file() {
    if (file_ >= 0)
        ::close(file_);
}

result<partial_file> partial_file::open(const std::string& path, std::vector<property> properties,
                                        const function& f, const char* advice) {
    partial_file out;
    out.path_ = path;
    out.head_ = head_of(properties);
    out.file_ = ::open(path.c_str(), O_RDWR | O_APPEND | O_CLOEXEC);
    if (out.file_ < 0) {
        if (errno != ENOENT)
            return failed(path, "cannot open", errno);
        return out;
    }
    if (::flock(out.file_, LOCK_EX | LOCK_NB) != 0)
        return errno == EWOULDBLOCK
                   ? status::error(errc::invalid_argument, "%s: another process is at work on it",
                                   shown_path(path).c_str())
                   : failed(path, "cannot lock", errno);
    std::string error;
    const auto mapped = mapped_file::open(path, error);
    if (!mapped)
        return status::error(errc::invalid_argument, "%s", error.c_str());
    const auto bytes = mapped->bytes();
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (!text.starts_with(out.head_))
        return refused(path, text, out.head_, advice);
    const auto end = read_records(bytes, out.head_.size(), f);
    if (!end)
        return end.error();
    out.end_ = *end;
    if (out.end_ != bytes.size() && ::ftruncate(out.file_, static_cast<off_t>(out.end_)) != 0)
        return failed(path, "cannot write", errno);
    return out;
}

status partial_file::create() {
    auto head = output_file::create(path_);
    if (!head)
        return head.error();
    head->write(head_);
    if (const status s = head->commit(); !s)
        return s;
    file_ = ::open(path_.c_str(), O_RDWR | O_APPEND | O_CLOEXEC);
    if (file_ < 0 || ::flock(file_, LOCK_EX | LOCK_NB) != 0)
        return failed(path_, "cannot open", errno);
    end_ = head_.size();
    return {};
}

status partial_file::append(std::uint32_t kind, std::span<const std::byte> record) {
    if (path_.empty())
        return {};
    if (file_ < 0)
        if (const status s = create(); !s)
            return s;
    const record_head head{kind, record.size()};
    const std::uint64_t sum = checksum(head, record);
    int error = write_all(file_, std::as_bytes(std::span(&head, 1)));
    if (error == 0)
        error = write_all(file_, record);
    if (error == 0)
        error = write_all(file_, std::as_bytes(std::span(&sum, 1)));
    // Some file systems cannot synchronize.
    if (error == 0 && ::fdatasync(file_) != 0 && errno != EINVAL && errno != EROFS)
        error = errno;
    if (error != 0) {
        // What is left of the record would be dropped by the next run as well.
        (void)!::ftruncate(file_, static_cast<off_t>(end_));
        return failed(path_, "cannot write", error);
    }
    end_ += sizeof head + record.size() + sizeof sum;
    return {};
}

status partial_file::remove(const std::string& path) {
    return ::unlink(path.c_str()) == 0 || errno == ENOENT ? status() : failed(path, "cannot remove", errno);
}

} // namespace lm
