#include "model/model_identity.hpp"

#include <bit>

namespace lm {

std::uint64_t model_identity(const model& m) {
    std::uint64_t hash = 0xcbf29ce484222325u;
    const auto add = [&](std::uint64_t x) { hash = (hash ^ x) * 0x100000001b3u; };
    const model_shape& d = m.shape();
    for (const std::size_t x : {static_cast<std::size_t>(d.arch), d.width, d.layers, d.hidden, d.heads,
                                d.kv_heads, d.head_size, d.vocabulary})
        add(x);
    const auto add_all = [&](const std::vector<float>& v) {
        for (const float x : v)
            add(std::bit_cast<std::uint32_t>(x));
    };
    for (const model_layer& l : m.layers())
        for (const auto* v :
             {&l.attention_norm, &l.attention_norm_bias, &l.ffn_norm, &l.ffn_norm_bias, &l.qkv_bias,
              &l.output_bias, &l.up_bias, &l.down_bias, &l.query_norm, &l.key_norm, &l.attention_post_norm,
              &l.ffn_post_norm, &l.q_bias, &l.k_bias, &l.v_bias, &l.gate_bias})
            add_all(*v);
    add_all(m.output_norm());
    // Its norms are all 1.
    if (const auto rotated = m.file().get_u64(rotation_key))
        add(*rotated);
    return hash;
}

} // namespace lm
