// Small models with random weights, in memory and as files.
#pragma once

#include "file_bytes.hpp"
#include "model/model.hpp"
#include "vocabularies.hpp"

#include <crumb/crumb.hpp>

#include <gtest/gtest.h>

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

/// `values` in rows of `row`, encoded as a tensor's type wants it.
inline bytes encode(std::span<const float> values, std::size_t row, ggml_type type) {
    bytes out;
    const auto append = [&](const auto& item) {
        const auto raw = std::as_bytes(std::span(&item, 1));
        out.insert(out.end(), raw.begin(), raw.end());
    };
    const auto blocks = [&]<class F>(F) {
        EXPECT_EQ(row % crumb::group_size, 0u);
        for (std::size_t i = 0; i < values.size(); i += crumb::group_size) {
            typename F::block block;
            F::encode(values.data() + i, block);
            append(block);
        }
    };
    if (type == ggml_type::q8_0)
        blocks(crumb::q8_0());
    else if (type == ggml_type::q4_0)
        blocks(crumb::q4_0());
    else
        for (float x : values)
            type == ggml_type::f16 ? append(crumb::to_half(x)) : append(x);
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

/// Random bytes as tokens.
inline std::vector<std::int32_t> random_tokens(std::size_t count, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::int32_t> out(count);
    for (std::int32_t& token : out)
        token = static_cast<std::int32_t>(random() % 256);
    return out;
}

} // namespace lm::test
