// Small models with random weights, in memory and as files.
#pragma once

#include "file_bytes.hpp"
#include "gguf/iq_decode.hpp"
#include "model/model.hpp"
#include "vocabularies.hpp"

#include <crumb/crumb.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <ostream>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include <unistd.h>

namespace lm::test {

/// What `tiny_model` makes. Its vocabulary is the 256 bytes.
struct tiny_shape {
    architecture arch = architecture::llama;
    std::uint32_t width = 24, hidden = 40, layers = 2, heads = 4, kv_heads = 2;
    std::uint32_t rope_dims = 0; ///< llama; 0: the key is left out, which means the head size
    std::uint32_t context = 48;
    bool tied = false;                    ///< the embedding is the output matrix too
    ggml_type matrices = ggml_type::f32;  ///< attention and feed-forward
    ggml_type embedding = ggml_type::f32; ///< embedding, positions and output
    std::uint64_t seed = 1;
    const char* name = "";

    friend void PrintTo(const tiny_shape& self, std::ostream* out) { *out << self.name; }
};

/// Rounds a block of NVFP4: every group under the smallest scale that holds its largest float.
inline void round_to_nvfp4(const float* x, crumb::nvfp4::block& b) {
    for (std::size_t g = 0; g < 4; ++g, x += 16) {
        const float most = std::fabs(
            *std::max_element(x, x + 16, [](float u, float v) { return std::fabs(u) < std::fabs(v); }));
        std::uint8_t bits = 1;
        while (bits < 0x7e && crumb::to_float(crumb::ue4m3{bits}) * 6 < most)
            ++bits;
        const float unit = crumb::to_float(crumb::ue4m3{bits}) / 2;
        int code[16];
        for (std::size_t i = 0; i < 16; ++i) {
            code[i] = 0;
            for (int c = 0; c < 16; ++c)
                if (std::fabs(x[i] - unit * crumb::nvfp4::codebooks[c]) <
                    std::fabs(x[i] - unit * crumb::nvfp4::codebooks[code[i]]))
                    code[i] = c;
        }
        crumb::nvfp4::set(b, {bits}, code, g);
    }
}

/// Where a type that is only decoded has a float or a half over all of a block, and the number there becomes
/// `scale`.
inline void set_scale(ggml_type type, std::span<std::byte> block, float scale) {
    const crumb::half half = crumb::to_half(scale);
    if (type == ggml_type::q8_k) {
        std::memcpy(block.data(), &scale, sizeof scale);
    } else if (type == ggml_type::iq1_m) {
        // A nibble of it leads each of the last four numbers.
        for (std::size_t i = 0; i < 4; ++i) {
            std::byte& lead = block[block.size() - 7 + 2 * i];
            lead = (lead & std::byte{15}) | static_cast<std::byte>((half.bits >> 4 * i & 15) << 4);
        }
    } else {
        std::memcpy(block.data(), &half, sizeof half);
    }
}

/// `values` in rows of `row`, encoded as a tensor's type wants it. Of types that nobody here encodes, random
/// blocks of the same magnitude.
inline bytes encode(std::span<const float> values, std::size_t row, ggml_type type) {
    bytes out;
    const auto append = [&](const auto& item) {
        const auto raw = std::as_bytes(std::span(&item, 1));
        out.insert(out.end(), raw.begin(), raw.end());
    };
    const std::size_t block = find_ggml_type(type)->block;
    EXPECT_EQ(row % block, 0u);
    if (const auto format = format_of(type))
        with_format(*format, [&]<class F>(std::type_identity<F>) {
            for (std::size_t i = 0; i < values.size(); i += block) {
                typename F::block b{};
                if constexpr (crumb::rounding_format<F>)
                    F::encode(values.data() + i, b);
                else if constexpr (std::is_same_v<F, crumb::nvfp4>)
                    round_to_nvfp4(values.data() + i, b);
                append(b);
            }
        });
    else if (is_decoded(type))
        for (std::size_t i = 0; i < values.size(); i += block) {
            std::mt19937_64 random(std::bit_cast<std::uint32_t>(values[i]));
            bytes b(find_ggml_type(type)->block_bytes);
            for (std::byte& each : b)
                each = static_cast<std::byte>(random());
            const auto largest = [](std::span<const float> all) {
                return std::fabs(*std::max_element(
                    all.begin(), all.end(), [](float u, float v) { return std::fabs(u) < std::fabs(v); }));
            };
            std::vector<float> ones(block);
            set_scale(type, b, 1);
            EXPECT_TRUE(decode(type, b, ones.data()));
            set_scale(type, b, largest(values.subspan(i, block)) / largest(ones));
            out.insert(out.end(), b.begin(), b.end());
        }
    else
        for (const float x : values)
            if (type == ggml_type::f16)
                append(crumb::to_half(x));
            else if (type == ggml_type::bf16)
                append(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16));
            else
                append(x);
    return out;
}

/// A model's keys and tensors, to be damaged at will before they are written.
class tiny_model {
  public:
    struct tensor {
        ggml_type type = ggml_type::f32;
        std::vector<std::uint64_t> dims;
        bytes data;
    };
    std::map<std::string, std::variant<std::uint32_t, float, std::string>> keys;
    std::map<std::string, tensor> tensors;

    explicit tiny_model(const tiny_shape& s) : random_(s.seed) {
        const bool is_llama = s.arch == architecture::llama;
        const std::string arch = is_llama ? "llama" : "gpt2";
        keys["general.architecture"] = arch;
        keys[arch + ".context_length"] = s.context;
        keys[arch + ".embedding_length"] = s.width;
        keys[arch + ".block_count"] = s.layers;
        keys[arch + ".feed_forward_length"] = s.hidden;
        keys[arch + ".attention.head_count"] = s.heads;
        if (is_llama) {
            keys["llama.attention.head_count_kv"] = s.kv_heads;
            keys["llama.attention.layer_norm_rms_epsilon"] = 1e-5f;
            keys["llama.rope.freq_base"] = 500.0f;
            if (s.rope_dims != 0)
                keys["llama.rope.dimension_count"] = s.rope_dims;
        } else {
            keys["gpt2.attention.layer_norm_epsilon"] = 1e-5f;
            add("position_embd.weight", s.embedding, s.context, s.width, 0.3f);
        }
        add("token_embd.weight", s.embedding, 256, s.width, 1.0f);
        norm("output_norm", s);
        for (std::uint32_t i = 0; i < s.layers; ++i)
            layer("blk." + std::to_string(i) + ".", s);
        if (!s.tied)
            add("output.weight", s.embedding, 256, s.width, spread(s.width));
    }

    /// The file.
    bytes file() const {
        gguf_writer writer;
        put_bpe(writer, {});
        for (const auto& [key, value] : keys)
            std::visit([&, &name = key](const auto& v) { writer.set(name, v); }, value);
        for (const auto& [name, t] : tensors)
            writer.add_tensor(name, t.type, t.dims, t.data);
        const auto out = writer.bytes();
        EXPECT_TRUE(out.ok()) << out.message();
        return out ? *out : bytes();
    }

    /// Adds a tensor of random numbers of magnitude `most` or less around `center`.
    void add(const std::string& name, ggml_type type, std::size_t rows, std::size_t row, float most,
             float center = 0) {
        std::vector<float> values(rows * row);
        for (float& v : values)
            v = center + most * (static_cast<float>(random_() >> 40) * 0x1p-23f - 1);
        tensors[name] = {type, {row}, encode(values, row, type)};
        if (rows > 1)
            tensors[name].dims.push_back(rows);
    }

  private:
    /// Large enough that every layer counts.
    static float spread(std::size_t row) { return 2.5f / std::sqrt(static_cast<float>(row)); }

    void norm(const std::string& name, const tiny_shape& s) {
        add(name + ".weight", ggml_type::f32, 1, s.width, 0.4f, 1.0f);
        if (s.arch == architecture::gpt2)
            add(name + ".bias", ggml_type::f32, 1, s.width, 0.2f);
    }

    void layer(const std::string& blk, const tiny_shape& s) {
        const bool is_llama = s.arch == architecture::llama;
        const auto put = [&](const char* name, std::size_t rows, std::size_t row) {
            add(blk + name + ".weight", s.matrices, rows, row, spread(row));
            if (!is_llama)
                add(blk + name + ".bias", ggml_type::f32, 1, rows, 0.2f);
        };
        norm(blk + "attn_norm", s);
        norm(blk + "ffn_norm", s);
        const std::size_t kv_width = is_llama ? s.width / s.heads * s.kv_heads : 0;
        if (is_llama) {
            put("attn_q", s.width, s.width);
            put("attn_k", kv_width, s.width);
            put("attn_v", kv_width, s.width);
            put("ffn_gate", s.hidden, s.width);
        } else {
            put("attn_qkv", std::size_t{3} * s.width, s.width);
        }
        put("attn_output", s.width, s.width);
        put("ffn_up", s.hidden, s.width);
        put("ffn_down", s.width, s.hidden);
    }

    std::mt19937_64 random_;
};

/// A file of the given bytes that lives as long as the object.
class temporary_file {
  public:
    explicit temporary_file(std::span<const std::byte> content) {
        path_ = testing::TempDir() + "crumb-lm-XXXXXX";
        const int file = ::mkstemp(path_.data());
        EXPECT_GE(file, 0) << path_;
        if (file >= 0)
            ::close(file);
        std::ofstream out(path_, std::ios::binary);
        out.write(reinterpret_cast<const char*>(content.data()),
                  static_cast<std::streamsize>(content.size()));
        EXPECT_TRUE(out.good()) << path_;
    }
    temporary_file(const temporary_file&) = delete;
    temporary_file& operator=(const temporary_file&) = delete;
    ~temporary_file() { std::remove(path_.c_str()); }
    const std::string& path() const noexcept { return path_; }

  private:
    std::string path_;
};

/// A text file with `count` times five words.
inline temporary_file text_file(int count) {
    std::string text;
    for (int i = 0; i < count; ++i)
        text += "some words are here " + std::to_string(i * 7 % 13) + " ";
    const auto raw = std::as_bytes(std::span(text));
    return temporary_file(bytes(raw.begin(), raw.end()));
}

/// The kinds of int8 activations that the best ISA of this machine has.
inline std::vector<activation_type> integer_activations() {
    const auto& panels = crumb::dispatch::functions_of<crumb::q8_0>(
        static_cast<std::size_t>(crumb::linear_mode::panels), *crumb::choose_isa());
    std::vector<activation_type> out{activation_type::int8};
    if (panels.gemm != nullptr)
        out.push_back(activation_type::panels);
    return out;
}

/// Random bytes as tokens.
inline std::vector<std::int32_t> random_tokens(std::size_t count, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::int32_t> out(count);
    for (std::int32_t& token : out)
        token = static_cast<std::int32_t>(random() % 256);
    return out;
}

/// Names the tests of an architecture.
inline std::string architecture_name(const testing::TestParamInfo<architecture>& each) {
    return each.param == architecture::llama ? "llama" : "gpt2";
}

} // namespace lm::test
