// Files that are written whole or not at all, and what is left of them after a signal.
#include "file_bytes.hpp"
#include "gguf/mapped_file.hpp"
#include "gguf/output_file.hpp"
#include "gguf/signals.hpp"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>

#include <fcntl.h>

using lm::output_file;
namespace fs = std::filesystem;

namespace test_output_file {
namespace {

/// A directory of its own for every test.
class directory {
  public:
    directory() : path_(fs::temp_directory_path() / ("crumb-output-" + std::to_string(::getpid()))) {
        fs::remove_all(path_);
        fs::create_directories(path_);
    }
    directory(const directory&) = delete;
    directory& operator=(const directory&) = delete;
    ~directory() { fs::remove_all(path_); }

    std::string operator/(std::string_view name) const { return path_ / name; }
    std::ptrdiff_t files() const { return std::distance(fs::directory_iterator(path_), {}); }

  private:
    fs::path path_;
};

void put(const std::string& path, std::string_view text) { std::ofstream(path) << text; }

std::string text_of(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

crumb::status write(const std::string& path, std::string_view text) {
    auto file = output_file::create(path);
    if (!file)
        return file.error();
    file->write(text);
    return file->commit();
}

mode_t mode_of(const std::string& path) {
    struct stat info = {};
    EXPECT_EQ(::lstat(path.c_str(), &info), 0) << path;
    return info.st_mode & 07777;
}

void expect_error(const crumb::status& s, std::initializer_list<std::string_view> parts) {
    EXPECT_FALSE(s.ok());
    const std::string message = s.message();
    for (const std::string_view part : parts)
        EXPECT_NE(message.find(part), message.npos) << "no '" << part << "' in '" << message << "'";
}

/// Files of this process cannot become larger than this while the object lives.
class size_limit {
  public:
    explicit size_limit(rlim_t bytes) {
        ::getrlimit(RLIMIT_FSIZE, &before_);
        const rlimit now = {bytes, before_.rlim_max};
        ::setrlimit(RLIMIT_FSIZE, &now);
        handler_ = std::signal(SIGXFSZ, SIG_IGN);
    }
    size_limit(const size_limit&) = delete;
    size_limit& operator=(const size_limit&) = delete;
    ~size_limit() {
        ::setrlimit(RLIMIT_FSIZE, &before_);
        std::signal(SIGXFSZ, handler_);
    }

  private:
    rlimit before_ = {};
    void (*handler_)(int) = nullptr;
};

TEST(OutputFile, AppearsWhole) {
    const directory in;
    const std::string path = in / "out.csv";
    {
        auto file = output_file::create(path);
        ASSERT_TRUE(file.ok()) << file.message();
        file->write("a,b\n");
        file->print("%d,%s\n", 7, std::string(3000, 'x').c_str());
        const std::string large(100000, 'y');
        file->write(large);
        file->write("end\n");
        EXPECT_FALSE(fs::exists(path));
        output_file moved = std::move(*file);
        EXPECT_TRUE(moved.commit().ok());
        EXPECT_EQ(text_of(path), "a,b\n7," + std::string(3000, 'x') + "\n" + large + "end\n");
    }
    {
        auto file = output_file::create(path);
        ASSERT_TRUE(file.ok()) << file.message();
        file->write("never finished");
    }
    EXPECT_EQ(text_of(path).substr(0, 4), "a,b\n");
    EXPECT_EQ(in.files(), 1);
}

TEST(OutputFile, LeftoversAreInNobodysWay) {
    const directory in;
    const std::string path = in / "model.gguf";
    put(path + ".tmp" + std::to_string(::getpid()), "of a process that was killed");
    put(path + ".tmp", "another");
    auto first = output_file::create(path), second = output_file::create(path);
    ASSERT_TRUE(first.ok()) << first.message();
    ASSERT_TRUE(second.ok()) << second.message();
    EXPECT_EQ(in.files(), 4);
    first->write("first");
    second->write("second");
    EXPECT_TRUE(second->commit().ok());
    EXPECT_EQ(text_of(path), "second");
    EXPECT_TRUE(first->commit().ok());
    EXPECT_EQ(text_of(path), "first");
    EXPECT_EQ(in.files(), 3);
    // As long a name as a file can have.
    const std::string longest = in / std::string(255, 'n');
    EXPECT_TRUE(write(longest, "long").ok());
    EXPECT_EQ(text_of(longest), "long");
    expect_error(write(in / std::string(256, 'n'), "longer"), {"cannot create", "name too long"});
}

TEST(OutputFile, LinksStayLinks) {
    const directory in;
    fs::create_directory(in / "sub");
    put(in / "sub/target", "old");
    fs::create_symlink("sub/target", in / "link");
    fs::create_symlink(in / "link", in / "link to link");
    EXPECT_TRUE(write(in / "link to link", "new").ok());
    EXPECT_TRUE(fs::is_symlink(in / "link"));
    EXPECT_TRUE(fs::is_symlink(in / "link to link"));
    EXPECT_FALSE(fs::is_symlink(in / "sub/target"));
    EXPECT_EQ(text_of(in / "sub/target"), "new");

    fs::create_symlink("sub/later", in / "dangling");
    EXPECT_TRUE(write(in / "dangling", "made").ok());
    EXPECT_TRUE(fs::is_symlink(in / "dangling"));
    EXPECT_EQ(text_of(in / "sub/later"), "made");

    fs::create_symlink("b", in / "a");
    fs::create_symlink("a", in / "b");
    expect_error(write(in / "a", "x"), {"/a: cannot create", "symbolic links"});
    fs::create_symlink("nowhere/at all", in / "lost");
    expect_error(write(in / "lost", "x"), {"lost: cannot create", "No such file"});
}

TEST(OutputFile, RefusesWhatIsNoFile) {
    const directory in;
    fs::create_directory(in / "directory");
    ASSERT_EQ(::mkfifo((in / "pipe").c_str(), 0600), 0);
    const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    (in / "socket").copy(address.sun_path, sizeof address.sun_path - 1);
    ASSERT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    fs::create_symlink("pipe", in / "link");
    fs::create_symlink("/dev/null", in / "null");
    expect_error(write(in / "directory", "x"), {"directory: is no file to write to", "it is a directory"});
    expect_error(write(in / "pipe", "x"), {"pipe: is no file to write to", "it is a pipe"});
    expect_error(write(in / "link", "x"), {"link: is no file to write to", "it is a pipe"});
    expect_error(write(in / "socket", "x"), {"socket: is no file to write to", "it is a socket"});
    expect_error(write(in / "null", "x"), {"null: is no file to write to", "it is a device"});
    expect_error(write("/dev/null", "x"), {"/dev/null: is no file to write to", "it is a device"});
    expect_error(write("", "x"), {"name of the file to write is empty"});
    expect_error(write(in / "new/", "x"), {"new/: cannot create", "directory"});
    expect_error(write(in / "no/where", "x"), {"no/where: cannot create", "No such file"});
    expect_error(write(in / "pipe/x", "x"), {"pipe/x: cannot create", "Not a directory"});
    expect_error(write(in / (std::string(100, 'x') + "/y"), "x"),
                 {"...xxx", "cannot create", "No such file"});
    ::close(socket);
    EXPECT_TRUE(fs::is_fifo(in / "pipe"));
    EXPECT_TRUE(fs::is_socket(in / "socket"));
    EXPECT_TRUE(fs::is_character_file("/dev/null"));
    EXPECT_EQ(in.files(), 5);
}

TEST(OutputFile, KeepsPermissions) {
    const directory in;
    const mode_t mask = ::umask(026);
    EXPECT_TRUE(write(in / "new", "x").ok());
    EXPECT_EQ(mode_of(in / "new"), 0640u);
    for (const mode_t mode : {0600u, 0755u, 0666u}) {
        ASSERT_EQ(::chmod((in / "new").c_str(), mode), 0);
        EXPECT_TRUE(write(in / "new", "y").ok());
        EXPECT_EQ(mode_of(in / "new"), mode);
    }
    ::umask(mask);
    ASSERT_EQ(::chmod((in / "new").c_str(), 0444), 0);
    if (::geteuid() != 0) // root may write anything
        expect_error(write(in / "new", "z"), {"new: cannot write", "Permission denied"});
}

TEST(OutputFile, AFailureLeavesTheOldFile) {
    const directory in;
    const std::string path = in / "out";
    put(path, "old");
    {
        const size_limit limit(1000);
        auto file = output_file::create(path);
        ASSERT_TRUE(file.ok()) << file.message();
        file->write(std::string(100000, 'x'));
        EXPECT_FALSE(file->ok());
        file->write("and more");
        expect_error(file->commit(), {"out: cannot write", "File too large"});
        // What is only collected fails as well.
        expect_error(write(path, std::string(1001, 'x')), {"out: cannot write", "File too large"});
        EXPECT_TRUE(write(in / "small", std::string(1000, 'x')).ok());

        lm::gguf_writer writer;
        const std::uint64_t dims[] = {1000};
        const lm::test::bytes data = lm::test::ramp(4000);
        writer.add_tensor("t", lm::ggml_type::f32, dims, data);
        std::size_t calls = 0;
        expect_error(writer.write(path, [&](std::size_t, std::size_t) { ++calls; }),
                     {"out: cannot write", "File too large"});
        EXPECT_EQ(calls, 1u);
    }
    EXPECT_EQ(text_of(path), "old");
    EXPECT_EQ(in.files(), 2);
}

TEST(OutputFile, AModelCanReplaceItself) {
    const directory in;
    const std::string path = in / "model.gguf";
    const auto before = lm::test::small_file();
    ASSERT_TRUE(write(path, {reinterpret_cast<const char*>(before.data()), before.size()}).ok());
    const auto file = lm::gguf::open(path);
    ASSERT_TRUE(file.ok()) << file.message();
    lm::gguf_writer writer;
    writer.copy(*file, "none");
    ASSERT_TRUE(writer.write(path).ok());
    const std::string after = text_of(path);
    EXPECT_TRUE(std::equal(before.begin(), before.end(), std::as_bytes(std::span(after)).begin(),
                           std::as_bytes(std::span(after)).end()));
}

TEST(OutputFile, ChecksBeforeTheWork) {
    const directory in;
    put(in / "old", "old");
    EXPECT_TRUE(lm::check_outputs({in / "old", "", in / "new", ""}).ok());
    EXPECT_EQ(in.files(), 1);
    EXPECT_EQ(text_of(in / "old"), "old");
    expect_error(lm::check_outputs({in / "old", "/dev/null"}), {"/dev/null", "it is a device"});
    expect_error(lm::check_outputs({in / "new", in / "./new"}), {"./new: two files would have this name"});
    fs::create_symlink("old", in / "link");
    expect_error(lm::check_outputs({in / "old", in / "link"}), {"link: two files would have this name"});
    EXPECT_EQ(in.files(), 2);
}

/// What a program has at hand when the signal comes.
output_file half_written(const std::string& path) {
    lm::handle_signals();
    auto file = output_file::create(path);
    file->write(std::string(100000, 'x'));
    EXPECT_TRUE(file->ok());
    return std::move(*file);
}

TEST(SignalsDeathTest, TemporariesVanish) {
    const directory in;
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
        EXPECT_EXIT(
            {
                std::signal(number, SIG_DFL);
                const output_file file = half_written(in / "out");
                std::raise(number);
            },
            testing::KilledBySignal(number), "");
        EXPECT_EQ(in.files(), 0) << number;
    }
    // One that another thread gets.
    EXPECT_EXIT(
        {
            const output_file file = half_written(in / "out");
            std::thread([] { std::raise(SIGTERM); }).join();
            ::pause();
        },
        testing::KilledBySignal(SIGTERM), "");
    EXPECT_EQ(in.files(), 0);
    // One that is ignored, as by nohup.
    EXPECT_EXIT(
        {
            std::signal(SIGHUP, SIG_IGN);
            output_file file = half_written(in / "out");
            std::raise(SIGHUP);
            std::_Exit(file.commit() ? 7 : 8);
        },
        testing::ExitedWithCode(7), "");
    EXPECT_EQ(in.files(), 1);
}

TEST(SignalsDeathTest, AShortenedFileIsNamed) {
    const directory in;
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const auto victim = [&] {
        put(in / "victim", std::string(2 * page + 10, 'v'));
        return in / "victim";
    };
    EXPECT_EXIT(
        {
            std::string error;
            auto gone = lm::mapped_file::open(victim(), error);
            gone.reset();
            auto file = lm::mapped_file::open(victim(), error);
            const lm::mapped_file moved = std::move(*file);
            const output_file out = half_written(in / "out");
            fs::resize_file(in / "victim", 5);
            const volatile std::byte* bytes = moved.bytes().data();
            std::thread([&] { std::_Exit(static_cast<int>(bytes[2 * page + 9])); }).join();
        },
        testing::ExitedWithCode(1), "^crumb-lm: .*/victim was shortened while it was read\n$");
    EXPECT_EQ(in.files(), 1);
    EXPECT_EXIT(
        {
            const output_file out = half_written(in / "out");
            const int file = ::open(victim().c_str(), O_RDONLY);
            void* const address = ::mmap(nullptr, page, PROT_READ, MAP_PRIVATE, file, 0);
            fs::resize_file(in / "victim", 0);
            std::_Exit(*static_cast<volatile char*>(address));
        },
        testing::KilledBySignal(SIGBUS), "");
    EXPECT_EXIT(
        {
            std::string error;
            const auto file = lm::mapped_file::open(victim(), error);
            lm::handle_signals();
            std::raise(SIGBUS);
        },
        testing::KilledBySignal(SIGBUS), "");
}

} // namespace
} // namespace test_output_file
