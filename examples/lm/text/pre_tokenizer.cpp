#include "text/pre_tokenizer.hpp"

#include "gguf/gguf_value.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

namespace {

// The expressions that models were published with, as the reference implementation for GGUF files narrows
// them where it has to: equal tokens are worth more than a better rule that no file was made for. Letters are
// upper or lower case by ASCII alone, [^\P{L}a-z] being the letters that are no lower one.

constexpr std::string_view gpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view llama3 =
    R"('(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view qwen2 =
    R"('(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view qwen35 =
    R"('(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})"
    R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view minicpm5 =
    R"('(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+)"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view seed_coder =
    R"('(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
    R"(| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view exaone_moe = R"('(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD]))"
                                        R"(|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*+(?: \p{L}\p{M}*+)*+)++|\p{N})"
                                        R"(| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr std::string_view ufakzeka =
    R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view tekken =
    R"([^\r\n\p{L}\p{N}]?[^\P{L}a-z]*[^\P{L}A-Z]+|[^\r\n\p{L}\p{N}]?[^\P{L}a-z]+[^\P{L}A-Z]*|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view gpt4o =
    R"([^\r\n\p{L}\p{N}]?[^\P{L}a-z]*[^\P{L}A-Z]+(?:'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD]))?)"
    R"(|[^\r\n\p{L}\p{N}]?[^\P{L}a-z]+[^\P{L}A-Z]*(?:'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD]))?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view youtu =
    R"([^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+(?:'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD]))?)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view youtu_scripts =
    R"([\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+)"
    R"(|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}\x{3001}-\x{303F})"
    R"(\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";
constexpr std::string_view deepseek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view spark =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+)";
constexpr std::string_view han_and_kana = R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";
// Whitespace within the ranges is none of theirs.
constexpr std::string_view east_asian =
    R"([\x{4E00}-\x{9FA5}\x{800}-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027}\x{202A}-\x{202E}\x{2030}-\x{205E})"
    R"(\x{2060}-\x{2FFF}\x{3001}-\x{4DFF}\x{AC00}-\x{D7FF}]+)";
constexpr std::string_view cased_letters =
    R"(\s?[)"
    R"(A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293})"
    R"(\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A})"
    R"(\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556})"
    R"(\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF})"
    R"(\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D})"
    R"(\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D})"
    R"(\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4})"
    R"(\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4})"
    R"(\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124})"
    R"(\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F})"
    R"(\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4})"
    R"(\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F})"
    R"(\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17})"
    R"(\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3})"
    R"(\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF})"
    R"(\x{1E900}-\x{1E943})"
    R"(]+)";
constexpr std::string_view deepseek_marks =
    R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3001}\x{3002}]+)";
constexpr std::string_view bloom = R"( ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+)";
constexpr std::string_view number = R"(\p{N})";
constexpr std::string_view three_numbers = R"(\p{N}{1,3})";
constexpr std::string_view three_digits = "[0-9][0-9][0-9]";

struct rule {
    const char* names; ///< parted by spaces; the first is what an error lists
    std::array<std::string_view, 6> expressions;
    bool ignores_merges = false;
    bool adds_bos = false;
};

constexpr rule rules[] = {
    {"gpt-2 phi-2 mpt olmo jais gigachat a.x-4.0 mellum exaone4 trillion granite-docling", {gpt2}},
    {"default", {R"([\p{P}\$\+<=>\^~\|]+)", gpt2, R"(\p{N}+)", three_digits}},
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2", {llama3}, true, true},
    {"dbrx smaug-bpe glm4 chatglm-bpe", {llama3}},
    {"qwen2 deepseek-r1-qwen stablelm2 hunyuan megrez kormo f2llmv2 grok-2 solar-open bailingmoe "
     "bailingmoe2 llada-moe",
     {qwen2}},
    {"qwen35", {qwen35}},
    {"smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", {number, gpt2}},
    {"tekken", {tekken}, true, true},
    {"gpt-4o llama4 kanana2 talkie minimax-m2", {gpt4o}},
    {"falcon", {R"([\p{P}\$\+<=>\^~\|`]+)", gpt2, three_digits}},
    {"deepseek-llm", {"[\r\n]", cased_letters, deepseek_marks, R"(\s+\z)", east_asian, R"(\p{N}+)"}},
    {"deepseek-coder", {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", east_asian, number}},
    {"deepseek-v3 hunyuan-dense joyai-llm hy_v4", {three_numbers, han_and_kana, deepseek3}},
    {"bloom poro-chat gpt3-finnish", {bloom}},
    {"viking", {bloom, number}},
    {"seed-coder", {seed_coder}},
    {"exaone-moe", {exaone_moe}},
    {"minicpm5", {three_numbers, minicpm5}, true},
    {"youtu", {youtu_scripts, youtu}, true},
    {"ufakzeka", {ufakzeka}},
    {"laguna", {R"([^\n]+|[\n]+)", qwen2}},
    {"spark2_5", {three_numbers, han_and_kana, spark, number}},
};

bool has_name(std::string_view names, std::string_view name) noexcept {
    while (!names.empty()) {
        const std::size_t end = std::min(names.find(' '), names.size());
        if (names.substr(0, end) == name)
            return true;
        names.remove_prefix(std::min(end + 1, names.size()));
    }
    return false;
}

} // namespace

result<pre_tokenizer> pre_tokenizer::make(std::string_view name) {
    const auto found = std::find_if(std::begin(rules), std::end(rules),
                                    [&](const rule& r) { return has_name(r.names, name); });
    if (found == std::end(rules)) {
        std::string known;
        for (const rule& r : rules) {
            const std::string_view names = r.names;
            known += (known.empty() ? "" : ", ") + std::string(names.substr(0, names.find(' ')));
        }
        return status::error(
            errc::unsupported,
            "key 'tokenizer.ggml.pre': %s is unsupported (known are, with their aliases, %s)",
            quoted(name).c_str(), known.c_str());
    }
    pre_tokenizer out;
    out.ignores_merges_ = found->ignores_merges;
    out.adds_bos_ = found->adds_bos;
    for (const std::string_view expression : found->expressions) {
        if (expression.empty())
            break;
        auto compiled = regex::compile(expression);
        if (!compiled)
            return compiled.error();
        out.stages_.push_back(std::move(*compiled));
    }
    return out;
}

pre_tokenizer::splitter::splitter(const pre_tokenizer& of) {
    for (const regex& stage : of.stages_)
        stages_.emplace_back(stage);
}

} // namespace lm
