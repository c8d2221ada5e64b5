#include "model/model.hpp"

#include "gguf/iq_decode.hpp"
#include "model/ffn_file.hpp"
#include "model/packed_file.hpp"

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
        if (options_.ffn != ffn_type::dense && traits().gate != gate_type::none)
            return status::error(errc::unsupported, "gated networks do not fold: --ffn dense");
        if (const status s = extras(); !s)
            return s;
        embedding();
        if (traits().learned_positions)
            floats("position_embd.weight", d.width, d.context, m_.positions_);
        if (traits().frequency_factors)
            rope_factors();
        norm("output_norm", m_.output_norm_, m_.output_norm_bias_);
        m_.layers_.resize(d.layers);
        for (std::size_t i = 0; i < d.layers && error_.ok(); ++i)
            layer(m_.layers_[i], "blk." + std::to_string(i) + ".");
        bias("output", d.vocabulary, traits().vocabulary_bias, m_.vocabulary_bias_);
        // A model without an output matrix uses its embedding.
        const bool tied = m_.file_.find_tensor("output.weight") == nullptr;
        convert(tied ? "token_embd.weight" : "output.weight", d.vocabulary, d.width, m_.output_,
                m_.vocabulary_bias_, weight_type::stored);
        if (tied && error_.ok()) {
            m_.weight_bytes_ -= m_.output_.stored_bytes();
            m_.weight_count_ -= d.vocabulary * d.width;
        }
        if (m_.file_.find_tensor(output_basis_tensor) != nullptr)
            convert(output_basis_tensor, d.width, d.width, m_.output_basis_, {}, weight_type::stored);
        describe();
        // What this program would leave out (biases, experts, ...) changes the results.
        for (const gguf_tensor& t : m_.file_.tensors())
            if (error_.ok() && !t.name.starts_with("crumb.") && !used_.contains(t.name))
                error_ =
                    status::error(errc::unsupported, "tensor %s is not one that architecture %s has here",
                                  quoted(t.name).c_str(), std::string(traits().name).c_str());
        return error_.ok() && options_.ffn != ffn_type::dense ? fold() : error_;
    }

  private:
    status shape() {
        auto read = read_shape(m_.file_, options_.traits);
        if (!read)
            return read.error();
        m_.shape_ = std::move(*read);
        auto vocabulary = tokenizer::make(m_.file_);
        if (!vocabulary)
            return vocabulary.error();
        m_.tokenizer_.emplace(std::move(*vocabulary));
        m_.shape_.vocabulary = m_.tokenizer_->vocab_size();
        return {};
    }
    const architecture_traits& traits() const { return m_.shape_.traits; }

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
        if (traits().norms == norm_type::layer)
            floats(name + ".bias", m_.shape_.width, 1, bias);
    }

    /// Whether the file has the tensor of `name`, as far as it may.
    bool expects(const std::string& name, presence p) const {
        return p == presence::required || (p == presence::optional && m_.file_.find_tensor(name) != nullptr);
    }
    /// A matrix's bias, if it has one.
    void bias(const std::string& matrix_name, std::size_t n, presence p, std::vector<float>& out) {
        if (expects(matrix_name + ".bias", p))
            floats(matrix_name + ".bias", n, 1, out);
    }

    /// One that there has to be, behind those of other matrices.
    void append_bias(const std::string& matrix_name, std::size_t n, std::vector<float>& to) {
        std::vector<float> own;
        bias(matrix_name, n, presence::required, own);
        to.insert(to.end(), own.begin(), own.end());
    }

    void rope_factors() {
        std::vector<float> usual, in_long_contexts;
        const std::size_t pairs = m_.shape_.ropes.empty() ? 0 : m_.shape_.ropes[0].dims / 2;
        const auto read = [&](const char* name, std::vector<float>& out) {
            if (pairs != 0 && m_.file_.find_tensor(name) != nullptr)
                floats(name, pairs, 1, out);
        };
        read("rope_freqs.weight", usual);
        in_long_contexts = usual;
        if (usual.empty()) {
            read("rope_factors_short.weight", usual);
            read("rope_factors_long.weight", in_long_contexts);
        }
        if (pairs != 0 && error_.ok())
            error_ = set_factors(m_.shape_.ropes[0], std::move(usual), std::move(in_long_contexts));
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
        const bool on_demand = options_.floats_on_demand && find_role(name).has_value();
        auto m =
            matrix::make(*t, n, k, {type, options_.activations, bias, on_demand}, m_.extras(), m_.weights_);
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
        const architecture_traits& t = d.traits;
        const auto put = [&](const char* name, std::size_t n, std::size_t k, matrix& out, presence p,
                             std::vector<float>& b) {
            bias(blk + name, n, p, b);
            convert(blk + name + ".weight", n, k, out, b, options_.weights);
        };
        norm(blk + "attn_norm", l.attention_norm, l.attention_norm_bias);
        norm(blk + "ffn_norm", l.ffn_norm, l.ffn_norm_bias);
        if (t.query_key_norms) {
            floats(blk + "attn_q_norm.weight", d.head_size, 1, l.query_norm);
            floats(blk + "attn_k_norm.weight", d.head_size, 1, l.key_norm);
        }
        if (t.post_norms) {
            floats(blk + "post_attention_norm.weight", d.width, 1, l.attention_post_norm);
            floats(blk + "post_ffw_norm.weight", d.width, 1, l.ffn_post_norm);
        }
        const std::size_t queries = d.attention_width(), keys = d.kv_width();
        const auto has = [&](const char* name) { return m_.file_.find_tensor(blk + name) != nullptr; };
        if (!has("attn_q.weight") && (has("attn_qkv.weight") || has("attn_qkv.bias"))) {
            // Some files have one matrix and three biases.
            if (t.qkv_biases == presence::optional && !expects(blk + "attn_qkv.bias", t.qkv_biases) &&
                expects(blk + "attn_q.bias", t.qkv_biases))
                for (const auto& [name, n] :
                     {std::pair{"attn_q", queries}, {"attn_k", keys}, {"attn_v", keys}})
                    append_bias(blk + name, n, l.qkv_bias);
            put("attn_qkv", queries + 2 * keys, d.width, l.qkv, t.qkv_biases, l.qkv_bias);
        } else {
            put("attn_q", queries, d.width, l.q, t.qkv_biases, l.q_bias);
            put("attn_k", keys, d.width, l.k, t.qkv_biases, l.k_bias);
            put("attn_v", keys, d.width, l.v, t.qkv_biases, l.v_bias);
        }
        put("attn_output", d.width, queries, l.output, t.output_biases, l.output_bias);
        if (options_.ffn == ffn_type::tardis) {
            for (const auto& [name, n, b] :
                 {std::tuple{"ffn_up", d.hidden, &l.up_bias}, {"ffn_down", d.width, &l.down_bias}}) {
                bias(blk + name, n, t.ffn_biases, *b);
                tensor(blk + name + ".weight");
            }
            return;
        }
        if (t.gate == gate_type::separate)
            put("ffn_gate", d.hidden, d.width, l.gate, t.ffn_biases, l.gate_bias);
        put("ffn_up", t.gate == gate_type::fused ? 2 * d.hidden : d.hidden, d.width, l.up, t.ffn_biases,
            l.up_bias);
        put("ffn_down", d.width, d.hidden, l.down, t.ffn_biases, l.down_bias);
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
    std::string first_matrix_;
    std::unordered_set<std::string_view> used_;                  ///< names of the tensors that were read
    std::map<std::string, std::size_t> stored_, without_panels_; ///< matrices by name of type
    std::map<std::pair<ggml_type, weight_type>, std::vector<std::string>> requantized_;
    status error_;
};

result<model> model::load(const std::string& path, const model_options& options) {
    auto file = gguf::open(path);
    if (!file)
        return file.error();
    if (const status s = check_source(*file, options.source); !s)
        return s;
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

std::span<const named_matrix> of_layers(std::span<const named_matrix> matrices, crumb::range layers) {
    const auto first = [&](std::size_t layer) {
        return static_cast<std::size_t>(
            std::find_if(matrices.begin(), matrices.end(),
                         [&](const named_matrix& each) { return each.role.layer >= layer; }) -
            matrices.begin());
    };
    return matrices.subspan(first(layers.begin), first(layers.end) - first(layers.begin));
}

std::span<const named_matrix> same_inputs(std::span<const named_matrix> matrices) {
    std::size_t end = 1;
    while (end < matrices.size() && matrices[end].role.input() == matrices[0].role.input())
        ++end;
    return matrices.first(end);
}

// Matrices are this model's own, which are not const.

status model::bring(std::span<const named_matrix> which) const {
    for (const named_matrix& each : which)
        if (const status s =
                const_cast<matrix*>(each.m)->bring(**file_.get_tensor(each.name), extras(), weights_);
            !s)
            return s;
    return {};
}

void model::leave(std::span<const named_matrix> which) const {
    for (const named_matrix& each : which)
        const_cast<matrix*>(each.m)->leave(weights_);
}

std::span<float> model::floats(const named_matrix& each) noexcept {
    return const_cast<matrix*>(each.m)->floats();
}

status model::correct(const named_matrix& each, std::span<const float> corrections) {
    return const_cast<matrix*>(each.m)->correct(corrections);
}

status model::replace(const named_matrix& each, int bits, std::span<const float> weights,
                      std::span<const float> corrections) {
    return const_cast<matrix*>(each.m)->replace(bits, weights, corrections);
}

double model::bits_per_weight() const noexcept {
    return 8.0 * static_cast<double>(weight_bytes_) / static_cast<double>(weight_count_);
}

} // namespace lm
