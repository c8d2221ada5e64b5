// A graph as steps for several threads, and where these have to wait for each other.
#pragma once

#include "ggml/ggml_api.hpp"

#include <crumb/core/buffer.hpp>
#include <crumb/float_ops.hpp>
#include <crumb/op/linear/any_linear.hpp>

#include <algorithm>
#include <array>
#include <deque>
#include <initializer_list>
#include <span>
#include <vector>

namespace crumb_ggml {

class graph_plan;

/// A thread that computes its part of a step.
struct worker {
    std::size_t part = 0, parts = 1;
    std::span<std::byte> scratch; ///< its own: as much as any step has asked for
    const crumb::float_ops* floats = nullptr;
};

/// One operation, or a part of one.
struct step {
    void (*run)(const step&, const worker&) = nullptr;
    const ggml_tensor* node = nullptr;
    void* data = nullptr; ///< what `run` knows more, owned by the plan
    bool waits = false;   ///< until all threads have done the steps before
};

/// Memory that a step reads or writes. With `rows` every thread keeps to its part of so many rows, which are
/// those of `crumb::split`; otherwise a thread may touch anything.
struct memory_span {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    std::size_t rows = 0;

    /// Only the rows of contiguous tensors have the same order in whatever view of the same memory.
    static memory_span of(const ggml_tensor* t, std::size_t rows = 0) noexcept {
        const auto* data = static_cast<const std::byte*>(t->data);
        return {data, data + ggml_nbytes(t), ggml_is_contiguous(t) ? rows : 0};
    }
    /// Whether threads that have not waited for each other could meet here.
    bool collides(const memory_span& other) const noexcept {
        if (end <= other.begin || other.end <= begin)
            return false;
        return rows == 0 || rows != other.rows || begin != other.begin || end != other.end;
    }
};

/// An input of products, quantized once for all that read it.
struct quantized_input {
    const ggml_tensor* source = nullptr;
    std::size_t slice = 0; ///< of the source, for who multiplies it piece by piece
    crumb::activation_plan layout;
    crumb::matrix_view<const float> x;
    std::size_t place = 0; ///< which of the plan's few buffers
    crumb::activations quantized;
};

/// Rows of a product, and where they go.
struct product {
    const crumb::any_linear* plan = nullptr;
    const quantized_input* input = nullptr; ///< null: the plan reads floats
    crumb::matrix_view<const float> x;
    crumb::matrix_view<float> y;
};

/// Cosines and sines of the positions of a batch.
struct rope_angles {
    const ggml_tensor* of = nullptr; ///< an operation that wants them; others may have the same
    std::size_t pairs = 0;
    crumb::buffer table; ///< per position `pairs` cosines, then as many sines
    float* row(std::size_t i) const noexcept { return table.as<float>() + i * 2 * pairs; }
};

/// What rows of queries see of the tokens in a cache.
struct visible_tokens {
    enum kind_of_row : std::uint8_t {
        nothing,
        stretch, ///< tokens begin .. end - 1
        some,    ///< some of begin .. end - 1
        weighed  ///< the mask holds other numbers than 0 and -infinity
    };
    struct row {
        std::size_t begin = 0, end = 0;
        kind_of_row kind = nothing;
    };
    const ggml_tensor* mask = nullptr;
    std::vector<row> rows; ///< of all sequences
};

struct stored_weights;

/// The workspace of products with experts: rows sorted by expert. Products with the same input and the same
/// choice of experts share it.
struct expert_rows {
    const ggml_tensor* input = nullptr;
    const ggml_tensor* ids = nullptr;
    crumb::activation_plan layout; ///< empty: floats
    std::size_t k = 0, experts = 0, count = 0;
    std::size_t outputs = 0; ///< the most floats of a row of results
    // In the workspace:
    std::span<std::size_t> first;  ///< sorted rows of expert e: first[e] .. first[e + 1] - 1
    std::span<std::size_t> place;  ///< bytes before those that are quantized for expert e
    std::span<std::int32_t> order; ///< sorted row -> row of ids
    float* x = nullptr;            ///< sorted rows
    float* y = nullptr;
    std::byte* quantized = nullptr;
};

/// A product with experts.
struct expert_product {
    const stored_weights* weights = nullptr;
    const expert_rows* rows = nullptr;
};

/// The steps of a graph. Steps refer to the graph's tensors and to this object; it may be filled again.
class graph_plan {
  public:
    explicit graph_plan(const crumb::float_ops& floats) : floats_(floats) {}

    /// Throws std::bad_alloc; an error names the tensor that cannot be computed.
    crumb::status fill(std::span<ggml_tensor* const> nodes, std::size_t threads);
    std::span<const step> steps() const noexcept { return steps_; }
    std::span<std::byte> scratch(std::size_t part) const noexcept {
        return scratch_.bytes().subspan(part * scratch_bytes_, scratch_bytes_);
    }
    const crumb::float_ops& floats() const noexcept { return floats_; }
    /// The largest number of rows of a product.
    std::size_t rows() const noexcept { return rows_; }

    // ---- for those that add steps

    void add(const step& s, std::initializer_list<memory_span> reads,
             std::initializer_list<memory_span> writes);
    /// Every thread has at least so many bytes of scratch.
    void need_scratch(std::size_t bytes) noexcept { scratch_bytes_ = std::max(scratch_bytes_, bytes); }
    /// The quantized rows of `x`; a step that fills them if there is none yet.
    const quantized_input& quantize(const ggml_tensor* source, std::size_t slice,
                                    const crumb::activation_plan& layout,
                                    const crumb::matrix_view<const float>& x);
    static memory_span memory_of(const quantized_input& in) noexcept { return pretended(in.place); }
    product& new_product() { return products_.emplace_back(); }
    /// Keeps a plan as long as the steps.
    const crumb::any_linear& keep(const crumb::any_linear& plan) { return plans_.emplace_back(plan); }
    rope_angles& angles_of(const ggml_tensor* rope);
    visible_tokens& visible_in(const ggml_tensor* mask);
    /// The last workspace if it has these rows, else a new one, `is_new`. All lie in the same memory, which
    /// is `workspace`.
    expert_rows& experts_for(const expert_rows& wanted, bool& is_new);
    expert_product& new_expert_product() { return expert_products_.emplace_back(); }
    static memory_span workspace() noexcept { return pretended(places); }

  private:
    crumb::status add_node(const ggml_tensor* node);
    /// Whether the floats of a graph's weights are those that `weights=` has.
    static crumb::status check_weights(std::span<ggml_tensor* const> nodes);

    static constexpr std::size_t places = 3;
    /// Stands for memory of the plan that has no address yet.
    static memory_span pretended(std::size_t i) noexcept {
        return {reinterpret_cast<const std::byte*>(64 * (i + 1)),
                reinterpret_cast<const std::byte*>(64 * (i + 2)), 0};
    }
    struct buffer_use {
        crumb::buffer memory;
        std::size_t bytes = 0;
        const quantized_input* holds = nullptr;
    };

    crumb::float_ops floats_;
    std::vector<step> steps_;
    std::vector<memory_span> reads_, writes_; ///< since threads have last waited
    std::array<buffer_use, places> buffers_;
    std::size_t next_place_ = 0;
    std::deque<quantized_input> inputs_;
    std::deque<product> products_;
    std::deque<rope_angles> angles_;
    std::deque<visible_tokens> visible_;
    std::deque<expert_rows> experts_;
    std::deque<expert_product> expert_products_;
    crumb::buffer workspace_;
    crumb::buffer scratch_;
    std::size_t scratch_bytes_ = 0, rows_ = 1;
    bool has_checked_ = false; ///< the weights of a graph; later ones have the same
    std::deque<crumb::any_linear> plans_;
};

} // namespace crumb_ggml
