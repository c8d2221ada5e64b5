#include "gguf/mapped_file.hpp"

#include "gguf/shown_text.hpp"
#include "gguf/signals.hpp"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace lm {

mapped_file::mapped_file(mapped_file&& other) noexcept
    : address_(std::exchange(other.address_, nullptr)), size_(std::exchange(other.size_, 0)),
      slot_(std::exchange(other.slot_, -1)) {}

mapped_file& mapped_file::operator=(mapped_file&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(size_, other.size_);
    std::swap(slot_, other.slot_);
    return *this;
}

mapped_file::~mapped_file() {
    drop_mapping(slot_);
    if (address_ != nullptr)
        ::munmap(address_, size_);
}

std::optional<mapped_file> mapped_file::open(const std::string& path, std::string& error) {
    // Opening a pipe would wait for its writer; O_NONBLOCK lets the check below refuse it instead.
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) {
        error = shown_path(path) + ": cannot open: " + std::strerror(errno);
        return std::nullopt;
    }
    mapped_file mapped;
    std::string reason;
    struct stat info = {};
    if (::fstat(file, &info) != 0) {
        reason = std::string("cannot read its size: ") + std::strerror(errno);
    } else if (!S_ISREG(info.st_mode)) {
        reason = S_ISDIR(info.st_mode) ? "is a directory" : "is not a regular file";
    } else if (info.st_size > 0) {
        const auto size = static_cast<std::size_t>(info.st_size);
        void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
        if (address == MAP_FAILED) {
            reason = std::string("cannot map: ") + std::strerror(errno);
        } else {
#ifdef MADV_HUGEPAGE
            // Weights are multiplied where they are mapped: where the file system has huge pages, what is
            // read from now on comes in such.
            (void)::madvise(address, size, MADV_HUGEPAGE);
#endif
            mapped.address_ = address;
            mapped.size_ = size;
            mapped.slot_ = add_mapping(address, size, path.c_str());
        }
    }
    ::close(file);
    if (!reason.empty()) {
        error = shown_path(path) + ": " + reason;
        return std::nullopt;
    }
    return mapped;
}

} // namespace lm
