// What quantizers of weights compute, by name; the bodies are in the .inl files. Results are the same bits on
// every ISA and under all compiler flags: sums have one order, and no product is fused with a sum.
#pragma once

#include <crumb/core/half.hpp>
#include <crumb/core/view.hpp>

namespace crumb::inline CRUMB_ABI::kernel {

// ---- products --------------------------------------------------------------------------------------------
/// C += A B or C -= A B; every element is summed along ascending k, from what C holds.
template <class T>
struct product_args {
    const T* a = nullptr; ///< element (i, k) at a[i * a_row + k * a_depth]
    std::size_t a_row = 0;
    std::size_t a_depth = 1;
    const T* b = nullptr; ///< element (k, j) at b[k * b_stride + j]
    std::size_t b_stride = 0;
    T* c = nullptr;
    std::size_t c_stride = 0;
    std::size_t m = 0;
    std::size_t n = 0; ///< a multiple of 16
    std::size_t k = 0;
};

/// S += X^T X, its lower triangle: the sums of 512 rows each in floats, added to S in order. Elements of the
/// upper triangle may be written as well.
struct moment_args {
    matrix_view<const float> x;
    double* sums = nullptr; ///< x.cols x x.cols
    std::size_t part = 0;   ///< which of `parts` shares of the columns to compute
    std::size_t parts = 1;
};

// ---- levels of a group -----------------------------------------------------------------------------------
/// Scales that are tried at a time, side by side.
inline constexpr std::size_t search_lanes = 16;

/// Tables of ascending levels, and the middles between neighbours: `middle[i]` is between i - 1 and i.
struct search_tables {
    const float* level = nullptr; ///< tables x entries
    const float* middle = nullptr;
    std::size_t entries = 0; ///< at most 16, or more of one table that is evenly spaced
    std::size_t tables = 1;
};

/// Groups of 32 inputs, `search_lanes` scales and the table of each.
struct fit_args {
    search_tables tables;
    const float* w = nullptr;
    const float* a = nullptr;     ///< importance of every input
    std::size_t count = 0;        ///< lanes in use
    const float* table = nullptr; ///< of every lane, as a number
    float* d = nullptr;           ///< scales, none of which is 0; improved
    float* error = nullptr;       ///< sum a (w - d v)^2 at the new scale with the levels v before it
    std::size_t steps = 0;
};

/// One group as a least-squares problem (`group_problem`), evaluated at the scales of all lanes.
struct evaluate_args {
    search_tables tables;
    const float* target = nullptr;
    const float* own = nullptr;
    const float* weight = nullptr;
    const float* mix = nullptr; ///< 32 x 32, or null
    std::size_t count = 0;      ///< lanes in use
    const float* table = nullptr;
    const float* d = nullptr;
    float* loss = nullptr;
    float* value = nullptr; ///< 32 x lanes: levels, as numbers
};

// ---- nested weights --------------------------------------------------------------------------------------
/// Precisions that share codes, from the lowest one on.
inline constexpr std::size_t nested_tables = 3;
/// Codes of a weight, those that do not exist included.
inline constexpr std::size_t nested_codes = 16;

/// One group for all precisions (`nested_problem`), evaluated at the scales of all lanes.
struct nested_args {
    const float* level[nested_tables] = {}; ///< of `seed` bits, seed + 1, ...; ascending
    float lambda[nested_tables] = {};
    int seed = 0, parent = 0;
    const float* target[nested_tables] = {};
    const float* own[nested_tables] = {};
    const float* weight = nullptr;
    const float* mix = nullptr; ///< 32 x 32, or null
    std::size_t count = 0;      ///< lanes in use
    const float* d = nullptr;
    float* loss = nullptr;
    float* value = nullptr; ///< 32 x lanes: levels of `parent` bits, as numbers
};

/// A group with the same target w at all precisions p: with S = sum_p lambda_p T_p and Q = sum_p lambda_p
/// T_p^2 of every code, its loss is sum a (Q d^2 - 2 w d S), but for what depends on w alone.
struct nested_fit_args {
    const float* s = nullptr; ///< per code
    const float* q = nullptr;
    std::size_t codes = 0;
    const float* w = nullptr;
    const float* a = nullptr; ///< importance of every input
    std::size_t count = 0;    ///< lanes in use
    float* d = nullptr;       ///< scales, none of which is 0; improved
    float* loss = nullptr;    ///< at the new scale with the codes before it; 0 where there is none
    std::size_t steps = 0;
};

/// A row whose codes are chosen one after another.
struct descent_row {
    std::uint8_t* code = nullptr;
    const float* scale = nullptr;     ///< per group; of those with 0 nothing is chosen
    float* slope[nested_tables] = {}; ///< e_p H
    std::uint64_t random = 0;         ///< state of a splitmix64, for noise
    float temperature = 0;            ///< 0: without noise
    float gain = 0;                   ///< by how much codes that were chosen without noise lower the loss
};
struct descent_args {
    descent_row* rows = nullptr;
    std::size_t row_count = 0;
    std::size_t size = 0;         ///< columns, a multiple of 32
    const float* h = nullptr;     ///< size x size
    const float* used = nullptr;  ///< per column; 0: it does not exist
    const float* level = nullptr; ///< tables x codes: what a code stands for
    float lambda[nested_tables] = {};
    const float* barred = nullptr; ///< per code: what is added to its loss
    const float* noise = nullptr;  ///< positive numbers; of any 16 in a row
    std::size_t noise_mask = 0;    ///< their number - 1
};

// One specialization per ISA is compiled inside its target region.
template <class Isa>
struct product_run;
template <class Isa>
struct search_run;
template <class Isa>
struct nested_run;

/// C += A B in floats.
template <class Isa>
void add_product(const product_args<float>& args) noexcept {
    product_run<Isa>::multiply(args);
}

/// C -= A B in doubles.
template <class Isa>
void subtract_product(const product_args<double>& args) noexcept {
    product_run<Isa>::multiply(args);
}

/// S += X^T X.
template <class Isa>
void add_moments(const moment_args& args) noexcept {
    product_run<Isa>::add_moments(args);
}

/// Alternates nearest levels and d = sum a w v / sum a v^2, `steps` times or until a scale stays.
template <class Isa>
void fit_scales(const fit_args& args) noexcept {
    search_run<Isa>::fit(args);
}

/// Chooses levels input after input.
template <class Isa>
void evaluate_scales(const evaluate_args& args) noexcept {
    search_run<Isa>::evaluate(args);
}

/// Chooses codes for all precisions, input after input.
template <class Isa>
void evaluate_nested(const nested_args& args) noexcept {
    nested_run<Isa>::evaluate(args);
}

/// Alternates codes of least loss and d = sum a w S / sum a Q, `steps` times.
template <class Isa>
void fit_nested(const nested_fit_args& args) noexcept {
    nested_run<Isa>::fit(args);
}

/// Chooses the code of every column once, given all others.
template <class Isa>
void descend_nested(const descent_args& args) noexcept {
    nested_run<Isa>::descend(args);
}

} // namespace crumb::inline CRUMB_ABI::kernel
