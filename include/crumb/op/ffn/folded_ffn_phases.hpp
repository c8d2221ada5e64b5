// The phases of folded_ffn: what each part of a batch computes.
#pragma once

#include <crumb/op/ffn/folded_ffn.hpp>

#include <cmath>
#include <utility>

namespace crumb::inline CRUMB_ABI {

inline folded_ffn::memory folded_ffn::carve(std::span<std::byte> scratch, std::size_t rows,
                                            std::size_t parts) const noexcept {
    memory m;
    std::size_t at = 0;
    // Without memory it is only measured how much there has to be.
    const auto take = [&](std::size_t bytes) -> std::byte* {
        std::byte* p = scratch.empty() ? nullptr : scratch.data() + at;
        at += round_up(bytes, alignment);
        return p;
    };
    const auto floats = [&](std::size_t count) {
        return reinterpret_cast<float*>(take(rows * count * sizeof(float)));
    };
    const auto bytes_for = [&](std::size_t bytes) -> std::span<std::byte> {
        std::byte* p = take(bytes);
        return {p, p == nullptr ? 0 : bytes};
    };
    const auto quantized = [&](const activation_plan& plan) {
        const std::size_t bytes = activation_bytes(plan, rows);
        std::byte* p = take(bytes);
        return p == nullptr ? activations() : *activations::create({p, bytes}, plan, rows);
    };
    const bool dense = is_dense(rows);
    if (parts_.predictor.reads_activations() && !dense)
        m.predictor = quantized(parts_.predictor.input_plan());
    if (dense && has_matrices()) {
        if (parts_.up.reads_activations())
            m.input = quantized(parts_.up.input_plan());
        if (parts_.down.reads_activations())
            m.activated = quantized(parts_.down.input_plan());
        m.estimates = floats(padded());
    } else if (dense) {
        m.input = quantized(products_->input_layout());
        m.hidden = bytes_for(products_->hidden_bytes(rows));
        m.estimates = floats(padded());
        m.tiles = bytes_for(parts * products_->memory_bytes());
    } else {
        if (parts_.fold.reads_activations())
            m.fold = quantized(parts_.fold.input_plan());
        if (rounds_inputs() && functions_->multiplies_codes && has_scales(shape().in)) {
            m.codes = reinterpret_cast<std::int8_t*>(take(rows * padded_groups() * group_size));
            m.scales = floats(padded_groups());
            m.starts = reinterpret_cast<std::int32_t*>(floats(padded_groups() * 8));
        } else if (rounds_inputs()) {
            m.rounded = floats(shape().inputs);
        }
        if (parts_.bounds) {
            m.norms = floats(2 * groups_of(shape().inputs));
            m.margins = floats(padded());
        }
        m.estimates = floats(padded());
        m.factors = floats(padded());
        m.list = reinterpret_cast<std::uint32_t*>(take(rows * list_stride() * sizeof(std::uint32_t)));
        m.counts = reinterpret_cast<std::uint32_t*>(take(rows * parts * sizeof(std::uint32_t)));
    }
    m.bytes = at;
    return m;
}

inline void folded_ffn::prepare(const job& j) const noexcept {
    const range rows = split(j.rows(), j.parts, j.part);
    if (rows.size() == 0)
        return;
    for (activations a : {j.m.fold, j.m.predictor, j.m.input})
        if (a.layout().k != 0)
            a.quantize(j.b.x, rows);
    if (j.m.codes != nullptr || j.m.rounded != nullptr)
        for (std::size_t r = rows.begin; r < rows.end; ++r)
            find_codes(j, r);
    if (j.m.norms != nullptr)
        for (std::size_t r = rows.begin; r < rows.end; ++r)
            find_norms(j, r);
}

// The predictor's activations in plain order, or the floats that they stand for.
inline void folded_ffn::find_codes(const job& j, std::size_t row) const noexcept {
    const std::size_t inputs = shape().inputs;
    const activations& q = j.m.predictor;
    const auto from = activation_row::of(q.layout(), q.codes(), q.scales(), j.rows(), row);
    const std::size_t padding = padded_groups();
    for (std::size_t g = 0; g < (j.m.codes != nullptr ? padding : groups_of(inputs)); ++g) {
        const bool is_input = g < groups_of(inputs);
        const float scale = is_input ? from.scale(g) : 0.0f;
        int sum = 0;
        for (std::size_t i = 0; i < group_size; ++i) {
            const std::int8_t code = is_input ? from.code(g * group_size + i) : std::int8_t{0};
            sum += code;
            if (j.m.codes != nullptr)
                j.m.codes[(row * padding + g) * group_size + i] = code;
            else if (g * group_size + i < inputs)
                j.m.rounded[row * inputs + g * group_size + i] = scale * static_cast<float>(code);
        }
        if (j.m.codes != nullptr) {
            j.m.scales[row * padding + g] = scale;
            std::int32_t* start = j.m.starts + (row * padding + g) * 8;
            std::fill_n(start, 8, 0);
            *start = -kernel::code_offset(shape().in) * sum;
        }
    }
}

/// What input weights of a row's neurons are multiplied with.
inline kernel::neuron_dot_args folded_ffn::dots_of(const memory& m, const folded_ffn_batch& b,
                                                   std::size_t row) const noexcept {
    kernel::neuron_dot_args dots;
    dots.records = parts_.neurons.records();
    dots.record_bytes = parts_.neurons.layout().record_bytes;
    dots.row_offset = sizeof(neuron_line);
    dots.inputs = shape().inputs;
    dots.x = m.rounded != nullptr ? m.rounded + row * shape().inputs : b.x.row(row);
    if (const std::size_t first = row * padded_groups(); m.codes != nullptr)
        dots.quantized = {m.codes + first * group_size, m.scales + first, m.starts + first * 8};
    return dots;
}

// Rounded upwards, so that they bound what they are norms of. The products' own rounding, (groups + 2) eps
// times the sum of magnitudes (twice that without FMA), is a part of what the second half is multiplied with.
inline void folded_ffn::find_norms(const job& j, std::size_t row) const noexcept {
    const std::size_t groups = groups_of(shape().inputs);
    const activations& q = j.m.predictor;
    const auto rounded = activation_row::of(q.layout(), q.codes(), q.scales(), j.rows(), row);
    float* norms = j.m.norms + row * 2 * groups;
    constexpr double up = 1 + 0x1p-22;
    const double rounding = double(groups + 2) * 0x1p-23;
    for (std::size_t g = 0; g < groups; ++g) {
        const double scale = double(rounded.scale(g));
        double length = 0, error = 0;
        for (std::size_t i = 0; i < group_size && g * group_size + i < shape().inputs; ++i) {
            const double x = double(j.b.x.row(row)[g * group_size + i]);
            const double e = x - scale * rounded.code(g * group_size + i);
            length += x * x;
            error += e * e;
        }
        length = std::sqrt(length);
        error = std::sqrt(error);
        norms[g] = static_cast<float>(length * up);
        norms[groups + g] = static_cast<float>((error + rounding * (length + error)) * up);
    }
}

/// Appends neurons outside their ranges to the list of a part, which has `listed`; says how many it has then.
inline std::size_t folded_ffn::test(const job& j, std::size_t row, range neurons,
                                    std::size_t listed) const noexcept {
    const std::size_t begin = neurons_of(j.part, j.parts).begin;
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

inline void folded_ffn::predict(const job& j) const noexcept {
    const range mine = neurons_of(j.part, j.parts);
    // Several rows share what they fix, so their rows are read while they are in cache.
    const std::size_t step = j.rows() == 1 ? 2048 : 256;
    for (std::size_t r = 0; r < j.rows(); ++r)
        j.m.counts[r * j.parts + j.part] = 0;
    for (std::size_t n = mine.begin; n < mine.end; n += step) {
        const range here{n, std::min(n + step, mine.end)};
        parts_.predictor.run(j.b.x, j.m.predictor, estimates(j), {.channels = here});
        for (std::size_t r = 0; r < j.rows(); ++r) {
            std::uint32_t& count = j.m.counts[r * j.parts + j.part];
            const std::size_t before = count;
            count = static_cast<std::uint32_t>(test(j, r, here, before));
            if (j.rows() != 1)
                find_factors(j, r, mine.begin, before, count - before);
        }
    }
    if (j.rows() == 1 && j.parts != 1)
        find_factors(j, 0, mine.begin, 0, j.m.counts[j.part]);
}

/// Of the neurons first .. first + count - 1 of the list that begins at neuron `begin`. Output weights are
/// prefetched if the same thread is to add them at once, else input weights of the neurons that follow.
inline void folded_ffn::find_factors(const job& j, std::size_t row, std::size_t begin, std::size_t first,
                                     std::size_t count, bool adds_follow) const noexcept {
    constexpr std::size_t block = 64, ahead = 8;
    const neuron_rows& neurons = parts_.neurons;
    const std::uint32_t* list = j.m.list + row * list_stride() + begin + first;
    float* factors = j.m.factors + row * padded() + begin + first;
    const float* estimates = j.m.estimates + row * padded();
    kernel::neuron_dot_args dots = dots_of(j.m, j.b, row);
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

/// Adds `count` neurons of a list. With each, a part of the record of a neuron of `next` comes into the
/// cache: its input weights if the same thread is to multiply them at once, else its output weights.
inline void folded_ffn::add(const job& j, std::size_t row, const fix_list& fixes, range outputs,
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
class folded_ffn::fix_cursor {
  public:
    fix_cursor() noexcept = default;

    /// The next 16, or all that are left; moves on.
    void take(const folded_ffn& f, const job& j, std::size_t row, fix_buffer& to) noexcept {
        for (to.count = 0; to.count < std::size(to.neurons) && part_ < j.parts;) {
            const std::size_t listed = j.m.counts[row * j.parts + part_];
            const std::size_t begin = f.neurons_of(part_, j.parts).begin + at_;
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

inline void folded_ffn::finish(const job& j) const noexcept {
    const range outputs = outputs_of(j);
    if (outputs.size() == 0)
        return;
    parts_.fold.run(j.b.x, j.m.fold, j.b.y, {.channels = outputs});
    if (j.rows() == 1 && j.parts == 1) {
        // A neuron's weights lie side by side, so they are read in one go.
        constexpr std::size_t some = rows_added_together;
        const std::size_t all = j.m.counts[0];
        for (std::size_t i = 0; i < all; i += some) {
            const std::size_t here = std::min(some, all - i), next = std::min(some, all - i - here);
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

inline void folded_ffn::compute_hidden(const job& j) const noexcept {
    const range mine = neurons_of(j.part, j.parts);
    if (mine.size() == 0)
        return;
    const auto u = estimates(j);
    if (has_matrices()) {
        parts_.up.run(j.b.x, j.m.input, u, {.channels = mine});
    } else {
        const std::size_t bytes = products_->memory_bytes();
        products_->inputs(j.m.input, u, mine, j.m.tiles.subspan(j.part * bytes, bytes));
    }
    for (std::size_t r = 0; r < j.rows(); ++r)
        parts_.activation.apply(ops_, u.row(r) + mine.begin, u.row(r) + mine.begin, mine.size());
}

inline void folded_ffn::quantize_hidden(const job& j) const noexcept {
    const range rows = split(j.rows(), j.parts, j.part);
    const auto all = estimates(j);
    if (has_matrices()) {
        if (activations a = j.m.activated; a.layout().k != 0 && rows.size() != 0)
            a.quantize(all, rows);
        return;
    }
    for (std::size_t b = 0; b < products_->hidden_blocks() && rows.size() != 0; ++b) {
        const range neurons = products_->neurons_of(b);
        products_->hidden(b, j.m.hidden, j.rows())
            .quantize({all.data + neurons.begin, all.rows, neurons.size(), all.stride}, rows);
    }
}

inline void folded_ffn::compute_outputs(const job& j) const noexcept {
    const range outputs = outputs_of(j);
    if (outputs.size() == 0)
        return;
    if (has_matrices())
        return parts_.down.run(estimates(j), j.m.activated, j.b.y, {.channels = outputs});
    const std::size_t bytes = products_->memory_bytes();
    products_->outputs(j.m.hidden, j.b.y, outputs, j.m.tiles.subspan(j.part * bytes, bytes));
}

inline folded_ffn_report folded_ffn::report(const folded_ffn_batch& b, std::size_t parts,
                                            bool count_missed) const noexcept {
    const neuron_layout& layout = parts_.neurons.layout();
    const std::size_t rows = b.x.rows, neurons = shape().neurons;
    folded_ffn_report out;
    out.neurons = rows * neurons;
    if (is_dense(rows)) {
        out.bytes = has_matrices()
                        ? parts_.up.bytes() + parts_.down.bytes()
                        : neurons * layout.record_bytes + (shape().residual ? parts_.predictor.bytes() : 0);
        return out;
    }
    const memory m = carve(b.scratch, rows, parts);
    // Which records were read by any row: where the first row's factors, now done with, are 0.
    std::fill_n(m.factors, neurons, 1.0f);
    std::size_t read = 0;
    for (std::size_t p = 0; p < parts; ++p) {
        const range mine = neurons_of(p, parts);
        const auto list_of = [&](std::size_t r) { return m.list + r * list_stride() + mine.begin; };
        for (std::size_t r = 0; r < rows; ++r) {
            const std::size_t count = m.counts[r * parts + p];
            out.fixed += count;
            for (std::size_t i = 0; i < count; ++i)
                read += std::exchange(m.factors[list_of(r)[i]], 0.0f) != 0;
            for (std::size_t n = mine.begin, i = 0; count_missed && n < mine.end; ++n) {
                if (i < count && list_of(r)[i] == n) {
                    ++i;
                    continue;
                }
                const auto index = static_cast<std::uint32_t>(n);
                kernel::neuron_dot_args dot = dots_of(m, b, r);
                dot.list = &index;
                dot.count = 1;
                float u = 0;
                dot.sums = &u;
                functions_->of[static_cast<std::size_t>(shape().in)].dots(dot);
                const neuron_line& line = parts_.neurons.line(n);
                u += line.bias + (shape().residual ? m.estimates[r * padded() + n] : 0.0f);
                out.missed += !(u >= line.low && u < line.high);
            }
        }
    }
    out.bytes = bytes_read(read);
    return out;
}

} // namespace crumb::inline CRUMB_ABI
