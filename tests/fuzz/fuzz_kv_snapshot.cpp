// libFuzzer target: a saved cache with any bytes changed, and any part cut off, is refused or restored to a
// cache that can be used; a refusal leaves the cache as it was.
#include <crumb/op/kv_snapshot.hpp>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace {

struct alignas(crumb::alignment) line {
    std::byte bytes[crumb::alignment];
};

struct small_cache {
    std::vector<line> state, page, scratch;
    crumb::kv_cache cache;

    static crumb::kv_cache_shape shape() {
        return {
            .layers = 1, .kv_heads = 1, .head_size = 8, .max_tokens = 250, .codec = crumb::kv_codec::kivi(4)};
    }
    static std::span<std::byte> bytes(std::vector<line>& of) { return std::as_writable_bytes(std::span(of)); }

    small_cache()
        : state(*crumb::kv_cache::state_bytes(shape()) / sizeof(line)),
          cache(*crumb::kv_cache::create(shape(), bytes(state))) {
        page.resize((cache.page_bytes() + sizeof(line) - 1) / sizeof(line));
        scratch.resize((cache.encode_scratch_bytes() + sizeof(line) - 1) / sizeof(line));
        if (!cache.add_page(bytes(page)))
            std::abort();
    }
    void append(std::size_t tokens) {
        std::vector<float> x(8);
        for (std::size_t t = 0; t < tokens; ++t) {
            for (std::size_t i = 0; i < x.size(); ++i)
                x[i] = static_cast<float>(i * t % 13);
            const auto row = crumb::matrix<const float>(x.data(), 1, x.size());
            if (!cache.write(0, row, row))
                std::abort();
            cache.advance(1);
            cache.encode(bytes(scratch));
        }
    }
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const std::vector<std::byte> saved = [] {
        small_cache from;
        from.append(180);
        std::vector<std::byte> out(crumb::snapshot_bytes(from.cache));
        if (!crumb::save(from.cache, out))
            std::abort();
        return out;
    }();
    std::vector<std::byte> bytes = saved;
    if (size < 3)
        return 0;
    // The first byte says whether the hash is made to fit, the next two where to cut; then changes of one
    // byte.
    std::size_t length = bytes.size();
    if ((data[0] & 2) != 0)
        length = (std::size_t{data[1]} << 8 | data[2]) % (bytes.size() + 1);
    for (std::size_t i = 3; i + 2 < size; i += 3) {
        // Half of the changes are in the header.
        const std::size_t place = std::size_t{data[i]} << 8 | data[i + 1];
        bytes[place % ((data[i] & 1) != 0 ? sizeof(crumb::kv_snapshot_header) : bytes.size())] ^=
            std::byte{data[i + 2]};
    }
    small_cache to;
    to.append(7);
    if ((data[0] & 1) != 0) {
        crumb::kv_snapshot_header h;
        std::memcpy(&h, bytes.data(), sizeof h);
        const std::size_t halves = to.cache.halves().size();
        const std::span<const std::byte> content(bytes);
        h.content = crumb::kv_hash(content.subspan(sizeof h, halves), 0);
        h.content = crumb::kv_hash(content.subspan(sizeof h + halves, to.cache.page_bytes()), h.content);
        std::memcpy(bytes.data(), &h, sizeof h);
    }
    const auto restored = crumb::restore(to.cache, std::span(bytes).first(length));
    if (!restored) {
        if (to.cache.length() != 7)
            std::abort();
        return 0;
    }
    // Every length has to work from here on.
    to.cache.truncate(to.cache.length() / 2);
    to.append(20);
    return 0;
}
