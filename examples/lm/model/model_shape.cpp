#include "model/model_shape.hpp"

#include "gguf/gguf.hpp"

#include <cmath>
#include <string>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

namespace {

/// Reads keys and remembers the first error.
class shape_reader {
  public:
    explicit shape_reader(const gguf& file) : file_(file) {}

    result<model_shape> read(const std::optional<architecture_traits>& traits) {
        const auto name = file_.get_string("general.architecture");
        if (!name)
            return name.error();
        const auto arch = find_architecture(*name);
        if (!arch)
            return arch.error();
        d_.arch = *arch;
        d_.traits = traits ? *traits : traits_of(*arch);
        for (const auto part : {&shape_reader::sizes, &shape_reader::heads, &shape_reader::scales})
            if (const status s = (this->*part)(); !s || !error_.ok())
                return s ? error_ : s;
        if (const status s = layers(); !s || !error_.ok())
            return s ? error_ : s;
        return d_;
    }

  private:
    std::string key(const char* name) const { return std::string(d_.traits.name) + "." + name; }
    bool has(const char* name) const { return file_.find(key(name)) != nullptr; }

    /// A number, or an array with the same number for every layer.
    std::size_t number(const char* name, std::optional<std::uint32_t> fallback = {}) {
        const gguf_value* of_layers = file_.find(key(name));
        if (of_layers != nullptr && of_layers->is_array)
            return common_number(name, *of_layers);
        const auto v = fallback ? file_.get_u32(key(name), *fallback) : file_.get_u32(key(name));
        if (!v && error_.ok())
            error_ = v.error();
        return v ? *v : 0;
    }
    std::size_t common_number(const char* name, const gguf_value& of_layers) {
        const auto first = of_layers.count == 0 ? std::nullopt : of_layers.integer<std::uint32_t>(0);
        if (!first && error_.ok())
            error_ = status::error(errc::invalid_argument,
                                   "key %s is an array without a number of its layers", key(name).c_str());
        for (std::size_t i = 1; first && i < of_layers.count; ++i)
            if (const auto other = of_layers.integer<std::uint32_t>(i); other != first && error_.ok())
                error_ =
                    status::error(errc::unsupported,
                                  "key %s differs between layers (%u in the first, %u in layer %zu); one "
                                  "number for all is supported",
                                  key(name).c_str(), *first, other.value_or(0), i);
        return first.value_or(0);
    }
    float real(const char* name, std::optional<float> fallback = {}) {
        const auto v = fallback ? file_.get_f32(key(name), *fallback) : file_.get_f32(key(name));
        if (!v && error_.ok())
            error_ = v.error();
        return v ? *v : 0.0f;
    }
    status bad(const char* name, std::size_t value, const char* why) const {
        return status::error(errc::bad_shape, "key %s is %zu: %s", key(name).c_str(), value, why);
    }

    status sizes() {
        d_.context = number("context_length");
        d_.width = number("embedding_length");
        d_.layers = number("block_count");
        d_.hidden = number("feed_forward_length");
        d_.heads = number("attention.head_count");
        d_.kv_heads = number("attention.head_count_kv", static_cast<std::uint32_t>(d_.heads));
        d_.norm_epsilon = real(d_.traits.norms == norm_type::rms ? "attention.layer_norm_rms_epsilon"
                                                                 : "attention.layer_norm_epsilon");
        if (!error_.ok())
            return error_;
        // Beyond these a product of sizes could overflow, and no model comes near them.
        constexpr std::size_t most = 1u << 20;
        if (d_.context == 0 || d_.context > 64 * most)
            return bad("context_length", d_.context, "1 to 67108864 are possible");
        if (d_.width == 0 || d_.width > most)
            return bad("embedding_length", d_.width, "1 to 1048576 are possible");
        if (d_.layers == 0 || d_.layers > 4096)
            return bad("block_count", d_.layers, "1 to 4096 are possible");
        if (d_.hidden == 0 || d_.hidden > 16 * most)
            return bad("feed_forward_length", d_.hidden, "1 to 16777216 are possible");
        if (!(d_.norm_epsilon > 0) || d_.norm_epsilon > 1)
            return status::error(errc::invalid_argument, "the norm's epsilon %g is not within 0 to 1",
                                 static_cast<double>(d_.norm_epsilon));
        if (const std::size_t experts = number("expert_count", 0); experts != 0)
            return bad("expert_count", experts, "mixtures of experts are not supported");
        return {};
    }

    status heads() {
        if (d_.heads == 0 || d_.heads > (1u << 20))
            return bad("attention.head_count", d_.heads, "1 to 1048576 are possible");
        if (!has("attention.key_length") && d_.width % d_.heads != 0)
            return bad("attention.head_count", d_.heads,
                       "it must divide the embedding length, unless attention.key_length says the size of a "
                       "head");
        d_.head_size = number("attention.key_length", static_cast<std::uint32_t>(d_.width / d_.heads));
        if (d_.head_size == 0 || d_.head_size > 512)
            return bad(has("attention.key_length") ? "attention.key_length" : "attention.head_count",
                       has("attention.key_length") ? d_.head_size : d_.heads, "a head has 1 to 512 channels");
        const std::size_t values =
            number("attention.value_length", static_cast<std::uint32_t>(d_.width / d_.heads));
        if (error_.ok() && values != d_.head_size)
            return bad("attention.value_length", values,
                       "only values as long as keys (attention.key_length, or embedding_length / head_count) "
                       "are supported");
        if (d_.kv_heads == 0 || d_.heads % d_.kv_heads != 0)
            return bad("attention.head_count_kv", d_.kv_heads, "it must divide the number of heads");
        return {};
    }

    status scales() {
        const architecture_traits& t = d_.traits;
        if (t.width_scale_layers == d_.layers)
            d_.attention_scale = 1 / std::sqrt(static_cast<float>(d_.width / d_.heads));
        if (t.scaled_embedding)
            d_.embedding_scale = std::sqrt(static_cast<float>(d_.width));
        if (t.capped_logits) {
            d_.logit_cap = real("final_logit_softcapping", 0.0f);
            if (d_.logit_cap < 0)
                return status::error(errc::invalid_argument, "key %s is %g: a cap is not negative",
                                     key("final_logit_softcapping").c_str(),
                                     static_cast<double>(d_.logit_cap));
        }
        if (t.learned_positions)
            return {};
        auto rope = read_rope(file_, t, d_.head_size, d_.context);
        if (!rope)
            return rope.error();
        d_.ropes.push_back(std::move(*rope));
        return {};
    }

    status layers() {
        const architecture_traits& t = d_.traits;
        const std::size_t window = number("attention.sliding_window", 0);
        if (has("attention.sliding_window") && window == 0 && error_.ok() && !t.zero_window_is_none)
            return bad("attention.sliding_window", window,
                       "a window has 1 token or more; without this key every layer sees all tokens");
        const auto sliding = layers_that_slide();
        if (!sliding)
            return sliding.error();
        const bool turns = !d_.ropes.empty(), is_local = turns && window != 0 && t.local_rope_base != 0;
        if (is_local) {
            rope_shape local;
            local.dims = d_.ropes[0].dims;
            local.pairing = d_.ropes[0].pairing;
            local.base = double{real("rope.freq_base_swa", static_cast<float>(t.local_rope_base))};
            local.trained_context = d_.ropes[0].trained_context;
            if (!(local.base > 0) && error_.ok())
                return status::error(errc::invalid_argument, "key %s is not positive",
                                     key("rope.freq_base_swa").c_str());
            d_.ropes.push_back(std::move(local));
        }
        for (std::size_t i = 0; i < d_.layers; ++i) {
            layer_shape layer;
            if ((*sliding)[i])
                layer.window = window;
            if (turns && (t.unturned_layer_step == 0 || (i + 1) % t.unturned_layer_step != 0))
                layer.rope = is_local && layer.window != 0 ? 1 : 0;
            d_.each_layer.push_back(layer);
        }
        return {};
    }

    /// Which layers have the window, if there is one: a key with a number or an array says it, or the entry.
    result<std::vector<bool>> layers_that_slide() {
        constexpr const char* name = "attention.sliding_window_pattern";
        std::vector<bool> out(d_.layers, true);
        const gguf_value* pattern = file_.find(key(name));
        if (pattern != nullptr && pattern->is_array) {
            if (pattern->count < d_.layers)
                return bad(name, pattern->count, "its length; every layer has an element");
            for (std::size_t i = 0; i < d_.layers; ++i) {
                const auto flag = pattern->boolean(i);
                const auto integer = pattern->integer<std::int64_t>(i);
                if (!flag && !integer)
                    return status::error(errc::invalid_argument,
                                         "key %s is neither a number nor an array of booleans",
                                         key(name).c_str());
                out[i] = flag ? *flag : *integer != 0;
            }
            return out;
        }
        const std::size_t step = number(name, static_cast<std::uint32_t>(d_.traits.global_layer_step));
        for (std::size_t i = 0; i < d_.layers && step != 0; ++i)
            out[i] = (i + 1) % step != 0;
        return out;
    }

    const gguf& file_;
    model_shape d_;
    status error_;
};

} // namespace

result<model_shape> read_shape(const gguf& file, const std::optional<architecture_traits>& traits) {
    return shape_reader(file).read(traits);
}

} // namespace lm
