// Prints nothing and returns 0 if quantizers compiled with and without fused multiply-adds write the same
// bytes.
#include "quantized.hpp"

#include <crumb/isa/cpu.hpp>

#include <cstdio>
#include <vector>

std::vector<float> weights();
std::vector<std::vector<unsigned char>> quantized_of_a(const std::vector<float>& w);
std::vector<std::vector<unsigned char>> quantized_of_b(const std::vector<float>& w);

int main() {
    if (CRUMB_ARCH_X86_64 && !crumb::detect_cpu().avx2_fma_f16c)
        return 0;
    const auto w = weights();
    const auto a = quantized_of_a(w), b = quantized_of_b(w);
    int failures = 0;
    for (std::size_t f = 0; f < a.size(); ++f) {
        std::size_t different = 0;
        for (std::size_t i = 0; i < a[f].size(); ++i)
            different += a[f][i] != b[f][i];
        if (different != 0) {
            std::printf("%s: %zu of %zu bytes differ\n", rounding_formats::names[f], different, a[f].size());
            ++failures;
        }
    }
    return failures;
}
