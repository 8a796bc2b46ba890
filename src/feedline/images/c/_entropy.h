/* Huffman codes of a baseline JPEG to coefficients; see _entropy.c. */

#ifndef FEEDLINE_ENTROPY_H
#define FEEDLINE_ENTROPY_H

#include <stddef.h>
#include <stdint.h>

enum {
    ENTROPY_TABLES = 4,  /* of each kind */
    ENTROPY_BLOCKS = 10, /* of 8 x 8 pixels in an MCU at most: ITU T.81, B.2.3 */
    ENTROPY_LOOKUP = 10, /* bits per lookup */
    /* Maximum bytes of an MCU, with a code of 16 bits and a value of 15 for each coefficient, and those
    that are read ahead, before it and in it, up to 8 at once. */
    ENTROPY_MAX_MCU = ENTROPY_BLOCKS * 64 * 31 / 8 + 3 * 8,
    ENTROPY_COPY = 8192,
};

/* A Huffman table. */
typedef struct {
    union {
        uint16_t found[1 << ENTROPY_LOOKUP]; /* one code each */
        uint64_t pairs[1 << ENTROPY_LOOKUP]; /* of AC coefficients */
    };
    uint32_t limits[17]; /* by length: the first 16 bits that are beyond its codes */
    int firsts[17];      /* by length: index of its first symbol, less its first code */
    uint8_t counts[17], symbols[256]; /* as in libjpeg */
    int built; /* which of the two, or 0 */
} Codes;

/* Coefficients of a progressive scan, all bits down to the `low`est, or only this one. */
typedef struct {
    int first, last, low, refines;
} Band;

typedef struct {
    const uint8_t *source, *end; /* not yet copied */
    const uint8_t *next;         /* in `copy`: not yet read */
    uint64_t bits;               /* read ahead, from the highest bit on ... */
    unsigned ahead;               /* ... their number; lower bits may be set too */
    size_t filled;               /* bytes of `copy` */
    int stopped;                 /* a marker, or the end, follows these */
    int broken;
    unsigned interval;           /* MCUs between two restart markers, or 0 */
    unsigned segment;            /* number of restart markers before it */
    unsigned mcu;                /* the next one */
    char bmi2;                   /* use it; set by the owner */
    int blocks;
    struct {
        const Codes *dc, *ac;
        int component;
    } of[ENTROPY_BLOCKS];
    Band band;       /* of a progressive scan ... */
    uint64_t within; /* ... a bit for each of its coefficients */
    const Codes *scan;
    unsigned blocks_to_end; /* blocks of a scan that have no more codes */
    int last_dc[4]; /* DC coefficient of each component's last block */
    Codes dc[ENTROPY_TABLES], ac[ENTROPY_TABLES];
    uint8_t copy[ENTROPY_COPY + ENTROPY_MAX_MCU];
} Entropy;

/* Begin with the bytes after the header of an image with a restart marker after each `interval` MCUs,
or none if that is 0. */
void entropy_begin(Entropy *self, const uint8_t *data, size_t bytes, unsigned interval);

/* Add a block to each MCU: its component, and its tables by number and as libjpeg stores them, 17
counts and 256 symbols. Return 0 if they are invalid. */
int entropy_block(
    Entropy *self, int component, int dc, const uint8_t *dc_table, int ac, const uint8_t *ac_table);

/* Decode an MCU, after all before it, into blocks that are zero. Return 0 if it is invalid. */
int entropy_mcu(Entropy *self, unsigned mcu, int16_t *const *blocks);

/* Return True if nothing is broken so far, and no byte is left of a segment whose MCUs were all read. */
int entropy_ended(Entropy *self);

/* Begin a progressive scan of one component's AC coefficients. Return 0 if it is invalid. */
int entropy_scan(
    Entropy *self, const uint8_t *data, size_t bytes, unsigned interval, const Band *band, int ac,
    const uint8_t *ac_table);

/* Read the next block. `nonzero`: its coefficients that are not 0, a bit for each, updated. `block`: NULL
if these bits suffice. Return 0 if it is invalid. */
int entropy_scan_block(Entropy *self, uint64_t *nonzero, int16_t *block);

/* Return the marker after a scan of which all blocks were read; NULL if bytes are left, or none follows. */
const uint8_t *entropy_marker(Entropy *self);

#endif
