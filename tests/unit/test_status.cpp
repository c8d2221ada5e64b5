// Errors as values: what a result holds, and when it makes and destroys it.
#include <crumb/core/atomic.hpp>
#include <crumb/core/status.hpp>

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace test_status {
namespace {

using crumb::errc;
using crumb::result;
using crumb::status;

/// Counts those that live.
struct counted {
    static inline int alive = 0;
    int number;
    explicit counted(int n) noexcept : number(n) { ++alive; }
    counted(const counted& other) noexcept : number(other.number) { ++alive; }
    counted(counted&& other) noexcept : number(std::exchange(other.number, -1)) { ++alive; }
    counted& operator=(const counted&) = delete;
    ~counted() { --alive; }
};

static_assert(std::is_copy_constructible_v<result<int>>);
static_assert(std::is_copy_constructible_v<result<std::vector<int>>>);
static_assert(!std::is_copy_constructible_v<result<std::unique_ptr<int>>>);
static_assert(std::is_nothrow_move_constructible_v<result<std::unique_ptr<int>>>);

TEST(Status, MessagesThatAreTooLongEndInDots) {
    const status s = status::error(errc::corrupt, "%s", std::string(1000, 'a').c_str());
    EXPECT_FALSE(s);
    EXPECT_EQ(s.code(), errc::corrupt);
    const std::string message = s.message();
    EXPECT_EQ(message.substr(message.size() - 4), "a...");
    EXPECT_LT(message.size(), 400u);
    EXPECT_TRUE(status());
    EXPECT_STREQ(status().message(), "");
}

TEST(Result, HoldsAValueOrAStatus) {
    const result<int> five = 5;
    ASSERT_TRUE(five);
    EXPECT_EQ(*five, 5);
    EXPECT_TRUE(five.error().ok());
    const result<int> none = status::error(errc::bad_shape, "%d rows", 3);
    EXPECT_FALSE(none.ok());
    EXPECT_EQ(none.error().code(), errc::bad_shape);
    EXPECT_STREQ(none.message(), "3 rows");
    EXPECT_DEATH((void)*none, "value of a failed result: 3 rows");
}

TEST(Result, CopiesAndMovesWhatItHolds) {
    result<std::string> a = std::string(100, 'x');
    const result<std::string> b = a;
    EXPECT_EQ(*a, *b);
    const result<std::string> c = std::move(a);
    EXPECT_EQ(*b, *c);
    result<std::unique_ptr<int>> p = std::make_unique<int>(7);
    const result<std::unique_ptr<int>> q = std::move(p);
    EXPECT_EQ(**q, 7);
}

TEST(Result, EveryValueIsDestroyedOnce) {
    {
        result<counted> a = counted(1);
        EXPECT_EQ(counted::alive, 1);
        result<counted> b = a;
        EXPECT_EQ(counted::alive, 2);
        result<counted> none = status::error(errc::corrupt, "none");
        EXPECT_EQ(counted::alive, 2);
        // From a value to none and back, to itself, from another.
        none = b;
        EXPECT_EQ(counted::alive, 3);
        EXPECT_EQ(none->number, 1);
        none = status::error(errc::corrupt, "again");
        EXPECT_EQ(counted::alive, 2);
        EXPECT_STREQ(none.message(), "again");
        none = counted(2);
        EXPECT_EQ(none->number, 2);
        EXPECT_TRUE(none.error().ok());
        const result<counted>& same = none;
        none = same;
        EXPECT_EQ(none->number, 2);
        b = std::move(none);
        EXPECT_EQ(b->number, 2);
        EXPECT_EQ(counted::alive, 3);
    }
    EXPECT_EQ(counted::alive, 0);
}

TEST(AtomicNumber, ShowsWhatWasDoneBefore) {
    int data = 0;
    crumb::atomic_number<bool> is_done;
    EXPECT_FALSE(is_done.load());
    std::thread writer([&] {
        data = 42;
        is_done.store(true);
    });
    while (!is_done.load())
        std::this_thread::yield();
    EXPECT_EQ(data, 42);
    writer.join();
}

TEST(AtomicNumber, OneThreadIsTheFirst) {
    for (int round = 0; round < 100; ++round) {
        crumb::atomic_number<bool> taken;
        int first[4] = {};
        std::vector<std::thread> all;
        for (int& mine : first)
            all.emplace_back([&] { mine = taken.exchange(true) ? 0 : 1; });
        for (std::thread& t : all)
            t.join();
        ASSERT_EQ(first[0] + first[1] + first[2] + first[3], 1);
    }
}

TEST(AtomicNumber, BitsAreAdded) {
    crumb::atomic_number<unsigned> bits;
    bits.store_alone(4);
    bits.set_bits_alone(1);
    EXPECT_EQ(bits.load_alone(), 5u);
}

} // namespace
} // namespace test_status
