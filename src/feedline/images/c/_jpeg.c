/* Decode a part of a JPEG without decoding the rest.

Guarantees: the bytes that a complete decode has there, or a refusal: for whatever libjpeg warns of
or rejects, for invalid Huffman codes, for files without an end, for colours other than grey, YCbCr
and RGB. (Do not request lossless files at a reduced size: libjpeg-turbo does not report that it
cannot scale them.) Damage in data that need not be read is not noticed. Nothing is read outside the
data or written outside the given memory. The GIL is released while pixels are decoded.

Relies on jpeg_crop_scanline and jpeg_skip_scanlines of libjpeg-turbo 3, which pass over columns and
rows without transforming them (before 3.0 they had errors, according to its ChangeLog.md); on the
binary interface of libjpeg 6b and 8, which libjpeg-turbo keeps
(https://github.com/libjpeg-turbo/libjpeg-turbo, jpeglib.h) and checks by its size when a decoder is
created. So its headers are not needed. The library is the one in this module if FEEDLINE_STATIC_JPEG
is defined (setup.py); else that of Pillow, or of another library that links to it, whose updates
apply.

Speed: Huffman codes, most of the work, are read by `_entropy.c` instead of libjpeg's decode_mcu, and
with restart markers only those of the part. Nothing outside the part is transformed. A decoder and
its memory are reused for the next image; the header is read once.

decode_mcu is not in libjpeg's interface; it is the second function of its entropy decoder in
libjpeg-turbo 1.0 to 3.2 (jpegint.h). So each decoder checks: two functions of the library must be
there, and a small image must give the same pixels with the second one replaced. Otherwise, and for
anything but baseline in one scan, libjpeg reads the codes.

A progressive image has a scan for each component and band of coefficients, and refines many of them
bit by bit; libjpeg reads them all when decoding starts, which was 85% of a decode. There the second
function is replaced for each scan of AC coefficients; of the blocks outside the part only the bits
are read that tell which coefficients are 0. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dladdr */
#endif

#include "_module.h"

#include <structmember.h>

#include <limits.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "_entropy.h"
#include "_libjpeg.h"

enum {
    /* Interpolated chroma reads one sample, two pixels, beyond its own. Below the part libjpeg does
    so itself. Across, a crop of fewer than two samples is not interpolated at all. */
    MARGIN_ROWS = 2,
    MARGIN_COLUMNS = 4,
    /* Images per structure: libjpeg looks for room for tables among all that it ever allocated. 8
    and 16 were fastest; with 64 an image takes 16 us more. */
    IMAGES = 8,
    BLOCK = 32,   /* pixels by which a crop may begin too early: the widest block, of 4:1:1 */
    AT_ONCE = 8,  /* rows per call; libjpeg returns at most as many */
    TEXT = 200,   /* JMSG_LENGTH_MAX of jpeglib.h */
};

typedef struct {
    PyObject_HEAD
    struct jpeg_decompress_struct cinfo;
    struct jpeg_error_mgr errors;
    jmp_buf escape;
    const Interface *layout;
    int (*decode_mcu)(struct jpeg_decompress_struct *, int16_t **); /* libjpeg's; NULL: keep it */
    char reads_codes; /* replace it */
    Entropy entropy;
    struct {
        unsigned next, row, column, per_row; /* the one that libjpeg requests next */
        unsigned top, left, right;           /* first row and columns that are needed */
        unsigned bottom;                     /* the row after these; only of a progressive scan */
        unsigned decoded;
    } mcus;
    struct jpeg_progress_mgr progress;                    /* called before the first scan is read */
    void (*start_pass)(struct jpeg_decompress_struct *);  /* libjpeg's, of the opened image */
    struct {
        unsigned top, left, rows, columns;
    } needed;             /* pixels of a progressive image */
    int component;        /* of the scan */
    uint64_t *nonzero[4]; /* of a progressive image: coefficients of each component's blocks */
    PyThread_type_lock lock; /* held by the thread that uses the decoder */
    int created;             /* cinfo must be destroyed */
    int images;              /* that cinfo decoded */
    int opened;              /* the header of `data` was read */
    int warnings;
    char warning[TEXT]; /* the first of the image; "" if there is none */
    Py_buffer data;
    void *library;
    struct jpeg_error_mgr *(*jpeg_std_error)(struct jpeg_error_mgr *);
    void (*jpeg_CreateDecompress)(struct jpeg_decompress_struct *, int, size_t);
    void (*jpeg_destroy_decompress)(struct jpeg_decompress_struct *);
    void (*jpeg_abort_decompress)(struct jpeg_decompress_struct *);
    void (*jpeg_mem_src)(struct jpeg_decompress_struct *, const uint8_t *, unsigned long);
    int (*jpeg_read_header)(struct jpeg_decompress_struct *, int);
    int (*jpeg_start_decompress)(struct jpeg_decompress_struct *);
    void (*jpeg_crop_scanline)(struct jpeg_decompress_struct *, unsigned *, unsigned *);
    unsigned (*jpeg_skip_scanlines)(struct jpeg_decompress_struct *, unsigned);
    unsigned (*jpeg_read_scanlines)(struct jpeg_decompress_struct *, uint8_t **, unsigned);
} Decoder;

/* A part of an image, in pixels of the (reduced) output, and the memory for it. */
typedef struct {
    unsigned top, left, height, width;
    uint8_t *memory;
    size_t bytes;
    size_t first, stride; /* the result: offset of the part, and from row to row */
    int too_small;
} Part;

static void error_exit(struct jpeg_decompress_struct *cinfo)
{
    longjmp(((Decoder *)cinfo->client_data)->escape, 1);
}

static void emit_message(struct jpeg_decompress_struct *cinfo, int msg_level)
{
    Decoder *self = cinfo->client_data;
    if (msg_level < 0 && !self->warnings++)
        cinfo->err->format_message(cinfo, self->warning);
}

static void output_message(struct jpeg_decompress_struct *cinfo)
{
    (void)cinfo;
}

#ifdef FEEDLINE_STATIC_JPEG
struct jpeg_error_mgr *jpeg_std_error(struct jpeg_error_mgr *);
void jpeg_CreateDecompress(struct jpeg_decompress_struct *, int, size_t);
void jpeg_destroy_decompress(struct jpeg_decompress_struct *);
void jpeg_abort_decompress(struct jpeg_decompress_struct *);
void jpeg_mem_src(struct jpeg_decompress_struct *, const uint8_t *, unsigned long);
int jpeg_read_header(struct jpeg_decompress_struct *, int);
int jpeg_start_decompress(struct jpeg_decompress_struct *);
void jpeg_crop_scanline(struct jpeg_decompress_struct *, unsigned *, unsigned *);
unsigned jpeg_skip_scanlines(struct jpeg_decompress_struct *, unsigned);
unsigned jpeg_read_scanlines(struct jpeg_decompress_struct *, uint8_t **, unsigned);

static int bind(Decoder *self, const char *path)
{
    (void)path;
    self->jpeg_std_error = jpeg_std_error;
    self->jpeg_CreateDecompress = jpeg_CreateDecompress;
    self->jpeg_destroy_decompress = jpeg_destroy_decompress;
    self->jpeg_abort_decompress = jpeg_abort_decompress;
    self->jpeg_mem_src = jpeg_mem_src;
    self->jpeg_read_header = jpeg_read_header;
    self->jpeg_start_decompress = jpeg_start_decompress;
    self->jpeg_crop_scanline = jpeg_crop_scanline;
    self->jpeg_skip_scanlines = jpeg_skip_scanlines;
    self->jpeg_read_scanlines = jpeg_read_scanlines;
    return 0;
}

/* The library is known; `find_decode_mcu` checks the position of its functions. */
static int is_libjpeg(const Decoder *self, void *function)
{
    return self && function;
}

static void unbind(Decoder *self)
{
    (void)self;
}
#elif defined(_WIN32) /* Pillow's wheels contain libjpeg and export none of its functions */
static int bind(Decoder *self, const char *path)
{
    (void)self;
    PyErr_Format(PyExc_OSError, "%s contains libjpeg, and does not export its functions", path);
    return -1;
}

static int is_libjpeg(const Decoder *self, void *function)
{
    return self && function && 0;
}

static void unbind(Decoder *self)
{
    (void)self;
}
#else
#include <dlfcn.h>

/* Find libjpeg-turbo's functions in the libraries that `path` links to. Return 0, or -1 with an
exception. */
static int bind(Decoder *self, const char *path)
{
#define FUNCTION(name) {#name, &self->name}
    void *version_3;
    const struct {
        const char *name;
        void *function;
    } wanted[] = {
        FUNCTION(jpeg_std_error),
        FUNCTION(jpeg_CreateDecompress),
        FUNCTION(jpeg_destroy_decompress),
        FUNCTION(jpeg_abort_decompress),
        FUNCTION(jpeg_mem_src),
        FUNCTION(jpeg_read_header),
        FUNCTION(jpeg_start_decompress),
        FUNCTION(jpeg_crop_scanline),
        FUNCTION(jpeg_skip_scanlines),
        FUNCTION(jpeg_read_scanlines),
        {"jpeg12_read_scanlines", &version_3}, /* missing in earlier versions, and in MozJPEG 4 */
    };
#undef FUNCTION
    self->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!self->library) {
        PyErr_SetString(PyExc_OSError, dlerror());
        return -1;
    }
    const void *base = NULL; /* of the library that contains the functions found so far */
    for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++) {
        void *found = dlsym(self->library, wanted[k].name);
        Dl_info info;
        if (!found || !dladdr(found, &info) || (base && info.dli_fbase != base)) {
            PyErr_Format(PyExc_OSError, "%s does not link to %s", path, wanted[k].name);
            return -1;
        }
        base = info.dli_fbase;
        memcpy(wanted[k].function, &found, sizeof found);
    }
    return 0;
}

/* Return True if a function is in the library of libjpeg's others. */
static int is_libjpeg(const Decoder *self, void *function)
{
    Dl_info own, other;
    void *known;
    memcpy(&known, &self->jpeg_start_decompress, sizeof known);
    return dladdr(known, &own) && dladdr(function, &other) && own.dli_fbase == other.dli_fbase;
}

static void unbind(Decoder *self)
{
    if (self->library)
        dlclose(self->library);
}
#endif

static void destroy(Decoder *self)
{
    if (self->created) {
        self->created = 0;
        self->jpeg_destroy_decompress(&self->cinfo);
    }
}

/* Create libjpeg's structure by one of the interfaces. Return 0, or -1 if the library has another. */
static int create(Decoder *self)
{
    self->images = 0;
    for (volatile size_t k = 0; k < sizeof interfaces / sizeof *interfaces; k++) {
        memset(&self->cinfo, 0, sizeof self->cinfo);
        self->cinfo.err = self->jpeg_std_error(&self->errors);
        self->errors.error_exit = error_exit;
        self->errors.emit_message = emit_message;
        self->errors.output_message = output_message;
        self->cinfo.client_data = self;
        if (setjmp(self->escape) == 0) {
            self->layout = &interfaces[k];
            self->jpeg_CreateDecompress(&self->cinfo, interfaces[k].version, interfaces[k].bytes);
            self->created = 1;
            return 0;
        }
    }
    return -1;
}

/* Release the image, and what was allocated for it. */
static void close_image(Decoder *self)
{
    if (self->created)
        self->jpeg_abort_decompress(&self->cinfo);
    for (int component = 0; component < 4; component++) {
        free(self->nonzero[component]);
        self->nonzero[component] = NULL;
    }
    if (self->data.obj)
        PyBuffer_Release(&self->data);
    self->opened = 0;
}

/* Return True if an end-of-image marker follows. A truncated file has none: it ends in entropy-coded
data, in which 0 follows each 0xFF. */
static int has_end(const struct jpeg_decompress_struct *cinfo)
{
    const uint8_t *bytes = cinfo->src->next_input_byte;
    for (size_t at = cinfo->src->bytes_in_buffer; at >= 2; at--)
        if (bytes[at - 1] == 0xD9 && bytes[at - 2] == 0xFF)
            return 1;
    return 0;
}

/* Read the header of an image. Return True if the rest can be decoded here. */
static int read_header(Decoder *self, const uint8_t *bytes, size_t count)
{
    struct jpeg_decompress_struct *cinfo = &self->cinfo;
    self->warnings = 0;
    self->warning[0] = 0;
    entropy_begin(&self->entropy, (const uint8_t *)"", 0, 0); /* forget the image before */
    if (count > ULONG_MAX)
        return 0;
    /* libjpeg keeps an image's tables for the next, which may lack its own. It allocates new ones
    if the pointers are NULL, and frees all only with the structure. */
    if (!self->created || ++self->images > IMAGES) {
        destroy(self);
        if (create(self) < 0)
            return 0;
    }
    memset(cinfo->quant_tbl_ptrs, 0, sizeof cinfo->quant_tbl_ptrs);
    memset(cinfo->dc_huff_tbl_ptrs, 0, sizeof cinfo->dc_huff_tbl_ptrs);
    memset(cinfo->ac_huff_tbl_ptrs, 0, sizeof cinfo->ac_huff_tbl_ptrs);
    if (setjmp(self->escape))
        return 0;
    self->jpeg_mem_src(cinfo, bytes, (unsigned long)count);
    self->jpeg_read_header(cinfo, 1);
    const int colours = cinfo->jpeg_color_space;
    const int known = colours == JCS_GRAYSCALE || colours == JCS_RGB || colours == JCS_YCbCr;
    if (known && !self->warnings && !has_end(cinfo))
        snprintf(self->warning, TEXT, "Premature end of JPEG file");
    return known && !self->warnings && !self->warning[0];
}

/* Return True if scans are missing: libjpeg smooths over the neighbouring blocks then, and so over
what is not decoded here. */
static int is_incomplete(const struct jpeg_decompress_struct *cinfo)
{
    for (int component = 0; cinfo->coef_bits && component < cinfo->num_components; component++)
        for (int k = 0; k < 64; k++)
            if (cinfo->coef_bits[component][k])
                return 1;
    return 0;
}

static void *field(Decoder *self, size_t offset)
{
    return (uint8_t *)&self->cinfo + offset;
}

static struct jpeg_entropy_decoder *entropy_decoder(Decoder *self)
{
    return *(struct jpeg_entropy_decoder **)field(self, self->layout->entropy);
}

/* Replaces libjpeg's decode_mcu, which is called for all MCUs in order. */
static int decode_mcu(struct jpeg_decompress_struct *cinfo, int16_t **MCU_data)
{
    Decoder *self = cinfo->client_data;
    const unsigned mcu = self->mcus.next++, row = self->mcus.row, column = self->mcus.column;
    if (++self->mcus.column == self->mcus.per_row) {
        self->mcus.column = 0;
        self->mcus.row++;
    }
    if (MCU_data && row >= self->mcus.top && column >= self->mcus.left && column < self->mcus.right)
        self->mcus.decoded += (unsigned)entropy_mcu(&self->entropy, mcu, MCU_data);
    return 1;
}

/* Let `_entropy.c` read the codes, if it can, and only those of the MCUs that reach into the rows
from `top` on and into the columns from `left` on. */
static void read_codes(Decoder *self, unsigned top, unsigned left, unsigned columns)
{
    struct jpeg_decompress_struct *cinfo = &self->cinfo;
    Entropy *entropy = &self->entropy;
    const Coding *coding = field(self, self->layout->coding);
    const Scan *scan = field(self, self->layout->scan);
    if (!self->reads_codes || entropy_decoder(self)->decode_mcu != self->decode_mcu
        || coding->progressive_mode || coding->arith_code || cinfo->data_precision != 8
        || scan->comps_in_scan != cinfo->num_components)
        return;
    entropy_begin(entropy, cinfo->src->next_input_byte, cinfo->src->bytes_in_buffer,
                  coding->restart_interval);
    int tall = 1, wide = 1; /* blocks of an MCU; in a scan of one component it is one block */
    for (int block = 0; block < scan->blocks_in_MCU; block++) {
        const int component = scan->MCU_membership[block];
        const jpeg_component_info *info = scan->cur_comp_info[component];
        if (!entropy_block(
                entropy, component, info->dc_tbl_no, cinfo->dc_huff_tbl_ptrs[info->dc_tbl_no & 3],
                info->ac_tbl_no, cinfo->ac_huff_tbl_ptrs[info->ac_tbl_no & 3]))
            return;
        if (scan->comps_in_scan > 1 && info->v_samp_factor > tall)
            tall = info->v_samp_factor;
        if (scan->comps_in_scan > 1 && info->h_samp_factor > wide)
            wide = info->h_samp_factor;
    }
    const unsigned height = (unsigned)tall * 8 / cinfo->scale_denom;
    const unsigned width = (unsigned)wide * 8 / cinfo->scale_denom;
    self->mcus.next = self->mcus.row = self->mcus.column = self->mcus.decoded = 0;
    self->mcus.per_row = scan->MCUs_per_row;
    self->mcus.top = top / height;
    self->mcus.left = left / width;
    self->mcus.right = (left + columns + width - 1) / width;
    entropy_decoder(self)->decode_mcu = decode_mcu;
}

/* Replaces libjpeg's decode_mcu in a progressive scan of one component's AC coefficients. */
static int decode_block(struct jpeg_decompress_struct *cinfo, int16_t **MCU_data)
{
    Decoder *self = cinfo->client_data;
    const unsigned row = self->mcus.row, column = self->mcus.column;
    const int wanted = row >= self->mcus.top && row < self->mcus.bottom
        && column >= self->mcus.left && column < self->mcus.right;
    uint64_t *const nonzero = &self->nonzero[self->component][self->mcus.next++];
    if (!entropy_scan_block(&self->entropy, nonzero, wanted && MCU_data ? MCU_data[0] : NULL))
        error_exit(cinfo);
    if (++self->mcus.column == self->mcus.per_row) {
        self->mcus.column = 0;
        const Scan *scan = field(self, self->layout->scan);
        if (++self->mcus.row == scan->MCU_rows_in_scan) {
            const uint8_t *marker = entropy_marker(&self->entropy);
            if (!marker)
                error_exit(cinfo);
            cinfo->src->bytes_in_buffer -= (size_t)(marker - cinfo->src->next_input_byte);
            cinfo->src->next_input_byte = marker;
        }
    }
    return 1;
}

/* Let `_entropy.c` read the scan that begins, if it is one of AC coefficients. */
static void read_scan(Decoder *self)
{
    struct jpeg_decompress_struct *cinfo = &self->cinfo;
    const Scan *scan = field(self, self->layout->scan);
    const Coding *coding = field(self, self->layout->coding);
    if (!scan->Ss)
        return;
    const jpeg_component_info *info = scan->cur_comp_info[0];
    const int component = self->component = info->component_index, table = info->ac_tbl_no;
    const Band band = {scan->Ss, scan->Se, scan->Al, scan->Ah != 0};
    if (scan->comps_in_scan != 1 || component < 0 || component >= 4
        || !entropy_scan(&self->entropy, cinfo->src->next_input_byte, cinfo->src->bytes_in_buffer,
                         coding->restart_interval, &band, table, cinfo->ac_huff_tbl_ptrs[table & 3]))
        error_exit(cinfo);
    if (!self->nonzero[component])
        self->nonzero[component] = calloc(
            scan->MCU_rows_in_scan, scan->MCUs_per_row * sizeof *self->nonzero[component]);
    if (!self->nonzero[component])
        error_exit(cinfo);
    const unsigned tall = (unsigned)info->v_samp_factor, wide = (unsigned)info->h_samp_factor;
    const unsigned height = 8 * (unsigned)cinfo->max_v_samp_factor / cinfo->scale_denom;
    const unsigned width = 8 * (unsigned)cinfo->max_h_samp_factor / cinfo->scale_denom;
    self->mcus.next = self->mcus.row = self->mcus.column = 0;
    self->mcus.per_row = scan->MCUs_per_row;
    self->mcus.top = self->needed.top / height * tall;
    self->mcus.left = self->needed.left / width * wide;
    self->mcus.right = (self->needed.left + self->needed.columns + width - 1) / width * wide;
    /* One more below: libjpeg interpolates chroma with the row after. */
    self->mcus.bottom = ((self->needed.top + self->needed.rows + height - 1) / height + 1) * tall;
    entropy_decoder(self)->decode_mcu = decode_block;
}

/* Replaces libjpeg's start_pass of a progressive image. */
static void start_scan(struct jpeg_decompress_struct *cinfo)
{
    Decoder *self = cinfo->client_data;
    self->start_pass(cinfo);
    read_scan(self);
}

/* Called when the first scan of a progressive image has begun and nothing of it is read. */
static void begin_scans(struct jpeg_decompress_struct *cinfo)
{
    Decoder *self = cinfo->client_data;
    void *functions[2];
    cinfo->progress = NULL;
    memcpy(functions, entropy_decoder(self), sizeof functions);
    if (is_libjpeg(self, functions[0]) && is_libjpeg(self, functions[1])) {
        self->start_pass = entropy_decoder(self)->start_pass;
        entropy_decoder(self)->start_pass = start_scan;
        read_scan(self);
    }
}

/* Decode a part. Return True on success. */
static int decode(Decoder *self, Part *part)
{
    struct jpeg_decompress_struct *cinfo = &self->cinfo;
    const Coding *coding = field(self, self->layout->coding);
    const unsigned top = part->top > MARGIN_ROWS ? part->top - MARGIN_ROWS : 0;
    const unsigned rows = part->top - top + part->height;
    unsigned left = part->left > MARGIN_COLUMNS ? part->left - MARGIN_COLUMNS : 0;
    unsigned columns = part->left - left + part->width + MARGIN_COLUMNS;
    self->needed.top = top;
    self->needed.left = left;
    self->needed.rows = rows;
    self->needed.columns = columns;
    self->progress.progress_monitor = begin_scans;
    const int reads_scans = self->reads_codes && coding->progressive_mode && !coding->arith_code
        && cinfo->data_precision == 8;
    cinfo->progress = reads_scans ? &self->progress : NULL;
    if (setjmp(self->escape))
        return 0;
    self->jpeg_start_decompress(cinfo);
    cinfo->progress = NULL;
    if (is_incomplete(cinfo))
        return 0;
    const unsigned width = cinfo->output_width;
    if (columns > width - left)
        columns = width - left;
    if (columns < width)
        self->jpeg_crop_scanline(cinfo, &left, &columns); /* extends it left to whole blocks */
    read_codes(self, top, left, columns);
    part->stride = 3 * (size_t)columns;
    part->first = (part->top - top) * part->stride + 3 * (size_t)(part->left - left);
    part->too_small = rows > part->bytes / part->stride;
    if (part->too_small || (top && self->jpeg_skip_scanlines(cinfo, top) != top))
        return 0;
    for (unsigned made = 0, now; made < rows && !self->warnings; made += now) {
        uint8_t *lines[AT_ONCE];
        const unsigned count = rows - made < AT_ONCE ? rows - made : AT_ONCE;
        for (unsigned k = 0; k < count; k++)
            lines[k] = part->memory + (made + k) * part->stride;
        now = self->jpeg_read_scanlines(cinfo, lines, count);
        if (!now || self->entropy.broken)
            return 0;
    }
    return !self->warnings && entropy_ended(&self->entropy);
}

/* An image of 32 x 16 pixels, two MCUs, without Huffman tables: libjpeg has the standard ones. */
#define TIMES_8(value) value, value, value, value, value, value, value, value
static const uint8_t trial_image[] = {
    0xFF, 0xD8, 0xFF, 0xDB, 0, 67, 0, TIMES_8(TIMES_8(64)), /* quantisation */
    0xFF, 0xC0, 0, 17, 8, 0, 16, 0, 32, 3, 1, 0x22, 0, 2, 0x11, 0, 3, 0x11, 0,
    0xFF, 0xDA, 0, 12, 3, 1, 0, 2, 0x11, 3, 0x11, 0, 63, 0,
    0x77, 0xEB, 0xFE, 0x3F, 0x9F, 0xF9, 0xFC, 0xC5, 0x2F, 0x5F, 0xF3, 0xD7, 0xF2, 0xE9, 0xFF, 0x00,
    0xEB, 0xE2, 0xA3, 0x1F, 0xE7, 0xF1, 0xFF, 0x00, 0x3E, 0xD4, 0x73, 0xFE, 0x7F, 0xFD, 0x7F, 0x9D,
    0x22, 0xE3, 0xAD, 0xC7, 0x7A, 0x9F, 0xA8, 0xA9, 0x33, 0xFE, 0x7F, 0xFD, 0x7D, 0xB8, 0xA5, 0xF5,
    0xE9, 0xFA, 0xFF, 0x00, 0x93, 0xFD, 0x73, 0x50, 0xFB, 0xF1, 0xDF, 0x8F, 0xF3, 0xEB, 0xFA, 0x50,
    0xDF, 0x91, 0x93, 0x77, 0x3F, 0xFF, 0xD9,
};

static int decode_trial(Decoder *self, uint8_t *pixels, size_t bytes)
{
    Part part = {.height = 16, .width = 32, .memory = pixels, .bytes = bytes};
    if (!read_header(self, trial_image, sizeof trial_image))
        return 0;
    self->cinfo.scale_num = self->cinfo.scale_denom = 1;
    self->cinfo.out_color_space = JCS_RGB;
    return decode(self, &part);
}

/* Find libjpeg's decode_mcu, and check that it can be replaced. */
static void find_decode_mcu(Decoder *self)
{
    uint8_t expected[16 * 32 * 3], found[sizeof expected];
    void *functions[2];
    if (decode_trial(self, expected, sizeof expected)) {
        memcpy(functions, entropy_decoder(self), sizeof functions);
        if (is_libjpeg(self, functions[0]) && is_libjpeg(self, functions[1]))
            self->decode_mcu = entropy_decoder(self)->decode_mcu;
    }
    close_image(self);
    self->reads_codes = self->decode_mcu != NULL;
    if (!decode_trial(self, found, sizeof found) || self->mcus.decoded != 2
        || memcmp(expected, found, sizeof expected)) {
        self->reads_codes = 0;
        self->decode_mcu = NULL;
    }
    close_image(self);
}

static int enter(Decoder *self)
{
    if (PyThread_acquire_lock(self->lock, NOWAIT_LOCK))
        return 1;
    PyErr_SetString(PyExc_RuntimeError, "a decoder serves one thread at a time");
    return 0;
}

static PyObject *decoder_open(Decoder *self, PyObject *data)
{
    PyObject *result = NULL;
    if (!enter(self))
        return NULL;
    close_image(self);
    if (PyObject_GetBuffer(data, &self->data, PyBUF_SIMPLE) == 0) {
        self->opened = read_header(self, self->data.buf, (size_t)self->data.len);
        if (self->opened) {
            result = Py_BuildValue("II", self->cinfo.image_height, self->cinfo.image_width);
        } else {
            close_image(self);
            result = Py_NewRef(Py_None);
        }
    }
    PyThread_release_lock(self->lock);
    return result;
}

/* Check a part against the opened image. Return 0, or -1 with an exception. */
static int check(
    Decoder *self, Part *part, long by, long top, long left, long height, long width)
{
    if (!self->opened) {
        PyErr_SetString(PyExc_ValueError, "no image is open");
        return -1;
    }
    if (by != 1 && by != 2 && by != 4 && by != 8) {
        PyErr_SetString(PyExc_ValueError, "the reduction must be 1, 2, 4 or 8");
        return -1;
    }
    const long whole_height = ((long)self->cinfo.image_height + by - 1) / by;
    const long whole_width = ((long)self->cinfo.image_width + by - 1) / by;
    if (height < 1 || width < 1 || top < 0 || left < 0 || height > whole_height
        || width > whole_width || top > whole_height - height || left > whole_width - width) {
        PyErr_SetString(PyExc_ValueError, "the part must lie in the image");
        return -1;
    }
    self->cinfo.scale_num = 1;
    self->cinfo.scale_denom = (unsigned)by;
    self->cinfo.out_color_space = JCS_RGB;
    part->top = (unsigned)top;
    part->left = (unsigned)left;
    part->height = (unsigned)height;
    part->width = (unsigned)width;
    return 0;
}

static PyObject *decoder_read(Decoder *self, PyObject *args)
{
    PyObject *memory, *result = NULL;
    long by, top, left, height, width;
    Py_buffer into;
    Part part = {0};
    if (!PyArg_ParseTuple(args, "Olllll:read", &memory, &by, &top, &left, &height, &width)
        || PyObject_GetBuffer(memory, &into, PyBUF_WRITABLE) < 0)
        return NULL;
    part.memory = into.buf;
    part.bytes = (size_t)into.len;
    if (enter(self)) {
        if (check(self, &part, by, top, left, height, width) == 0) {
            int decoded;
            Py_BEGIN_ALLOW_THREADS
            decoded = decode(self, &part);
            Py_END_ALLOW_THREADS
            close_image(self);
            if (decoded)
                result = Py_BuildValue("nn", (Py_ssize_t)part.first, (Py_ssize_t)part.stride);
            else if (part.too_small)
                PyErr_SetString(PyExc_ValueError, "the memory is too small for the part");
            else
                result = Py_NewRef(Py_None);
        }
        PyThread_release_lock(self->lock);
    }
    PyBuffer_Release(&into);
    return result;
}

static void decoder_dealloc(Decoder *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    close_image(self);
    destroy(self);
    unbind(self);
    if (self->lock)
        PyThread_free_lock(self->lock);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *decoder_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"", NULL}; /* by position only */
    PyObject *path;
    if (!PyArg_ParseTupleAndKeywords(
            args, named, "O&:Decoder", names, PyUnicode_FSConverter, &path))
        return NULL;
    Decoder *self = (Decoder *)PyType_GenericAlloc(type, 0);
    int failed = !self;
    if (self && !(self->lock = PyThread_allocate_lock())) {
        PyErr_NoMemory();
        failed = 1;
    }
    failed = failed || bind(self, PyBytes_AsString(path)) < 0;
    if (!failed && create(self) < 0) {
        PyErr_Format(PyExc_OSError, "%s has an unknown libjpeg", PyBytes_AsString(path));
        failed = 1;
    }
#ifdef __x86_64__
    if (!failed)
        self->entropy.bmi2 = cpu_has(BMI2) != 0;
#endif
    if (!failed)
        find_decode_mcu(self);
    Py_DECREF(path);
    if (failed) {
        Py_XDECREF((PyObject *)self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyMethodDef decoder_methods[] = {
    {"open", (PyCFunction)decoder_open, METH_O, "Read the header of a JPEG; see _jpeg.pyi."},
    {"read", (PyCFunction)decoder_read, METH_VARARGS, "Decode a part of it; see _jpeg.pyi."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef decoder_members[] = {
    {"reads_codes", T_BOOL, offsetof(Decoder, reads_codes), 0, "See _jpeg.pyi."},
    {"warning", T_STRING_INPLACE, offsetof(Decoder, warning), READONLY, "See _jpeg.pyi."},
    {"_bmi2", T_BOOL, offsetof(Decoder, entropy.bmi2), 0, "See _jpeg.pyi."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot decoder_slots[] = {
    {Py_tp_new, decoder_new},
    {Py_tp_dealloc, decoder_dealloc},
    {Py_tp_methods, decoder_methods},
    {Py_tp_members, decoder_members},
    {Py_tp_doc, "Decodes parts of JPEGs; see _jpeg.pyi."},
    {0, NULL},
};

static PyType_Spec decoder_spec = {
    .name = "feedline.images._jpeg.Decoder",
    .basicsize = sizeof(Decoder),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = decoder_slots,
};

static int initialise(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&decoder_spec);
#ifdef FEEDLINE_STATIC_JPEG
    PyObject *contained = Py_BuildValue("s", FEEDLINE_STATIC_JPEG);
#else
    PyObject *contained = Py_NewRef(Py_None);
#endif
    PyObject *margins = Py_BuildValue("ii", MARGIN_ROWS, 2 * MARGIN_COLUMNS + BLOCK);
    const int failed = PyModule_AddObjectRef(module, "Decoder", type) < 0
        || PyModule_AddObjectRef(module, "MARGINS", margins) < 0
        || PyModule_AddObjectRef(module, "CONTAINED_LIBJPEG", contained) < 0;
    Py_XDECREF(type);
    Py_XDECREF(margins);
    Py_XDECREF(contained);
    return failed ? -1 : 0;
}

MODULE(_jpeg, NULL, initialise)
