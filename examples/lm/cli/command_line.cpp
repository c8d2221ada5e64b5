#include "cli/command_line.hpp"

#include "cli/arguments.hpp"
#include "cli/program.hpp"

#include <CLI/CLI.hpp>

#include <cstdlib>
#include <map>
#include <string>

namespace {

/// CLI11's range lets NaN through.
CLI::Validator within(double least, double most, const std::string& range) {
    return CLI::Validator(
        [=](const std::string& text) {
            char* end = nullptr;
            const double value = std::strtod(text.c_str(), &end);
            const bool is_one = end != text.c_str() && *end == '\0' && value >= least && value <= most;
            return is_one ? std::string() : "'" + text + "' is not within " + range;
        },
        "in [" + range + "]", range);
}
const CLI::Validator warmth = within(0, 100, "0 to 100");
const CLI::Validator share = within(0, 1, "0 to 1");
const CLI::Validator penalty = within(0.1, 10, "0.1 to 10");

/// What `--weights` of the commands that run a model can be. Nested weights are run as they are stored.
const CLI::Validator is_run(
    [](const std::string& text) {
        return lm::nested_type::is_meant(text) ? "nested weights are made by quantize --weights "
                                                 "nested:<seed>-<parent> and run as they are "
                                                 "stored, without --weights"
                                               : std::string();
    },
    "", "is_run");
std::map<std::string, lm::weight_type> run_weights() {
    auto out = lm::choices<lm::weight_type>(lm::weight_names);
    std::erase_if(out, [](const auto& each) {
        return each.second > lm::weight_type::f32 && !lm::is_leveled(each.second) &&
               !lm::is_rounding(each.second);
    });
    return out;
}

/// What `quantize` can write; nested weights have other precisions as well.
std::map<std::string, lm::weight_type> quantized_weights() {
    auto out = run_weights();
    out.erase("stored");
    out.erase("f32");
    out.emplace("nested", lm::weight_type::nested);
    return out;
}

/// What the vocabulary's matrices become: as they are, or formats that are chosen level by level.
std::map<std::string, lm::weight_type> vocabulary_types() {
    std::map<std::string, lm::weight_type> out{{"stored", lm::weight_type::stored}};
    for (std::size_t i = 0; i < lm::weight_names.size(); ++i)
        if (const auto type = static_cast<lm::weight_type>(i);
            lm::is_leveled(type) || type == lm::weight_type::q5_0)
            out.emplace(lm::name_of(type), type);
    return out;
}

/// A number of bytes: 62400000, 62.4MB.
std::uint64_t bytes_of(const std::string& text) {
    constexpr std::pair<std::string_view, double> units[] = {{"", 1}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}};
    const std::size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
    double number = 0;
    for (const auto& [name, factor] : units)
        if (text.substr(digits) == name && CLI::detail::lexical_cast(text.substr(0, digits), number) &&
            number * factor < 1e18)
            return static_cast<std::uint64_t>(number * factor);
    throw CLI::ValidationError("--size",
                               text + " is not a number of bytes, such as 62400000, 62.4MB or 1.5GB");
}

std::string names_of(const std::map<std::string, lm::weight_type>& names) {
    std::string out;
    for (const auto& each : names)
        out += (out.empty() ? "" : ", ") + each.first;
    return out;
}

void add_precision(CLI::App* app, lm::common_options& o) {
    app->add_option_function<std::string>(
        "--precision",
        [&o](const std::string& text) {
            const auto precision = lm::precision_option::parse(text);
            if (!precision)
                throw CLI::ValidationError(precision.message());
            o.precision = *precision;
        },
        "Bits of nested weights: a number, [<prompt>/]<bits>{,<bits>@<step>}, or schedule: the file's");
}

void add_common(CLI::App* app, lm::common_options& o) {
    lm::add_run(app, o);
    lm::add_choice(app, "--weights", o.weights, run_weights(),
                   "What attention and feed-forward matrices are quantized to", is_run);
    app->add_flag("--cache", o.cache,
                  "Pack the weights into MODEL.packed, if that is not there yet, and use it as it is mapped");
    app->add_flag("--default-codebooks", o.default_codebooks,
                  "For a pq cache: codebooks that know nothing of the model, unless its file has some");
    lm::add_choice(
        app, "--ffn", o.ffn, lm::choices<lm::ffn_type>(lm::ffn_names),
        "Feed-forward networks: as they are, folded (see calibrate), or folded for single tokens only");
}

void add_sampling(CLI::App* app, lm::sampling& how) {
    app->add_option("--temperature", how.temperature, "0 takes the likeliest token")
        ->check(warmth)
        ->capture_default_str();
    app->add_option("--top-k", how.top_k, "Sample among this many; 0 takes all")
        ->check(lm::natural)
        ->capture_default_str();
    app->add_option("--top-p", how.top_p, "Sample among the likeliest that have this probability together")
        ->check(share)
        ->capture_default_str();
    app->add_option("--min-p", how.min_p,
                    "Sample among those that have this share of the likeliest's probability")
        ->check(share)
        ->capture_default_str();
    app->add_option("--repeat-penalty", how.repetition, "Divides logits of recent tokens; 1 changes nothing")
        ->check(penalty)
        ->capture_default_str();
    app->add_option("--repeat-last", how.repetition_last, "Tokens that are recent")
        ->check(lm::whole(0, 1 << 20))
        ->capture_default_str();
    app->add_option("--seed", how.seed, "Seed of the sampler")->check(lm::natural)->capture_default_str();
}

void add_format(CLI::App* app, std::string& system, std::string& format, CLI::Option* needed) {
    auto* text = app->add_option("--system", system, "The system's message, before all others");
    auto* name =
        app->add_option("--template", format,
                        "Format of the conversation instead of the file's: " + lm::chat_format::names());
    for (CLI::Option* option : {text, name})
        if (needed != nullptr)
            option->needs(needed);
}

/// What is made, and options that have no use for it.
void check_calibrate(const CLI::App& calibrate) {
    const bool kv = calibrate.count("--kv") != 0, schedule = calibrate.count("--schedule") != 0,
               ffn = calibrate.count("--ffn") != 0;
    if (!kv && !schedule && !ffn)
        throw CLI::ValidationError("calibrate",
                                   "one of --kv (codebooks for the cache), --ffn (folded networks) "
                                   "and --schedule (of precision) is required");
    if (ffn && (kv || schedule))
        throw CLI::ValidationError("--ffn", std::string("excludes ") + (kv ? "--kv" : "--schedule") +
                                                ": calibrate once more for the other");
    if (schedule || ffn)
        lm::refuse_given(calibrate, {"--share", "--errors", "--entropy"},
                         "is for codebooks of the cache (--kv)");
    if (!ffn)
        lm::refuse_given(calibrate, {"--distributions"}, "is for folded networks (--ffn)");
    if (!schedule)
        lm::refuse_given(calibrate,
                         {"--against", "--prompts", "--prompt", "--tokens", "--points", "--low", "--epsilon",
                          "--by-divergence", "--monotone"},
                         "is for schedules of precision (--schedule)");
}

} // namespace

int lm::run_command_line(int argc, char** argv) {
    CLI::App app{"Runs language models in GGUF files on crumb's kernels"};
    lm::begin_arguments(app, "crumb-lm");

    lm::generate_options g;
    auto* generate = app.add_subcommand("generate", "Continue a text");
    add_common(generate, g);
    add_precision(generate, g);
    generate->add_option("--prompt,-p", g.prompt, "Text to continue")->required();
    generate->add_option("-n", g.tokens, "Most tokens to generate")
        ->check(lm::natural)
        ->capture_default_str();
    generate->add_flag("--trace", g.trace, "Tell on stderr how blocks of the cache become codes");
    add_sampling(generate, g.how);
    auto* as_chat =
        generate->add_flag("--chat", g.chat, "The prompt is a message to a model of conversations");
    add_format(generate, g.system, g.format, as_chat);

    lm::chat_options t;
    auto* chat = app.add_subcommand("chat", "Talk with a model of conversations");
    add_common(chat, t);
    chat->add_option("-n", t.tokens, "Most tokens of an answer; 0 as many as fit")
        ->check(lm::natural)
        ->capture_default_str();
    chat->add_option("--context,--ctx", t.context, "Tokens of the conversation; 0 takes the model's")
        ->check(lm::natural)
        ->capture_default_str();
    add_sampling(chat, t.how);
    add_format(chat, t.system, t.format, nullptr);

    lm::perplexity_options p;
    auto* perplexity = app.add_subcommand("perplexity", "Measure how well a model predicts a text");
    add_common(perplexity, p);
    add_precision(perplexity, p);
    perplexity->add_option("--text", p.text, "File with the text")->required()->check(lm::file_name);
    perplexity->add_option("--ctx,--context", p.ctx, "Tokens per window; the second half is scored")
        ->check(lm::natural)
        ->capture_default_str();
    perplexity->add_option("--chunks", p.chunks, "Most windows; 0 takes all")
        ->check(lm::natural)
        ->capture_default_str();
    perplexity
        ->add_option("--against", p.against, "Model to compare with: run in full precision with an f16 cache")
        ->check(lm::file_name);

    lm::demo_options d;
    auto* demo =
        app.add_subcommand("demo", "Run the two models that come with the program and compare precisions");
    demo->add_option("--models", d.models, "Directory of the models")->check(lm::file_name);
    lm::add_threads(demo, d.threads);

    lm::bench_options b;
    auto* bench = app.add_subcommand("bench", "Measure the speed of prompts and of generation");
    add_common(bench, b);
    bench->add_option("--prompt", b.prompt, "Tokens of the prompt; 0 leaves it out")
        ->check(lm::natural)
        ->capture_default_str();
    bench->add_option("--generate", b.generate, "Tokens to generate; 0 leaves it out")
        ->check(lm::natural)
        ->capture_default_str();
    bench->add_option("--depth", b.depth, "Tokens in the cache before the measured ones")
        ->check(lm::natural)
        ->capture_default_str();
    bench->add_option("--repeat", b.repeat, "Measured runs")
        ->check(lm::whole(1, 1000))
        ->capture_default_str();
    bench->add_flag("--profile", b.profile, "Show where the time goes");

    lm::quantize_options q;
    auto* quantize = app.add_subcommand("quantize", "Write a model with quantized matrices");
    quantize->add_option("model", q.model, "GGUF file")->required()->check(lm::file_name);
    auto* weights =
        quantize
            ->add_option_function<std::string>(
                "--weights",
                [&q](const std::string& text) {
                    const auto known = quantized_weights();
                    if (const auto found = known.find(text); found != known.end()) {
                        q.weights = found->second;
                        return;
                    }
                    const bool is_nested = lm::nested_type::is_meant(text);
                    const auto nested = lm::nested_type::parse(text);
                    if (!is_nested || !nested)
                        throw CLI::ValidationError(
                            "--weights", is_nested ? nested.message()
                                                   : text + " is none of " + names_of(quantized_weights()) +
                                                         ", nested:<seed>-<parent>[:codebook|:uniform]");
                    q.weights = lm::weight_type::nested;
                    q.nested = *nested;
                },
                "What attention and feed-forward matrices become: " + names_of(quantized_weights()) +
                    ", nested:<seed>-<parent>[:codebook|:uniform] with 2 to 4 bits")
            ->default_str("cb2s");
    auto* vocabulary = lm::add_choice(quantize, "--vocabulary", q.vocabulary, vocabulary_types(),
                                      "What the embedding and the output matrix become");
    auto* bits =
        quantize
            ->add_option("--bits", q.bits,
                         "Instead of --weights and --vocabulary: formats by matrix, with so many bits per "
                         "weight of all matrices at most")
            ->check(within(0.5, 32, "0.5 to 32"));
    auto* size = quantize->add_option_function<std::string>(
        "--size", [&q](const std::string& text) { q.size = bytes_of(text); },
        "The same for a file of so many bytes at most, as 70MB");
    quantize
        ->add_option(
            "--curves", q.curves,
            "File of what every format costs, for --bits and --size: taken if it is there, else made")
        ->check(lm::file_name);
    for (CLI::Option* given : {weights, vocabulary, size})
        bits->excludes(given);
    for (CLI::Option* given : {weights, vocabulary})
        size->excludes(given);
    quantize
        ->add_option("--calibrate", q.calibrate,
                     "Text file to measure inputs on, or 'self': a text that the model writes; without it, "
                     "random tokens")
        ->check(lm::file_name);
    quantize->add_option("--chunks", q.chunks, "Windows of 512 tokens to calibrate on")
        ->check(lm::whole(1, 1 << 20))
        ->capture_default_str();
    quantize
        ->add_option_function<std::string>(
            "--towards",
            [&q](const std::string& text) {
                q.towards.reset();
                if (text == "off")
                    return;
                double towards = 0;
                if (!CLI::detail::lexical_cast(text, towards) || !(towards >= 0 && towards <= 1))
                    throw CLI::ValidationError("--towards",
                                               text + " is neither a number from 0 to 1 nor off");
                q.towards = towards;
            },
            "How far weights go towards the full model's outputs on the inputs of the quantized model, 0 to "
            "1; off: on the full model's inputs")
        ->default_str("0.5");
    quantize->add_flag("--rotate", q.rotate,
                       "Rotate the residual stream first, so that no channel of it stands out");
    quantize->add_option("--sweeps", q.sweeps, "Passes that choose every group again, given all others")
        ->check(lm::whole(0, 100))
        ->capture_default_str();
    quantize->add_option("--seed", q.seed, "Seed of the text that the model writes, and of the rotation")
        ->check(lm::natural)
        ->capture_default_str();
    lm::add_threads(quantize, q.threads);
    quantize->add_flag("--json", q.json, "Print JSON on stdout");
    quantize->add_option("--out,-o", q.out, "File to write")->required()->check(lm::file_name);

    lm::calibrate_options c;
    auto* calibrate = app.add_subcommand(
        "calibrate", "Write a model with codebooks for its cache, folded networks or a schedule");
    calibrate->add_option("model", c.model, "GGUF file")->required()->check(lm::file_name);
    lm::add_kv(calibrate, c.kv);
    calibrate
        ->add_option("--schedule", c.schedule,
                     "A schedule of precision instead: static or learned (nested weights)")
        ->check(CLI::IsMember({"static", "learned"}));
    calibrate->add_option_function<std::string>(
        "--ffn",
        [&c](const std::string& text) {
            const auto recipe = lm::ffn_recipe::parse(text);
            if (!recipe)
                throw CLI::ValidationError(recipe.message());
            c.ffn = *recipe;
        },
        "Folded feed-forward networks instead: tardis, then :coverage=C or :parameters=P, :predictor=F, "
        ":residual=R, :sound, :fold=F, :rows=R, :miss=M");
    lm::add_study(calibrate, c.study);
    calibrate->add_option("--epsilon", c.study.epsilon, "Quality that a static schedule may lose")
        ->check(within(0, 1e6, "0 to 1000000"))
        ->capture_default_str();
    calibrate->add_flag("--by-divergence", c.study.by_divergence,
                        "Quality is -KL from full precision on the text instead of Rouge-L");
    calibrate->add_flag(
        "--monotone", c.study.monotone,
        "Assume that more bits are no worse: a static schedule is found with fewer measurements");
    lm::add_choice(calibrate, "--share", c.sharing,
                   std::map<std::string, crumb::kv_sharing>{{"none", crumb::kv_sharing::none},
                                                            {"heads", crumb::kv_sharing::heads},
                                                            {"layers", crumb::kv_sharing::layers},
                                                            {"all", crumb::kv_sharing::all}},
                   "What has codebooks in common");
    lm::add_choice(calibrate, "--errors", c.errors,
                   std::map<std::string, crumb::code_errors>{{"plain", crumb::code_errors::plain},
                                                             {"weighted", crumb::code_errors::weighted},
                                                             {"turned", crumb::code_errors::turned}},
                   "How those of codes count: alike, by queries and output matrix, or so in coordinates of "
                   "their own, which tokens pay for");
    calibrate->add_option("--text", c.text, "Text file to train on, or 'self': a text that the model writes")
        ->required()
        ->check(lm::file_name);
    calibrate->add_option("--chunks", c.chunks, "Windows of 512 tokens to train on")
        ->check(lm::whole(1, 1 << 20))
        ->capture_default_str();
    calibrate->add_option("--seed", c.seed, "Seed of the text and of the training")
        ->check(lm::natural)
        ->capture_default_str();
    lm::add_threads(calibrate, c.threads);
    calibrate
        ->add_option("--entropy", c.entropy,
                     "CSV to write: bits that uniform codes of channels carry, and the codebooks' codes")
        ->check(lm::file_name);
    calibrate
        ->add_option("--distributions", c.distributions,
                     "CSV to write: inputs and errors of the neurons that are folded")
        ->check(lm::file_name);
    calibrate->add_option("--out,-o", c.out, "File to write")->required()->check(lm::file_name);

    lm::pack_options packed;
    auto* pack = app.add_subcommand("pack", "Write a model whose weights are used as they are mapped");
    pack->add_option("model", packed.model, "GGUF file")->required()->check(lm::file_name);
    pack->add_option("--out,-o", packed.out, "File to write")->required()->check(lm::file_name);

    lm::synth_options s;
    auto* synth = app.add_subcommand("synth", "Write a model of a known shape with random weights");
    synth->add_option("--like", s.like,
                      "Shape: tinyllama-1.1b, llama-2-7b or gpt2-xl, with :layers=N for fewer layers");
    synth->add_option(
        "--arch", s.arch,
        "Instead: a small model of this architecture, whose weights make all that is particular to "
        "it tell");
    synth->add_option("--ctx,--context", s.context, "Tokens of the model's context, instead of the shape's")
        ->check(lm::whole(1, 1 << 26));
    lm::add_choice(synth, "--weights", s.weights,
                   std::map<std::string, lm::ggml_type>{{"f32", lm::ggml_type::f32},
                                                        {"f16", lm::ggml_type::f16},
                                                        {"q8_0", lm::ggml_type::q8_0},
                                                        {"q4_0", lm::ggml_type::q4_0}},
                   "Type of all matrices; of --arch f32, if this is not given");
    synth->add_option("--seed", s.seed, "Seed of the weights")->check(lm::natural)->capture_default_str();
    synth->add_option("--out,-o", s.out, "File to write")->required()->check(lm::file_name);

    const auto ended = lm::parse_arguments(app, argc, argv, [&] {
        if (calibrate->parsed())
            check_calibrate(*calibrate);
        if (quantize->parsed() && !q.chooses_formats() && lm::is_rounding(q.weights))
            lm::refuse_given(*quantize, {"--calibrate", "--chunks", "--towards", "--sweeps"},
                             std::string(lm::name_of(q.weights)) +
                                 " is rounded block by block, without a text");
        if (synth->parsed() && s.like.empty() == s.arch.empty())
            throw CLI::ValidationError("synth", s.like.empty() ? "--like or --arch is required"
                                                               : "--like and --arch exclude each other");
        if (!s.arch.empty() && synth->count("--weights") == 0)
            s.weights = lm::ggml_type::f32;
    });
    if (ended)
        return *ended;
    for (std::size_t* threads :
         {&g.threads, &t.threads, &p.threads, &b.threads, &q.threads, &c.threads, &d.threads})
        lm::limit_threads(*threads);
    const crumb::status result = generate->parsed()     ? lm::generate(g)
                                 : chat->parsed()       ? lm::chat(t)
                                 : perplexity->parsed() ? lm::perplexity(p)
                                 : bench->parsed()      ? lm::bench(b)
                                 : synth->parsed()      ? lm::synth(s)
                                 : pack->parsed()       ? lm::pack(packed)
                                 : quantize->parsed()   ? lm::quantize(q)
                                 : calibrate->parsed()  ? lm::calibrate(c)
                                                        : lm::demo(d);
    return lm::exit_code(result);
}
