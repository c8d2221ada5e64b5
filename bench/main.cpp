// crumb-bench: ceilings of this machine, the plain baseline, crumb's products, attention, the cache's
// encoding and feed-forward networks, in one run.
#include "rows.hpp"

#include <cstdio>
#include <fstream>
#include <ostream>
#include <set>
#include <string_view>

namespace crumb::bench {
namespace {

std::string cpu_model() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);)
        if (line.starts_with("model name") && line.find(": ") != std::string::npos)
            return line.substr(line.find(": ") + 2);
    std::string model;
    std::getline(std::ifstream("/sys/firmware/devicetree/base/model"), model, '\0');
    return model.empty() ? "unknown" : model;
}

std::string version() {
    return std::to_string(CRUMB_VERSION_MAJOR) + "." + std::to_string(CRUMB_VERSION_MINOR) + "." +
           std::to_string(CRUMB_VERSION_PATCH);
}

std::string isas() {
    std::string list;
    for (std::size_t i = 0; i < isa_names().size(); ++i) {
        list.append(list.empty() ? "" : " ").append(isa_names()[i]);
        list.append(isa_supported(i) ? "" : " (not on this CPU)");
    }
    return list;
}

std::string mebibytes(std::size_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

/// One line per row, with the counters in columns.
class table : public benchmark::BenchmarkReporter {
  public:
    bool ReportContext(const Context& context) override {
        std::printf("%s, %d CPUs; last-level cache %s, rows from memory rotate over %s\nISAs: %s\n",
                    cpu_model().c_str(), context.cpu_info.num_cpus, mebibytes(last_level_cache()).c_str(),
                    mebibytes(dram_working_set()).c_str(), isas().c_str());
        if (dram_working_set() <= last_level_cache())
            std::printf(
                "The cache is larger than the limit of the working set: dram rows may be served by it.\n");
        if (context.cpu_info.scaling == benchmark::CPUInfo::ENABLED)
            std::printf(
                "CPU frequency scaling is on: set the governor to performance for steadier figures.\n");
        std::printf("One thread if not said, medians. of read, of MAC, of mix: fractions of ceilings that "
                    "are measured\n"
                    "again beside the samples of each row.\n\n");
        std::printf("%-58s %13s %7s %7s %7s %7s %7s %8s\n", "row", "time", "GB/s", "of read", "GMAC/s",
                    "of MAC", "of mix", "vs plain");
        std::fflush(stdout);
        return true;
    }
    void ReportRuns(const std::vector<Run>& runs) override {
        for (const Run& run : runs)
            if (run.run_type == Run::RT_Iteration ? run.repetitions <= 1 || run.error_occurred
                                                  : run.aggregate_name == "median")
                print(run);
        std::fflush(stdout);
    }

  private:
    static void print(const Run& run) {
        const std::string& name = run.run_name.function_name;
        if (run.error_occurred) {
            std::printf("%-58s %s\n", name.c_str(), run.error_message.c_str());
            return;
        }
        std::printf("%-58s %10.1f us", name.c_str(),
                    run.GetAdjustedRealTime() * microseconds_per(run.time_unit));
        column(run, "bytes_per_second", "%8.1f", 1e-9, 8);
        column(run, "of_read_bandwidth", "%7.1f%%", 100, 8);
        column(run, "mac_per_second", "%8.1f", 1e-9, 8);
        column(run, "of_mac_peak", "%7.1f%%", 100, 8);
        column(run, "of_mix", "%7.1f%%", 100, 8);
        column(run, "vs_plain", "%8.2fx", 1, 9);
        if (run.counters.find("tokens_per_second") != run.counters.end())
            column(run, "tokens_per_second", "  %.0f tokens/s", 1, 0);
        if (run.counters.find("vs_f16") != run.counters.end())
            column(run, "vs_f16", "  %.2fx f16", 1, 0);
        if (run.counters.find("vs_run") != run.counters.end())
            column(run, "vs_run", "  %.2fx run", 1, 0);
        if (run.counters.find("vs_floats") != run.counters.end())
            column(run, "vs_floats", "  %.2fx floats", 1, 0);
        if (run.counters.find("vs_parent") != run.counters.end())
            column(run, "vs_parent", ", %.2fx 4 bits", 1, 0);
        if (run.counters.find("vs_dense") != run.counters.end())
            column(run, "vs_dense", "  %.2fx dense", 1, 0);
        if (run.counters.find("vs_one_thread") != run.counters.end())
            column(run, "vs_one_thread", "  %.2fx one thread", 1, 0);
        std::printf("%s%s\n", run.report_label.empty() ? "" : "  ", run.report_label.c_str());
    }
    static void column(const Run& run, const char* counter, const char* format, double unit, int width) {
        const auto found = run.counters.find(counter);
        if (found == run.counters.end())
            std::printf("%*s", width, "");
        else
            std::printf(format, found->second.value * unit);
    }
    static double microseconds_per(benchmark::TimeUnit unit) {
        return 1e6 / benchmark::GetTimeUnitMultiplier(unit);
    }
};

/// The framework's JSON with the names of the rows as they are, without "/min_time:..." and "/manual_time".
class json : public benchmark::JSONReporter {
  public:
    void ReportRuns(const std::vector<Run>& runs) override {
        std::vector<Run> named = runs;
        for (Run& run : named) {
            const std::string name = run.run_name.function_name;
            run.run_name = {};
            run.run_name.function_name = name;
        }
        benchmark::JSONReporter::ReportRuns(named);
    }
};

/// CSV with a column for every counter that any row has, empty where a row has none of it; written at the
/// end, when all are known. The framework's ends the program at the first row whose counters differ.
class csv : public benchmark::BenchmarkReporter {
  public:
    bool ReportContext(const Context&) override { return true; }
    void ReportRuns(const std::vector<Run>& more) override {
        runs.insert(runs.end(), more.begin(), more.end());
    }
    void Finalize() override {
        std::set<std::string> counters;
        for (const Run& run : runs)
            for (const auto& counter : run.counters)
                counters.insert(counter.first);
        std::ostream& to = GetOutputStream();
        to << "name,aggregate,iterations,real_time,cpu_time,time_unit";
        for (const std::string& counter : counters)
            to << ',' << counter;
        to << ",label,error\n";
        for (const Run& run : runs)
            print(run, counters, to);
        to.flush();
    }

  private:
    static void print(const Run& run, const std::set<std::string>& counters, std::ostream& to) {
        to << quoted(run.run_name.function_name) << ',' << run.aggregate_name << ',';
        if (run.error_occurred)
            to << ",,,";
        else
            to << run.iterations << ',' << run.GetAdjustedRealTime() << ',' << run.GetAdjustedCPUTime() << ','
               << benchmark::GetTimeUnitString(run.time_unit);
        for (const std::string& counter : counters) {
            to << ',';
            if (const auto found = run.counters.find(counter); found != run.counters.end())
                to << found->second.value;
        }
        to << ',' << quoted(run.report_label) << ',' << quoted(run.error_message) << '\n';
    }
    static std::string quoted(const std::string& text) {
        std::string all = "\"";
        for (const char c : text)
            all.append(c == '"' ? "\"\"" : std::string(1, c));
        return all + '"';
    }

    std::vector<Run> runs;
};

/// The value of an option on the command line, or `otherwise`.
std::string option(int argc, char** argv, const std::string& name, const std::string& otherwise) {
    std::string value = otherwise;
    for (int i = 1; i < argc; ++i)
        if (std::string_view(argv[i]).starts_with("--" + name + "="))
            value = argv[i] + name.size() + 3;
    return value;
}

} // namespace
} // namespace crumb::bench

int main(int argc, char** argv) {
    using namespace crumb::bench;
    const std::string format = option(argc, argv, "benchmark_format", "table");
    const std::string file = option(argc, argv, "benchmark_out", "").empty()
                                 ? ""
                                 : option(argc, argv, "benchmark_out_format", "json");
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv))
        return 2;
    benchmark::AddCustomContext("crumb_version", version());
    benchmark::AddCustomContext("cpu_model", cpu_model());
    benchmark::AddCustomContext("isas", isas());
    benchmark::AddCustomContext("last_level_cache_bytes", std::to_string(last_level_cache()));
    benchmark::AddCustomContext("dram_working_set_bytes", std::to_string(dram_working_set()));
    register_ceilings();
    register_linear();
    register_dense();
    register_nested();
    register_attention();
    register_prompts();
    register_encode();
    register_ffn();
    table as_table;
    json as_json, as_json_file;
    csv as_csv, as_csv_file;
    benchmark::BenchmarkReporter *display = nullptr, *to_file = nullptr;
    if (format == "table")
        display = &as_table;
    else if (format == "json")
        display = &as_json;
    else if (format == "csv")
        display = &as_csv;
    if (file == "json")
        to_file = &as_json_file;
    else if (file == "csv")
        to_file = &as_csv_file;
    benchmark::RunSpecifiedBenchmarks(display, to_file);
    benchmark::Shutdown();
    return any_failure() ? 1 : 0;
}
