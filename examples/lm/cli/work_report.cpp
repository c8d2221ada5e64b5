#include "cli/work_report.hpp"

namespace lm {

void work_line::operator()(const work_meter& meter) {
    const auto now = clock::now();
    // A terminal need not show more.
    if (!shown_ || now - last_ < std::chrono::milliseconds(100))
        return;
    last_ = now;
    std::fprintf(stderr, "\r%s: %.0f %%, %.0f s left \x1b[K",
                 std::string(work_names[static_cast<std::size_t>(meter.now())]).c_str(),
                 100 * meter.share_done(), meter.seconds_left());
    std::fflush(stderr);
    dirty_ = true;
}

void work_line::clear() {
    if (dirty_)
        std::fputs("\r\x1b[K", stderr);
    dirty_ = false;
}

namespace {

/// Calls f(name, seconds) for all that has taken time.
template <class F>
void for_each_work(const work_meter& meter, double other, F&& f) {
    for (std::size_t i = 0; i < works; ++i)
        if (const double seconds = meter.seconds(static_cast<work_kind>(i)); seconds > 0)
            f(std::string(work_names[i]), seconds);
    f(std::string("other"), other);
}

} // namespace

void print_work(const work_meter& meter, double other) {
    const double all = meter.seconds() + other;
    print("%-24s %9s %7s\n", "stage", "seconds", "share");
    for_each_work(meter, other, [&](const std::string& name, double seconds) {
        print("%-24s %9.2f %5.1f %%\n", name.c_str(), seconds, all > 0 ? 100 * seconds / all : 0.0);
    });
}

json_object work_object(const work_meter& meter, double other) {
    json_object out;
    for_each_work(meter, other, [&](const std::string& name, double seconds) { out.put(name, seconds); });
    return out;
}

} // namespace lm
