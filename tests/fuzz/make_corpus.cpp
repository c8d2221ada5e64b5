// `crumb-make-corpus DIR` writes the seeds of every fuzz target into a directory of its own: valid inputs,
// and copies of some that are damaged or cut.
#include "caches.hpp"
#include "fuzz.hpp"
#include "seeds.hpp"

#include <filesystem>
#include <fstream>

namespace {

using namespace lm::fuzz;

class corpus {
  public:
    explicit corpus(std::filesystem::path directory) : directory_(std::move(directory)) {
        std::error_code error;
        std::filesystem::create_directories(directory_, error);
    }
    void add(const std::string& name, std::span<const std::byte> content) {
        std::ofstream file(directory_ / name, std::ios::binary);
        file.write(reinterpret_cast<const char*>(content.data()),
                   static_cast<std::streamsize>(content.size()));
        good_ = good_ && file.flush().good();
    }
    void add(const std::vector<seed>& seeds) {
        for (const seed& s : seeds)
            add(s.name, s.content);
    }
    /// With the choices that follow a target's input.
    void add(const std::string& name, bytes content, std::uint32_t chosen) {
        const auto raw = std::as_bytes(std::span(&chosen, 1));
        content.insert(content.end(), raw.begin(), raw.end());
        add(name, content);
    }
    bool good() const noexcept { return good_; }

  private:
    std::filesystem::path directory_;
    bool good_ = true;
};

/// Copies with one field overwritten, at every 8th position of the first 256 bytes, and cut at every 5th.
void add_damaged(corpus& out, const seed& whole) {
    constexpr std::byte extremes[] = {std::byte{0x00}, std::byte{0x7F}, std::byte{0xFF}};
    for (std::size_t at = 0; at + 8 <= whole.content.size() && at < 256; at += 8) {
        bytes damaged = whole.content;
        for (std::size_t i = 0; i < 8; ++i)
            damaged[at + i] = extremes[at / 8 % 3];
        out.add(whole.name + "-damaged-" + std::to_string(at), damaged);
    }
    for (std::size_t size = 0; size < whole.content.size() && size < 256; size += 5)
        out.add(whole.name + "-cut-" + std::to_string(size), std::span(whole.content).first(size));
}

/// Saved caches of several lengths.
void add_snapshots(corpus& out) {
    std::vector<cache_of>& caches = all_caches();
    for (std::size_t i = 0; i < caches.size(); ++i) {
        cache_of& c = caches[i];
        c.clear();
        const crumb::kv_cache_options& s = c.cache.options();
        const std::size_t width = s.kv_heads * s.head_size;
        const auto x = inputs(80 * width);
        const crumb::buffer scratch(c.cache.encode_scratch_bytes());
        for (const std::size_t length : {1, 3, 79, 300}) {
            c.add_pages(length);
            while (c.cache.length() < length) {
                const std::size_t rows = std::min<std::size_t>(80, length - c.cache.length());
                const auto k = crumb::matrix<const float>(x.data(), rows, width);
                for (std::size_t layer = 0; layer < s.layers; ++layer)
                    check(c.cache.write(layer, k, k).ok(), "tokens are refused");
                check(c.cache.advance(rows).ok(), "rows that were written are refused");
                c.cache.encode(scratch.bytes());
            }
            bytes saved(crumb::snapshot_bytes(c.cache));
            check(crumb::save(c.cache, saved).ok(), "a cache cannot be saved");
            out.add("snapshot-" + std::to_string(i) + "-" + std::to_string(length), saved,
                    static_cast<std::uint32_t>(i + caches.size() * (length % 2 + 2)));
        }
    }
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: crumb-make-corpus DIRECTORY\n");
        return 2;
    }
    bool good = true;
    const auto write = [&](const char* target, auto&& add) {
        corpus out(std::filesystem::path(argv[1]) / target);
        add(out);
        good = good && out.good();
    };
    const auto models = model_seeds();
    write("fuzz_gguf", [&](corpus& out) {
        const auto seeds = gguf_seeds();
        out.add(seeds);
        out.add(models.front().name, models.front().content);
        for (const seed& s : seeds)
            if (s.name.starts_with("small"))
                add_damaged(out, s);
        // One key of one letter, an array of arrays.
        constexpr char arrays[] = "GGUF\3\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0"
                                  "\1\0\0\0\0\0\0\0k\x9\0\0\0\x9\0\0\0\1\0\0\0\0\0\0\0";
        out.add("arrays", std::as_bytes(std::span(arrays)));
    });
    write("fuzz_tokenizer", [&](corpus& out) {
        for (const seed& s : gguf_seeds())
            if (s.name.find("bpe") != s.name.npos || s.name.find("spm") != s.name.npos)
                out.add(s.name, s.content);
    });
    write("fuzz_packed", [](corpus& out) { out.add(packed_seeds()); });
    write("fuzz_nested", [](corpus& out) { out.add(nested_seeds()); });
    write("fuzz_neurons", [](corpus& out) { out.add(neuron_seeds()); });
    write("fuzz_folded", [](corpus& out) { out.add(folded_seeds()); });
    write("fuzz_snapshot", [](corpus& out) { add_snapshots(out); });
    const auto refused = refused_seeds();
    write("fuzz_keys", [&](corpus& out) {
        out.add(models);
        out.add(refused);
    });
    write("fuzz_model", [&](corpus& out) {
        dice random(1);
        for (const seed& s : refused) {
            out.add(s.name, s.content);
            out.add(s.name + "-folded", s.content, 1); // as tardis
        }
        for (const seed& s : models) {
            out.add(s.name, s.content);
            for (int i = 0; i < 3; ++i)
                out.add(s.name + "-" + std::to_string(i), s.content, static_cast<std::uint32_t>(random()));
        }
    });
    if (!good) {
        std::fprintf(stderr, "%s: cannot write the corpus\n", argv[1]);
        return 1;
    }
    return 0;
}
