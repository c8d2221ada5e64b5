// Which instruction set extensions this CPU and its operating system offer.
#pragma once

#include <crumb/config.hpp>

#include <cstdint>

#if CRUMB_ARCH_X86_64
#include <cpuid.h>
#elif CRUMB_OS_LINUX
#include <sys/auxv.h>
#elif CRUMB_OS_APPLE
#include <sys/sysctl.h>
#endif

namespace crumb::inline CRUMB_ABI {

/// Extensions that the library's ISAs need, and how the CPU reads memory. All false where the system cannot
/// be asked.
struct cpu_features {
    bool avx2_fma_f16c = false;
    bool avx_vnni = false;    ///< with AVX2, FMA and F16C
    bool avx512_vnni = false; ///< with F, BW, DQ and VL
    bool avx512_vbmi = false; ///< with all of avx512_vnni
    bool dotprod = false;     ///< Armv8.2 SDOT/UDOT
    bool i8mm = false;        ///< Armv8.6 SMMLA/USDOT
    /// Whether memory answers two streams of prefetches faster than one: on Intel's CPUs (by a tenth on a
    /// virtual Xeon with AMX), not on Zen 4 (slower by a fifth).
    bool two_streams = false;
    /// Whether halves become floats on ports that products of 64 bytes take: on Intel's CPUs, not on Zen 5.
    bool converts_on_product_ports = false;
};

/// Asks the CPU (cpuid, getauxval or sysctl); costs a few microseconds.
inline cpu_features detect_cpu() noexcept {
    cpu_features f;
#if CRUMB_ARCH_X86_64
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(0, &a, &b, &c, &d))
        return f;
    f.two_streams = f.converts_on_product_ports = b == 0x756e6547; // "Genu", of GenuineIntel
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return f;
    const bool osxsave = (c >> 27 & 1) != 0, fma = (c >> 12 & 1) != 0, f16c = (c >> 29 & 1) != 0;
    if (!osxsave)
        return f;
    std::uint32_t state = 0, state_high = 0;
    __asm__ volatile("xgetbv" : "=a"(state), "=d"(state_high) : "c"(0));
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return f;
    const bool avx_state = (state & 0x06u) == 0x06u, avx512_state = (state & 0xe6u) == 0xe6u;
    const bool avx2 = (b >> 5 & 1) != 0;
    f.avx2_fma_f16c = avx_state && avx2 && fma && f16c;
    const unsigned f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    const bool vnni = (c >> 11 & 1) != 0;
    f.avx512_vnni = f.avx2_fma_f16c && avx512_state && (b & f_dq_bw_vl) == f_dq_bw_vl && vnni;
    f.avx512_vbmi = f.avx512_vnni && (c >> 1 & 1) != 0;
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d))
        f.avx_vnni = f.avx2_fma_f16c && (a >> 4 & 1) != 0;
#elif CRUMB_OS_LINUX
    f.dotprod = (getauxval(AT_HWCAP) >> 20 & 1) != 0; // HWCAP_ASIMDDP
    f.i8mm = (getauxval(26 /* AT_HWCAP2 */) >> 13 & 1) != 0;
#elif CRUMB_OS_APPLE
    const auto has = [](const char* name) {
        int value = 0;
        std::size_t size = sizeof value;
        return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
    };
    f.dotprod = has("hw.optional.arm.FEAT_DotProd");
    f.i8mm = has("hw.optional.arm.FEAT_I8MM");
#endif
    return f;
}

} // namespace crumb::inline CRUMB_ABI
