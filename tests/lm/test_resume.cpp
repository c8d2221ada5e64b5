// Quantizing that is stopped and gone on with.
#include "cli/commands.hpp"
#include "gguf/shown_text.hpp"
#include "gguf/word_hash.hpp"
#include "tiny_model.hpp"
#include "train/partial_file.hpp"
#include "train/work_meter.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <sys/resource.h>

namespace test_resume {
namespace {

using namespace lm::test;
using lm::weight_type;

bytes content(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    const std::string all{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    const auto raw = std::as_bytes(std::span(all));
    return {raw.begin(), raw.end()};
}

void write(const std::string& path, std::span<const std::byte> all) {
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    out.write(reinterpret_cast<const char*>(all.data()), static_cast<std::streamsize>(all.size()));
}

// ---- the file of records --------------------------------------------------------------------------------

class PartialFile : public testing::Test {
  protected:
    ~PartialFile() override { EXPECT_TRUE(lm::partial_file::remove(path()).ok()); }
    std::string path() const { return beside_.path() + ".partial"; }
    /// The records that are found, "kind:bytes" each.
    std::vector<std::string> read(const std::string& of = "1") {
        found_.clear();
        auto file = lm::partial_file::open(
            path(), {{"model", of}, {"--sweeps", "3"}},
            [&](std::uint32_t kind, std::span<const std::byte> r) {
                found_.push_back(std::to_string(kind) + ":" +
                                 std::string(reinterpret_cast<const char*>(r.data()), r.size()));
                return crumb::status();
            });
        error_ = file.message();
        if (file)
            file_ = std::move(*file);
        return found_;
    }
    void append(std::uint32_t kind, std::string_view text) {
        const auto s = file_.append(kind, std::as_bytes(std::span(text)));
        EXPECT_TRUE(s.ok()) << s.message();
    }

    const temporary_file beside_{bytes()};
    lm::partial_file file_;
    std::string error_;
    std::vector<std::string> found_;
};

TEST_F(PartialFile, KeepsRecords) {
    EXPECT_TRUE(read().empty());
    EXPECT_FALSE(std::filesystem::exists(path())) << "there is nothing to keep yet";
    append(1, "one");
    append(2, "");
    file_ = {};
    EXPECT_EQ(read(), (std::vector<std::string>{"1:one", "2:"}));
    append(3, "three");
    file_ = {};
    EXPECT_EQ(read(), (std::vector<std::string>{"1:one", "2:", "3:three"}));
}

TEST_F(PartialFile, DropsWhatIsNotWhole) {
    read();
    append(1, "one");
    append(2, "two");
    const bytes whole = content(path());
    append(3, "three");
    file_ = {};
    const bytes all = content(path());
    for (std::size_t size = whole.size(); size < all.size(); ++size) {
        write(path(), std::span(all).first(size));
        ASSERT_EQ(read(), (std::vector<std::string>{"1:one", "2:two"})) << size;
        file_ = {};
        ASSERT_EQ(content(path()), whole) << size;
    }
    // A disk that lost power may have written zeros.
    for (std::size_t at = whole.size(); at < all.size(); ++at) {
        bytes damaged = all;
        damaged[at] ^= std::byte{0x10};
        write(path(), damaged);
        ASSERT_EQ(read(), (std::vector<std::string>{"1:one", "2:two"})) << at;
        file_ = {};
    }
    write(path(), whole);
    read();
    append(4, "four");
    file_ = {};
    EXPECT_EQ(read().back(), "4:four");
}

TEST_F(PartialFile, AFullDiskLeavesWhatThereIs) {
    read();
    append(1, "one");
    const bytes whole = content(path());
    rlimit before = {};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit little{whole.size() + 20, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
    const auto s = file_.append(2, ramp(10));
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    (void)std::signal(SIGXFSZ, ignored);
    EXPECT_EQ(s.message(), lm::shown_path(path()) + ": cannot write: File too large");
    EXPECT_EQ(content(path()), whole);
    append(3, "three");
    file_ = {};
    EXPECT_EQ(read(), (std::vector<std::string>{"1:one", "3:three"}));
}

TEST_F(PartialFile, RefusesWhatBelongsToOthers) {
    read();
    append(1, "one");
    const std::string shown = lm::shown_path(path());
    // This process has it open: another one is as a second descriptor.
    lm::partial_file first = std::move(file_);
    EXPECT_TRUE(read().empty());
    EXPECT_EQ(error_, shown + ": another process is at work on it");
    first = {};
    EXPECT_TRUE(read("2").empty());
    EXPECT_EQ(error_, shown + " is of a run with another model (1, now 2): remove the file "
                              "to begin anew, or name another output");
    write(path(), ramp(100));
    EXPECT_TRUE(read().empty());
    EXPECT_EQ(error_, shown + " is no partial file of this version of crumb-lm: remove it to begin anew");
    EXPECT_EQ(content(path()), ramp(100));
}

// ---- quantizing -----------------------------------------------------------------------------------------

enum class way { towards, by_itself, formats, nested, nested_by_itself, self };

class Resume : public testing::TestWithParam<way> {
  protected:
    ~Resume() override { EXPECT_TRUE(lm::partial_file::remove(partial()).ok()); }
    lm::quantize_options options() const {
        lm::quantize_options o;
        o.model = source_.path();
        o.weights = weight_type::cb2s;
        o.vocabulary = weight_type::cb4;
        o.chunks = 3;
        o.sweeps = 1;
        o.threads = 1;
        o.json = true;
        o.out = out_.path();
        switch (GetParam()) {
        case way::towards:
            break;
        case way::by_itself:
            o.towards.reset();
            break;
        case way::formats:
            o.bits = 4;
            break;
        case way::nested_by_itself:
            o.towards.reset();
            [[fallthrough]];
        case way::nested:
            o.weights = weight_type::nested;
            break;
        case way::self:
            o.calibrate = "self";
            break;
        }
        return o;
    }
    std::string partial() const { return out_.path() + ".partial"; }
    /// Quantizes into memory, or throws behind `laps` laps of the meter.
    static bytes run(const lm::quantize_options& o, std::size_t laps = ~std::size_t{0}) {
        lm::load_options full;
        full.model = o.model;
        full.weights = weight_type::f32;
        full.activations = lm::activation_type::f32;
        full.threads = o.threads;
        auto loaded = lm::load(full, 0, 512);
        EXPECT_TRUE(loaded.ok()) << loaded.message();
        lm::quantization how = o;
        how.partial = o.out + ".partial";
        std::size_t lap = 0;
        lm::work_meter meter([&](const lm::work_meter&) {
            if (lap++ == laps)
                throw lap;
        });
        const auto made = lm::quantize_model(how, *loaded->weights, *loaded->run, {}, &meter);
        EXPECT_TRUE(made.ok()) << made.message();
        const auto all = made->file.bytes();
        EXPECT_TRUE(all.ok()) << all.message();
        return *all;
    }

    const temporary_file source_{
        tiny_model({.width = 32, .hidden = 64, .layers = 2, .heads = 2, .kv_heads = 1, .tied = true}).file()};
    const temporary_file out_{bytes()};
};

TEST_P(Resume, TheSameBytes) {
    auto o = options();
    const bytes wanted = run(o);
    const bytes partial = content(this->partial());
    ASSERT_GT(partial.size(), 1000u);
    // What is whole in the file is not made again.
    EXPECT_EQ(run(o), wanted);
    EXPECT_EQ(content(this->partial()), partial);
    // Wherever a run is killed, it leaves a part of that file. Every tenth or so will do.
    const std::string head(reinterpret_cast<const char*>(partial.data()), partial.size());
    std::size_t step = partial.size() / 11 + 1;
    for (std::size_t size = head.find("\n\n") + 2; size < partial.size(); size += step) {
        write(this->partial(), std::span(partial).first(size));
        ASSERT_EQ(run(o), wanted) << size << " of " << partial.size();
        ASSERT_EQ(content(this->partial()), partial) << size;
        o.threads = 3 - o.threads;
    }
}

TEST_P(Resume, FailuresLeaveWhatIsDone) {
    const auto o = options();
    const bytes wanted = run(o);
    const bytes partial = content(this->partial());
    ASSERT_TRUE(lm::partial_file::remove(this->partial()).ok());
    std::size_t failures = 0, kept = 0;
    for (std::size_t laps = 1;; laps += 9) {
        try {
            const bytes whole = run(o, laps);
            EXPECT_EQ(whole, wanted);
            break;
        } catch (std::size_t) {
            ++failures;
        }
        const bytes now = content(this->partial());
        ASSERT_LE(now.size(), partial.size());
        ASSERT_GE(now.size(), kept) << "what was done is there no more";
        EXPECT_TRUE(std::equal(now.begin(), now.end(), partial.begin()));
        kept = now.size();
    }
    EXPECT_GT(failures, 1u);
    EXPECT_GT(kept, 0u);
    EXPECT_EQ(content(this->partial()), partial);
}

class Command : public Resume {};

TEST_P(Command, AfterAKill) {
    const auto o = options();
    const bytes wanted = run(o);
    const auto size = content(partial()).size();
    ASSERT_TRUE(lm::partial_file::remove(partial()).ok());
    // In a process of its own, once there is half of the file.
    EXPECT_EXIT(
        {
            lm::load_options full;
            full.model = o.model;
            full.weights = weight_type::f32;
            full.activations = lm::activation_type::f32;
            full.threads = 1;
            auto loaded = lm::load(full, 0, 512);
            lm::quantization how = o;
            how.partial = partial();
            lm::work_meter meter([&](const lm::work_meter&) {
                std::error_code none;
                const auto now = std::filesystem::file_size(how.partial, none);
                if (!none && now > size / 2)
                    std::raise(SIGKILL);
            });
            (void)lm::quantize_model(how, *loaded->weights, *loaded->run, {}, &meter);
        },
        testing::KilledBySignal(SIGKILL), "");
    const auto left = std::filesystem::file_size(partial());
    EXPECT_GT(left, size / 2);
    EXPECT_LT(left, size);
    // The command takes it, and removes it in the end.
    testing::internal::CaptureStdout();
    const auto done = lm::quantize(o);
    (void)testing::internal::GetCapturedStdout();
    ASSERT_TRUE(done.ok()) << done.message();
    EXPECT_EQ(content(o.out), wanted);
    EXPECT_FALSE(std::filesystem::exists(partial()));
}

TEST_P(Command, OtherOptionsAreRefused) {
    auto o = options();
    run(o);
    const bytes before = content(partial());
    o.sweeps = 2;
    const std::string message = lm::quantize(o).message();
    EXPECT_NE(message.find(" is of a run with another --sweeps (1, now 2): remove the file to "
                           "begin anew, or name another output"),
              std::string::npos)
        << message;
    o.sweeps = 1;
    const temporary_file other(
        tiny_model({.width = 32, .hidden = 64, .layers = 3, .heads = 2, .kv_heads = 1, .tied = true}).file());
    o.model = other.path();
    const std::string model = lm::quantize(o).message();
    EXPECT_NE(model.find("with another model ("), std::string::npos) << model;
    EXPECT_EQ(content(partial()), before);
}

class Curves : public Resume {
  protected:
    ~Curves() override { EXPECT_TRUE(lm::partial_file::remove(curves()).ok()); }
    std::string curves() const { return out_.path() + ".curves"; }
    /// What the command writes, or its error.
    bytes written(const lm::quantize_options& o) {
        testing::internal::CaptureStdout();
        const auto done = lm::quantize(o);
        (void)testing::internal::GetCapturedStdout();
        error_ = done.message();
        return done ? content(o.out) : bytes();
    }
    std::string error_;
};

TEST_P(Curves, ServeOtherSizes) {
    auto o = options(), with = o;
    with.curves = curves();
    const bytes first = written(o);
    ASSERT_EQ(written(with), first) << error_;
    const bytes measured = content(curves());
    o.bits = with.bits = 3;
    const bytes second = written(o);
    ASSERT_NE(second, first);
    EXPECT_EQ(written(with), second) << error_;
    EXPECT_EQ(content(curves()), measured);
    // What is not whole is measured again.
    write(curves(), std::span(measured).first(measured.size() - 1));
    EXPECT_EQ(written(with), second) << error_;
    EXPECT_EQ(content(curves()), measured);
    with.sweeps = 2;
    EXPECT_TRUE(written(with).empty());
    EXPECT_NE(error_.find(" is of a run with another --sweeps (1, now 2): remove the file to begin anew, or "
                          "name another one"),
              std::string::npos)
        << error_;
    with.bits.reset();
    EXPECT_TRUE(written(with).empty());
    EXPECT_EQ(error_, "--curves " + curves() + ": formats are chosen with --bits or --size only");
}

// Whoever writes such a file also writes its checksum.
TEST_P(Curves, DamagedTablesAreRefused) {
    auto o = options();
    o.curves = curves();
    ASSERT_FALSE(written(o).empty()) << error_;
    const bytes all = content(curves());
    const std::string_view text(reinterpret_cast<const char*>(all.data()), all.size());
    const std::size_t begin = text.find("\n\n") + 2;
    const auto number = [&](std::size_t at) {
        std::uint64_t n = 0;
        std::memcpy(&n, all.data() + at, sizeof n);
        return static_cast<std::size_t>(n);
    };
    // A record: kind and size; in it the number of tables, then name and entries of each with their lengths.
    const std::size_t record = begin + 16, size = number(begin + 8), first = record + 8;
    const std::size_t entries = first + 8 + number(first);
    const std::size_t rest = entries + 8 + number(entries);
    ASSERT_GT(number(record), 0u);
    const auto with_entries = [&](std::size_t count) {
        bytes changed(all.begin() + std::ptrdiff_t(record), all.begin() + std::ptrdiff_t(entries + 8));
        std::memcpy(changed.data() + (entries - record), &count, sizeof count);
        changed.resize(changed.size() + count, std::byte{1});
        changed.insert(changed.end(), all.begin() + std::ptrdiff_t(rest),
                       all.begin() + std::ptrdiff_t(record + size));
        return changed;
    };
    bytes fewer(all.begin() + std::ptrdiff_t(record), all.begin() + std::ptrdiff_t(record + 8));
    const std::uint64_t left = number(record) - 1;
    std::memcpy(fewer.data(), &left, sizeof left);
    fewer.insert(fewer.end(), all.begin() + std::ptrdiff_t(rest),
                 all.begin() + std::ptrdiff_t(record + size));
    for (const bytes& changed : {with_entries(0), with_entries(3), with_entries(1000), fewer}) {
        bytes file(all.begin(), all.begin() + std::ptrdiff_t(begin));
        const std::uint64_t head[] = {number(begin), changed.size()};
        lm::word_hash h;
        h.add(head[0]);
        h.add(std::span<const std::byte>(changed));
        const std::uint64_t sum = h.value();
        const std::span<const std::byte> parts[] = {std::as_bytes(std::span(head)), changed,
                                                    std::as_bytes(std::span(&sum, 1))};
        for (const auto& part : parts)
            file.insert(file.end(), part.begin(), part.end());
        write(curves(), file);
        EXPECT_TRUE(written(o).empty());
        EXPECT_NE(error_.find("a record is damaged"), std::string::npos) << error_;
    }
}

std::string name_of(const testing::TestParamInfo<way>& which) {
    constexpr const char* names[] = {"Towards", "ByItself", "Formats", "Nested", "NestedByItself", "Self"};
    return names[static_cast<std::size_t>(which.param)];
}
INSTANTIATE_TEST_SUITE_P(All, Resume,
                         testing::Values(way::towards, way::by_itself, way::formats, way::nested,
                                         way::nested_by_itself, way::self),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Resume, Command, testing::Values(way::towards), name_of);
INSTANTIATE_TEST_SUITE_P(Resume, Curves, testing::Values(way::formats), name_of);

} // namespace
} // namespace test_resume
