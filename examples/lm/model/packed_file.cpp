#include "model/packed_file.hpp"

#include "gguf/shown_text.hpp"
#include "gguf/word_hash.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <sys/stat.h>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

namespace {

constexpr std::uint32_t version = 1;

/// From the root on, behind all links.
std::string whole_path(const std::string& path) {
    const std::unique_ptr<char, decltype(&std::free)> whole(::realpath(path.c_str(), nullptr), &std::free);
    return whole ? whole.get() : path;
}

/// Size and time; nothing if there is no such file.
bool look(pack_source& s) {
    struct stat info = {};
    if (::stat(s.path.c_str(), &info) != 0)
        return false;
    s.bytes = static_cast<std::uint64_t>(info.st_size);
    s.modified = std::int64_t{info.st_mtim.tv_sec} * 1000000000 + info.st_mtim.tv_nsec;
    return true;
}

} // namespace

result<pack_source> describe_source(const std::string& path, const gguf& file) {
    pack_source s;
    s.path = whole_path(path);
    if (!look(s))
        return status::error(errc::invalid_argument, "%s: cannot read its size: %s", shown_path(path).c_str(),
                             std::strerror(errno));
    word_hash h;
    h.add_values(file);
    for (const gguf_tensor& t : file.tensors()) {
        h.add(t.name);
        h.add(static_cast<std::uint64_t>(t.type));
        for (const std::uint64_t dim : t.dims)
            h.add(dim);
        h.add(t.offset);
    }
    s.contents = h.value();
    return s;
}

bool is_packed(const gguf& file) noexcept { return file.find("crumb.pack.version") != nullptr; }

bool is_packed_from(const gguf& packed, const pack_source& now) {
    const auto source = packed.get_string("crumb.pack.source");
    return source && *source == now.path && check_source(packed, &now).ok();
}

void write_source(gguf_writer& to, const pack_source& source) {
    to.set("crumb.pack.version", version);
    to.set("crumb.pack.source", source.path);
    to.set("crumb.pack.source_bytes", source.bytes);
    to.set("crumb.pack.source_modified", source.modified);
    to.set("crumb.pack.source_contents", source.contents);
}

status check_source(const gguf& packed, const pack_source* known) {
    if (!is_packed(packed))
        return {};
    const auto written = packed.get_u32("crumb.pack.version");
    const auto path = packed.get_string("crumb.pack.source");
    const auto bytes = packed.get_u64("crumb.pack.source_bytes");
    const auto contents = packed.get_u64("crumb.pack.source_contents");
    const gguf_value* modified = packed.find("crumb.pack.source_modified");
    for (const status& s : {written.error(), path.error(), bytes.error(), contents.error()})
        if (!s)
            return s;
    if (*written != version)
        return status::error(errc::wrong_version, "key crumb.pack.version is %u, this program reads %u",
                             *written, version);
    const auto time =
        modified == nullptr || modified->is_array ? std::nullopt : modified->integer<std::int64_t>();
    if (!time)
        return status::error(errc::corrupt, "key crumb.pack.source_modified is no time");
    const bool is_known = known != nullptr && known->path == *path;
    pack_source now;
    if (is_known)
        now = *known;
    else
        now.path = std::string(*path);
    if (!is_known && !look(now))
        return {};
    const auto changed = [&](const char* what) {
        return status::error(errc::invalid_argument,
                             "%s, whose weights these are, has changed since (%s): pack it again",
                             shown_path(now.path).c_str(), what);
    };
    if (now.bytes != *bytes)
        return changed("its size");
    if (now.modified != *time)
        return changed("its time");
    if (!is_known) {
        const auto source = gguf::open(now.path);
        if (!source)
            return changed("it is no GGUF file");
        const auto described = describe_source(now.path, *source);
        if (!described)
            return described.error();
        now = *described;
    }
    return now.contents == *contents ? status() : changed("its keys or tensors");
}

} // namespace lm
