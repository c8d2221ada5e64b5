// Options of the command line that the commands of a program, and the programs, share.
#pragma once

#include "cli/commands.hpp"

#include <CLI/CLI.hpp>

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lm {

/// The names of an enumeration's values from `first` on.
template <class Enum>
std::map<std::string, Enum> choices(std::span<const std::string_view> names, std::size_t first = 0) {
    std::map<std::string, Enum> out;
    for (std::size_t i = first; i < names.size(); ++i)
        out.emplace(std::string(names[i]), static_cast<Enum>(i));
    return out;
}

/// An option whose value is one of a list of names; another value is an error that prints the list, unless
/// `first` says something better about it.
template <class Enum>
CLI::Option* add_choice(CLI::App* app, const std::string& name, Enum& value,
                        const std::map<std::string, Enum>& names, const std::string& help,
                        const CLI::Validator& first = CLI::Validator("")) {
    std::vector<std::string> valid;
    std::string shown;
    for (const auto& [text, each] : names) {
        valid.push_back(text);
        if (each == value)
            shown = text;
    }
    // A value that the checks refuse does not get here.
    return app
        ->add_option_function<std::string>(
            name, [&value, names](const std::string& text) { value = names.at(text); }, help)
        ->check(first)
        ->check(CLI::IsMember(valid))
        ->default_str(shown);
}

/// CLI11 wraps negative numbers around where an option is unsigned.
inline const CLI::Validator natural(
    [](const std::string& text) {
        const bool is_one =
            !text.empty() && text.find_first_not_of("0123456789") == std::string::npos && text.size() < 20;
        return is_one ? std::string() : "'" + text + "' is not a number from 0 on";
    },
    "", "natural");

/// A whole number within a range; CLI11's own check says what it is in other words than everything else.
CLI::Validator whole(std::size_t least, std::size_t most);
/// A path of a file to read or to write.
inline const CLI::Validator file_name(
    [](const std::string& text) {
        return text.empty() ? std::string("the name of a file is empty") : std::string();
    },
    "", "file_name");

/// `--kv`.
CLI::Option* add_kv(CLI::App* app, kv_type& to);
/// `--threads`; `limit_threads` belongs to it.
void add_threads(CLI::App* app, std::size_t& to);
/// More threads than cores would wait for each other most of the time.
void limit_threads(std::size_t& threads);
/// What all commands that run a model share.
void add_run(CLI::App* app, common_options& o);
/// What schedules of precision are measured on.
void add_study(CLI::App* app, schedule_options& o);

/// Prepares a program's options: version, width, how errors are shown. `name` as it prints itself.
void begin_arguments(CLI::App& app, const std::string& name);
/// Refuses options that were given for a command that has no use for them: `why` says for what they are.
void refuse_given(const CLI::App& command, std::initializer_list<const char*> options,
                  const std::string& why);
/// Parses, and refuses options that are given twice and words that mean nothing; `check` may throw
/// CLI::ValidationError. Gives an exit code if the program ends here: after help, the version or an error,
/// which have been printed.
std::optional<int> parse_arguments(CLI::App& app, int argc, char** argv,
                                   const std::function<void()>& check = {});

} // namespace lm
