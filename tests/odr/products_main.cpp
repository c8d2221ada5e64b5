// Prints nothing and returns 0 if two translation units with different flags agree in one program.
#include <crumb/dispatch/isa.hpp>

#include <cstdio>
#include <cstring>
#include <vector>

std::vector<float> q4_0_of_a(const char* isa);
std::vector<float> q8_0_of_a(const char* isa);
std::vector<float> q4_0_of_b(const char* isa);
std::vector<float> q8_0_of_b(const char* isa);

int main() {
    const crumb::cpu_features cpu = crumb::detect_cpu();
    const bool runs_b = cpu.avx512_vnni || cpu.i8mm;
    int failures = 0;
    for (std::size_t i = 0; i < crumb::isa_names().size(); ++i) {
        const char* isa = crumb::isa_names()[i];
        const auto four = q4_0_of_a(isa), eight = q8_0_of_a(isa);
        // The portable ISA of another compilation has other vectors and, on x86, fused multiply-adds;
        // compiled kernels have one.
        if (!runs_b || (CRUMB_HEADER_ONLY && std::strcmp(isa, "portable") == 0))
            continue;
        if (four != q4_0_of_b(isa) || eight != q8_0_of_b(isa)) {
            std::printf("%s: the translation units disagree\n", isa);
            ++failures;
        }
    }
    if (runs_b) {
        q4_0_of_b("portable");
        q8_0_of_b("portable");
    }
    return failures;
}
