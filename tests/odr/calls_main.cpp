// Prints nothing and returns 0 if plans of translation units with different flags agree over compiled
// kernels.
#include <crumb/dispatch/isa.hpp>

#include <cstdio>
#include <vector>

std::vector<std::vector<float>> calls_of_a(const char* isa);
std::vector<std::vector<float>> calls_of_b(const char* isa);

int main() {
    const crumb::cpu_features cpu = crumb::detect_cpu();
    int failures = 0;
    for (std::size_t i = 0; i < crumb::isa_names().size(); ++i) {
        const char* isa = crumb::isa_names()[i];
        const auto a = calls_of_a(isa);
        for (const std::vector<float>& result : a)
            failures += result.empty();
        if ((cpu.avx512_vnni || cpu.i8mm) && a != calls_of_b(isa)) {
            std::printf("%s: the translation units disagree\n", isa);
            ++failures;
        }
    }
    return failures;
}
