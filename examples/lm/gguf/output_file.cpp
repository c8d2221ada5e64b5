#include "gguf/output_file.hpp"

#include "gguf/shown_text.hpp"
#include "gguf/signals.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

namespace {

constexpr std::size_t max_pending = 65536;

status refused(const std::string& path, const char* what, const char* why) {
    return status::error(errc::invalid_argument, "%s: %s: %s", shown_path(path).c_str(), what, why);
}
status refused(const std::string& path, const char* what, int error) {
    return refused(path, what, std::strerror(error));
}

const char* kind_of(mode_t mode) noexcept {
    return S_ISDIR(mode)    ? "it is a directory"
           : S_ISFIFO(mode) ? "it is a pipe"
           : S_ISSOCK(mode) ? "it is a socket"
                            : "it is a device";
}

/// Up to the last slash, which is included.
std::string directory_of(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

/// Where the links lead that `path` may be; an error number if they do not end.
int follow(std::string& path) {
    for (int links = 0; links < 40; ++links) {
        struct stat info = {};
        if (::lstat(path.c_str(), &info) != 0 || !S_ISLNK(info.st_mode))
            return 0;
        std::array<char, 4096> text;
        const ssize_t size = ::readlink(path.c_str(), text.data(), text.size());
        if (size < 0)
            return errno;
        if (static_cast<std::size_t>(size) == text.size())
            return ENAMETOOLONG;
        const std::string to(text.data(), static_cast<std::size_t>(size));
        path = to.starts_with('/') ? to : directory_of(path) + to;
    }
    return ELOOP;
}

std::uint64_t random_bits() noexcept {
    std::uint64_t bits = 0;
    if (::getrandom(&bits, sizeof bits, GRND_NONBLOCK) == sizeof bits)
        return bits;
    // Names that are taken are tried again, so that these need not be good.
    static std::uint64_t count = 0;
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    return (static_cast<std::uint64_t>(now) + ++count) * 0x9E3779B97F4A7C15u +
           static_cast<std::uint64_t>(::getpid());
}

std::string temporary_name(const std::string& target) {
    std::array<char, 32> suffix;
    std::snprintf(suffix.data(), suffix.size(), ".%016llx.tmp",
                  static_cast<unsigned long long>(random_bits()));
    const std::string directory = directory_of(target), name = target.substr(directory.size());
    // File systems have names of at most 255 bytes.
    return directory + (name.size() > 200 ? "crumb-lm" : name) + suffix.data();
}

} // namespace

output_file::output_file(output_file&& other) noexcept { *this = std::move(other); }

output_file& output_file::operator=(output_file&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(target_, other.target_);
    std::swap(temporary_, other.temporary_);
    std::swap(pending_, other.pending_);
    std::swap(file_, other.file_);
    std::swap(directory_, other.directory_);
    std::swap(slot_, other.slot_);
    std::swap(error_, other.error_);
    std::swap(replaces_, other.replaces_);
    std::swap(before_, other.before_);
    return *this;
}

output_file::~output_file() { discard(); }

void output_file::discard() noexcept {
    if (file_ >= 0)
        ::close(std::exchange(file_, -1));
    if (directory_ >= 0)
        ::close(std::exchange(directory_, -1));
    if (!temporary_.empty())
        ::unlink(temporary_.c_str());
    temporary_.clear();
    drop_temporary(std::exchange(slot_, -1));
}

result<output_file> output_file::create(const std::string& path) {
    constexpr const char* cannot = "cannot create";
    if (path.empty())
        return status::error(errc::invalid_argument, "the name of the file to write is empty");
    output_file out;
    out.path_ = out.target_ = path;
    out.replaces_ = ::stat(path.c_str(), &out.before_) == 0;
    if (!out.replaces_ && errno != ENOENT)
        return refused(path, cannot, errno);
    if (out.replaces_ && !S_ISREG(out.before_.st_mode))
        return refused(path, "is no file to write to", kind_of(out.before_.st_mode));
    if (out.replaces_ && ::access(path.c_str(), W_OK) != 0)
        return refused(path, "cannot write", errno);
    if (const int error = follow(out.target_); error != 0)
        return refused(path, cannot, error);
    if (out.target_.ends_with('/'))
        return refused(path, cannot, EISDIR);
    const std::string directory = directory_of(out.target_);
    const char* const where = directory.empty() ? "." : directory.c_str();
    // A directory that may be written to but not read cannot be synchronized.
    out.directory_ = ::open(where, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (out.directory_ < 0 && errno != EACCES)
        return refused(path, cannot, errno);
    // Nobody else reads what will have narrower permissions.
    const mode_t mode = out.replaces_ ? 0600 : 0666;
    for (int attempts = 0; out.file_ < 0 && attempts < 100; ++attempts) {
        out.temporary_ = temporary_name(out.target_);
        out.slot_ = add_temporary(out.temporary_.c_str());
        if (out.slot_ < 0) {
            const bool is_long = out.temporary_.size() >= 4096;
            out.temporary_.clear();
            return refused(path, cannot, is_long ? ENAMETOOLONG : EMFILE);
        }
        out.file_ = ::open(out.temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (out.file_ < 0) {
            const int error = errno;
            drop_temporary(std::exchange(out.slot_, -1));
            out.temporary_.clear();
            if (error != EEXIST)
                return refused(path, cannot, error);
        }
    }
    if (out.file_ < 0)
        return refused(path, cannot, EEXIST);
    return out;
}

void output_file::write_now(std::span<const std::byte> bytes) noexcept {
    while (!bytes.empty() && error_ == 0) {
        const ssize_t written = ::write(file_, bytes.data(), bytes.size());
        if (written > 0)
            bytes = bytes.subspan(static_cast<std::size_t>(written));
        else if (written == 0 || errno != EINTR)
            error_ = written == 0 ? EIO : errno;
    }
}

void output_file::flush() noexcept {
    write_now(std::as_bytes(std::span(pending_)));
    pending_.clear();
}

void output_file::write(std::span<const std::byte> bytes) {
    if (pending_.size() + bytes.size() > max_pending)
        flush();
    if (bytes.size() > max_pending)
        return write_now(bytes);
    pending_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void output_file::print(const char* format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    const int size = std::vsnprintf(nullptr, 0, format, args);
    va_end(args);
    std::vector<char> text(static_cast<std::size_t>(size < 0 ? 0 : size) + 1);
    std::vsnprintf(text.data(), text.size(), format, again);
    va_end(again);
    write(std::string_view(text.data(), text.size() - 1));
}

status output_file::commit() {
    flush();
    const auto keep = [this](int result) {
        if (result != 0 && error_ == 0)
            error_ = errno;
    };
    if (replaces_) {
        // Only root may give files away; others keep what they make.
        const bool is_given = ::fchown(file_, before_.st_uid, before_.st_gid) == 0;
        keep(::fchmod(file_, before_.st_mode & (is_given ? 07777 : 0777)));
    }
    if (error_ == 0)
        keep(::fsync(file_));
    keep(::close(std::exchange(file_, -1)));
    if (error_ == 0)
        keep(std::rename(temporary_.c_str(), target_.c_str()));
    if (error_ == 0) {
        temporary_.clear();
        // The new name is on the disk only when the directory is, where directories can be synchronized.
        if (directory_ >= 0 && ::fsync(directory_) != 0 && errno != EINVAL && errno != EROFS)
            keep(-1);
    }
    discard();
    return error_ == 0 ? status() : refused(path_, "cannot write", error_);
}

status check_outputs(std::initializer_list<std::string> paths) {
    struct place {
        dev_t device;
        ino_t directory;
        std::string name;
        bool operator==(const place&) const = default;
    };
    std::vector<place> places;
    for (const std::string& path : paths) {
        if (path.empty())
            continue;
        const auto file = output_file::create(path);
        if (!file)
            return file.error();
        const std::string directory = directory_of(file->target());
        struct stat info = {};
        if (::stat(directory.empty() ? "." : directory.c_str(), &info) != 0)
            return refused(path, "cannot create", errno);
        const place here{info.st_dev, info.st_ino, file->target().substr(directory.size())};
        if (std::find(places.begin(), places.end(), here) != places.end())
            return status::error(errc::invalid_argument, "%s: two files would have this name",
                                 shown_path(path).c_str());
        places.push_back(here);
    }
    return {};
}

} // namespace lm
