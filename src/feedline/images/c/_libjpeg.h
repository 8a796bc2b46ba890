/* The parts of libjpeg's binary interface that _jpeg.c uses, by libjpeg's own names: jpeglib.h and
jpegint.h. `rest` pads to more than any version's size. */

#ifndef FEEDLINE_LIBJPEG_H
#define FEEDLINE_LIBJPEG_H

#include <stddef.h>
#include <stdint.h>

enum { JCS_GRAYSCALE = 1, JCS_RGB = 2, JCS_YCbCr = 3 };

struct jpeg_source_mgr {
    const uint8_t *next_input_byte;
    size_t bytes_in_buffer;
};

struct jpeg_decompress_struct;
struct jpeg_error_mgr {
    void (*error_exit)(struct jpeg_decompress_struct *);
    void (*emit_message)(struct jpeg_decompress_struct *, int msg_level);
    void (*output_message)(struct jpeg_decompress_struct *);
    void (*format_message)(struct jpeg_decompress_struct *, char *buffer);
    uint8_t rest[512];
};

struct jpeg_progress_mgr {
    void (*progress_monitor)(struct jpeg_decompress_struct *);
    long counts[2];
    int passes[2];
};

/* Its beginning is the same in both interfaces. */
struct jpeg_decompress_struct {
    struct jpeg_error_mgr *err;
    void *mem;
    struct jpeg_progress_mgr *progress;
    void *client_data;
    int is_decompressor, global_state;
    struct jpeg_source_mgr *src;
    unsigned image_width, image_height;
    int num_components, jpeg_color_space, out_color_space;
    unsigned scale_num, scale_denom;
    double output_gamma;
    int settings[12]; /* buffered_image to enable_2pass_quant; the defaults are accurate */
    unsigned output_width, output_height;
    int output[12];        /* out_color_components to output_iMCU_row */
    int (*coef_bits)[64];  /* NULL unless progressive; 0 for a coefficient that is complete */
    void *quant_tbl_ptrs[4], *dc_huff_tbl_ptrs[4], *ac_huff_tbl_ptrs[4];
    int data_precision;
    uint8_t others[108];
    int max_h_samp_factor, max_v_samp_factor;
    uint8_t rest[1024];
};
#define OFFSET(field) offsetof(struct jpeg_decompress_struct, field)
_Static_assert(sizeof(void *) == 8, "the interface is laid out for 64 bits");
_Static_assert(OFFSET(image_width) == 48 && OFFSET(scale_num) == 68, "as in jpeglib.h");
_Static_assert(OFFSET(output_gamma) == 80 && OFFSET(output_width) == 136, "as in jpeglib.h");
_Static_assert(OFFSET(coef_bits) == 192 && OFFSET(data_precision) == 296, "as in jpeglib.h");
_Static_assert(OFFSET(max_h_samp_factor) == 408, "as in jpeglib.h");
#undef OFFSET

/* Parts of its rest, from `progressive_mode` and from `comps_in_scan`. */
typedef struct {
    int progressive_mode, arith_code;
    uint8_t arith_dc_L[16], arith_dc_U[16], arith_ac_K[16];
    unsigned restart_interval;
} Coding;

typedef struct {
    int component_id, component_index, h_samp_factor, v_samp_factor;
    int quant_tbl_no, dc_tbl_no, ac_tbl_no;
} jpeg_component_info; /* its beginning */

typedef struct {
    int comps_in_scan;
    const jpeg_component_info *cur_comp_info[4];
    unsigned MCUs_per_row, MCU_rows_in_scan;
    int blocks_in_MCU, MCU_membership[10];
    int Ss, Se, Ah, Al;
} Scan;

/* The beginning of the entropy decoder, which is internal to libjpeg. */
struct jpeg_entropy_decoder {
    void (*start_pass)(struct jpeg_decompress_struct *);
    int (*decode_mcu)(struct jpeg_decompress_struct *, int16_t **MCU_data); /* zeroed, or NULL */
};

/* Versions of the interface: its number and size, and the offsets of `progressive_mode`,
`comps_in_scan` and `entropy`. */
typedef struct {
    int version;
    size_t bytes, coding, scan, entropy;
} Interface;
static const Interface interfaces[] = {{62, 632, 312, 432, 592}, {80, 656, 316, 440, 616}};

#endif
