#include "model/model.hpp"

#include "gguf/iq_decode.hpp"
#include "model/ffn_file.hpp"

#include <algorithm>
#include <map>
#include <unordered_set>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

/// Reads into a model and remembers the first error.
class model::loader {
  public:
    loader(model& m, const model_options& options) : m_(m), options_(options) {}

    status load() {
        if (const status s = shape(); !s)
            return s;
        const auto& d = m_.shape_;
        if (options_.ffn != ffn_type::dense && d.arch == architecture::llama)
            return status::error(errc::unsupported, "gated networks do not fold: --ffn dense");
        if (const status s = extras(); !s)
            return s;
        embedding();
        if (d.arch == architecture::gpt2)
            floats("position_embd.weight", d.width, d.context, m_.positions_);
        norm("output_norm", m_.output_norm_, m_.output_norm_bias_);
        m_.layers_.resize(d.layers);
        for (std::size_t i = 0; i < d.layers && error_.ok(); ++i)
            layer(m_.layers_[i], "blk." + std::to_string(i) + ".");
        // A model without an output matrix uses its embedding.
        const bool tied = m_.file_.find_tensor("output.weight") == nullptr;
        convert(tied ? "token_embd.weight" : "output.weight", d.vocabulary, d.width, m_.output_, {},
                weight_type::stored);
        if (tied && error_.ok()) {
            m_.weight_bytes_ -= m_.output_.stored_bytes();
            m_.weight_count_ -= d.vocabulary * d.width;
        }
        describe();
        // What this program would leave out (biases, experts, ...) changes the results.
        for (const gguf_tensor& t : m_.file_.tensors())
            if (error_.ok() && !t.name.starts_with("crumb.") && !used_.contains(t.name))
                error_ =
                    status::error(errc::unsupported, "tensor %s is not one that architecture %s has here",
                                  quoted(t.name).c_str(), prefix_.c_str());
        return error_.ok() && options_.ffn != ffn_type::dense ? fold() : error_;
    }

  private:
    std::string key(const char* name) const { return prefix_ + "." + name; }

    std::size_t number(const char* name, std::optional<std::uint32_t> fallback = {}) {
        const auto v = fallback ? m_.file_.get_u32(key(name), *fallback) : m_.file_.get_u32(key(name));
        if (!v && error_.ok())
            error_ = v.error();
        return v ? *v : 0;
    }
    float real(const char* name, std::optional<float> fallback = {}) {
        const auto v = fallback ? m_.file_.get_f32(key(name), *fallback) : m_.file_.get_f32(key(name));
        if (!v && error_.ok())
            error_ = v.error();
        return v ? *v : 0.0f;
    }
    status bad(const char* name, std::size_t value, const char* why) const {
        return status::error(errc::bad_shape, "key %s is %zu: %s", key(name).c_str(), value, why);
    }

    status shape() {
        const auto arch = m_.file_.get_string("general.architecture");
        if (!arch)
            return arch.error();
        prefix_ = std::string(*arch);
        auto& d = m_.shape_;
        if (prefix_ == "llama")
            d.arch = architecture::llama;
        else if (prefix_ == "gpt2")
            d.arch = architecture::gpt2;
        else
            return status::error(errc::unsupported, "architecture '%.40s' is not supported (llama, gpt2 are)",
                                 prefix_.c_str());
        const bool is_llama = d.arch == architecture::llama;
        d.context = number("context_length");
        d.width = number("embedding_length");
        d.layers = number("block_count");
        d.hidden = number("feed_forward_length");
        d.heads = number("attention.head_count");
        d.kv_heads = number("attention.head_count_kv", static_cast<std::uint32_t>(d.heads));
        d.norm_epsilon = real(is_llama ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon");
        if (!error_.ok())
            return error_;
        // Beyond these a product of sizes could overflow, and no model comes near them.
        constexpr std::size_t most = 1u << 20;
        if (d.context == 0 || d.context > 64 * most)
            return bad("context_length", d.context, "1 to 67108864 are possible");
        if (d.width == 0 || d.width > most)
            return bad("embedding_length", d.width, "1 to 1048576 are possible");
        if (d.layers == 0 || d.layers > 4096)
            return bad("block_count", d.layers, "1 to 4096 are possible");
        if (d.hidden == 0 || d.hidden > 16 * most)
            return bad("feed_forward_length", d.hidden, "1 to 16777216 are possible");
        if (d.heads == 0 || d.width % d.heads != 0)
            return bad("attention.head_count", d.heads, "it must divide the embedding length");
        d.head_size = d.width / d.heads;
        if (d.kv_heads == 0 || d.heads % d.kv_heads != 0)
            return bad("attention.head_count_kv", d.kv_heads, "it must divide the number of heads");
        if (!is_llama && d.kv_heads != d.heads)
            return bad("attention.head_count_kv", d.kv_heads, "gpt2 has as many as heads");
        if (!(d.norm_epsilon > 0) || d.norm_epsilon > 1)
            return status::error(errc::invalid_argument, "the norm's epsilon %g is not within 0 to 1",
                                 static_cast<double>(d.norm_epsilon));
        if (is_llama) {
            d.rope_dims = number("rope.dimension_count", static_cast<std::uint32_t>(d.head_size));
            d.rope_base = real("rope.freq_base", 10000.0f);
            for (const char* name : {"attention.key_length", "attention.value_length"})
                if (number(name, static_cast<std::uint32_t>(d.head_size)) != d.head_size && error_.ok())
                    return bad(name, number(name), "only embedding_length / head_count is supported");
            if (number("expert_count", 0) != 0)
                return bad("expert_count", number("expert_count"), "mixtures of experts are not supported");
            if (const status s = scaling(); !s)
                return s;
            if (!error_.ok())
                return error_;
            if (d.rope_dims == 0 || d.rope_dims % 2 != 0 || d.rope_dims > d.head_size)
                return bad("rope.dimension_count", d.rope_dims,
                           "it must be even, not 0, and at most the head size");
            if (!(d.rope_base > 0))
                return status::error(errc::invalid_argument, "key %s is not positive",
                                     key("rope.freq_base").c_str());
        }
        auto vocabulary = tokenizer::make(m_.file_);
        if (!vocabulary)
            return vocabulary.error();
        m_.tokenizer_.emplace(std::move(*vocabulary));
        d.vocabulary = m_.tokenizer_->vocab_size();
        return {};
    }

    /// An error where the file wants scaled rotary embeddings. A factor without a type means linear scaling,
    /// and older files have another key for it.
    status scaling() const {
        const auto refuse = [](const std::string& what) {
            return status::error(errc::unsupported, "scaled rotary embeddings (%s) are not supported",
                                 what.c_str());
        };
        const auto type = m_.file_.get_string(key("rope.scaling.type"), "none");
        if (!type || *type != "none")
            return refuse(key("rope.scaling.type"));
        if (m_.file_.find(key("rope.scaling.type")) == nullptr)
            for (const char* name : {"rope.scaling.factor", "rope.scale_linear"})
                if (const auto factor = m_.file_.get_f32(key(name), 1.0f);
                    !factor || (*factor != 0.0f && *factor != 1.0f))
                    return refuse(key(name));
        return m_.file_.find_tensor("rope_freqs.weight") == nullptr ? status() : refuse("rope_freqs.weight");
    }

    /// Those of the file.
    status extras() {
        auto read = matrix_extras::read(m_.file_);
        if (!read)
            return read.error();
        m_.extras_ = std::make_unique<const matrix_extras>(std::move(*read));
        return {};
    }

    const gguf_tensor* tensor(const std::string& name) {
        const auto t = m_.file_.get_tensor(name);
        if (!t && error_.ok())
            error_ = t.error();
        if (t)
            used_.insert((*t)->name);
        if (t && (*t)->type == ggml_type::nvfp4)
            for (const std::string& beside :
                 {matrix_extras::scale_name(name), matrix_extras::input_scale_name(name)})
                if (const gguf_tensor* scale = m_.file_.find_tensor(beside))
                    used_.insert(scale->name);
        return t ? *t : nullptr;
    }

    /// The tensor if it has `rows` rows of `size` numbers, or null and an error.
    const gguf_tensor* tensor(const std::string& name, std::size_t size, std::size_t rows) {
        const gguf_tensor* t = tensor(name);
        if (t == nullptr || !error_.ok())
            return nullptr;
        const matrix_shape shape = shape_of(*t);
        if (shape == matrix_shape{rows, size} && t->rank <= 2)
            return t;
        error_ = status::error(errc::bad_shape, "tensor %s: shape is %zu x %zu, %zu x %zu is needed",
                               name.c_str(), shape.k, shape.n, size, rows);
        return nullptr;
    }

    /// `rows` rows of `size` numbers.
    void floats(const std::string& name, std::size_t size, std::size_t rows, std::vector<float>& out) {
        const gguf_tensor* t = tensor(name, size, rows);
        if (t == nullptr)
            return;
        auto values = to_floats(*t, m_.extras());
        if (values)
            out = std::move(*values);
        else
            error_ = values.error();
    }

    void embedding() {
        const auto& d = m_.shape_;
        const gguf_tensor* t = tensor("token_embd.weight", d.width, d.vocabulary);
        if (t == nullptr)
            return;
        auto rows = tensor_rows::open(*t, m_.extras());
        if (!rows) {
            error_ = rows.error();
            return;
        }
        m_.embedding_ = std::move(*rows);
        m_.weight_bytes_ += t->data.size();
        m_.weight_count_ += d.vocabulary * d.width;
    }

    void norm(const std::string& name, std::vector<float>& weight, std::vector<float>& bias) {
        floats(name + ".weight", m_.shape_.width, 1, weight);
        if (m_.shape_.arch == architecture::gpt2)
            floats(name + ".bias", m_.shape_.width, 1, bias);
    }

    void convert(const std::string& name, std::size_t n, std::size_t k, matrix& out,
                 std::span<const float> bias, weight_type type) {
        const gguf_tensor* t = tensor(name);
        if (t == nullptr || !error_.ok())
            return;
        if (type == weight_type::stored && is_decoded(t->type)) {
            type = is_rounding(options_.weights) ? options_.weights : weight_type::q8_0;
            requantized_[{t->type, type}].push_back(name);
        }
        auto m = matrix::make(*t, n, k, type, options_.activations, bias, m_.extras());
        if (!m) {
            error_ = m.error();
            return;
        }
        out = std::move(*m);
        const auto packed = find_packed(*t);
        const std::string stored =
            packed ? std::string(name_of(packed->type)) : lower(ggml_type_name(t->type));
        if (find_role(name))
            ++stored_[stored];
        if (out.lacks_panels())
            ++without_panels_[type == weight_type::stored ? stored : std::string(name_of(type))];
        m_.weight_bytes_ += out.stored_bytes();
        m_.weight_count_ += n * k;
        // A pass through the model has one precision, for all matrices of the layers and, if it is nested
        // too, for that of the vocabulary.
        if (first_matrix_.empty()) {
            first_matrix_ = name;
            m_.precisions_ = out.precisions();
        } else if (out.precisions() != m_.precisions_ && (out.precisions() || find_role(name))) {
            const auto precision = [](const std::optional<crumb::precision_range>& p) {
                return p ? std::to_string(p->seed) + " to " + std::to_string(p->parent) + " bits"
                         : "not nested";
            };
            error_ = status::error(errc::unsupported,
                                   "tensor %s is %s, tensor %s is %s: all matrices have the same "
                                   "precisions",
                                   first_matrix_.c_str(), precision(m_.precisions_).c_str(), name.c_str(),
                                   precision(out.precisions()).c_str());
        }
    }

    void layer(model_layer& l, const std::string& blk) {
        const auto& d = m_.shape_;
        const auto put = [&](const char* name, std::size_t n, std::size_t k, matrix& out,
                             std::vector<float>& bias) {
            if (d.arch == architecture::gpt2)
                floats(blk + name + ".bias", n, 1, bias);
            convert(blk + name + ".weight", n, k, out, bias, options_.weights);
        };
        std::vector<float> none;
        norm(blk + "attn_norm", l.attention_norm, l.attention_norm_bias);
        norm(blk + "ffn_norm", l.ffn_norm, l.ffn_norm_bias);
        if (d.arch == architecture::gpt2) {
            put("attn_qkv", 3 * d.width, d.width, l.qkv, l.qkv_bias);
        } else {
            put("attn_q", d.width, d.width, l.q, none);
            put("attn_k", d.kv_heads * d.head_size, d.width, l.k, none);
            put("attn_v", d.kv_heads * d.head_size, d.width, l.v, none);
            put("ffn_gate", d.hidden, d.width, l.gate, none);
        }
        put("attn_output", d.width, d.width, l.output, l.output_bias);
        if (options_.ffn != ffn_type::tardis) {
            put("ffn_up", d.hidden, d.width, l.up, l.up_bias);
            put("ffn_down", d.width, d.hidden, l.down, l.down_bias);
            return;
        }
        for (const auto& [name, n, bias] :
             {std::tuple{"ffn_up", d.hidden, &l.up_bias}, {"ffn_down", d.width, &l.down_bias}}) {
            floats(blk + name + ".bias", n, 1, *bias);
            tensor(blk + name + ".weight");
        }
    }
    static std::string lower(std::string text) {
        for (char& c : text)
            c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
        return text;
    }
    /// "q4_k 180, q6_k 31", the most frequent first; of one type its name.
    static std::string counts(const std::map<std::string, std::size_t>& of) {
        std::vector<std::pair<std::string, std::size_t>> sorted(of.begin(), of.end());
        std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
            return a.second != b.second ? a.second > b.second : a.first < b.first;
        });
        std::string out;
        for (const auto& [name, count] : sorted)
            out += (out.empty() ? "" : ", ") + name +
                   (sorted.size() == 1 ? std::string() : " " + std::to_string(count));
        return out;
    }
    /// What has been read and how it is multiplied, in words.
    void describe() {
        m_.stored_type_ = counts(stored_);
        for (const auto& [types, names] : requantized_) {
            std::string which = names.front();
            if (names.size() > 1)
                which += names.size() == 2 ? " and " + names[1]
                                           : " and " + std::to_string(names.size() - 1) + " more matrices";
            m_.notices_.push_back(which + ": " + ggml_type_name(types.first) +
                                  " is decoded and quantized to " + std::string(name_of(types.second)) +
                                  ", not multiplied as stored");
        }
        if (!without_panels_.empty())
            m_.notices_.push_back("there are no int8 panels of " + counts(without_panels_) +
                                  ": batches of these matrices are multiplied exactly");
    }

    /// Folded networks in the place of `up` and `down`, or beside them.
    status fold() {
        auto folded = read_ffns(m_, options_);
        if (!folded)
            return folded.error();
        for (std::size_t i = 0; i < folded->size(); ++i) {
            m_.layers_[i].folded = std::make_shared<const folded_layer>(std::move((*folded)[i]));
            m_.weight_bytes_ += m_.layers_[i].folded->bytes();
            if (options_.ffn == ffn_type::tardis)
                m_.weight_count_ += 2 * m_.shape_.width * m_.shape_.hidden;
        }
        return {};
    }

    model& m_;
    model_options options_;
    std::string prefix_, first_matrix_;
    std::unordered_set<std::string_view> used_;                  ///< names of the tensors that were read
    std::map<std::string, std::size_t> stored_, without_panels_; ///< matrices by name of type
    std::map<std::pair<ggml_type, weight_type>, std::vector<std::string>> requantized_;
    status error_;
};

result<model> model::load(const std::string& path, const model_options& options) {
    auto file = gguf::open(path);
    if (!file)
        return file.error();
    return load(std::move(*file), buffer(), path, options);
}

result<model> model::load(buffer file, const std::string& path, const model_options& options) {
    auto parsed = gguf::parse(file.bytes());
    if (!parsed)
        return parsed.error();
    return load(std::move(*parsed), std::move(file), path, options);
}

result<model> model::load(gguf file, buffer memory, const std::string& path, const model_options& options) {
    model m;
    m.path_ = path;
    m.memory_ = std::move(memory);
    m.file_ = std::move(file);
    if (const status s = loader(m, options).load(); !s) {
        // A message has room for the end of a long path and the reason.
        const std::size_t cut = path.size() > 60 ? path.size() - 57 : 0;
        return status::error(s.code(), "%s%s: %s", cut > 0 ? "..." : "", path.c_str() + cut, s.message());
    }
    return m;
}

std::optional<matrix_role> find_role(std::string_view tensor) noexcept {
    constexpr std::string_view head = "blk.", tail = ".weight";
    if (!tensor.starts_with(head) || !tensor.ends_with(tail))
        return {};
    tensor = tensor.substr(head.size(), tensor.size() - head.size() - tail.size());
    matrix_role role;
    std::size_t digits = 0;
    for (; digits < tensor.size() && digits < 6 && tensor[digits] >= '0' && tensor[digits] <= '9'; ++digits)
        role.layer = 10 * role.layer + static_cast<std::size_t>(tensor[digits] - '0');
    if (digits == 0)
        return {};
    constexpr std::pair<std::string_view, std::size_t> names[] = {
        {".attn_qkv", 0},    {".attn_q", 0},   {".attn_k", 0}, {".attn_v", 0},
        {".attn_output", 1}, {".ffn_gate", 2}, {".ffn_up", 2}, {".ffn_down", 3}};
    for (const auto& [name, reads] : names) {
        if (tensor.substr(digits) == name) {
            role.reads = reads;
            return role;
        }
    }
    return {};
}

std::vector<named_matrix> model::matrices() const {
    std::vector<named_matrix> out;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        const model_layer& l = layers_[i];
        for (const auto& [name, m] : {std::pair<const char*, const matrix*>{"attn_qkv", &l.qkv},
                                      {"attn_q", &l.q},
                                      {"attn_k", &l.k},
                                      {"attn_v", &l.v},
                                      {"attn_output", &l.output},
                                      {"ffn_gate", &l.gate},
                                      {"ffn_up", &l.up},
                                      {"ffn_down", &l.down}}) {
            if (m->n() == 0)
                continue;
            named_matrix each{"blk." + std::to_string(i) + "." + name + ".weight", m, {}};
            each.role = *find_role(each.name);
            out.push_back(std::move(each));
        }
    }
    return out;
}

std::span<float> model::floats(const named_matrix& each) noexcept {
    // One of this model's own, which are not const.
    return const_cast<matrix*>(each.m)->floats();
}

status model::replace(const named_matrix& each, int bits, std::span<const float> weights,
                      std::span<const float> corrections) {
    // As above.
    return const_cast<matrix*>(each.m)->replace(bits, weights, corrections);
}

double model::bits_per_weight() const noexcept {
    return 8.0 * static_cast<double>(weight_bytes_) / static_cast<double>(weight_count_);
}

} // namespace lm
