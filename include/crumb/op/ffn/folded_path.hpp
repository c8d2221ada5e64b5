// Batches of a folded network: the folded matrix, a predictor, and the neurons that it flags.
#pragma once

#include <crumb/dispatch/ffn.hpp>
#include <crumb/op/ffn/folded_parts.hpp>
#include <crumb/op/ffn/input_terms.hpp>
#include <crumb/op/ffn/scratch_carver.hpp>

#include <bit>

namespace crumb::inline CRUMB_ABI {

/// y = x C^T + B + sum over fixed neurons n of (sigma(u_n) - (a_n u_n + b_n)) W2[n], as `folded_ffn` says.
/// Refers to the parts' memory, owns nothing.
class folded_path {
  public:
    folded_path() noexcept = default;
    /// By these kernels.
    folded_path(const folded_ffn_parts& parts, const float_ops& ops,
                const dispatch::ffn_functions& functions) noexcept
        : parts_(parts), ops_(ops), functions_(&functions) {}

    /// Bytes of a batch's scratch memory, for all parts.
    std::size_t scratch_bytes(std::size_t rows, std::size_t parts) const noexcept {
        return carve({}, rows, parts).bytes;
    }
    /// Bytes that one row with so many fixed neurons reads.
    std::size_t bytes_read(std::size_t fixed) const noexcept {
        const neuron_layout& l = parts_.neurons.layout();
        const std::size_t bounds = parts_.bounds ? parts_.bounds->n() * parts_.bounds->k() * sizeof(half) : 0;
        return parts_.fold.bytes() + parts_.predictor.bytes() + bounds + 2 * l.padded * sizeof(float) +
               fixed * l.record_bytes;
    }

    /// Quantizes inputs.
    void prepare(const detail::folded_ffn_job& j) const noexcept;
    /// Estimates every neuron and lists those outside their ranges.
    void predict(const detail::folded_ffn_job& j) const noexcept;
    /// Multiplies with the folded matrix and adds the fixes.
    void finish(const detail::folded_ffn_job& j) const noexcept;
    /// See `folded_ffn::count_missed`.
    std::size_t count_missed(const folded_ffn_batch& b, std::size_t parts) const noexcept;

  private:
    struct memory {
        activations fold, predictor;
        std::int8_t* codes = nullptr; ///< rows x padded inputs, of `residual`, as what follows: rows x groups
        float* scales = nullptr;
        std::int32_t* starts = nullptr;
        float* rounded = nullptr;        ///< or: rows x inputs, what the codes stand for
        float* norms = nullptr;          ///< rows x 2 groups
        float* margins = nullptr;        ///< rows x padded, as what follows
        float* estimates = nullptr;      ///< of u
        float* factors = nullptr;        ///< sigma(u) - (a u + b) of a row's list
        std::uint32_t* list = nullptr;   ///< rows x (padded + 16); a part's begins at its first neuron
        std::uint32_t* counts = nullptr; ///< rows x parts
        std::size_t bytes = 0;
    };
    struct job : detail::folded_ffn_job {
        memory m;
    };
    /// Neurons to fix and what their output weights are multiplied with.
    struct fix_list {
        const std::uint32_t* neurons = nullptr;
        const float* factors = nullptr;
        std::size_t count = 0;
    };
    struct fix_buffer {
        std::uint32_t neurons[rows_added_together];
        float factors[rows_added_together];
        std::size_t count = 0;
        fix_list list() const noexcept { return {neurons, factors, count}; }
    };
    class fix_cursor;

    const neuron_shape& shape() const noexcept { return parts_.neurons.shape(); }
    std::size_t padded() const noexcept { return parts_.neurons.layout().padded; }
    std::size_t list_stride() const noexcept { return padded() + tile_channels; }
    /// Groups of inputs with padding, see `kernel::quantized_row`.
    std::size_t padded_groups() const noexcept { return round_up(detail::groups_of(shape().inputs), 16); }
    /// Whether a residual is multiplied with what the predictor's activations are rounded to.
    bool rounds_inputs() const noexcept {
        return shape().residual && parts_.predictor.reads_activations() &&
               parts_.predictor.input_plan().layout.group == group_size;
    }
    matrix_view<float> estimates(const job& j) const noexcept {
        return {j.m.estimates, j.rows(), shape().neurons, padded()};
    }
    job job_of(const detail::folded_ffn_job& j) const noexcept {
        require_buffer(j.b.scratch, j.b.scratch.size(), "folded_ffn: scratch"); // its alignment
        const memory m = carve(j.b.scratch, j.rows(), j.parts);
        require_buffer(j.b.scratch, m.bytes, "folded_ffn: scratch");
        return {j, m};
    }

    memory carve(std::span<std::byte> scratch, std::size_t rows, std::size_t parts) const noexcept {
        detail::scratch_carver c(scratch);
        memory m;
        m.predictor = c.take_activations(parts_.predictor, rows);
        m.fold = c.take_activations(parts_.fold, rows);
        if (rounds_inputs() && functions_->multiplies_codes && has_scales(shape().in)) {
            m.codes = c.take<std::int8_t>(rows * padded_groups() * group_size);
            m.scales = c.take<float>(rows * padded_groups());
            m.starts = c.take<std::int32_t>(rows * padded_groups() * 8);
        } else if (rounds_inputs()) {
            m.rounded = c.take<float>(rows * shape().inputs);
        }
        if (parts_.bounds) {
            m.norms = c.take<float>(rows * parts_.bounds->k());
            m.margins = c.take<float>(rows * padded());
        }
        m.estimates = c.take<float>(rows * padded());
        m.factors = c.take<float>(rows * padded());
        m.list = c.take<std::uint32_t>(rows * list_stride());
        m.counts = c.take<std::uint32_t>(rows * parts);
        m.bytes = c.bytes();
        return m;
    }

    kernel::neuron_dot_args dots_of(const job& j, std::size_t row) const noexcept;
    std::size_t test(const job& j, std::size_t row, range neurons, std::size_t listed) const noexcept;
    void find_factors(const job& j, std::size_t row, std::size_t begin, std::size_t first, std::size_t count,
                      bool adds_follow = false) const noexcept;
    void add(const job& j, std::size_t row, const fix_list& fixes, range outputs, const fix_list& next,
             bool dots_follow = false) const noexcept;

    folded_ffn_parts parts_;
    float_ops ops_;
    const dispatch::ffn_functions* functions_ = nullptr;
};

inline void folded_path::prepare(const detail::folded_ffn_job& call) const noexcept {
    const job j = job_of(call);
    const range rows = j.own_rows();
    if (rows.size() == 0)
        return;
    for (activations a : {j.m.fold, j.m.predictor})
        if (a.layout().k != 0)
            a.quantize(j.b.x, rows);
    const std::size_t inputs = shape().inputs, groups = padded_groups();
    const activations& q = j.m.predictor;
    for (std::size_t r = rows.begin; r < rows.end; ++r) {
        if (j.m.codes == nullptr && j.m.rounded == nullptr && j.m.norms == nullptr)
            return;
        const auto from = activation_row::of(q.layout(), q.codes(), q.scales(), j.rows(), r);
        if (j.m.codes != nullptr)
            detail::write_codes(from, inputs, groups, kernel::code_offset(shape().in),
                                j.m.codes + r * groups * group_size, j.m.scales + r * groups,
                                j.m.starts + r * groups * 8);
        if (j.m.rounded != nullptr)
            detail::write_rounded(from, inputs, j.m.rounded + r * inputs);
        if (j.m.norms != nullptr)
            detail::write_norms(from, j.b.x.row(r), inputs, j.m.norms + r * parts_.bounds->k());
    }
}

/// A row's inputs as its neurons' weights take them.
inline kernel::neuron_dot_args folded_path::dots_of(const job& j, std::size_t row) const noexcept {
    kernel::neuron_dot_args dots;
    dots.records = parts_.neurons.records();
    dots.record_bytes = parts_.neurons.layout().record_bytes;
    dots.row_offset = sizeof(neuron_line);
    dots.inputs = shape().inputs;
    dots.x = j.m.rounded != nullptr ? j.m.rounded + row * shape().inputs : j.b.x.row(row);
    if (const std::size_t first = row * padded_groups(); j.m.codes != nullptr)
        dots.quantized = {j.m.codes + first * group_size, j.m.scales + first, j.m.starts + first * 8};
    return dots;
}

/// Appends neurons outside their ranges to the list of a part, which has `listed`; says how many it has then.
inline std::size_t folded_path::test(const job& j, std::size_t row, range neurons,
                                     std::size_t listed) const noexcept {
    const std::size_t begin = j.share_of(shape().neurons).begin;
    kernel::range_test_args t;
    t.estimates = j.m.estimates + row * padded();
    t.low = parts_.neurons.low();
    t.high = parts_.neurons.high();
    t.neurons = neurons;
    t.list = j.m.list + row * list_stride() + begin + listed;
    if (parts_.bounds) {
        float* margins = j.m.margins + row * padded();
        const auto norms = matrix<const float>(j.m.norms + row * parts_.bounds->k(), 1, parts_.bounds->k());
        parts_.bounds->run(norms, matrix(margins, 1, shape().neurons), {.channels = neurons});
        // What rounding takes from a sum of so many positive terms, and from additions to the estimate.
        const float up = 1 + static_cast<float>(parts_.bounds->k() + 8) * 0x1p-23f;
        for (std::size_t n = neurons.begin; n < neurons.end; ++n)
            margins[n] = margins[n] * up + std::fabs(t.estimates[n]) * 0x1p-21f;
        t.margins = margins;
    }
    return listed + functions_->range_test(t);
}

/// Factors of the neurons first .. first + count - 1 of the list that begins at neuron `begin`. Output
/// weights are prefetched if the same thread is to add them at once, else input weights of the neurons that
/// follow.
inline void folded_path::find_factors(const job& j, std::size_t row, std::size_t begin, std::size_t first,
                                      std::size_t count, bool adds_follow) const noexcept {
    constexpr std::size_t block = 64, ahead = 8;
    const neuron_rows& neurons = parts_.neurons;
    const std::uint32_t* list = j.m.list + row * list_stride() + begin + first;
    float* factors = j.m.factors + row * padded() + begin + first;
    const float* estimates = j.m.estimates + row * padded();
    kernel::neuron_dot_args dots = dots_of(j, row);
    dots.next_offset = adds_follow ? neurons.layout().out_offset : 0;
    dots.next_bytes = neurons.layout().out_offset;
    if (adds_follow)
        dots.next_bytes = dots.record_bytes - dots.next_offset;
    for (std::size_t i = 0; i < count; i += block) {
        const std::size_t here = std::min(block, count - i), to = adds_follow ? i : i + ahead;
        float u[block], s[block];
        dots.list = list + i;
        dots.count = here;
        dots.next = list + to;
        dots.next_count = to < count ? std::min(here, count - to) : 0;
        dots.sums = u;
        functions_->of[static_cast<std::size_t>(shape().in)].dots(dots);
        for (std::size_t k = 0; k < here; ++k)
            u[k] += neurons.line(list[i + k]).bias + (shape().residual ? estimates[list[i + k]] : 0.0f);
        parts_.activation.apply(ops_, u, s, here);
        for (std::size_t k = 0; k < here; ++k) {
            const neuron_line& line = neurons.line(list[i + k]);
            factors[i + k] = s[k] - (line.slope * u[k] + line.intercept);
        }
    }
}

inline void folded_path::predict(const detail::folded_ffn_job& call) const noexcept {
    const job j = job_of(call);
    const range mine = j.share_of(shape().neurons);
    // Several rows share what they fix, so their rows are read while they are in cache.
    const std::size_t step = j.rows() == 1 ? 2048 : 256;
    for (std::size_t r = 0; r < j.rows(); ++r)
        j.m.counts[r * j.parts + j.part] = 0;
    std::size_t fixed = 0, records = 0;
    for (std::size_t n = mine.begin; n < mine.end; n += step) {
        const range here{n, std::min(n + step, mine.end)};
        parts_.predictor.run(j.b.x, j.m.predictor, estimates(j), {.channels = here});
        std::uint64_t listed[256 / 64] = {}; // of several rows: neurons that any of them lists
        for (std::size_t r = 0; r < j.rows(); ++r) {
            std::uint32_t& count = j.m.counts[r * j.parts + j.part];
            const std::size_t before = count;
            count = static_cast<std::uint32_t>(test(j, r, here, before));
            fixed += count - before;
            if (j.rows() == 1)
                continue;
            find_factors(j, r, mine.begin, before, count - before);
            const std::uint32_t* list = j.m.list + r * list_stride() + mine.begin;
            for (std::size_t i = before; i < count && !j.b.counters.empty(); ++i)
                listed[(list[i] - n) / 64] |= std::uint64_t{1} << (list[i] - n) % 64;
        }
        for (const std::uint64_t word : listed)
            records += static_cast<std::size_t>(std::popcount(word));
    }
    if (j.rows() == 1 && j.parts != 1)
        find_factors(j, 0, mine.begin, 0, j.m.counts[j.part]);
    if (j.b.counters.empty())
        return;
    const std::size_t record_bytes = parts_.neurons.layout().record_bytes;
    j.b.counters[j.part] = {j.rows() * mine.size(), fixed,
                            (j.part == 0 ? bytes_read(0) : 0) +
                                (j.rows() == 1 ? fixed : records) * record_bytes};
}

/// Adds `count` neurons of a list. With each, a part of the record of a neuron of `next` comes into the
/// cache: its input weights if the same thread is to multiply them at once, else its output weights.
inline void folded_path::add(const job& j, std::size_t row, const fix_list& fixes, range outputs,
                             const fix_list& next, bool dots_follow) const noexcept {
    const neuron_layout& layout = parts_.neurons.layout();
    kernel::neuron_add_args adds;
    adds.records = parts_.neurons.records();
    adds.record_bytes = layout.record_bytes;
    adds.row_offset = layout.out_offset;
    adds.list = fixes.neurons;
    adds.count = fixes.count;
    adds.next = next.neurons;
    adds.next_count = std::min(fixes.count, next.count);
    adds.next_offset = dots_follow ? 0 : layout.out_offset + row_bytes(shape().out, outputs.begin);
    adds.next_bytes = dots_follow ? layout.out_offset : row_bytes(shape().out, outputs.size());
    adds.factors = fixes.factors;
    adds.y = j.b.y.row(row);
    adds.outputs = outputs;
    functions_->of[static_cast<std::size_t>(shape().out)].adds(adds);
}

/// The fixes of a row over all parts, 16 by 16 from the first, since 16 are rounded together: how lists are
/// cut must not depend on who found what is in them.
class folded_path::fix_cursor {
  public:
    fix_cursor() noexcept = default;

    /// The next 16, or all that are left; moves on.
    void take(const folded_path& f, const job& j, std::size_t row, fix_buffer& to) noexcept {
        for (to.count = 0; to.count < std::size(to.neurons) && part_ < j.parts;) {
            const std::size_t listed = j.m.counts[row * j.parts + part_];
            const std::size_t begin = j.share_of(f.shape().neurons, part_, j.parts).begin + at_;
            const std::size_t here = std::min(std::size(to.neurons) - to.count, listed - at_);
            std::copy_n(j.m.list + row * f.list_stride() + begin, here, to.neurons + to.count);
            std::copy_n(j.m.factors + row * f.padded() + begin, here, to.factors + to.count);
            to.count += here;
            at_ += here;
            if (at_ == listed) {
                ++part_;
                at_ = 0;
            }
        }
    }

  private:
    std::size_t part_ = 0, at_ = 0;
};

inline void folded_path::finish(const detail::folded_ffn_job& call) const noexcept {
    const job j = job_of(call);
    const range outputs = j.share_of(shape().outputs);
    if (outputs.size() == 0)
        return;
    parts_.fold.run(j.b.x, j.m.fold, j.b.y, {.channels = outputs});
    if (j.rows() == 1 && j.parts == 1) {
        // A neuron's weights lie side by side, so they are read in one go.
        constexpr std::size_t most = rows_added_together;
        const std::size_t all = j.m.counts[0];
        for (std::size_t i = 0; i < all; i += most) {
            const std::size_t here = std::min(most, all - i), next = std::min(most, all - i - here);
            find_factors(j, 0, 0, i, here, true);
            const std::uint32_t* list = j.m.list + i;
            add(j, 0, {list, j.m.factors + i, here}, outputs, {list + here, nullptr, next}, true);
        }
        return;
    }
    constexpr std::size_t block = 256; // records of a block stay in cache for all rows
    constexpr std::size_t rows = 32;
    for (std::size_t first = 0; first < j.rows(); first += rows) {
        const std::size_t here = std::min(rows, j.rows() - first);
        struct {
            fix_cursor cursor;
            fix_buffer now, next;
        } of[rows];
        for (std::size_t r = 0; r < here; ++r) {
            of[r].cursor.take(*this, j, first + r, of[r].now);
            of[r].cursor.take(*this, j, first + r, of[r].next);
        }
        for (std::size_t end = block; end < shape().neurons + block; end += block)
            for (std::size_t r = 0; r < here; ++r)
                for (auto& [cursor, now, next] = of[r]; now.count != 0 && now.neurons[now.count - 1] < end;) {
                    add(j, first + r, now.list(), outputs, next.list());
                    now = next;
                    cursor.take(*this, j, first + r, next);
                }
    }
}

inline std::size_t folded_path::count_missed(const folded_ffn_batch& b, std::size_t parts) const noexcept {
    std::size_t missed = 0;
    for (std::size_t part = 0; part < parts; ++part) {
        const job j = job_of({b, part, parts});
        const range mine = j.share_of(shape().neurons);
        for (std::size_t r = 0; r < j.rows(); ++r) {
            const std::uint32_t* list = j.m.list + r * list_stride() + mine.begin;
            const std::uint32_t* end = list + j.m.counts[r * parts + part];
            for (std::size_t n = mine.begin; n < mine.end; ++n) {
                if (list != end && *list == n) {
                    ++list;
                    continue;
                }
                const auto index = static_cast<std::uint32_t>(n);
                kernel::neuron_dot_args dot = dots_of(j, r);
                dot.list = &index;
                dot.count = 1;
                float u = 0;
                dot.sums = &u;
                functions_->of[static_cast<std::size_t>(shape().in)].dots(dot);
                const neuron_line& line = parts_.neurons.line(n);
                u += line.bias + (shape().residual ? j.m.estimates[r * padded() + n] : 0.0f);
                missed += !(u >= line.low && u < line.high);
            }
        }
    }
    return missed;
}

} // namespace crumb::inline CRUMB_ABI
