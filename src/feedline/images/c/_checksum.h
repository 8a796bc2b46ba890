/* XXH3 of 64 bits, with a seed, of more than 240 bytes: Yann Collet's algorithm, as the package
xxhash computes it. On a big-endian machine the result is another. */

#ifndef FEEDLINE_CHECKSUM_H
#define FEEDLINE_CHECKSUM_H

#include <stdint.h>
#include <string.h>

#include "_avx512.h"

enum { SHORTEST_HASHED = 241, STRIPE = 64, SUMS = 8, SECRET = 192, LAST_SECRET = 121, END_SECRET = 11 };

#define PRIME32_1 0x9E3779B1u
#define PRIME64_1 0x9E3779B185EBCA87u

static const uint64_t secret_words[SECRET / 8] = {
    0xbe4ba423396cfeb8u, 0x1cad21f72c81017cu, 0xdb979083e96dd4deu, 0x1f67b3b7a4a44072u,
    0x78e5c0cc4ee679cbu, 0x2172ffcc7dd05a82u, 0x8e2443f7744608b8u, 0x4c263a81e69035e0u,
    0xcb00c391bb52283cu, 0xa32e531b8b65d088u, 0x4ef90da297486471u, 0xd8acdea946ef1938u,
    0x3f349ce33f76faa8u, 0x1d4f0bc7c7bbdcf9u, 0x3159b4cd4be0518au, 0x647378d9c97e9fc8u,
    0xc3ebd33483acc5eau, 0xeb6313faffa081c5u, 0x49daf0b751dd0d17u, 0x9e68d429265516d3u,
    0xfca1477d58be162bu, 0xce31d07ad1b8f88fu, 0x280416958f3acb45u, 0x7e404bbbcafbd7afu,
};

static uint64_t read64(const uint8_t *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

/* Mix stripes of 64 bytes into the sums; the secret advances 8 bytes a stripe, in rounds of 16. */
static void mix_scalar(uint64_t sums[SUMS], const uint8_t *data, size_t stripes, const uint8_t *secret)
{
    for (size_t stripe = 0; stripe < stripes; stripe++, data += STRIPE) {
        for (size_t k = 0; k < SUMS; k++) {
            const uint64_t word = read64(data + 8 * k);
            const uint64_t key = word ^ read64(secret + 8 * (stripe % 16 + k));
            sums[k ^ 1] += word;
            sums[k] += (key & 0xFFFFFFFFu) * (key >> 32);
        }
        if (stripe % 16 == 15)
            for (size_t k = 0; k < SUMS; k++) {
                const uint64_t sum = sums[k] ^ sums[k] >> 47;
                sums[k] = (sum ^ read64(secret + SECRET - STRIPE + 8 * k)) * PRIME32_1;
            }
    }
}

#ifdef SIMD_NAME
SIMD void mix_simd(uint64_t sums[SUMS], const uint8_t *data, size_t stripes, const uint8_t *secret)
{
    Vector low = load(sums), high = load(sums + SUMS / 2);
    for (size_t stripe = 0; stripe < stripes; stripe++, data += STRIPE) {
        const uint8_t *keys = secret + 8 * (stripe % 16);
        low = hash_mix(low, load(data), load(keys));
        high = hash_mix(high, load(data + STRIPE / 2), load(keys + STRIPE / 2));
        if (stripe % 16 == 15) {
            low = hash_scramble(low, load(secret + SECRET - STRIPE), PRIME32_1);
            high = hash_scramble(high, load(secret + SECRET - STRIPE / 2), PRIME32_1);
        }
    }
    store((uint8_t *)sums, low);
    store((uint8_t *)(sums + SUMS / 2), high);
}
#endif

#ifdef WIDE_NAME
WIDE void mix_wide(uint64_t sums[SUMS], const uint8_t *data, size_t stripes, const uint8_t *secret)
{
    Wide all = load_wide(sums);
    for (size_t stripe = 0; stripe < stripes; stripe++, data += STRIPE) {
        all = hash_mix_wide(all, load_wide(data), load_wide(secret + 8 * (stripe % 16)));
        if (stripe % 16 == 15)
            all = hash_scramble_wide(all, load_wide(secret + SECRET - STRIPE), PRIME32_1);
    }
    store_wide(sums, all);
}
#endif

typedef void Mix(uint64_t sums[SUMS], const uint8_t *data, size_t stripes, const uint8_t *secret);

/* In the order of the resize's paths. */
static Mix *const mixes[] = {
    mix_scalar,
#ifdef SIMD_NAME
    mix_simd,
#endif
#ifdef WIDE_NAME
    mix_wide,
#endif
};

/* High word of a product, exclusive-or its low word. */
static uint64_t fold_product(uint64_t a, uint64_t b)
{
    const uint64_t low = (a & 0xFFFFFFFFu) * (b & 0xFFFFFFFFu);
    const uint64_t left = (a >> 32) * (b & 0xFFFFFFFFu), right = (a & 0xFFFFFFFFu) * (b >> 32);
    const uint64_t cross = (low >> 32) + (left & 0xFFFFFFFFu) + right;
    const uint64_t high = (a >> 32) * (b >> 32) + (left >> 32) + (cross >> 32);
    return high ^ (cross << 32 | (low & 0xFFFFFFFFu));
}

/* Hash at least SHORTEST_HASHED bytes. */
static uint64_t hash(const uint8_t *data, size_t bytes, uint64_t seed, Mix *mix)
{
    uint64_t words[SECRET / 8];
    uint64_t sums[SUMS] = {0xC2B2AE3Du, PRIME64_1, 0xC2B2AE3D27D4EB4Fu, 0x165667B19E3779F9u,
                           0x85EBCA77C2B2AE63u, 0x85EBCA77u, 0x27D4EB2F165667C5u, PRIME32_1};
    for (int k = 0; k < SECRET / 8; k++)
        words[k] = secret_words[k] + (k % 2 ? 0 - seed : seed);
    const uint8_t *secret = (const uint8_t *)words;
    mix(sums, data, (bytes - 1) / STRIPE, secret);
    mix(sums, data + bytes - STRIPE, 1, secret + LAST_SECRET);
    uint64_t result = bytes * PRIME64_1;
    for (int k = 0; k < SUMS; k += 2)
        result += fold_product(sums[k] ^ read64(secret + END_SECRET + 8 * k),
                               sums[k + 1] ^ read64(secret + END_SECRET + 8 * k + 8));
    result = (result ^ result >> 37) * 0x165667919E3779F9u;
    return result ^ result >> 32;
}

#endif
