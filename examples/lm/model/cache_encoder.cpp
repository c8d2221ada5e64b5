#include "model/cache_encoder.hpp"

#include <algorithm>
#include <thread>

namespace lm {

bool cache_encoder::take(std::span<std::byte> scratch, std::atomic<std::size_t>& count) noexcept {
    std::size_t n = next_.load(std::memory_order_relaxed);
    do
        if (n >= limit_.load(std::memory_order_relaxed))
            return false;
    while (!next_.compare_exchange_weak(n, n + 1, std::memory_order_acquire, std::memory_order_relaxed));
    const auto of =
        std::find_if(jobs_.begin(), jobs_.end(), [&](const job& j) { return n < j.first + j.blocks.items; });
    of->group->cache->encode(of->blocks, scratch, {n - of->first, n - of->first + 1});
    count.fetch_add(1, std::memory_order_relaxed);
    done_.fetch_add(1, std::memory_order_release);
    return true;
}

void cache_encoder::drop() noexcept {
    limit_.store(0, std::memory_order_relaxed);
    // A thread that has fallen out of a step may still be at its item.
    const std::size_t taken = std::min(next_.exchange(items_), items_);
    while (done_.load(std::memory_order_acquire) < taken)
        std::this_thread::yield();
    for (const job& j : jobs_)
        j.group->cache->drop_encoding(j.blocks);
    jobs_.clear();
    items_ = 0;
}

void cache_encoder::finish(const team& threads,
                           const std::function<std::span<std::byte>(std::size_t)>& scratch) {
    limit_.store(items_, std::memory_order_relaxed);
    if (const std::size_t left = items_ - next_.load(std::memory_order_relaxed); left != 0)
        threads.step(due_pace_, left, [&](std::size_t part, std::size_t) {
            while (take(scratch(part), late_)) {
            }
        });
    while (done_.load(std::memory_order_acquire) < items_)
        std::this_thread::yield();
    for (const job& j : jobs_)
        j.group->cache->end_encoding(j.blocks);
    if (trace_)
        trace_({jobs_.front().blocks.first + jobs_.front().group->cache->sinks(), begun_, due_, items_,
                beside_.load(), between_.load()});
    jobs_.clear();
    items_ = 0;
    limit_.store(0, std::memory_order_relaxed);
}

void cache_encoder::encode_due(const team& threads,
                               const std::function<std::span<std::byte>(std::size_t)>& scratch) {
    for (layer_group& g : caches_.groups())
        if (const auto e = g.cache->begin_encoding()) {
            threads.step(due_pace_, e.items, [&](std::size_t part, std::size_t parts) {
                g.cache->encode(e, scratch(part), crumb::split(e.items, parts, part));
            });
            g.cache->end_encoding(e);
        }
}

void cache_encoder::begin(std::size_t length) {
    for (layer_group& g : caches_.groups()) {
        crumb::kv_cache& cache = *g.cache;
        // One block: the next one is due 64 tokens later.
        if (const auto e = cache.begin_encoding(cache.options().window)) {
            jobs_.push_back({&g, {e.first, crumb::kv_block_tokens, e.items}, items_});
            items_ += e.items;
            due_ = cache.sinks() + cache.options().window + e.first + crumb::kv_block_tokens;
        }
    }
    begun_ = length;
    for (auto* count : {&done_, &beside_, &between_, &late_})
        count->store(0, std::memory_order_relaxed);
    // Who takes an item sees the jobs.
    next_.store(0, std::memory_order_release);
}

void cache_encoder::advance(std::size_t length, const team& threads,
                            const std::function<std::span<std::byte>(std::size_t)>& scratch) {
    // What this step should have done and nobody had time for.
    while (take(scratch(0), between_)) {
    }
    if (!jobs_.empty() && length >= due_)
        finish(threads, scratch);
    if (jobs_.empty()) {
        encode_due(threads, scratch);
        begin(length);
    }
    if (jobs_.empty())
        return;
    const std::size_t steps = due_ - begun_;
    limit_.store(((length + 1 - begun_) * items_ + steps - 1) / steps, std::memory_order_release);
}

} // namespace lm
