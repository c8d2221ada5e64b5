#include "seeds.hpp"

#include "model/ffn_file.hpp"
#include "model/kv_file.hpp"
#include "model/schedule_file.hpp"
#include "vocabularies.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <type_traits>

namespace lm::fuzz {
namespace {

/// What seeds are made of is right; if it is not, the corpus is worth nothing.
template <class T>
T need(crumb::result<T> r, const char* what) {
    if (!r) {
        std::fprintf(stderr, "seed %s: %s\n", what, r.message());
        std::abort();
    }
    return std::move(*r);
}

/// How a matrix is stored.
struct storage {
    ggml_type type = ggml_type::f32;
    weight_type format = weight_type::stored; ///< or packed as this
    int seed = 0, parent = 0;                 ///< of nested weights
};
constexpr storage of(ggml_type type) { return {type}; }
constexpr storage of(weight_type format) { return {ggml_type::i8, format}; }
constexpr storage of(int seed, int parent) { return {ggml_type::i8, weight_type::nested, seed, parent}; }

struct plan {
    const char* name;
    architecture arch = architecture::llama;
    storage matrices = of(ggml_type::q8_0), output = of(ggml_type::f16), embedding = of(ggml_type::f16);
    std::optional<ggml_type> down = {}; ///< of the matrices whose rows are longest
    std::uint32_t width = 32, hidden = 64, layers = 1, heads = 2, kv_heads = 1;
    std::uint32_t context = 0; ///< 0: 96, or what does not take many positions
    bool tied = false, bpe = false;
};

void put_matrix(maker& file, const std::string& name, std::size_t n, std::size_t k, const storage& s,
                dice& random) {
    if (s.format == weight_type::nested)
        return file.add(name, nested(n, k, s.seed, s.parent, random));
    if (s.format != weight_type::stored)
        return file.add(name, packed(s.format, n, k, random));
    const std::uint64_t dims[] = {k, n};
    file.add(name, s.type, dims, elements(s.type, n * k, random));
}

void put_vocabulary(maker& file, bool bpe) {
    // With an unknown token there need not be one for every byte.
    const std::string tokens[] = {"<unk>", "a", "b", "aa", "aab", "\xE2\x96\x81", "<0x63>"};
    const std::string merges[] = {"a a", "aa b"};
    const float scores[] = {0, -1, -2, -3, -4, -5, 0};
    file.to.set("tokenizer.ggml.model", bpe ? "gpt2" : "llama");
    file.to.set_strings("tokenizer.ggml.tokens", tokens);
    if (bpe)
        file.to.set_strings("tokenizer.ggml.merges", merges);
    else
        file.to.set_array("tokenizer.ggml.scores", std::span<const float>(scores));
    file.to.set("tokenizer.ggml.unknown_token_id", std::uint32_t{0});
}
constexpr std::size_t vocabulary = 7;

void put_codebooks(maker& file, dice& random) {
    [&]<class... F>(crumb::type_list<F...>) {
        const auto one = [&]<class Format>(std::type_identity<Format>) {
            if constexpr (crumb::needs_codebooks<Format>) {
                std::vector<std::int32_t> entries(crumb::codebook_entries<Format>);
                for (auto& e : entries)
                    e = static_cast<std::int32_t>(random.below(255)) - 127;
                file.to.set_array(matrix_extras::codebook_key(Format::name),
                                  std::span<const std::int32_t>(entries));
            }
        };
        (one(std::type_identity<F>()), ...);
    }(crumb::format_list{});
}

bytes model_file(const plan& p) {
    dice random(std::hash<std::string>()(p.name));
    maker file;
    const bool llama = p.arch == architecture::llama;
    const std::string prefix = llama ? "llama." : "gpt2.";
    file.to.set("general.architecture", llama ? "llama" : "gpt2");
    const auto set = [&](const char* name, std::uint32_t value) { file.to.set(prefix + name, value); };
    const std::uint32_t context = p.context != 0 ? p.context : llama ? 96 : 20;
    set("context_length", context);
    set("embedding_length", p.width);
    set("block_count", p.layers);
    set("feed_forward_length", p.hidden);
    set("attention.head_count", p.heads);
    const std::size_t kv_width = std::size_t{p.width} / p.heads * p.kv_heads;
    if (llama) {
        set("attention.head_count_kv", p.kv_heads);
        set("rope.dimension_count", p.width / p.heads);
        file.to.set("llama.attention.layer_norm_rms_epsilon", 1e-5f);
        file.to.set("llama.rope.freq_base", 500.0f);
    } else {
        file.to.set("gpt2.attention.layer_norm_epsilon", 1e-5f);
        put_matrix(file, "position_embd.weight", context, p.width, p.embedding, random);
    }
    put_vocabulary(file, p.bpe);
    put_codebooks(file, random);
    const auto norm = [&](const std::string& name) {
        file.add(name + ".weight", floats(p.width, 0.4f, random, 1.0f));
        if (!llama)
            file.add(name + ".bias", floats(p.width, 0.2f, random));
    };
    put_matrix(file, "token_embd.weight", vocabulary, p.width, p.embedding, random);
    norm("output_norm");
    for (std::uint32_t i = 0; i < p.layers; ++i) {
        const std::string blk = "blk." + std::to_string(i) + ".";
        const auto put = [&](const char* name, std::size_t n, std::size_t k) {
            put_matrix(file, blk + name + ".weight", n, k, p.matrices, random);
            if (!llama)
                file.add(blk + name + ".bias", floats(n, 0.2f, random));
        };
        norm(blk + "attn_norm");
        norm(blk + "ffn_norm");
        if (llama) {
            put("attn_q", p.width, p.width);
            put("attn_k", kv_width, p.width);
            put("attn_v", kv_width, p.width);
            put("ffn_gate", p.hidden, p.width);
        } else {
            put("attn_qkv", std::size_t{3} * p.width, p.width);
        }
        put("attn_output", p.width, p.width);
        put("ffn_up", p.hidden, p.width);
        if (p.down)
            put_matrix(file, blk + "ffn_down.weight", p.width, p.hidden, of(*p.down), random);
        else
            put("ffn_down", p.width, p.hidden);
        if (p.down == ggml_type::nvfp4)
            for (const char* name : {"ffn_down.scale", "ffn_down.input_scale"})
                file.add(blk + name, std::vector<float>{0.75f});
    }
    if (!p.tied)
        put_matrix(file, "output.weight", vocabulary, p.width, p.output, random);
    return need(file.to.bytes(), p.name);
}

model loaded(const bytes& file, const char* what) {
    buffer memory(file.size());
    std::memcpy(memory.bytes().data(), file.data(), file.size());
    return need(model::load(std::move(memory), what, {weight_type::stored, activation_type::f32}), what);
}

/// The file with what `put(writer, its model)` adds.
template <class F>
bytes extended(const bytes& file, const char* what, F&& put) {
    const model m = loaded(file, what);
    gguf_writer writer(3, crumb::alignment);
    writer.copy(m.file(), "no such prefix");
    put(writer, m);
    return need(writer.bytes(), what);
}

/// Sizes and codecs of a folded network, with formats that recipes name.
struct folded_plan {
    const char* recipe;
    crumb::row_codec in, out;
    bool residual = false;
};
constexpr folded_plan folded_plans[] = {
    {"tardis:coverage=0.6:predictor=cb2s:fold=q8_0:rows=q8_0", crumb::row_codec::q8_0,
     crumb::row_codec::q8_0},
    {"tardis:coverage=0.6:predictor=cb2s:residual=u2:fold=q4_0:rows=q4_0", crumb::row_codec::u2,
     crumb::row_codec::q4_0, true},
    {"tardis:coverage=0.8:sound:fold=f32:rows=f32", crumb::row_codec::f32, crumb::row_codec::f32},
    {"tardis:coverage=0.7:predictor=u2:fold=cb4:rows=f16", crumb::row_codec::f16, crumb::row_codec::f16},
    {"tardis:coverage=0.7:predictor=cb3:residual=q8_0:fold=u2:rows=q8_0", crumb::row_codec::q8_0,
     crumb::row_codec::q8_0, true},
    {"tardis:coverage=0.7:predictor=cb2:residual=q4_0:fold=cb2:rows=q8_0", crumb::row_codec::q4_0,
     crumb::row_codec::q8_0, true},
};

buffer in_buffer(const bytes& from, std::size_t& size) {
    buffer out(from.size());
    std::memcpy(out.bytes().data(), from.data(), from.size());
    size = from.size();
    return out;
}
std::vector<crumb::half> bounds(std::size_t hidden, std::size_t width, dice& random) {
    const std::size_t groups = (width + crumb::group_size - 1) / crumb::group_size;
    std::vector<crumb::half> out(hidden * 2 * groups);
    for (auto& h : out)
        h = crumb::to_half(0.01f + random.real(0.005f));
    return out;
}

bytes with_folded(const bytes& file, const folded_plan& plan) {
    return extended(file, plan.recipe, [&](gguf_writer& to, const model& m) {
        dice random(7);
        const model_shape& d = m.shape();
        static stored_ffns ffns;
        ffns = {};
        ffns.recipe = need(ffn_recipe::parse(plan.recipe), plan.recipe);
        const auto entries = [&](weight_type type) {
            std::vector<std::int8_t> out;
            with_format(type, [&]<class F>(std::type_identity<F>) {
                if constexpr (crumb::needs_codebooks<F>)
                    for (std::size_t i = 0; i < crumb::codebook_entries<F>; ++i)
                        out.push_back(static_cast<std::int8_t>(random.below(200)));
            });
            return out;
        };
        ffns.fold_codebooks = entries(ffns.recipe.fold);
        ffns.predictor_codebooks = entries(ffns.recipe.predictor);
        for (std::size_t l = 0; l < d.layers; ++l) {
            stored_ffn& f = ffns.layers.emplace_back();
            if (ffns.recipe.fold == weight_type::f32)
                f.fold_floats = floats(d.width * d.width, 0.1f, random);
            else
                f.fold = in_buffer(packed(ffns.recipe.fold, d.width, d.width, random), f.fold_bytes);
            f.fold_bias = floats(d.width, 0.1f, random);
            f.predictor =
                in_buffer(packed(ffns.recipe.predictor, d.hidden, d.width, random), f.predictor_bytes);
            f.predictor_bias = floats(d.hidden, 0.1f, random);
            f.neurons =
                in_buffer(neurons({d.hidden, d.width, d.width, plan.in, plan.out, plan.residual}, random),
                          f.neuron_bytes);
            if (ffns.recipe.sound)
                f.bounds = bounds(d.hidden, d.width, random);
            f.fixed = 0.4f;
        }
        write_ffns(to, m, ffns);
    });
}

constexpr crumb::kv_codec coded[] = {
    crumb::kv_codec::pq(2, 8, true, true), crumb::kv_codec::pq(2, 6, false, true),
    crumb::kv_codec::pq(4, 8, false, true), crumb::kv_codec::pq(1, 4, false, false)};

bytes with_kv_codebooks(const bytes& file, const crumb::kv_codec& codec, bool shared, bool metric) {
    return extended(file, "codebooks", [&](gguf_writer& to, const model& m) {
        dice random(9);
        const model_shape& d = m.shape();
        static crumb::kv_codebooks books;
        books = {};
        books.codec = codec;
        books.head_size = d.head_size;
        books.head_step = shared ? 0 : 1;
        books.layer_step = shared ? 0 : d.kv_heads;
        books.sets = shared ? 1 : d.layers * d.kv_heads;
        const std::size_t channels = 2 * books.sets * d.head_size;
        for (std::size_t i = 0; i < channels * codec.entries(); ++i)
            books.entries.push_back(static_cast<std::int8_t>(static_cast<int>(random.below(127)) - 63));
        books.scales = floats(channels, 0.005f, random, 0.01f);
        if (metric)
            books.metric = floats(channels * codec.dims, 1, random);
        write_codebooks(to, m, books);
    });
}

bytes with_static_schedule(const bytes& file) {
    return extended(file, "static schedule", [&](gguf_writer& to, const model& m) {
        const auto range = m.precisions().value();
        const crumb::precision_phase phases[] = {{0, range.parent}, {2, range.seed}};
        write_schedule(to, m,
                       need(crumb::precision_schedule::make(range, range.parent, phases, 8), "schedule"));
    });
}
bytes with_learned_schedule(const bytes& file) {
    return extended(file, "learned schedule", [&](gguf_writer& to, const model& m) {
        dice random(11);
        const auto range = m.precisions().value();
        static stored_schedule s;
        s = {};
        s.levels = {
            .stored = range, .prefill = range.parent, .high = range.parent, .low = range.seed, .length = 6};
        auto& t = s.trained;
        t.shape = {.heads = m.shape().kv_heads, .head_size = m.shape().head_size, .hidden = 5, .points = 3};
        t.query = floats(t.shape.width(), 1, random);
        t.w1 = floats(t.shape.hidden * t.shape.width(), 1, random);
        t.b1 = floats(t.shape.hidden, 1, random);
        t.w2 = floats(t.shape.points * t.shape.hidden, 1, random);
        t.b2 = floats(t.shape.points, 1, random);
        write_schedule(to, m, s);
    });
}

/// A tensor of every type of the table.
void put_tensors(maker& file, dice& random) {
    for (const ggml_type_info& info : ggml_types) {
        const std::uint64_t dims[] = {info.block, 2, 1};
        bytes data(std::size_t{info.block_bytes} * 2);
        for (auto& b : data)
            b = static_cast<std::byte>(random());
        file.add(std::string("weight.") + info.name, static_cast<ggml_type>(info.number), dims, data);
    }
}

} // namespace

std::vector<seed> gguf_seeds() {
    std::vector<seed> out;
    dice random(1);
    for (const std::uint32_t version : {2u, 3u}) {
        const auto add = [&](const char* name, const gguf_writer& w) {
            out.push_back({std::string(name) + "-v" + std::to_string(version), need(w.bytes(), name)});
        };
        add("empty", gguf_writer(version));

        gguf_writer kinds(version, 64);
        test::put_every_kind(kinds);
        add("kinds", kinds);

        maker tensors(version);
        put_tensors(tensors, random);
        add("tensors", tensors.to);

        gguf_writer bpe(version);
        test::put_bpe(bpe, {"l o", "h e", "he l", "hel lo", "\xC4\xA0 w", "a a", "aa aa"});
        bpe.set("tokenizer.ggml.eos_token_id", std::uint32_t{0});
        bpe.set("tokenizer.ggml.add_eos_token", true);
        add("bpe", bpe);

        gguf_writer spm(version);
        test::put_spm(spm, {{"\xE2\x96\x81", -1},
                            {"a", -2},
                            {"aa", -3},
                            {"\xE2\x96\x81"
                             "a",
                             -4},
                            {"\xC3\xA9", -5}});
        add("spm", spm);

        for (const bool is_bpe : {false, true}) {
            maker tiny(version);
            put_vocabulary(tiny, is_bpe);
            add(is_bpe ? "tiny-bpe" : "tiny-spm", tiny.to);
        }

        maker small(version);
        const std::uint64_t dims[] = {32, 1, 2, 1};
        small.to.set("general.name", "small");
        small.to.set("n", std::uint32_t{7});
        small.add("a", ggml_type::q8_0, dims, elements(ggml_type::q8_0, 64, random));
        small.add("b", ggml_type::f16, std::span(dims).first(1), elements(ggml_type::f16, 32, random));
        add("small", small.to);
    }
    return out;
}

std::vector<seed> model_seeds() {
    constexpr auto gpt2 = architecture::gpt2;
    constexpr auto llama = architecture::llama;
    std::vector<seed> out;
    const auto add = [&](const plan& p) -> const bytes& {
        return out.emplace_back(seed{p.name, model_file(p)}).content;
    };
    add({.name = "llama-f32", .matrices = of(ggml_type::f32), .output = of(ggml_type::f32)});
    add({.name = "llama-f16-tied", .matrices = of(ggml_type::f16), .tied = true, .bpe = true});
    add({.name = "llama-q8_0-gguf",
         .embedding = of(ggml_type::q8_0),
         .layers = 2,
         .heads = 4,
         .kv_heads = 2});
    add({.name = "llama-q4_0-gguf",
         .matrices = of(ggml_type::q4_0),
         .output = of(ggml_type::q4_0),
         .hidden = 64});
    add({.name = "gpt2-f32-tied",
         .arch = gpt2,
         .matrices = of(ggml_type::f32),
         .hidden = 20,
         .context = 72,
         .tied = true});
    add({.name = "gpt2-f16-ragged",
         .arch = gpt2,
         .matrices = of(ggml_type::f16),
         .width = 40,
         .hidden = 36,
         .bpe = true});
    for (auto t = static_cast<std::size_t>(weight_type::q8_0);
         t < static_cast<std::size_t>(weight_type::nested); ++t) {
        const auto format = static_cast<weight_type>(t);
        static std::deque<std::string> names;
        const std::string name(weight_names[t]);
        const char* llama_name = names.emplace_back("llama-" + name).c_str();
        const char* ragged_name = names.emplace_back("gpt2-ragged-" + name).c_str();
        std::size_t inputs = 0;
        with_format(format, [&]<class F>(std::type_identity<F>) { inputs = crumb::block_inputs<F>; });
        if (inputs == crumb::record_inputs && !is_leveled(format)) {
            // Packed, short rows are as long as a block.
            add({.name = llama_name, .matrices = of(format), .width = 16, .hidden = 16});
            add({.name = ragged_name, .arch = gpt2, .matrices = of(format), .width = 12, .hidden = 9});
            continue;
        }
        add({.name = llama_name, .matrices = of(format), .output = of(format), .embedding = of(format)});
        add({.name = ragged_name, .arch = gpt2, .matrices = of(format), .width = 36, .hidden = 41});
    }
    for (const ggml_type_info& info : ggml_types)
        if (const auto type = static_cast<ggml_type>(info.number);
            type != ggml_type::f32 && is_computed(type)) {
            static std::deque<std::string> names;
            add({.name = names.emplace_back(std::string("down-") + info.name).c_str(),
                 .matrices = of(ggml_type::q4_0),
                 .down = type,
                 .hidden = 256});
        }
    add({.name = "llama-nested-2-4", .matrices = of(2, 4)});
    add({.name = "llama-nested-3-4-ragged", .matrices = of(3, 4), .width = 36, .hidden = 20});
    const bytes two = add({.name = "gpt2-nested-2-2", .arch = gpt2, .matrices = of(2, 2)});
    const bytes nested_llama =
        add({.name = "llama-nested-2-3", .matrices = of(2, 3), .layers = 2, .heads = 2, .kv_heads = 2});
    const bytes nested_gpt2 = add({.name = "gpt2-nested-2-4", .arch = gpt2, .matrices = of(2, 4)});

    out.push_back({"static-schedule", with_static_schedule(nested_llama)});
    out.push_back({"static-schedule-2", with_static_schedule(two)});
    out.push_back({"learned-schedule", with_learned_schedule(nested_llama)});
    out.push_back({"learned-schedule-pq",
                   with_kv_codebooks(with_learned_schedule(nested_gpt2), coded[0], false, false)});

    const bytes base = model_file({.name = "folded", .arch = gpt2, .hidden = 32});
    const bytes two_layers = model_file({.name = "folded-twice", .arch = gpt2, .hidden = 32, .layers = 2});
    const bytes ragged = model_file(
        {.name = "folded-ragged", .arch = gpt2, .matrices = of(weight_type::u2), .width = 36, .hidden = 23});
    for (std::size_t i = 0; i < std::size(folded_plans); ++i) {
        out.push_back(
            {"folded-" + std::to_string(i), with_folded(i == 1 ? two_layers : base, folded_plans[i])});
        out.push_back({"folded-ragged-" + std::to_string(i), with_folded(ragged, folded_plans[i])});
    }
    out.push_back({"folded-nested", with_folded(nested_gpt2, folded_plans[0])});

    const bytes heads =
        model_file({.name = "cached", .arch = llama, .layers = 2, .heads = 4, .kv_heads = 2, .context = 160});
    for (std::size_t i = 0; i < std::size(coded); ++i)
        for (const bool shared : {false, true})
            out.push_back({"codebooks-" + std::to_string(i) + (shared ? "-shared" : ""),
                           with_kv_codebooks(heads, coded[i], shared, i % 2 == (shared ? 1 : 0))});
    out.push_back(
        {"everything", with_kv_codebooks(with_folded(base, folded_plans[1]), coded[2], false, true)});
    return out;
}

std::vector<seed> refused_seeds() {
    std::vector<seed> out;
    std::map<std::string, bytes> files;
    for (seed& s : model_seeds())
        files[s.name] = std::move(s.content);
    const auto add = [&](const char* name, const char* of, const char* without, auto&& change) {
        const bytes& whole = files.at(of);
        const auto file = need(gguf::parse(whole), of);
        gguf_writer writer(3, crumb::alignment);
        writer.copy(file, without);
        change(writer);
        out.push_back({name, need(writer.bytes(), name)});
    };
    const auto set = [](const char* key, auto value) { return [=](gguf_writer& w) { w.set(key, value); }; };
    const auto set_all = [](const char* key, auto... values) {
        return [=](gguf_writer& w) {
            const std::common_type_t<decltype(values)...> all[] = {values...};
            w.set_array(key, std::span<const std::common_type_t<decltype(values)...>>(all));
        };
    };
    const auto nothing = [](gguf_writer&) {};
    constexpr const char* none = "no such prefix";
    const char* llama = "llama-q8_0";
    for (const char* name :
         {"llama.attention.key_length", "llama.attention.value_length", "llama.expert_count"})
        add(name, llama, none, set(name, 8u));
    add("scaling-type", llama, none, set("llama.rope.scaling.type", std::string_view("yarn")));
    add("scaling-factor", llama, none, set("llama.rope.scaling.factor", 4.0f));
    add("scaling-frequencies", llama, none, [](gguf_writer& w) {
        static const bytes four(4);
        const std::uint64_t dims[] = {1};
        w.add_tensor("rope_freqs.weight", ggml_type::f32, dims, four);
    });
    add("kv-heads", "gpt2-f32-tied", none, set("gpt2.attention.head_count_kv", 1u));
    add("no-tokens", llama, none, [](gguf_writer& w) { w.set_strings("tokenizer.ggml.tokens", {}); });
    add("flag-kind", llama, none, set("tokenizer.ggml.add_bos_token", 1u));
    add("flag-eos", llama, none, set("tokenizer.ggml.add_eos_token", true));
    add("schedule-steps-kind", "static-schedule", none, set_all("crumb.schedule.steps", 0.0f, 2.0f));
    add("schedule-steps-number", "static-schedule", none, set_all("crumb.schedule.steps", 0, 1, 2));
    add("schedule-steps-order", "static-schedule", none, set_all("crumb.schedule.steps", 2, 0));
    add("schedule-kind", "static-schedule", none, set("crumb.schedule.kind", std::string_view("none")));
    add("schedule-no-high", "learned-schedule", "crumb.schedule.high", nothing);
    add("schedule-no-query", "learned-schedule", "crumb.schedule.query", nothing);
    add("schedule-points", "learned-schedule", none, set("crumb.schedule.points", 1u));
    add("schedule-heads", "learned-schedule", none, set("crumb.schedule.heads", 1u));
    add("schedule-version", "learned-schedule", none, set("crumb.schedule.version", 2u));
    add("folded-no-bounds", "folded-2", "crumb.ffn.0.bounds", nothing);
    add("folded-no-fold", "folded-2", "crumb.ffn.0.fold", nothing);
    add("folded-codebook-size", "folded-0", none, set_all("crumb.ffn.predictor_codebooks", 1, 2));
    add("folded-codebook-entry", "folded-0", none,
        set_all("crumb.ffn.predictor_codebooks", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 128));
    add("folded-version", "folded-0", none, set("crumb.ffn.version", 2u));
    add("folded-fixed", "folded-0", none, set_all("crumb.ffn.fixed", 0.5f, 0.5f, 0.5f));
    add("codebooks-no-entries", "codebooks-0", "crumb.kv.pq4.entries", nothing);
    add("codebooks-version", "codebooks-0", none, set("crumb.kv.pq4.version", 2u));
    add("codebooks-sets", "codebooks-0", none, set("crumb.kv.pq4.sets", 0u));
    add("tables-entry", "llama-cb2s", none, set_all("crumb.codebooks.cb2s", 1, 200));
    return out;
}

std::vector<seed> folded_seeds() {
    std::vector<seed> out;
    dice random(3);
    for (const auto& [width, hidden] : {std::pair<std::size_t, std::size_t>{32, 48}, {36, 20}, {64, 33}})
        for (std::size_t i = 0; i < std::size(folded_plans); ++i) {
            const folded_plan& p = folded_plans[i];
            const ffn_recipe recipe = need(ffn_recipe::parse(p.recipe), p.recipe);
            maker file;
            file.to.set("width", static_cast<std::uint32_t>(width));
            file.to.set("hidden", static_cast<std::uint32_t>(hidden));
            put_codebooks(file, random);
            if (recipe.fold == weight_type::f32) {
                const std::uint64_t dims[] = {width, width};
                file.add("fold", ggml_type::f32, dims, elements(ggml_type::f32, width * width, random));
            } else {
                file.add("fold", packed(recipe.fold, width, width, random));
            }
            if (i == 3)
                file.add("predictor", nested(hidden, width, 2, 4, random));
            else
                file.add("predictor", packed(recipe.predictor, hidden, width, random));
            file.add("neurons", neurons({hidden, width, width, p.in, p.out, p.residual}, random));
            if (recipe.sound) {
                const auto halves = bounds(hidden, width, random);
                const auto raw = std::as_bytes(std::span(halves));
                const std::uint64_t dims[] = {halves.size() / hidden, hidden};
                file.add("bounds", ggml_type::f16, dims, bytes(raw.begin(), raw.end()));
            }
            out.push_back({"folded-" + std::to_string(width) + "-" + std::to_string(i),
                           need(file.to.bytes(), p.recipe)});
        }
    return out;
}

std::vector<seed> packed_seeds() {
    std::vector<seed> out;
    dice random(5);
    for (auto t = static_cast<std::size_t>(weight_type::q8_0);
         t < static_cast<std::size_t>(weight_type::nested); ++t)
        for (const auto& [n, k] : {std::pair<std::size_t, std::size_t>{1, 1}, {16, 32}, {17, 33}, {5, 300}})
            out.push_back(
                {"packed-" + std::string(weight_names[t]) + "-" + std::to_string(n) + "x" + std::to_string(k),
                 packed(static_cast<weight_type>(t), n, k, random)});
    return out;
}

std::vector<seed> nested_seeds() {
    std::vector<seed> out;
    dice random(6);
    for (const auto& [low, high] : {std::pair{2, 2}, {2, 3}, {2, 4}, {3, 3}, {3, 4}, {4, 4}})
        for (const auto& [n, k] : {std::pair<std::size_t, std::size_t>{1, 1}, {16, 32}, {17, 33}, {5, 300}})
            out.push_back({"nested-" + std::to_string(low) + "-" + std::to_string(high) + "-" +
                               std::to_string(n) + "x" + std::to_string(k),
                           nested(n, k, low, high, random)});
    return out;
}

std::vector<seed> neuron_seeds() {
    std::vector<seed> out;
    dice random(8);
    for (std::size_t in = 0; in < crumb::row_codecs; ++in)
        for (std::size_t to = 0; to < crumb::row_codecs; ++to)
            for (const bool residual : {false, true})
                out.push_back({"neurons-" + std::string(crumb::row_codec_names[in]) + "-" +
                                   crumb::row_codec_names[to] + (residual ? "-rest" : ""),
                               neurons({17 + in, 33, 5 + to, static_cast<crumb::row_codec>(in),
                                        static_cast<crumb::row_codec>(to), residual},
                                       random)});
    return out;
}

} // namespace lm::fuzz
