// Every line of format/invariants.hpp: bytes that break it are refused, with a message that says where.
#include "format_test.hpp"
#include "guarded.hpp"
#include "kv_problem.hpp"
#include "random_weights.hpp"

#include <crumb/crumb.hpp>
#include <crumb/offline/nested/quantized.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace test_invariants {
namespace {

using crumb::errc;
using crumb::half;
using crumb::row_codec;
using crumb_test::guarded;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

/// Bytes that are damaged at one place at a time.
template <class Open>
class damaged {
  public:
    damaged(std::span<std::byte> bytes, Open open) : bytes_(bytes), open_(open) {
        EXPECT_TRUE(open_(bytes_));
    }
    /// What opening says when `value` stands at a place; nothing is damaged afterwards.
    template <class T>
    std::string with(std::size_t at, const T& value) {
        std::vector<std::byte> before(bytes_.begin() + static_cast<std::ptrdiff_t>(at),
                                      bytes_.begin() + static_cast<std::ptrdiff_t>(at + sizeof value));
        std::memcpy(bytes_.data() + at, &value, sizeof value);
        const auto opened = open_(bytes_);
        std::memcpy(bytes_.data() + at, before.data(), before.size());
        code = opened.error().code();
        return opened ? "" : opened.message();
    }
    errc code = errc::ok; ///< of the last error

  private:
    std::span<std::byte> bytes_;
    Open open_;
};

template <class F>
struct PackedInvariants {};
using formats = crumb_test::types_of<crumb::format_list, crumb::variant_list>;
FORMAT_TEST_SUITE(PackedInvariants, formats);

FORMAT_TEST(PackedInvariants, AreChecked) {
    using F = TypeParam;
    constexpr std::size_t n = 19, k = 300;
    std::mt19937 random(3);
    auto stored = crumb_test::random_weights<F>(n, k, random);
    guarded<std::byte> bytes(crumb::packed_bytes<F>(n, k));
    const auto view = crumb::pack(stored.view(), bytes.span());
    ASSERT_TRUE(view) << view.message();
    damaged d(bytes.span(), [](std::span<const std::byte> b) { return crumb::packed_view<F>::open(b); });
    for (std::size_t i = 48; i < 64; ++i)
        EXPECT_EQ(d.with(i, std::byte{3}),
                  "packed weights, reserved: byte " + std::to_string(i - 48) + " is 3, it has to be 0");
    const auto offset = [&](const void* at) {
        return static_cast<std::size_t>(static_cast<const std::byte*>(at) - bytes.data());
    };
    const std::size_t units = view->tiles() * view->groups() * crumb::tile_channels;
    if constexpr (crumb::packed_layout<F>::has_exponents) {
        for (const std::size_t i :
             {std::size_t{0}, view->tiles() * view->blocks() * crumb::tile_channels - 1}) {
            EXPECT_EQ(d.with(offset(view->exponents()) + i, std::uint8_t{255}),
                      "packed weights, exponents: exponent " + std::to_string(i) +
                          " is 255, at most 240 is possible");
            EXPECT_EQ(d.with(offset(view->exponents()) + i, std::uint8_t{241}).substr(0, 25),
                      "packed weights, exponents");
            EXPECT_EQ(d.with(offset(view->exponents()) + i, std::uint8_t{240}), "");
        }
    } else {
        for (const std::size_t i : {std::size_t{0}, std::size_t{63}, std::size_t{64}, units - 1}) {
            const std::size_t at = offset(view->scales()) + i * sizeof(half);
            EXPECT_EQ(d.with(at, crumb::to_half(infinity)),
                      "packed weights, scales: number " + std::to_string(i) + " is inf");
            EXPECT_EQ(d.code, errc::not_finite);
            EXPECT_NE(d.with(at, crumb::to_half(nan)), "");
            EXPECT_EQ(d.with(at, half{0xfbff}), ""); // -65504
        }
    }
    // Any code stands for a weight.
    EXPECT_EQ(d.with(offset(view->codes()), std::uint64_t{0xffffffffffffffff}), "");
    // Dimensions are those that the caller needs.
    EXPECT_TRUE(crumb::packed_view<F>::open(bytes.span(), n, k));
    EXPECT_STREQ(crumb::packed_view<F>::open(bytes.span(), k, n).message(),
                 "packed weights: 19 x 300, 300 x 19 are needed");
}

// The largest weight under the largest exponent is a number.
TEST(PackedInvariants, TheLargestExponentKeepsWeightsFinite) {
    const crumb::block_scale most{crumb::largest_exponent, -128}, more{crumb::largest_exponent + 1, -128};
    EXPECT_TRUE(std::isfinite(crumb::to_float(most) * -128.0f));
    EXPECT_TRUE(crumb::is_finite(most));
    EXPECT_FALSE(crumb::is_finite(more));
}

TEST(NestedInvariants, AreChecked) {
    constexpr std::size_t n = 17, k = 70;
    for (const auto& [seed, parent] : {std::pair{2, 2}, {2, 4}, {3, 4}}) {
        const std::vector<std::uint8_t> codes(n * k, 1);
        const std::vector<half> scales(n * 3, crumb::to_half(0.5f));
        const auto levels = crumb::nested_levels::uniform(seed, parent);
        guarded<std::byte> bytes(crumb::nested_packed_bytes(n, k, parent));
        const auto view = crumb::pack({codes.data(), scales.data(), nullptr, n, k, levels}, bytes.span());
        ASSERT_TRUE(view) << view.message();
        damaged d(bytes.span(), [](std::span<const std::byte> b) { return crumb::nested_view::open(b); });
        EXPECT_EQ(d.with(50, std::byte{1}), "nested weights, reserved: byte 0 is 1, it has to be 0");
        EXPECT_EQ(d.with(63, std::byte{1}), "nested weights, reserved: byte 13 is 1, it has to be 0");
        EXPECT_EQ(d.with(64 + 28, std::byte{7}),
                  "nested weights, after the levels: byte 0 is 7, it has to be 0");
        const auto offset = [&](const half* at) {
            return static_cast<std::size_t>(reinterpret_cast<const std::byte*>(at) - bytes.data());
        };
        for (int bits = 2; bits <= parent; ++bits)
            EXPECT_EQ(d.with(offset(view->corrections(bits)), crumb::to_half(-infinity)),
                      "nested weights, corrections: number " + std::to_string((bits - 2) * 32) + " is -inf");
        EXPECT_NE(d.with(offset(view->scales()) + 2, crumb::to_half(nan))
                      .find("nested weights, scales: number 1 is"),
                  std::string::npos);
        EXPECT_STREQ(crumb::nested_view::open(bytes.span(), n, k + 1).message(),
                     "packed nested weights: 17 x 70, 17 x 71 are needed");
    }
}

// What no file can reach; a caller who does it is stopped.
TEST(NestedInvariantsDeathTest, APrecisionThatIsNotStoredIsStopped) {
    constexpr std::size_t n = 16, k = 32;
    const std::vector<std::uint8_t> codes(n * k, 3);
    const std::vector<half> scales(n, crumb::to_half(0.5f));
    const auto levels = crumb::nested_levels::uniform(2, 2);
    guarded<std::byte> bytes(crumb::nested_packed_bytes(n, k, 2));
    const auto view = crumb::pack({codes.data(), scales.data(), nullptr, n, k, levels}, bytes.span());
    ASSERT_TRUE(view) << view.message();
    const auto plan = crumb::nested_linear::plan(*view);
    ASSERT_TRUE(plan) << plan.message();
    const std::vector<float> x(k, 1.0f);
    guarded<std::byte> room(crumb::activation_bytes(plan->input_plan(), 1));
    auto a = *crumb::activations::create(room.span(), plan->input_plan(), 1);
    a.quantize(crumb::matrix(x.data(), 1, k));
    std::vector<float> right(n), y(n);
    plan->run(2, a, crumb::matrix(right.data(), 1, n));
    for (const int bits : {-2147483647, 0, 1, 3, 4, 2147483647}) {
#if CRUMB_DEBUG_CHECKS
        EXPECT_DEATH(plan->run(bits, a, crumb::matrix(y.data(), 1, n)), "bits, the weights have");
#else
        // Nothing beyond the stored planes is read: the nearest precision serves.
        plan->run(bits, a, crumb::matrix(y.data(), 1, n));
        EXPECT_EQ(y, right) << bits;
#endif
    }
}

TEST(NeuronInvariants, AreChecked) {
    for (const row_codec codec :
         {row_codec::f32, row_codec::f16, row_codec::q8_0, row_codec::q4_0, row_codec::u2}) {
        SCOPED_TRACE(crumb::row_codec_names[static_cast<std::size_t>(codec)]);
        const crumb::neuron_shape shape{19, 40, 33, codec, codec, false};
        const auto layout = *crumb::neuron_layout::of(shape);
        guarded<std::byte> bytes(layout.bytes);
        const auto writer = crumb::neuron_writer::create(bytes.span(), shape);
        ASSERT_TRUE(writer) << writer.message();
        const std::vector<float> row(40, 0.25f);
        for (std::size_t n = 0; n < shape.neurons; ++n) {
            crumb::encode_row(codec, row.data(), 40, writer->in(n));
            crumb::encode_row(codec, row.data(), 33, writer->out(n));
        }
        ASSERT_TRUE(writer->finish());
        damaged d(bytes.span(), [](std::span<const std::byte> b) { return crumb::neuron_rows::open(b); });
        EXPECT_EQ(d.with(63, std::byte{1}), "neurons, reserved: byte 20 is 1, it has to be 0");
        EXPECT_NE(d.with(64 + 4 * 3, nan).find("neurons: the thresholds of neuron 3 are"), std::string::npos);
        EXPECT_EQ(d.with(64 + 4 * 3, infinity), "");
        // Behind the neurons there is no record that a list could name.
        EXPECT_EQ(d.with(64 + 4 * 19, 0.0f),
                  "neurons: padded thresholds 19 are 0 and inf, they have to hold everything");
        EXPECT_EQ(d.with(64 + 4 * (32 + 31), 5.0f),
                  "neurons: padded thresholds 31 are -inf and 5, they have to hold everything");
        const std::size_t record = layout.records_offset + 7 * layout.record_bytes;
        for (const std::size_t i : {0, 1, 2})
            EXPECT_NE(d.with(record + 4 * i, infinity).find("neurons: record 7: slope "), std::string::npos)
                << i;
        for (const std::size_t i : {3, 4}) {
            EXPECT_NE(d.with(record + 4 * i, nan), "") << i;
            EXPECT_EQ(d.with(record + 4 * i, infinity), "") << i;
        }
        EXPECT_EQ(d.with(record + 20, 1.0f), "neurons: record 7: reserved: byte 2 is 128, it has to be 0");
        const bool floats = codec == row_codec::f32;
        const std::size_t block = crumb::row_bytes(codec, 32);
        for (const auto& [at, what] :
             {std::pair{record + 32 + block, "input"}, {record + layout.out_offset + block, "output"}}) {
            const std::string said = floats ? d.with(at, infinity) : d.with(at, crumb::to_half(infinity));
            const char* number =
                floats || codec == row_codec::f16 ? ": number 32 is inf" : ": scale 1 is inf";
            EXPECT_EQ(said, std::string("neurons: record 7: ") + what + " weights" + number);
        }
    }
}

TEST(CodebookInvariants, AreChecked) {
    for (const crumb::kv_codec codec :
         {crumb::kv_codec::pq(2, 8, true, true), crumb::kv_codec::pq(4, 6, false, true)}) {
        crumb_test::random_kv_codebooks numbers(codec, 8, 3, 5);
        std::vector<float> metric(2 * 3 * 8 * codec.dims, 1.0f);
        crumb::pq_codebook_parts parts{.codec = codec,
                                       .head_size = 8,
                                       .layer_step = 1,
                                       .head_step = 1,
                                       .sets = 3,
                                       .entries = numbers.entries,
                                       .scales = numbers.scales,
                                       .metric = metric};
        const auto why = [&](auto&& change) {
            crumb::pq_codebook_parts p = parts;
            change(p);
            return std::string(crumb::pq_codebooks::make(p).message());
        };
        EXPECT_EQ(why([](auto&) {}), "");
        EXPECT_EQ(why([](auto& p) { p.codec = crumb::kv_codec::f16(); }),
                  "codebooks: a codec of kind 1 with 16 bits has none");
        EXPECT_NE(why([](auto& p) { p.codec.bits = 7; }), "");
        EXPECT_NE(why([](auto& p) { p.head_size = 0; }), "");
        EXPECT_NE(why([](auto& p) { p.head_size = 516; }), "");
        EXPECT_EQ(why([](auto& p) { p.sets = 0; }), "codebooks: 0 sets");
        EXPECT_EQ(why([](auto& p) { p.sets = std::size_t{1} << 60; }), "codebooks: 1152921504606846976 sets");
        EXPECT_EQ(why([](auto& p) { p.scales = p.scales.first(47); }),
                  "codebooks: 47 scales, 3 sets of heads of 8 take 48");
        EXPECT_NE(why([](auto& p) { p.entries = p.entries.subspan(1); }), "");
        EXPECT_NE(why([](auto& p) { p.metric = p.metric.subspan(1); }), "");
        EXPECT_EQ(why([](auto& p) { p.metric = {}; }), "");
        std::swap(numbers.scales[17], metric[0]);
        const float kept = std::exchange(numbers.scales[17], -1.0f);
        EXPECT_EQ(why([](auto&) {}), "codebooks: scale 17 is -1");
        numbers.scales[17] = infinity;
        EXPECT_EQ(why([](auto&) {}), "codebooks, scales: number 17 is inf");
        numbers.scales[17] = kept;
        metric[5] = nan;
        EXPECT_EQ(why([](auto&) {}).substr(0, 27), "codebooks, metric: number 5");
        metric[5] = 1e31f;
        EXPECT_EQ(why([](auto&) {}).find("codebooks: centroids of channel "), 0u);
        metric[5] = 1;
        numbers.scales[9] = 1e29f;
        EXPECT_EQ(
            why([](auto& p) { p.metric = {}; }).find("codebooks: centroids of channel 9 may be as large as"),
            0u);
        numbers.scales[9] = kept;
        numbers.entries[33] = -100;
        numbers.entries[49] = 60;
        EXPECT_EQ(why([](auto&) {}) == "", !codec.additive);
        EXPECT_EQ(why([](auto& p) { p.layer_step = ~std::size_t{0}; }) == "", !codec.additive);
    }
    // A cache takes those of its codec and head size, if there are enough.
    const crumb::kv_codec codec = crumb::kv_codec::pq(2, 6, false, true);
    const crumb_test::random_kv_codebooks numbers(codec, 16, 4, 5);
    crumb::kv_cache_options shape{
        .layers = 2, .kv_heads = 2, .head_size = 16, .max_tokens = 300, .codec = codec};
    shape.codebooks = numbers.view(2, 1);
    EXPECT_TRUE(crumb::kv_cache::state_bytes(shape));
    shape.head_size = 8;
    EXPECT_STREQ(
        crumb::kv_cache::state_bytes(shape).message(),
        "kv_cache: codebooks of 6 bits for 2 channels, residual in heads of 16, the cache has 6 bits for 2 "
        "channels, residual in heads of 8");
    shape.head_size = 16;
    shape.codec.residual = false;
    EXPECT_EQ(crumb::kv_cache::state_bytes(shape).error().code(), errc::bad_shape);
    shape.codec = codec;
    shape.codebooks = numbers.view(~std::size_t{0}, 1); // whose product overflows
    EXPECT_STREQ(crumb::kv_cache::state_bytes(shape).message(),
                 "kv_cache: 4 sets of codebooks do not serve 2 layers of 2 heads");
}

// Whoever writes a snapshot by hand can make its hash right.
TEST(SnapshotInvariants, NumbersAreFinite) {
    for (const auto& [name, codec] : crumb_test::codecs) {
        SCOPED_TRACE(name);
        const crumb::kv_cache_options shape{
            .layers = 2, .kv_heads = 2, .head_size = 16, .max_tokens = 600, .max_rows = 64, .codec = codec};
        crumb_test::cache_problem from(shape), to(shape);
        from.fill(400);
        std::vector<std::byte> bytes(crumb::snapshot_bytes(*from.cache));
        ASSERT_TRUE(crumb::save(*from.cache, bytes).ok());
        const auto with = [&](std::size_t at, auto value) {
            auto copy = bytes;
            std::memcpy(copy.data() + at, &value, sizeof value);
            // Hashed as `save` does: the header, sinks and window, then part by part.
            crumb::kv_snapshot_header header;
            std::memcpy(&header, copy.data(), sizeof header);
            std::uint64_t hash = crumb::detail::hash_of(header);
            std::size_t place = sizeof(crumb::kv_snapshot_header);
            const auto add = [&](std::size_t size) {
                hash = crumb::kv_hash(std::span(copy).subspan(place, size), hash);
                place += size;
            };
            add(from.cache->fp16_rows().size());
            from.cache->for_each_part(from.cache->parts_for(400, from.cache->coded()),
                                      [&](std::size_t p, std::size_t l, std::size_t h, bool keys) {
                                          add(from.cache->part(p, l, h, keys).size());
                                      });
            EXPECT_EQ(place, copy.size());
            std::memcpy(copy.data() + offsetof(crumb::kv_snapshot_header, content), &hash, sizeof hash);
            return crumb::restore(*to.cache, copy);
        };
        EXPECT_TRUE(
            with(sizeof(crumb::kv_snapshot_header) + from.cache->fp16_rows().size(), bytes[0]).code() !=
            errc::corrupt);
        const std::size_t first = sizeof(crumb::kv_snapshot_header),
                          parts = first + from.cache->fp16_rows().size();
        const bool floats = codec.kind == crumb::kv_kind::f32;
        const auto bad = floats ? with(parts + 8, nan) : with(parts + 8, crumb::to_half(nan));
        // Plain product quantization has nothing but codes in its parts.
        const bool only_codes =
            crumb::kv_part_layout(codec, 16, true).codes_offset() == 0 && !codec.is_uncoded();
        EXPECT_EQ(bad.code(), only_codes ? errc::ok : errc::not_finite) << bad.message();
        if (!codec.is_uncoded()) {
            EXPECT_EQ(with(first + 2, crumb::to_half(infinity)).code(), errc::not_finite);
        }
    }
}

} // namespace
} // namespace test_invariants
