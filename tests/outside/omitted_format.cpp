// A program that does without the kernels of some formats: plans of them are errors, others are not.
#include <crumb/core/buffer.hpp>
#include <crumb/linear.hpp>
#include <crumb/offline/nested/quantized.hpp>
#include <crumb/offline/weights/quantize.hpp>

#include <cstdio>
#include <cstring>

CRUMB_OMIT_FORMAT(q4_k)
CRUMB_OMIT_FORMAT(nested4)

template <class F>
crumb::status planned() {
    const std::vector<float> w(16 * 256);
    const auto stored = crumb::quantize<F>(crumb::matrix<const float>(w.data(), 16, 256));
    const crumb::buffer memory(crumb::packed_bytes<F>(16, 256));
    const auto packed = crumb::pack(*stored, memory.bytes());
    return crumb::linear<F>::plan(*packed).error();
}

crumb::status planned_nested(int parent) {
    const auto stored =
        crumb::nested_quantized::zeros(crumb::nested_levels::uniform(crumb::min_nested_bits, parent), 16, 64);
    const crumb::buffer memory(crumb::nested_packed_bytes(16, 64, parent));
    return crumb::nested_linear::plan(*crumb::pack(stored, memory.bytes())).error();
}

bool is_omitted(const crumb::status& s, const char* message) {
    std::printf("%s\n", s.message());
    return s.code() == crumb::errc::unsupported &&
           std::strncmp(s.message(), message, std::strlen(message)) == 0;
}

int main() {
    const bool omitted = is_omitted(planned<crumb::q4_k>(), "format q4_k: its kernels are left out") &&
                         is_omitted(planned_nested(4), "format nested4: its kernels are left out");
    return omitted && planned<crumb::q8_0>() && planned_nested(3) ? 0 : 1;
}
