/* Vectors of two halves of 16 bytes each, by AVX2 or NEON.

SIMD_NAME is undefined if the target has neither. Sums and weights are int32 or pairs of int16. */

#ifndef FEEDLINE_SIMD_H
#define FEEDLINE_SIMD_H

#include <stdint.h>

#include "_compiler.h"

/* GCC for Windows does not align the stack to 32 bytes. */
#if (defined(__x86_64__) || defined(_M_X64)) && !(defined(__MINGW32__) && !defined(__clang__))

#include <immintrin.h>

#define SIMD_NAME "avx2"
#define SIMD TARGET("avx2") static
typedef __m256i Vector;

static inline int has_simd(void)
{
    return cpu_has(AVX2) != 0;
}

SIMD INLINE Vector load_halves(const uint8_t *low, const uint8_t *high)
{
    return _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)low)),
        _mm_loadu_si128((const __m128i *)high), 1);
}

SIMD INLINE Vector load(const void *bytes)
{
    return _mm256_loadu_si256((const __m256i *)bytes);
}

SIMD INLINE void store_halves(uint8_t *low, uint8_t *high, Vector vector)
{
    _mm_storeu_si128((__m128i *)low, _mm256_castsi256_si128(vector));
    _mm_storeu_si128((__m128i *)high, _mm256_extracti128_si256(vector, 1));
}

SIMD INLINE void store(uint8_t *bytes, Vector vector)
{
    _mm256_storeu_si256((__m256i *)bytes, vector);
}

SIMD INLINE Vector repeat(int32_t word)
{
    return _mm256_set1_epi32(word);
}

/* Pick bytes of each half by their indices; 0 for an index of 0x80. */
SIMD INLINE Vector shuffle(Vector bytes, Vector indices)
{
    return _mm256_shuffle_epi8(bytes, indices);
}

/* Add the products of pairs of int16 to a sum of int32. */
SIMD INLINE Vector multiply_add(Vector sum, Vector pairs, Vector weights)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, weights));
}

/* Add sums, shifted left. */
SIMD INLINE Vector add_shifted(Vector sum, Vector other, int bits)
{
    return _mm256_add_epi32(sum, _mm256_slli_epi32(other, bits));
}

/* Pair the bytes of two vectors, as int16. */
SIMD INLINE void interleave(Vector above, Vector below, Vector pairs[4])
{
    const __m256i zero = _mm256_setzero_si256();
    const __m256i low = _mm256_unpacklo_epi8(above, below);
    const __m256i high = _mm256_unpackhi_epi8(above, below);
    pairs[0] = _mm256_unpacklo_epi8(low, zero);
    pairs[1] = _mm256_unpackhi_epi8(low, zero);
    pairs[2] = _mm256_unpacklo_epi8(high, zero);
    pairs[3] = _mm256_unpackhi_epi8(high, zero);
}

/* Shift sums right and clip them to bytes. */
SIMD INLINE Vector pack(const Vector sums[4], int bits)
{
    const __m128i shift = _mm_cvtsi32_si128(bits);
    return _mm256_packus_epi16(
        _mm256_packs_epi32(_mm256_sra_epi32(sums[0], shift), _mm256_sra_epi32(sums[1], shift)),
        _mm256_packs_epi32(_mm256_sra_epi32(sums[2], shift), _mm256_sra_epi32(sums[3], shift)));
}

/* Mix words into sums of 64 bits, as XXH3: each pair's words exchanged, and halves of keys multiplied. */
SIMD INLINE Vector hash_mix(Vector sums, Vector words, Vector secret)
{
    const Vector keys = _mm256_xor_si256(words, secret);
    const Vector products = _mm256_mul_epu32(keys, _mm256_srli_epi64(keys, 32));
    const Vector exchanged = _mm256_shuffle_epi32(words, _MM_SHUFFLE(1, 0, 3, 2));
    return _mm256_add_epi64(_mm256_add_epi64(sums, exchanged), products);
}

SIMD INLINE Vector hash_scramble(Vector sums, Vector secret, uint32_t prime)
{
    const Vector by = _mm256_set1_epi32((int)prime);
    const Vector words
        = _mm256_xor_si256(_mm256_xor_si256(sums, _mm256_srli_epi64(sums, 47)), secret);
    const Vector high = _mm256_mul_epu32(_mm256_srli_epi64(words, 32), by);
    return _mm256_add_epi64(_mm256_mul_epu32(words, by), _mm256_slli_epi64(high, 32));
}

#elif defined(__aarch64__) || defined(_M_ARM64)

#include <arm_neon.h>

#define SIMD_NAME "neon"
#define SIMD static
typedef struct {
    uint8x16_t half[2];
} Vector;

static inline int has_simd(void)
{
    return 1;
}

SIMD INLINE Vector load_halves(const uint8_t *low, const uint8_t *high)
{
    return (Vector){{vld1q_u8(low), vld1q_u8(high)}};
}

SIMD INLINE Vector load(const void *bytes)
{
    return load_halves(bytes, (const uint8_t *)bytes + 16);
}

SIMD INLINE void store_halves(uint8_t *low, uint8_t *high, Vector vector)
{
    vst1q_u8(low, vector.half[0]);
    vst1q_u8(high, vector.half[1]);
}

SIMD INLINE void store(uint8_t *bytes, Vector vector)
{
    store_halves(bytes, bytes + 16, vector);
}

SIMD INLINE Vector repeat(int32_t word)
{
    const uint8x16_t half = vreinterpretq_u8_s32(vdupq_n_s32(word));
    return (Vector){{half, half}};
}

SIMD INLINE Vector shuffle(Vector bytes, Vector indices)
{
    for (int k = 0; k < 2; k++)
        bytes.half[k] = vqtbl1q_u8(bytes.half[k], indices.half[k]);
    return bytes;
}

SIMD INLINE Vector multiply_add(Vector sum, Vector pairs, Vector weights)
{
    for (int k = 0; k < 2; k++) {
        const int16x8_t a = vreinterpretq_s16_u8(pairs.half[k]);
        const int16x8_t b = vreinterpretq_s16_u8(weights.half[k]);
        const int32x4_t low = vmull_s16(vget_low_s16(a), vget_low_s16(b));
        const int32x4_t products = vpaddq_s32(low, vmull_high_s16(a, b));
        sum.half[k] = vreinterpretq_u8_s32(
            vaddq_s32(vreinterpretq_s32_u8(sum.half[k]), products));
    }
    return sum;
}

SIMD INLINE Vector add_shifted(Vector sum, Vector other, int bits)
{
    for (int k = 0; k < 2; k++)
        sum.half[k] = vreinterpretq_u8_s32(vaddq_s32(
            vreinterpretq_s32_u8(sum.half[k]),
            vshlq_s32(vreinterpretq_s32_u8(other.half[k]), vdupq_n_s32(bits))));
    return sum;
}

SIMD INLINE void interleave(Vector above, Vector below, Vector pairs[4])
{
    const uint8x16_t zero = vdupq_n_u8(0);
    for (int k = 0; k < 2; k++) {
        const uint8x16_t low = vzip1q_u8(above.half[k], below.half[k]);
        const uint8x16_t high = vzip2q_u8(above.half[k], below.half[k]);
        pairs[0].half[k] = vzip1q_u8(low, zero);
        pairs[1].half[k] = vzip2q_u8(low, zero);
        pairs[2].half[k] = vzip1q_u8(high, zero);
        pairs[3].half[k] = vzip2q_u8(high, zero);
    }
}

SIMD INLINE Vector pack(const Vector sums[4], int bits)
{
    const int32x4_t shift = vdupq_n_s32(-bits);
    Vector bytes;
    for (int k = 0; k < 2; k++) {
        int16x4_t words[4];
        for (int i = 0; i < 4; i++)
            words[i] = vqmovn_s32(vshlq_s32(vreinterpretq_s32_u8(sums[i].half[k]), shift));
        bytes.half[k] = vcombine_u8(
            vqmovun_s16(vcombine_s16(words[0], words[1])),
            vqmovun_s16(vcombine_s16(words[2], words[3])));
    }
    return bytes;
}

SIMD INLINE Vector hash_mix(Vector sums, Vector words, Vector secret)
{
    for (int k = 0; k < 2; k++) {
        const uint64x2_t both = vreinterpretq_u64_u8(words.half[k]);
        const uint64x2_t keys = veorq_u64(both, vreinterpretq_u64_u8(secret.half[k]));
        const uint64x2_t sum
            = vaddq_u64(vreinterpretq_u64_u8(sums.half[k]), vextq_u64(both, both, 1));
        sums.half[k]
            = vreinterpretq_u8_u64(vmlal_u32(sum, vmovn_u64(keys), vshrn_n_u64(keys, 32)));
    }
    return sums;
}

SIMD INLINE Vector hash_scramble(Vector sums, Vector secret, uint32_t prime)
{
    const uint32x2_t by = vdup_n_u32(prime);
    for (int k = 0; k < 2; k++) {
        const uint64x2_t sum = vreinterpretq_u64_u8(sums.half[k]);
        const uint64x2_t words = veorq_u64(
            veorq_u64(sum, vshrq_n_u64(sum, 47)), vreinterpretq_u64_u8(secret.half[k]));
        const uint64x2_t high = vshlq_n_u64(vmull_u32(vshrn_n_u64(words, 32), by), 32);
        sums.half[k] = vreinterpretq_u8_u64(vmlal_u32(high, vmovn_u64(words), by));
    }
    return sums;
}

#endif
#endif
