// Products of float matrices. Loops: blocks of depth > panels of columns > tiles of rows > depth. An element
// has one running sum, so that blocks and tiles, which differ from ISA to ISA, change no bit. A panel of B,
// depth x columns, is copied to where all of its tiles find it in the first cache: rows of B are as far apart
// as its matrix is wide, often a power of two, so that they would share a few sets of that cache.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct product_run<I> {
    using f32 = typename I::f32;
    static constexpr std::size_t lanes = I::lanes;
    static constexpr std::size_t height = 6;                             ///< rows of a tile
    static constexpr std::size_t registers = I::registers >= 32 ? 4 : 2; ///< of a row of a tile
    static constexpr std::size_t depth = 128;                            ///< of a panel, of 32 KiB at most
    static constexpr std::size_t moment_rows = 512;                      ///< whose sums are floats

    template <class T>
    static void multiply(const product_args<T>& p) noexcept {
        constexpr std::size_t numbers = lanes * sizeof(float) / sizeof(T); // of a register
        for (std::size_t k = 0; k < p.k; k += depth) {
            const std::size_t end = p.k - k < depth ? p.k : k + depth;
            std::size_t j = 0;
            for (; j + registers * numbers <= p.n; j += registers * numbers)
                rows<registers>(p, j, k, end);
            if (registers > 2 && j + 2 * numbers <= p.n) {
                rows<2>(p, j, k, end);
                j += 2 * numbers;
            }
            for (; j < p.n; j += numbers)
                rows<1>(p, j, k, end);
        }
    }

    static void add_moments(const moment_args& p) noexcept {
        constexpr std::size_t width = registers * lanes;
        const std::size_t cols = p.x.cols;
        // There and back again: the first columns have most rows below them.
        std::size_t strip = 0;
        for (std::size_t j = 0; j < cols; j += width, ++strip) {
            const std::size_t turn = strip % (2 * p.parts);
            if ((turn < p.parts ? turn : 2 * p.parts - 1 - turn) != p.part)
                continue;
            for (std::size_t k = 0; k < p.x.rows; k += moment_rows) {
                const std::size_t end = p.x.rows - k < moment_rows ? p.x.rows : k + moment_rows;
                std::size_t i = j;
                for (; i + height <= cols; i += height)
                    moments<height>(p, i, j, k, end);
                for (; i < cols; ++i)
                    moments<1>(p, i, j, k, end);
            }
        }
    }

  private:
    static CRUMB_INLINE f32 repeat(float x) noexcept { return I::set1(x); }
    static CRUMB_INLINE typename I::f64 repeat(double x) noexcept { return I::set1_f64(x); }

    /// Rows k ... of B, its columns j ... of a tile.
    template <class T>
    struct panel {
        const T* at;
        std::size_t stride;
    };

    template <std::size_t Registers, class T>
    static CRUMB_NOINLINE void rows(const product_args<T>& p, std::size_t j, std::size_t k,
                                    std::size_t end) noexcept {
        constexpr std::size_t numbers = lanes * sizeof(float) / sizeof(T);
        panel<T> b{p.b + k * p.b_stride + j, p.b_stride};
        alignas(64) T copy[depth * Registers * numbers];
        if (p.m > 2 * height) { // fewer tiles do not pay for a copy
            for (std::size_t t = 0; t < end - k; ++t) {
                CRUMB_UNROLL
                for (std::size_t c = 0; c < Registers; ++c)
                    I::store(copy + (t * Registers + c) * numbers,
                             I::load(b.at + t * b.stride + c * numbers));
            }
            b = {copy, Registers * numbers};
        }
        std::size_t i = 0;
        for (; i + height <= p.m; i += height)
            tile<height, Registers>(p, b, i, j, k, end);
        if (i + 4 <= p.m) {
            tile<4, Registers>(p, b, i, j, k, end);
            i += 4;
        }
        if (i + 3 <= p.m) {
            tile<3, Registers>(p, b, i, j, k, end);
            i += 3;
        }
        if (i + 2 <= p.m) {
            tile<2, Registers>(p, b, i, j, k, end);
            i += 2;
        }
        if (i < p.m)
            tile<1, Registers>(p, b, i, j, k, end);
    }

    template <std::size_t Rows, std::size_t Registers, class T>
    static CRUMB_NOINLINE void tile(const product_args<T>& p, panel<T> b, std::size_t i, std::size_t j,
                                    std::size_t k, std::size_t end) noexcept {
        constexpr std::size_t numbers = lanes * sizeof(float) / sizeof(T);
        using reg = decltype(I::load(p.c));
        reg sum[Rows][Registers];
        CRUMB_UNROLL
        for (std::size_t r = 0; r < Rows; ++r) {
            CRUMB_UNROLL
            for (std::size_t c = 0; c < Registers; ++c)
                sum[r][c] = I::load(p.c + (i + r) * p.c_stride + j + c * numbers);
        }
        const T* a = p.a + i * p.a_row + k * p.a_depth;
        for (; k < end; ++k, a += p.a_depth, b.at += b.stride) {
            reg row[Registers];
            CRUMB_UNROLL
            for (std::size_t c = 0; c < Registers; ++c)
                row[c] = I::load(b.at + c * numbers);
            CRUMB_UNROLL
            for (std::size_t r = 0; r < Rows; ++r) {
                const reg one = repeat(a[r * p.a_row]);
                CRUMB_UNROLL
                for (std::size_t c = 0; c < Registers; ++c) {
                    if constexpr (sizeof(T) == sizeof(float))
                        sum[r][c] = I::add(sum[r][c], I::mul_rounded(one, row[c]));
                    else
                        sum[r][c] = I::sub(sum[r][c], I::mul_rounded(one, row[c]));
                }
            }
        }
        CRUMB_UNROLL
        for (std::size_t r = 0; r < Rows; ++r) {
            CRUMB_UNROLL
            for (std::size_t c = 0; c < Registers; ++c)
                I::store(p.c + (i + r) * p.c_stride + j + c * numbers, sum[r][c]);
        }
    }

    template <std::size_t Rows>
    static CRUMB_NOINLINE void moments(const moment_args& p, std::size_t i, std::size_t j, std::size_t k,
                                       std::size_t end) noexcept {
        if (j + registers * lanes <= p.x.cols)
            sum_moments<Rows, registers, false>(p, i, j, k, end);
        else
            for (std::size_t at = j; at < p.x.cols; at += lanes) {
                if (at + lanes <= p.x.cols)
                    sum_moments<Rows, 1, false>(p, i, at, k, end);
                else
                    sum_moments<Rows, 1, true>(p, i, at, k, end);
            }
    }

    template <std::size_t Rows, std::size_t Registers, bool IsPartial>
    static CRUMB_INLINE void sum_moments(const moment_args& p, std::size_t i, std::size_t j, std::size_t k,
                                         std::size_t end) noexcept {
        const std::size_t cols = p.x.cols;
        f32 sum[Rows][Registers];
        CRUMB_UNROLL
        for (std::size_t r = 0; r < Rows; ++r) {
            CRUMB_UNROLL
            for (std::size_t c = 0; c < Registers; ++c)
                sum[r][c] = I::zero();
        }
        for (; k < end; ++k) {
            const float* x = p.x.row(k);
            f32 row[Registers];
            CRUMB_UNROLL
            for (std::size_t c = 0; c < Registers; ++c)
                row[c] = IsPartial ? I::load_partial(x + j, cols - j) : I::load(x + j + c * lanes);
            CRUMB_UNROLL
            for (std::size_t r = 0; r < Rows; ++r) {
                const f32 one = I::set1(x[i + r]);
                CRUMB_UNROLL
                for (std::size_t c = 0; c < Registers; ++c)
                    sum[r][c] = I::add(sum[r][c], I::mul_rounded(one, row[c]));
            }
        }
        float out[Rows][Registers * lanes];
        CRUMB_UNROLL
        for (std::size_t r = 0; r < Rows; ++r) {
            CRUMB_UNROLL
            for (std::size_t c = 0; c < Registers; ++c)
                I::store(out[r] + c * lanes, sum[r][c]);
        }
        const std::size_t n = IsPartial ? cols - j : Registers * lanes;
        for (std::size_t r = 0; r < Rows; ++r)
            for (std::size_t c = 0; c < n; ++c)
                p.sums[(i + r) * cols + j + c] += out[r][c];
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
