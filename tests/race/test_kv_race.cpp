#include "unit/kv_problem.hpp"

#include <atomic>
#include <thread>

namespace {

using crumb::buffer;
using crumb_test::cache_problem;

// One thread encodes while another writes and attends.
TEST(KvCache, EncodesBesideDecoding) {
    for (const auto& [name, codec] : crumb_test::codecs) {
        if (codec.is_uncoded())
            continue;
        SCOPED_TRACE(name);
        const crumb::kv_cache_options options{
            .layers = 1, .kv_heads = 1, .head_size = 16, .max_tokens = 600, .codec = codec, .slack = 256};
        cache_problem p(options);
        const auto plan = *crumb::kv_attention::plan(p.options, {.heads = 2});
        crumb::buffer memory(plan.scratch_bytes(1));
        std::atomic<bool> stop = false;
        std::thread encoder([&] {
            while (!stop.load(std::memory_order_relaxed))
                if (p.cache->encode(p.scratch->bytes()) == 0)
                    std::this_thread::yield();
        });
        std::vector<float> q(2 * 16, 0.1f), y(2 * 16);
        for (std::size_t t = 0; t < 500; ++t) {
            while (!p.cache->check_room(1).ok())
                std::this_thread::yield();
            p.write(1);
            for (std::size_t layer = 0; layer < 1; ++layer)
                ASSERT_TRUE(plan.run(crumb::matrix<const float>(q.data(), 1, q.size()), *p.cache, layer,
                                     crumb::matrix(y.data(), 1, y.size()), memory)
                                .ok());
            for (const float x : y)
                ASSERT_TRUE(std::isfinite(x));
            ASSERT_TRUE(p.cache->advance(1).ok());
        }
        stop = true;
        encoder.join();
        p.cache->encode(p.scratch->bytes());
        EXPECT_EQ(p.cache->coded(), (500 - 36) / 64 * 64u);
    }
}

} // namespace
