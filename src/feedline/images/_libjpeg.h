/* What of libjpeg's binary interface is used, in the words of feedline; see _jpeg.c. */

#ifndef FEEDLINE_LIBJPEG_H
#define FEEDLINE_LIBJPEG_H

#include <stddef.h>
#include <stdint.h>

/* The beginning of libjpeg's decompression structure, the same in both interfaces. */
typedef struct {
    void *errors, *memory, *progress, *owner;
    int is_decompressor, state;
    struct {
        const uint8_t *next;
        size_t left;
    } *source;
    unsigned width, height;                  /* image_width, image_height */
    int components, colours, colours_wanted; /* num_components, jpeg_ and out_color_space */
    unsigned scale, scale_of;                /* scale_num, scale_denom */
    double gamma;
    int settings[12]; /* as libjpeg sets them: an accurate transform, chroma interpolated */
    unsigned width_out, height_out; /* output_width, output_height */
    int more[12];
    int (*missing)[64]; /* coef_bits: of each coefficient, 0 if all scans have come; or NULL */
    void *tables[3][4]; /* for quantisation, and Huffman codes of DC and AC coefficients */
    int precision;      /* data_precision */
    uint8_t rest[1024];
} Jpeg;
_Static_assert(sizeof(void *) == 8, "the interface is laid out for 64 bits");
_Static_assert(offsetof(Jpeg, width) == 48 && offsetof(Jpeg, scale) == 68, "as in jpeglib.h");
_Static_assert(offsetof(Jpeg, gamma) == 80 && offsetof(Jpeg, width_out) == 136, "likewise");
_Static_assert(offsetof(Jpeg, missing) == 192 && offsetof(Jpeg, precision) == 296, "likewise");

/* Elsewhere in it: how the scan is coded, the beginning of a component, how the scan is divided. */
typedef struct {
    int progressive, arithmetic;
    uint8_t conditioning[48];
    unsigned restart; /* restart_interval: MCUs, or 0 */
} Coding;
typedef struct {
    int id, index, across, down; /* its place, h_samp_factor, v_samp_factor */
    int quantisation, dc, ac;    /* the numbers of its tables */
} Component;
typedef struct {
    int components;
    const Component *of[4];
    unsigned mcus_across, mcus_down;
    int blocks, component[10]; /* blocks_in_MCU, MCU_membership */
} Scan;

/* The beginning of its entropy decoder, which is in no interface: jpegint.h. */
typedef struct {
    void *start;
    int (*mcu)(Jpeg *, int16_t **blocks); /* decode_mcu; blocks are zero, NULL to pass over */
} Decoding;

/* The beginning of its error handler. */
typedef struct {
    void (*fail)(Jpeg *);
    void (*tell)(Jpeg *, int level);
    void (*print)(Jpeg *);
    uint8_t rest[512];
} Errors;

/* Versions of the interface: the bytes of the structure in each, and where in it things lie. */
typedef struct {
    int version;
    size_t bytes, coding, scan, decoding;
} Interface;
static const Interface interfaces[] = {{62, 632, 312, 432, 592}, {80, 656, 316, 440, 616}};

#endif
