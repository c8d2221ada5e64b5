// crumb-lab: what the methods of crumb-lm are compared with.
#include "cli/arguments.hpp"
#include "cli/program.hpp"
#include "lab/commands.hpp"

#include <string>

namespace {

int run(int argc, char** argv) {
    CLI::App app{"Compares what crumb-lm does to a model with what else could be done"};
    lm::begin_arguments(app, "crumb-lab");

    lm::lab::schedules_options t;
    auto* schedules =
        app.add_subcommand("schedules", "Compare schedules of precision and their controls on a text");
    lm::add_run(schedules, t);
    schedules
        ->add_option("--text", t.text,
                     "Text file to take prompts from, or 'self': a text that the model writes")
        ->required();
    lm::add_study(schedules, t.study);
    schedules->add_option(
        "--calibrate", t.calibrate,
        "With --against: text file (or 'self') that dense-and-sparse decompositions at equal "
        "bits are calibrated on; without it there are none");
    schedules->add_option("--seed", t.seed, "Seed of random schedules and of the bootstrap")
        ->check(lm::natural)
        ->capture_default_str();
    schedules->add_option("--only", t.only,
                          "Measure the first schedule and those whose names have this in them; a|b: either");
    schedules->add_flag("--features", t.features,
                        "Instead: how well a learned scheduler does on caches and activations of each layer");
    schedules->add_option("--csv", t.csv, "File to write: divergence by position");

    lm::lab::prune_options p;
    auto* prune =
        app.add_subcommand("prune", "Measure how well a model predicts a text without some weights");
    prune->add_option("model", p.model, "GGUF file")->required();
    prune
        ->add_option_function<std::string>(
            "--by",
            [&p](const std::string& text) {
                const auto pruning = lm::lab::pruning::parse(text);
                if (!pruning)
                    throw CLI::ValidationError(pruning.message());
                p.how = *pruning;
            },
            "Feed-forward weights that become 0: magnitude, wanda or ria, with :<share>")
        ->required();
    prune->add_option(
        "--calibrate", p.calibrate,
        "Text file to measure inputs on for wanda and ria, or 'self': a text that the model writes");
    prune->add_option("--text", p.text, "File with the text")->required();
    prune->add_option("--ctx", p.ctx, "Tokens per window; the second half is scored")
        ->check(lm::natural)
        ->capture_default_str();
    prune->add_option("--chunks", p.chunks, "Most windows; 0 takes all")
        ->check(lm::natural)
        ->capture_default_str();
    prune->add_option("--against", p.against,
                      "Model to compare with: run in full precision with an f16 cache");
    lm::add_threads(prune, p.threads);
    prune->add_flag("--json", p.json, "Print JSON on stdout");

    lm::lab::outliers_options u;
    auto* outliers = app.add_subcommand(
        "outliers", "Measure what channels of large numbers do to uniform codes and to product codes");
    outliers->add_option("--seed", u.seed, "Seed of the numbers")->check(lm::natural)->capture_default_str();
    outliers->add_flag("--json", u.json, "Print JSON on stdout");

    if (const auto ended = lm::parse_arguments(app, argc, argv))
        return *ended;
    lm::limit_threads(t.threads);
    lm::limit_threads(p.threads);
    return lm::exit_code(schedules->parsed()  ? lm::lab::schedules(t)
                         : outliers->parsed() ? lm::lab::compare_outliers(u)
                                              : lm::lab::prune(p));
}

} // namespace

int main(int argc, char** argv) {
    return lm::run_program("crumb-lab", [&] { return run(argc, argv); });
}
