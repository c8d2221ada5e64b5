#include "cli/arguments.hpp"

#include "cli/program.hpp"
#include "cli/report.hpp"
#include "gguf/shown_text.hpp"
#include "model/option_number.hpp"

#include <crumb/config.hpp>

#include <cstdio>
#include <sstream>

namespace lm {
namespace {

/// The names of an option that is given more than once, or nothing.
std::string repeated(const CLI::App& app) {
    for (const CLI::Option* option : app.get_options())
        if (option->count() > 1)
            return option->get_name();
    return {};
}

/// The names of commands, as a message shows them.
std::string command_names(const std::vector<const CLI::App*>& commands) {
    std::string out;
    for (const CLI::App* command : commands)
        out += (out.empty() ? "" : ", ") + command->get_name();
    return out;
}

/// What is wrong with words that are neither options nor their values.
std::string unexpected(const CLI::App& app) {
    const auto given = app.get_subcommands();
    std::string words;
    for (const std::string& word : app.remaining(true))
        words += " " + shown_text(word);
    if (given.empty())
        return "there is no command" + words + "; those are " +
               command_names(std::as_const(app).get_subcommands({}));
    return given.front()->get_name() + " has no such option or argument:" + words;
}

} // namespace

CLI::Validator whole(std::size_t least, std::size_t most) {
    const std::string range = std::to_string(least) + " to " + std::to_string(most);
    return CLI::Validator(
        [=](const std::string& text) {
            std::size_t value = 0;
            const bool is_one = parse_number(text, value) && value >= least && value <= most;
            return is_one ? std::string() : "'" + text + "' is not a whole number within " + range;
        },
        "in [" + range + "]", range);
}

void refuse_given(const CLI::App& command, std::initializer_list<const char*> options,
                  const std::string& why) {
    for (const char* name : options)
        if (command.count(name) != 0)
            throw CLI::ValidationError(name, why);
}

CLI::Option* add_kv(CLI::App* app, kv_type& to) {
    return app->add_option_function<std::string>(
        "--kv",
        [&to](const std::string& text) {
            const auto kv = kv_type::parse(text);
            if (!kv)
                throw CLI::ValidationError(kv.message());
            to = *kv;
        },
        "What keys and values are kept as: f32, f16, q8_0, kivi4, kivi2, pq4, pq3, pq2, pq:<dims>x<bits>; "
        "then :sinks=S (0 to 4096), :window=W (0 to 65536), :exact, :prompts=int8, :skip=E (below 1; pq "
        "only), :limit=E (pq and kivi only), :scales=N (1 to 5; pq4, pq3 and pq2 only)");
}

void add_threads(CLI::App* app, std::size_t& to) {
    app->add_option("--threads", to, "Threads; 0 takes all cores")
        ->check(whole(0, 1024))
        ->capture_default_str();
}

void limit_threads(std::size_t& threads) {
    const std::size_t all = team::all();
    if (threads <= all)
        return;
    complain("--threads %zu: this machine runs %zu at once, %zu %s used", threads, all, all,
             all == 1 ? "is" : "are");
    threads = all;
}

void add_run(CLI::App* app, common_options& o) {
    app->add_option("model", o.model, "GGUF file")->required()->check(file_name);
    add_choice(app, "--activations", o.activations, choices<activation_type>(activation_names),
               "What quantized weights are multiplied with");
    add_kv(app, o.kv)->default_str(o.kv.name());
    add_threads(app, o.threads);
    app->add_flag("--json", o.json, "Print JSON on stdout");
}

void add_study(CLI::App* app, schedule_options& o) {
    app->add_option("--against", o.against, "Model to compare with: run in full precision with an f16 cache")
        ->check(file_name);
    app->add_option("--prompts", o.prompts, "Prompts cut from the text")
        ->check(whole(1, 1 << 20))
        ->capture_default_str();
    app->add_option("--prompt", o.prompt, "Tokens of a prompt")
        ->check(whole(1, 1 << 20))
        ->capture_default_str();
    app->add_option("--tokens", o.tokens, "Tokens to continue it with")
        ->check(whole(2, 1 << 20))
        ->capture_default_str();
    app->add_option("--low", o.low, "Bits that a learned schedule falls to; 0: one less than the highest")
        ->check(whole(0, 4))
        ->capture_default_str();
    app->add_option("--points", o.points, "Points of the grid of switch points")
        ->check(whole(2, 1024))
        ->capture_default_str();
}

void begin_arguments(CLI::App& app, const std::string& name) {
    app.require_subcommand(0, 1);
    app.get_formatter()->column_width(34);
    char version[16];
    std::snprintf(version, sizeof version, " %d.%d.%d", CRUMB_VERSION_MAJOR, CRUMB_VERSION_MINOR,
                  CRUMB_VERSION_PATCH);
    app.set_version_flag("--version", name + version);
    app.failure_message([name](const CLI::App*, const CLI::Error& e) {
        return name + ": " + e.what() + "\nRun with --help for more information.\n";
    });
}

std::optional<int> parse_arguments(CLI::App& app, int argc, char** argv, const std::function<void()>& check) {
    const auto commands = app.get_subcommands({});
    for (CLI::App* command : commands)
        for (CLI::Option* option : command->get_options())
            option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    try {
        try {
            app.parse(argc, argv);
        } catch (const CLI::ExtrasError&) {
            throw CLI::ValidationError(unexpected(app));
        }
        if (app.get_subcommands().empty())
            throw CLI::ValidationError("a command is required: " +
                                       command_names(std::as_const(app).get_subcommands({})));
        for (const CLI::App* command : commands)
            if (const std::string name = repeated(*command); !name.empty())
                throw CLI::ValidationError(name + " is given more than once");
        if (check)
            check();
    } catch (const CLI::ParseError& e) {
        std::ostringstream out, error;
        const int code = app.exit(e, out, error);
        print_text(out.str());
        std::fputs(error.str().c_str(), stderr);
        return code == 0 ? exit_code({}) : 1;
    }
    return std::nullopt;
}

} // namespace lm
