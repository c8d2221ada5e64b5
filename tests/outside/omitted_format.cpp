// A program that does without the kernels of a format: plans of it are errors, others are not.
#include <crumb/core/buffer.hpp>
#include <crumb/linear.hpp>
#include <crumb/offline/weights/quantize.hpp>

#include <cstdio>
#include <cstring>

CRUMB_OMIT_FORMAT(q4_k)

template <class F>
crumb::status planned() {
    const std::vector<float> w(16 * 256);
    const auto stored = crumb::quantize<F>(crumb::matrix<const float>(w.data(), 16, 256));
    const crumb::buffer memory(crumb::packed_bytes<F>(16, 256));
    const auto packed = crumb::pack(*stored, memory.bytes());
    return crumb::linear<F>::plan(*packed).error();
}

int main() {
    const crumb::status omitted = planned<crumb::q4_k>(), kept = planned<crumb::q8_0>();
    std::printf("%s\n", omitted.message());
    return omitted.code() == crumb::errc::unsupported &&
                   std::strncmp(omitted.message(), "format q4_k: its kernels are left out", 37) == 0 && kept
               ? 0
               : 1;
}
