// Prints nothing and returns 0 if quantizers compiled with and without fused multiply-adds write the same
// bytes.
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
    const char* names[] = {"q4_0", "q8_0", "u2"};
    int failures = 0;
    for (std::size_t f = 0; f < 3; ++f) {
        std::size_t different = 0;
        for (std::size_t i = 0; i < a[f].size(); ++i)
            different += a[f][i] != b[f][i];
        if (different != 0) {
            std::printf("%s: %zu of %zu bytes differ\n", names[f], different, a[f].size());
            ++failures;
        }
    }
    return failures;
}
