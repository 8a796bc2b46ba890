/* Attributes of functions, for GCC, Clang and MSVC. */

#ifndef FEEDLINE_COMPILER_H
#define FEEDLINE_COMPILER_H

#if defined(_MSC_VER) && !defined(__clang__)
#define INLINE __forceinline
#define NOINLINE __declspec(noinline)
#define LIKELY(condition) (condition)
#define TARGET(features) /* MSVC compiles all intrinsics for any target */
#else
#define INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#define TARGET(features) __attribute__((target(features)))
#endif

#endif
