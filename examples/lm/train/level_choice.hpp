// What the matrices of a model become: formats, table sets, levels of nested weights.
#pragma once

#include "train/calibration.hpp"
#include "train/kept_work.hpp"
#include "train/work_meter.hpp"

#include <set>

namespace lm {

/// The types whose table sets these options have trained.
std::set<weight_type> types_to_train(const quantization& how);

/// Trains the levels of a model's formats, and chooses these if they differ by matrix.
class level_choice {
  public:
    /// All are referred to; `tensors` gets the table sets.
    level_choice(const quantization& how, model& m, session& s, quantized_tensors& tensors,
                 const stage_function& progress, work_meter& meter)
        : o_(how), m_(m), s_(s), tensors_(tensors), progress_(progress), meter_(meter) {}

    /// How many sets of levels are to be trained.
    std::size_t to_train() const { return types_to_train(o_).size() + std::size_t{trains_nested()}; }
    /// On a text in windows, which `calibrated` is fed.
    [[nodiscard]] crumb::status make(calibration& calibrated, std::span<const std::int32_t> text,
                                     std::size_t window);
    /// What an earlier run has made, instead.
    void take(const trained_levels& made);
    bool is_made() const noexcept { return is_made_; }

    trained_levels trained() const { return {codebooks(), nested_, plan_}; }
    const crumb::nested_levels& nested() const noexcept { return nested_; }
    /// What a tensor becomes.
    weight_type type_of(std::string_view tensor) const;

  private:
    bool trains_nested() const noexcept { return o_.is_nested() && !o_.nested.uniform; }
    std::map<weight_type, std::vector<std::int8_t>> codebooks() const;
    void set_codebooks(const std::map<weight_type, std::vector<std::int8_t>>& sets);
    progress_function stage(const char* name, work_kind kind);
    crumb::status train(calibration& calibrated);
    crumb::status choose(calibration& calibrated, std::span<const std::int32_t> text, std::size_t window);

    const quantization& o_;
    model& m_;
    session& s_;
    quantized_tensors& tensors_;
    const stage_function& progress_;
    work_meter& meter_;
    format_plan plan_;            ///< if formats are chosen
    crumb::nested_levels nested_; ///< of nested weights
    bool is_made_ = false;
};

} // namespace lm
