// Encoding of the caches beside decoding.
#pragma once

#include "machine/team.hpp"
#include "model/layer_caches.hpp"

#include <atomic>
#include <functional>
#include <vector>

namespace lm {

/// How a block of 64 tokens became codes. Its items are pairs of a layer and a kv head; those that are not
/// counted were left when it was due.
struct encoded_block {
    std::size_t first = 0;            ///< token
    std::size_t begun = 0, coded = 0; ///< lengths of the sequence
    std::size_t items = 0;
    std::size_t beside = 0;  ///< of those, encoded by threads that waited for others within steps
    std::size_t between = 0; ///< after steps, by the first thread, as none had waited
};

/// Encodes blocks of the caches of all layers. A block is begun as soon as its 64 tokens are there, and read
/// as codes from the length on at which it is older than the window, whoever has encoded it when: results do
/// not depend on timing. In between its items are spread over steps evenly, and taken by threads that wait
/// for others at barriers; the first thread takes what is left of a step's share after it, and all take what
/// is left when the block is due.
class cache_encoder {
  public:
    explicit cache_encoder(layer_caches& caches) : caches_(caches) {}
    cache_encoder(const cache_encoder&) = delete;
    ~cache_encoder() { drop(); }

    /// One item of those that this step may take, if there is one. Any thread; `scratch`: its own.
    bool encode_one(std::span<std::byte> scratch) noexcept { return take(scratch, beside_); }

    /// After a step: `length` tokens are there. `scratch(part)`: of the team's threads.
    void advance(std::size_t length, const team& threads,
                 const std::function<std::span<std::byte>(std::size_t)>& scratch);
    /// Gives up what has been begun: before the sequence is cut.
    void drop() noexcept;

    /// Calls f after each block that was begun before it was due.
    void trace(std::function<void(const encoded_block&)> f) { trace_ = std::move(f); }

  private:
    struct job {
        layer_group* group;
        crumb::kv_cache::encoding blocks;
        std::size_t first; ///< item
    };

    bool take(std::span<std::byte> scratch, std::atomic<std::size_t>& count) noexcept;
    void finish(const team& threads, const std::function<std::span<std::byte>(std::size_t)>& scratch);
    void encode_due(const team& threads, const std::function<std::span<std::byte>(std::size_t)>& scratch);
    void begin(std::size_t length);

    layer_caches& caches_;
    std::vector<job> jobs_; ///< of one block, or none
    std::size_t items_ = 0, begun_ = 0, due_ = 0;
    std::atomic<std::size_t> next_ = 0, limit_ = 0; ///< items from `next_` to `limit_` - 1 may be taken
    std::atomic<std::size_t> done_ = 0, beside_ = 0, between_ = 0, late_ = 0;
    pace due_pace_;
    std::function<void(const encoded_block&)> trace_;
};

} // namespace lm
