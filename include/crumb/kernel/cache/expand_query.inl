// Queries as integers for codes that are expanded. Loops: channels.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

// An integer of a channel is 128 high + low, |high| <= 127, -64 <= low <= 64: `high` alone is the query
// rounded to a 127th of its largest magnitude.
template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct pq_expand_query_run<I> {
    static constexpr float whole = 127 * 128;  ///< largest integer
    static constexpr float most_entry = 128;   ///< largest magnitude of an entry
    static constexpr float tiny = 0x1p-90f;    ///< queries below are taken for 0
    static constexpr std::size_t padding = 64; ///< zeros behind the last channel up to a multiple

    static void run(const pq_table_args& args) noexcept {
        pq_query& out = *args.out;
        const std::size_t n = args.head_size;
        out.step = out.base = out.coarse_base = 0;
        out.low_sum = out.high_sum = 0;
        __builtin_memset(out.low, 0, round_up(n, padding));
        __builtin_memset(out.high, 0, round_up(n, padding));
        float largest = 0;
        bool finite = true;
        const float* scales = args.centroids.scales;
        const auto value = [&](std::size_t c) {
            return scales != nullptr ? args.q[c] * scales[c] : args.q[c];
        };
        for (std::size_t c = 0; c < n; ++c) {
            const float x = __builtin_fabsf(value(c));
            finite = finite && x <= __FLT_MAX__;
            largest = x > largest ? x : largest;
        }
        if (!finite || !(largest >= tiny)) {
            const float most = 256 * static_cast<float>(n) * tiny;
            out.error = out.coarse_error = finite ? most : __builtin_inff();
            return;
        }
        const float inverse = whole / largest;
        float fine = 0, coarse = 0, sum = 0;
        for (std::size_t c = 0; c < n; ++c) {
            const float x = value(c) * inverse;
            const int whole_of = static_cast<int>(__builtin_rintf(x));
            const int high = (whole_of + 64 + 16384) / 128 - 128, low = whole_of - 128 * high;
            reinterpret_cast<std::int8_t*>(out.high)[c] = static_cast<std::int8_t>(high);
            reinterpret_cast<std::int8_t*>(out.low)[c] = static_cast<std::int8_t>(low);
            out.high_sum += high;
            out.low_sum += low;
            // What rounding of x adds is below 16256 2^-22.
            fine += __builtin_fabsf(x - static_cast<float>(whole_of)) + 0x1p-8f;
            coarse += __builtin_fabsf(x - static_cast<float>(128 * high)) + 0x1p-8f;
            sum += __builtin_fabsf(x);
        }
        const float unit = largest / whole;
        // Rounding of the step, of the integer and of their product, and of these sums.
        const float floats = 0x1p-20f * sum;
        out.step = unit;
        out.error = unit * most_entry * (fine + floats) * 1.0001f;
        out.coarse_error = unit * most_entry * (coarse + floats) * 1.0001f;
        if (!(out.coarse_error <= __FLT_MAX__ && unit * most_entry * sum <= __FLT_MAX__)) {
            out.step = 0;
            out.error = out.coarse_error = __builtin_inff();
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
