/* Attributes of functions, and features of x86-64 processors, for GCC, Clang and MSVC. */

#ifndef FEEDLINE_COMPILER_H
#define FEEDLINE_COMPILER_H

#include <stdint.h>

#if defined(_MSC_VER) && !defined(__clang__)
#include <intrin.h>
#define INLINE __forceinline
#define NOINLINE __declspec(noinline)
#define LIKELY(condition) (condition)
#define TARGET(features) /* MSVC compiles all intrinsics for any target */
#define PREFETCH(address) ((void)(address))
#else
#define INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#define TARGET(features) __attribute__((target(features)))
#define PREFETCH(address) __builtin_prefetch(address, 1) /* to write there */
#endif

/* Return the number of the lowest bit that is set. */
static INLINE int lowest_bit(uint64_t bits)
{
#if defined(_MSC_VER) && !defined(__clang__)
    unsigned long number;
    _BitScanForward64(&number, bits);
    return (int)number;
#else
    return __builtin_ctzll(bits);
#endif
}

#if defined(__x86_64__)
#include <cpuid.h>

enum { AVX2 = 5, BMI2 = 8 };

/* Features in EBX and ECX, if the system saves the registers in `state`; otherwise 0.
__builtin_cpu_supports would do, but is always 0 if compiled by Zig. */
static inline unsigned long long cpu_features(unsigned state)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return 0;
    __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    if ((a & state) != state || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return 0;
    return (unsigned long long)c << 32 | b;
}

/* Return True if the processor has a feature and the system saves AVX registers. */
static inline int cpu_has(int feature)
{
    return cpu_features(0x06) >> feature & 1;
}

/* Return True for AVX-512 F, DQ, BW, VL, VBMI and VNNI. */
static inline int cpu_has_avx512(void)
{
    const unsigned long long all = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31 | 1ull << 33 | 1ull << 43;
    return (cpu_features(0xE6) & all) == all && cpu_has(AVX2);
}
#elif defined(_M_X64)
#include <windows.h>

enum { AVX2 = PF_AVX2_INSTRUCTIONS_AVAILABLE };
#define cpu_has(feature) IsProcessorFeaturePresent(feature)
#endif

#endif
