/* Vectors of 64 bytes, by AVX-512 with VBMI and VNNI: Intel's server processors from Ice Lake on, and
AMD's from Zen 4 on.

WIDE_NAME is undefined if the compiler or the target has no such instructions. */

#ifndef FEEDLINE_AVX512_H
#define FEEDLINE_AVX512_H

#include "_simd.h"

/* Older compilers lack some of the instructions; for MSVC `_compiler.h` does not look for them. */
#if defined(SIMD_NAME) && defined(__x86_64__) \
    && (defined(__clang__) ? __clang_major__ >= 11 : __GNUC__ >= 8)

#define WIDE_NAME "avx512"
#define WIDE TARGET("avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni") static
typedef __m512i Wide;

WIDE INLINE Wide load_wide(const void *bytes)
{
    return _mm512_loadu_si512(bytes);
}

/* The same, of a value that is used more than once: GCC would load it each time. */
WIDE INLINE Wide load_once(const void *bytes)
{
    Wide vector = load_wide(bytes);
    __asm__("" : "+v"(vector));
    return vector;
}

WIDE INLINE void store_wide(void *bytes, Wide vector)
{
    _mm512_storeu_si512(bytes, vector);
}

/* Shift sums right and clip them to bytes: of each 16 bytes four from each vector, in order. */
WIDE INLINE Wide pack_wide(const Wide sums[4], int bits)
{
    const __m128i shift = _mm_cvtsi32_si128(bits);
    return _mm512_packus_epi16(
        _mm512_packs_epi32(_mm512_sra_epi32(sums[0], shift), _mm512_sra_epi32(sums[1], shift)),
        _mm512_packs_epi32(_mm512_sra_epi32(sums[2], shift), _mm512_sra_epi32(sums[3], shift)));
}

/* Blend pairs of bytes, in words: the first byte, plus their difference times a weight, rounded. The
weight is minus that of the second byte, in 32768ths. Upper bytes of the words are undefined. */
WIDE INLINE Wide blend_pairs(Wide pairs, Wide weights)
{
    const Wide difference = _mm512_maddubs_epi16(pairs, _mm512_set1_epi16((short)0xFF01));
    return _mm512_add_epi16(pairs, _mm512_mulhrs_epi16(difference, weights));
}

/* Mix words into sums of 64 bits, and scramble them: as `hash_mix` and `hash_scramble`. */
WIDE INLINE Wide hash_mix_wide(Wide sums, Wide words, Wide secret)
{
    const Wide keys = _mm512_xor_si512(words, secret);
    const Wide products = _mm512_mul_epu32(keys, _mm512_srli_epi64(keys, 32));
    const Wide exchanged = _mm512_shuffle_epi32(words, _MM_PERM_BADC);
    return _mm512_add_epi64(_mm512_add_epi64(sums, exchanged), products);
}

WIDE INLINE Wide hash_scramble_wide(Wide sums, Wide secret, uint32_t prime)
{
    const Wide by = _mm512_set1_epi32((int)prime);
    const Wide words
        = _mm512_xor_si512(_mm512_xor_si512(sums, _mm512_srli_epi64(sums, 47)), secret);
    const Wide high = _mm512_mul_epu32(_mm512_srli_epi64(words, 32), by);
    return _mm512_add_epi64(_mm512_mul_epu32(words, by), _mm512_slli_epi64(high, 32));
}

#endif
#endif
