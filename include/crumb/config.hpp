// The only file that tests compiler, operating system and architecture macros.
#pragma once

#if __cplusplus < 202002L
#error "crumb needs C++20: compile with -std=c++20 or later"
#endif
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "crumb needs NaN and infinity, and sums in their order: compile without -ffast-math (-Ofast)"
#endif

#define CRUMB_VERSION_MAJOR 0
#define CRUMB_VERSION_MINOR 2
#define CRUMB_VERSION_PATCH 0

// CRUMB_COMPILED_KERNELS: headers show the kernels' declarations only; the program links to kernels that were
// compiled once (crumb/compile.hpp, or the CMake target crumb::kernels).
#if defined(CRUMB_COMPILED_KERNELS)
#define CRUMB_HEADER_ONLY 0
#else
#define CRUMB_HEADER_ONLY 1
#endif

#define CRUMB_PRAGMA(x) _Pragma(#x)
#define CRUMB_CAT_(a, b) a##b
#define CRUMB_CAT(a, b) CRUMB_CAT_(a, b)
// The name of an entry point of compiled kernels: the library's version and what it gives. It says nothing of
// compile flags, so that files with other ones than the kernels' link to them.
#define CRUMB_ENTRY_(a, b, c, name) crumb_##a##_##b##_##c##_##name
#define CRUMB_ENTRY_OF(a, b, c, name) CRUMB_ENTRY_(a, b, c, name)
#define CRUMB_ENTRY(name) CRUMB_ENTRY_OF(CRUMB_VERSION_MAJOR, CRUMB_VERSION_MINOR, CRUMB_VERSION_PATCH, name)
#define CRUMB_STRINGIFY_(x) #x
#define CRUMB_STRINGIFY(x) CRUMB_STRINGIFY_(x)

// ---- compiler ------------------------------------------------------------------------------------------
#if defined(__clang__)
#define CRUMB_CLANG __clang_major__
#define CRUMB_GCC 0
#elif defined(__GNUC__)
#define CRUMB_CLANG 0
#define CRUMB_GCC __GNUC__
#else
#error "crumb needs GCC 12 or newer, or clang 16 or newer (14 on x86-64)"
#endif

#define CRUMB_INLINE inline __attribute__((always_inline))
// Before a function that chooses kernels: makes it a template, so that only files that call it instantiate
// them.
#define CRUMB_WHEN_CALLED template <class = void>
#define CRUMB_NOINLINE __attribute__((noinline))
#define CRUMB_PRINTF(text, first) __attribute__((format(printf, text, first)))

#if CRUMB_CLANG
#define CRUMB_UNROLL CRUMB_PRAGMA(clang loop unroll(full))
#else
#define CRUMB_UNROLL CRUMB_PRAGMA(GCC unroll 32)
#endif

// Keeps loads on their side of it. Compilers that gather the loads of a long block at its beginning run out
// of registers there.
#define CRUMB_HOLD_LOADS() __asm__ volatile("" ::: "memory")

// Functions between BEGIN and END are compiled for the named target. Intrinsics headers, the standard library
// and every other foreign inline function are included before BEGIN, or they would be compiled for it as
// well.
#if CRUMB_CLANG
#define CRUMB_TARGET_BEGIN(features)                                                                         \
    CRUMB_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define CRUMB_TARGET_END CRUMB_PRAGMA(clang attribute pop)
#else
#define CRUMB_TARGET_BEGIN(features) CRUMB_PRAGMA(GCC push_options) CRUMB_PRAGMA(GCC target(features))
#define CRUMB_TARGET_END CRUMB_PRAGMA(GCC pop_options)
#endif

// GCC's scheduler before register allocation moves so many loads up that accumulators are spilled. Code
// between BEGIN and END is left in the order in which it is written.
#if CRUMB_GCC
#define CRUMB_KEEP_ORDER_BEGIN CRUMB_PRAGMA(GCC push_options) CRUMB_PRAGMA(GCC optimize("no-schedule-insns"))
#define CRUMB_KEEP_ORDER_END CRUMB_PRAGMA(GCC pop_options)
#else
#define CRUMB_KEEP_ORDER_BEGIN
#define CRUMB_KEEP_ORDER_END
#endif

// GCC 12 takes the undefined pass-through operand inside its own AVX-512 intrinsics for an uninitialized use;
// without optimization they are macros, whose conversions count as the user's.
#if CRUMB_GCC
#define CRUMB_IGNORE_UNDEFINED_BEGIN                                                                         \
    CRUMB_PRAGMA(GCC diagnostic push)                                                                        \
    CRUMB_PRAGMA(GCC diagnostic ignored "-Wmaybe-uninitialized")                                             \
    CRUMB_PRAGMA(GCC diagnostic ignored "-Wuninitialized")                                                   \
    CRUMB_PRAGMA(GCC diagnostic ignored "-Wsign-conversion")
#define CRUMB_IGNORE_UNDEFINED_END CRUMB_PRAGMA(GCC diagnostic pop)
#else
#define CRUMB_IGNORE_UNDEFINED_BEGIN
#define CRUMB_IGNORE_UNDEFINED_END
#endif

// ---- operating system ----------------------------------------------------------------------------------
#if defined(__linux__)
#define CRUMB_OS_LINUX 1
#else
#define CRUMB_OS_LINUX 0
#endif
#if defined(__APPLE__)
#define CRUMB_OS_APPLE 1
#else
#define CRUMB_OS_APPLE 0
#endif

// ---- architecture --------------------------------------------------------------------------------------
#if defined(__x86_64__)
#define CRUMB_ARCH_X86_64 1
#define CRUMB_ARCH_AARCH64 0
#elif defined(__aarch64__) && defined(__AARCH64EL__)
#define CRUMB_ARCH_X86_64 0
#define CRUMB_ARCH_AARCH64 1
#else
#error "crumb supports x86-64 and little-endian AArch64"
#endif

// After this, the product in `x`, a float or a register, is rounded: no compiler fuses it with a sum,
// whatever its flags.
#if CRUMB_ARCH_X86_64
#define CRUMB_ROUND_PRODUCT(x) __asm__("" : "+v"(x))
#else
#define CRUMB_ROUND_PRODUCT(x) __asm__("" : "+w"(x))
#endif

// Which ISA headers this compiler can build. clang before 16 hides the dotprod and i8mm intrinsics of
// arm_neon.h unless the whole translation unit is compiled for them.
#if CRUMB_ARCH_X86_64
#define CRUMB_BUILDS_X86 1
#define CRUMB_BUILDS_NEON 0
#define CRUMB_BUILDS_NEON_DOTPROD 0
#define CRUMB_BUILDS_NEON_I8MM 0
#else
#define CRUMB_BUILDS_X86 0
#define CRUMB_BUILDS_NEON 1
#if CRUMB_GCC || CRUMB_CLANG >= 16 || defined(__ARM_FEATURE_DOTPROD)
#define CRUMB_BUILDS_NEON_DOTPROD 1
#else
#define CRUMB_BUILDS_NEON_DOTPROD 0
#endif
#if CRUMB_GCC || CRUMB_CLANG >= 16 || (defined(__ARM_FEATURE_MATMUL_INT8) && defined(__ARM_FEATURE_DOTPROD))
#define CRUMB_BUILDS_NEON_I8MM 1
#else
#define CRUMB_BUILDS_NEON_I8MM 0
#endif
#endif
#define CRUMB_TARGET_AVX2 "avx2,fma,f16c"
#define CRUMB_TARGET_AVX_VNNI CRUMB_TARGET_AVX2 ",avxvnni"
#define CRUMB_TARGET_AVX512_VNNI "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"
#define CRUMB_TARGET_AVX512_VBMI CRUMB_TARGET_AVX512_VNNI ",avx512vbmi"
#if CRUMB_CLANG
#define CRUMB_TARGET_NEON_DOTPROD "dotprod"
#define CRUMB_TARGET_NEON_I8MM "dotprod,i8mm"
#elif defined(__ARM_FEATURE_DOTPROD)
// GCC inlines the primitives of `neon`, which have the flags of the command line, only into functions with as
// many features: adding to these flags keeps them all, naming an architecture would drop some.
#define CRUMB_TARGET_NEON_DOTPROD "+dotprod"
#define CRUMB_TARGET_NEON_I8MM "+dotprod+i8mm"
#elif defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
#define CRUMB_TARGET_NEON_DOTPROD "arch=armv8.2-a+fp16+dotprod"
#define CRUMB_TARGET_NEON_I8MM "arch=armv8.2-a+fp16+dotprod+i8mm"
#else
#define CRUMB_TARGET_NEON_DOTPROD "arch=armv8.2-a+dotprod"
#define CRUMB_TARGET_NEON_I8MM "arch=armv8.2-a+dotprod+i8mm"
#endif

// Whether micro-kernels in assembly replace those that compilers fill with spills; -DCRUMB_NO_ASM says no.
#if CRUMB_ARCH_AARCH64 && !defined(CRUMB_NO_ASM)
#define CRUMB_ASM 1
#else
#define CRUMB_ASM 0
#endif

// ---- debug checks of the hot path's preconditions --------------------------------------------------------
#if !defined(CRUMB_DEBUG_CHECKS)
#if defined(NDEBUG)
#define CRUMB_DEBUG_CHECKS 0
#else
#define CRUMB_DEBUG_CHECKS 1
#endif
#endif

// ---- the compiled architecture, as the name of an inline namespace ---------------------------------------
// Code compiled under other flags is other code: with one name for both, the linker would keep either, and a
// program could execute instructions its CPU lacks. So every name of the library carries the flags that
// matter: where two files that exchange crumb's types were compiled with different ones, the linker misses a
// symbol that names those of one file.
#if CRUMB_ARCH_X86_64
#if defined(__SSE4_2__)
#define CRUMB_ABI_A _sse42
#else
#define CRUMB_ABI_A
#endif
#if defined(__AVX__)
#define CRUMB_ABI_B _avx
#else
#define CRUMB_ABI_B
#endif
#if defined(__AVX2__)
#define CRUMB_ABI_C _avx2
#else
#define CRUMB_ABI_C
#endif
#if defined(__FMA__)
#define CRUMB_ABI_D _fma
#else
#define CRUMB_ABI_D
#endif
#if defined(__F16C__)
#define CRUMB_ABI_E _f16c
#else
#define CRUMB_ABI_E
#endif
#if defined(__BMI2__)
#define CRUMB_ABI_F _bmi2
#else
#define CRUMB_ABI_F
#endif
#if defined(__AVX512F__)
#define CRUMB_ABI_G _avx512f
#else
#define CRUMB_ABI_G
#endif
#if defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define CRUMB_ABI_H _avx512bwvldq
#else
#define CRUMB_ABI_H
#endif
#if defined(__AVX512VNNI__)
#define CRUMB_ABI_I _avx512vnni
#else
#define CRUMB_ABI_I
#endif
#if defined(__AVX512VBMI__)
#define CRUMB_ABI_J _avx512vbmi
#else
#define CRUMB_ABI_J
#endif
#if defined(__AVX512FP16__)
#define CRUMB_ABI_K _avx512fp16
#else
#define CRUMB_ABI_K
#endif
#if defined(__AVXVNNI__)
#define CRUMB_ABI_L _avxvnni
#else
#define CRUMB_ABI_L
#endif
#define CRUMB_ABI_NAME x86_64
#else
#if defined(__ARM_FEATURE_DOTPROD)
#define CRUMB_ABI_A _dotprod
#else
#define CRUMB_ABI_A
#endif
#if defined(__ARM_FEATURE_MATMUL_INT8)
#define CRUMB_ABI_B _i8mm
#else
#define CRUMB_ABI_B
#endif
#if defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
#define CRUMB_ABI_C _fp16
#else
#define CRUMB_ABI_C
#endif
#if defined(__ARM_FEATURE_ATOMICS)
#define CRUMB_ABI_D _lse
#else
#define CRUMB_ABI_D
#endif
#if defined(__ARM_FEATURE_BF16)
#define CRUMB_ABI_E _bf16
#else
#define CRUMB_ABI_E
#endif
#if defined(__ARM_FEATURE_SVE)
#define CRUMB_ABI_F _sve
#else
#define CRUMB_ABI_F
#endif
#if defined(__ARM_FEATURE_SVE2)
#define CRUMB_ABI_G _sve2
#else
#define CRUMB_ABI_G
#endif
#if defined(__ARM_FEATURE_SME)
#define CRUMB_ABI_H _sme
#else
#define CRUMB_ABI_H
#endif
#if CRUMB_ASM
#define CRUMB_ABI_I
#else
#define CRUMB_ABI_I _no_asm
#endif
#define CRUMB_ABI_J
#define CRUMB_ABI_K
#define CRUMB_ABI_L
#define CRUMB_ABI_NAME aarch64
#endif
// Choices of the user's that change what functions contain belong to the name as well.
#if CRUMB_DEBUG_CHECKS
#define CRUMB_ABI_CHECKS _checked
#else
#define CRUMB_ABI_CHECKS
#endif
#if !CRUMB_HEADER_ONLY
#define CRUMB_ABI_SINGLE _compiled
#elif defined(CRUMB_SINGLE_ISA)
#define CRUMB_ABI_SINGLE CRUMB_CAT(_only_, CRUMB_SINGLE_ISA)
#elif defined(CRUMB_TWO_ISAS)
#define CRUMB_ABI_SINGLE CRUMB_CAT(_only_portable_, CRUMB_TWO_ISAS)
#else
#define CRUMB_ABI_SINGLE
#endif
#define CRUMB_ABI_PASTE_(n, a, b, c, d, e, f, g, h, i, j, k, l, m, o)                                        \
    n##a##b##c##d##e##f##g##h##i##j##k##l##m##o
#define CRUMB_ABI_PASTE(n, a, b, c, d, e, f, g, h, i, j, k, l, m, o)                                         \
    CRUMB_ABI_PASTE_(n, a, b, c, d, e, f, g, h, i, j, k, l, m, o)
#define CRUMB_ABI                                                                                            \
    CRUMB_ABI_PASTE(CRUMB_ABI_NAME, CRUMB_ABI_A, CRUMB_ABI_B, CRUMB_ABI_C, CRUMB_ABI_D, CRUMB_ABI_E,         \
                    CRUMB_ABI_F, CRUMB_ABI_G, CRUMB_ABI_H, CRUMB_ABI_I, CRUMB_ABI_J, CRUMB_ABI_K,            \
                    CRUMB_ABI_L, CRUMB_ABI_CHECKS, CRUMB_ABI_SINGLE)
