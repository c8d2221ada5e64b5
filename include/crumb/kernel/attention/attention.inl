// Causal attention with grouped queries over arrays of floats or halves, and the merge of partial results.
// Loops:
//     attention   kv heads > blocks of rows > a pass over the tokens
//     merge       rows > heads > partial results > registers of channels
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>

#include <crumb/kernel/attention/attention_pass.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <class T>
struct attention_run<isa::CRUMB_THIS_ISA, T> {
    using I = isa::CRUMB_THIS_ISA;
    using pass = attention_pass<I>;

    static void run(const attention_args<T>& args) noexcept {
        const attention_scratch at{args.row_block * args.group, round_up(args.head_size, 16),
                                   args.score_tokens};
        float* work = args.scratch + at.state_size();
        for (std::size_t h = args.kv_heads.begin; h < args.kv_heads.end; ++h) {
            const kv_rows<T> k{args.k.data + h * args.k_head_stride, args.k.stride};
            const kv_rows<T> v{args.v.data + h * args.v_head_stride, args.v.stride};
            for (std::size_t r = args.rows.begin; r < args.rows.end; r += args.row_block) {
                const std::size_t left = args.rows.end - r;
                pass p(args, h, r, left < args.row_block ? left : args.row_block, args.scratch, work);
                p.begin();
                p.dense(k, v, 0, p.first(0), p.visible(p.queries - 1));
                p.end();
            }
        }
    }
};

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct merge_run<I> {
    using M = math<I>;
    using f32 = typename I::f32;

    static void run(const merge_args& args) noexcept {
        for (std::size_t r = args.rows.begin; r < args.rows.end; ++r)
            for (std::size_t h = args.head_range.begin; h < args.head_range.end; ++h)
                head(args, args.partials + (r * args.heads + h) * (args.head_size + 2),
                     args.y.row(r) + h * args.head_size);
    }

  private:
    static void head(const merge_args& args, const float* first, float* y) noexcept {
        const std::size_t d = args.head_size;
        float most = -__builtin_inff();
        for (std::size_t i = 0; i < args.count; ++i)
            most = first[i * args.stride + d] > most ? first[i * args.stride + d] : most;
        for (std::size_t c = 0; c < d; ++c)
            y[c] = 0;
        float total = 0;
        for (std::size_t i = 0; i < args.count; ++i) {
            const float* o = first + i * args.stride;
            if (o[d + 1] == 0)
                continue;
            const float factor = M::exp_of(o[d] - most);
            total += factor * o[d + 1];
            const f32 f = I::set1(factor);
            for (std::size_t c = 0; c < d; c += M::lanes)
                M::store(y + c, I::fma(f, M::load(o + c, d - c), M::load(y + c, d - c)), d - c);
        }
        const f32 divisor = I::set1(total == 0 ? 1.0f : total);
        for (std::size_t c = 0; c < d; c += M::lanes)
            M::store(y + c, I::div(M::load(y + c, d - c), divisor), d - c);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
