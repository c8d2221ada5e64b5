// The helpers of crumb/util.hpp.
#include <crumb/util.hpp>

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

namespace test_util {
namespace {

/// A thread for every part, each time.
struct many_threads {
    std::size_t count = 3;
    std::size_t size() const { return count; }
    template <class F>
    void run(F&& f) const {
        std::vector<std::thread> all;
        for (std::size_t part = 0; part < count; ++part)
            all.emplace_back([&, part] { f(part, count); });
        for (std::thread& t : all)
            t.join();
    }
};
static_assert(crumb::thread_pool<const many_threads>);
static_assert(crumb::thread_pool<crumb::this_thread>);

TEST(Util, BuffersAreAlignedZeroedAndMovable) {
    for (const std::size_t size : {std::size_t{1}, std::size_t{100}, (std::size_t{2} << 20) + 5}) {
        crumb::buffer b(size);
        EXPECT_EQ(b.size(), size);
        EXPECT_EQ(b.bytes().size(), size);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.data()) % crumb::alignment, 0u);
        for (const std::byte x : b.bytes())
            ASSERT_EQ(x, std::byte{0});
        const std::byte* at = b.data();
        crumb::buffer moved = std::move(b);
        EXPECT_EQ(moved.data(), at);
        EXPECT_EQ(moved.size(), size);
        b = std::move(moved);
        EXPECT_EQ(b.data(), at);
        EXPECT_EQ(moved.size(), 0u);
        EXPECT_TRUE(moved.bytes().empty());
    }
    EXPECT_EQ(crumb::buffer(0).data(), nullptr);
    EXPECT_EQ(crumb::buffer().size(), 0u);
}

TEST(Util, PlacesOfAnArenaAreAlignedApartAndUsedAgain) {
    constexpr std::size_t chunk = std::size_t{2} << 20;
    crumb::arena a(chunk);
    std::vector<std::span<std::byte>> places;
    // Within a chunk, across its end, and larger than what chunks are for.
    for (std::size_t i = 0; i < 60; ++i)
        places.push_back(a.take(i % 7 == 3 ? chunk : 1 + i * 4099));
    const auto fill = [](std::span<std::byte> place, std::size_t i) {
        std::fill(place.begin(), place.end(), static_cast<std::byte>(i));
    };
    const auto holds = [](std::span<std::byte> place, std::size_t i) {
        return std::all_of(place.begin(), place.end(),
                           [i](std::byte x) { return x == static_cast<std::byte>(i); });
    };
    for (std::size_t i = 0; i < places.size(); ++i)
        fill(places[i], i);
    crumb::arena moved = std::move(a);
    for (std::size_t i = 0; i < places.size(); ++i) {
        EXPECT_EQ(places[i].size(), i % 7 == 3 ? chunk : 1 + i * 4099);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(places[i].data()) % crumb::alignment, 0u);
        EXPECT_TRUE(holds(places[i], i)) << i;
    }
    // Neighbours lie side by side: 1 and 4100 bytes.
    EXPECT_EQ(places[1].data() - places[0].data(), static_cast<std::ptrdiff_t>(crumb::alignment));
    moved.give_back(places[5]);
    EXPECT_NE(moved.take(places[5].size() + crumb::alignment).data(), places[5].data());
    EXPECT_EQ(moved.take(places[5].size() - 1).data(), places[5].data());
    EXPECT_NE(moved.take(places[5].size()).data(), places[5].data());
    moved.give_back({});
    EXPECT_TRUE(moved.take(0).empty());
}

TEST(Util, ColumnsAndRowsOfViews) {
    std::vector<int> x(6 * 10);
    for (std::size_t i = 0; i < x.size(); ++i)
        x[i] = static_cast<int>(i);
    const auto m = crumb::matrix(x.data(), 6, 8, 10);
    const auto c = crumb::columns(m, {2, 5});
    EXPECT_EQ(c.rows, 6u);
    EXPECT_EQ(c.cols, 3u);
    EXPECT_EQ(c.row(4)[1], 43);
    const auto r = crumb::rows(m, {.begin = 4});
    EXPECT_EQ(r.rows, 2u);
    EXPECT_EQ(r.cols, 8u);
    EXPECT_EQ(r.row(1)[7], 57);
    EXPECT_TRUE(crumb::range{}.is_within(0));
    EXPECT_TRUE((crumb::range{3, 8}.is_within(8)));
    EXPECT_FALSE((crumb::range{3, 9}.is_within(8)));
    EXPECT_FALSE((crumb::range{5, 3}.is_within(8)));
    EXPECT_FALSE((crumb::range{.begin = 9}.is_within(8)));
}

TEST(Util, ParallelForCoversAllPartsOnce) {
    for (const std::size_t size : {0, 1, 16, 17, 100})
        for (const std::size_t threads : {1, 3, 8}) {
            std::vector<std::atomic<int>> done(size);
            std::array<std::atomic<int>, 8> parts{};
            crumb::parallel_for(many_threads{threads}, size, 16,
                                [&](const crumb::range& r, std::size_t part) {
                                    EXPECT_EQ(r.begin % 16, 0u);
                                    ++parts[part];
                                    for (std::size_t i = r.begin; i < r.end; ++i)
                                        ++done[i];
                                });
            for (const auto& d : done)
                ASSERT_EQ(d, 1);
            for (const auto& p : parts)
                ASSERT_LE(p, 1);
        }
    std::thread::id by;
    crumb::parallel_for(many_threads{}, 1, 1, [&](const crumb::range&) { by = std::this_thread::get_id(); });
    EXPECT_EQ(by, std::this_thread::get_id());
}

TEST(Util, ParallelForReturnsAnError) {
    const auto failing = [](std::size_t bad) {
        return crumb::parallel_for(many_threads{}, 9, 1, [&](const crumb::range& r) {
            return bad >= r.begin && bad < r.end
                       ? crumb::status::error(crumb::errc::corrupt, "number %zu is bad", bad)
                       : crumb::status();
        });
    };
    EXPECT_TRUE(failing(9).ok());
    EXPECT_STREQ(failing(7).message(), "number 7 is bad");
    EXPECT_STREQ(failing(0).message(), "number 0 is bad");
}

} // namespace
} // namespace test_util
