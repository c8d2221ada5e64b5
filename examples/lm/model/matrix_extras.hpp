// What a file has for its matrices beside their tensors.
#pragma once

#include "gguf/gguf.hpp"
#include "gguf/packed_weights.hpp"

#include <crumb/core/status.hpp>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lm {

/// The table sets of codebook formats, in keys, and the scales of NVFP4 tensors, in tensors of one float.
class matrix_extras {
  public:
    /// The table set of a format; empty if there is none.
    std::span<const std::int8_t> codebooks(std::string_view format) const noexcept {
        for (const auto& [name, entries] : codebooks_)
            if (name == format)
                return entries;
        return {};
    }
    void set_codebooks(std::string_view format, std::vector<std::int8_t> entries) {
        codebooks_.emplace_back(std::string(format), std::move(entries));
    }
    /// What all weights of a tensor are multiplied with: 1 unless it is of NVFP4 and has a scale.
    float scale(const gguf_tensor& tensor) const noexcept {
        for (const auto& [name, scale] : scales_)
            if (name == tensor.name)
                return scale;
        return 1;
    }

    /// Reads the keys `crumb.codebooks.<format>` of a file, and the tensors `<matrix>.scale`.
    static crumb::result<matrix_extras> read(const gguf& file);
    static std::string codebook_key(std::string_view format) { return lm::codebook_key(format); }
    /// The tensor with the scale of a tensor `<matrix>.weight`; empty for other names.
    static std::string scale_name(std::string_view weight) { return beside(weight, ".scale"); }
    /// The tensor with the scale that its inputs had where they were quantized to NVFP4 too. Inputs have
    /// scales of their own here.
    static std::string input_scale_name(std::string_view weight) { return beside(weight, ".input_scale"); }

  private:
    static std::string beside(std::string_view weight, const char* what) {
        constexpr std::string_view end = ".weight";
        return weight.ends_with(end) ? std::string(weight.substr(0, weight.size() - end.size())) + what
                                     : std::string();
    }
    std::vector<std::pair<std::string, std::vector<std::int8_t>>> codebooks_;
    std::vector<std::pair<std::string, float>> scales_;
};

} // namespace lm
