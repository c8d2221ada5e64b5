// The tensors of a model of which some have become others.
#pragma once

#include "gguf/gguf_writer.hpp"
#include "train/quantizer.hpp"
#include "train/written_tensor.hpp"

#include <map>
#include <string>
#include <unordered_map>

namespace lm {

/// What is written in the place of a model's tensors, and the table sets that belong to it.
class quantized_tensors {
  public:
    explicit quantized_tensors(const model& m) : m_(m) {}

    void keep(const std::string& name, written_tensor&& tensor) {
        tensors_.insert_or_assign(name, std::move(tensor));
    }
    std::size_t size() const noexcept { return tensors_.size(); }
    /// What a tensor has become; null if it is as it was.
    const written_tensor* find(const std::string& name) const {
        const auto found = tensors_.find(name);
        return found == tensors_.end() ? nullptr : &found->second;
    }
    /// Sets a format's tables, which have to be there before its tensors are read.
    void set_codebooks(weight_type type, std::vector<std::int8_t> entries);
    std::span<const std::int8_t> codebooks(weight_type type) const noexcept;
    /// A tensor's weights as they are now, row by row.
    crumb::result<tensor_rows> rows(std::string_view name) const;

    /// All keys and tensors of the file, to which `writer` refers then.
    crumb::status collect(gguf_writer& writer) const;
    /// All matrices, the vocabulary's included.
    std::vector<quantized_matrix> matrices() const;

  private:
    crumb::status collect_codebooks(gguf_writer& writer) const;

    const model& m_;
    std::unordered_map<std::string, written_tensor> tensors_;
    std::map<weight_type, std::vector<std::int8_t>> codebooks_;
    matrix_extras extras_; ///< the same sets
};

} // namespace lm
