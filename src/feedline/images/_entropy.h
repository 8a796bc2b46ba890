/* The Huffman codes of a baseline JPEG to coefficients, wherever in the image they are wanted;
see _entropy.c. */

#ifndef FEEDLINE_ENTROPY_H
#define FEEDLINE_ENTROPY_H

#include <stddef.h>
#include <stdint.h>

enum {
    ENTROPY_TABLES = 4,  /* of each kind, in a JPEG */
    ENTROPY_BLOCKS = 10, /* of 8 x 8 pixels in an MCU at most: ITU T.81, B.2.3 */
    ENTROPY_LOOKUP = 10, /* bits that are looked up at once */
    /* Bytes that an MCU may take, each of its coefficients having a code of 16 bits and another 15
    for its value; and those that are read ahead, before it and in it, up to 8 at once. */
    ENTROPY_MOST = ENTROPY_BLOCKS * 64 * 31 / 8 + 3 * 8,
    ENTROPY_KEPT = 8192,
};

/* A table of codes. */
typedef struct {
    uint16_t found[1 << ENTROPY_LOOKUP];
    uint32_t limits[17]; /* by length: the first 16 bits that are beyond its codes */
    int firsts[17];      /* by length: the place of its first symbol, less its first code */
    uint8_t counts[17], symbols[256]; /* what it was made of, as libjpeg has it */
    int made;
} Codes;

typedef struct {
    const uint8_t *source, *end; /* what was not taken yet */
    const uint8_t *next;         /* in `kept`, to be read */
    uint64_t bits;               /* read ahead, from the highest on, ... */
    int ahead;                   /* ... so many, and perhaps some that count as not yet read */
    size_t filled;               /* bytes of `kept` */
    int stopped;                 /* a marker, or the end, follows these */
    int broken;
    unsigned interval;           /* MCUs between two restart markers, or 0 */
    unsigned segment;            /* how many restart markers lie before it */
    unsigned mcu;                /* which one comes next */
    int has_bmi2;
    int blocks;
    struct {
        const Codes *dc, *ac;
        int component;
    } of[ENTROPY_BLOCKS];
    int before[4]; /* of each component the last DC coefficient */
    Codes dc[ENTROPY_TABLES], ac[ENTROPY_TABLES];
    uint8_t kept[ENTROPY_KEPT + ENTROPY_MOST];
} Entropy;

/* Begin with the bytes behind the header of an image that has a restart marker behind each
`interval` MCUs, or none if that is 0. */
void entropy_begin(Entropy *self, const uint8_t *data, size_t bytes, unsigned interval);

/* Say of which component the next block in each MCU is, and which are its tables: their numbers, and
what libjpeg has of them, 17 counts and 256 symbols. 0 if they cannot be used. */
int entropy_block(
    Entropy *self, int component, int dc, const uint8_t *dc_table, int ac, const uint8_t *ac_table);

/* Decode an MCU, which is none that was passed, into blocks that are zero; 0 if that cannot be. */
int entropy_mcu(Entropy *self, unsigned mcu, int16_t *const *blocks);

/* Whether all went well so far: no whole byte is left of a segment of which all MCUs were read. */
int entropy_ended(Entropy *self);

#endif
