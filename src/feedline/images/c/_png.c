/* Undo the filters of a PNG's rows (https://www.w3.org/TR/png-3/#9Filters), only where a part needs it.

Guarantees: the pixels of an 8-bit image without palette, or a refusal of an unknown filter. Nothing
is read outside the data or written outside the target; all sizes are checked. The GIL is released.
Without a compiler Pillow decodes PNGs, to the same pixels.

Speed: Paeth depends on the pixel to the left, so a row is a chain of dependent steps, and the channels
of a pixel are the only ones that one vector can hold. Rows of consecutive Paeth filters are undone
in pairs, the lower one a pixel behind: one vector holds both, and a pair takes the time of a row. The
predictor is a comparison with a threshold, as in stb_image: a shorter chain than the distances. */

#include "_module.h"

#include <stdint.h>
#include <stdlib.h>

enum { NONE, SUB, UP, AVERAGE, PAETH };
enum {
    MAX_CHANNELS = 4,
    SCRATCH = 3, /* rows in memory: two, and the one above them */
};

static INLINE int paeth(int left, int above, int corner)
{
    const int threshold = 3 * corner - left - above;
    const int low = left < above ? left : above, high = left < above ? above : left;
    const int middle = high <= threshold ? low : corner;
    return threshold <= low ? high : middle;
}

/* Vectors of eight int16: a pixel of a row, and one of the row below. */
#if defined(__x86_64__) || defined(_M_X64)

#include <emmintrin.h>

#define PAIRS
typedef __m128i Pair;

static INLINE Pair load_pair(uint32_t upper, uint32_t lower)
{
    return _mm_unpacklo_epi8(
        _mm_unpacklo_epi32(_mm_cvtsi32_si128((int)upper), _mm_cvtsi32_si128((int)lower)),
        _mm_setzero_si128());
}

/* Return a pixel, and the upper pixel of a pair as the lower one. */
static INLINE Pair push(uint32_t upper, Pair pair)
{
    const Pair pixel
        = _mm_unpacklo_epi8(_mm_cvtsi32_si128((int)upper), _mm_setzero_si128());
    return _mm_unpacklo_epi64(pixel, pair);
}

static INLINE Pair choose(Pair mask, Pair yes, Pair no)
{
    return _mm_or_si128(_mm_and_si128(mask, yes), _mm_andnot_si128(mask, no));
}

static INLINE Pair undo_pair(Pair filtered, Pair left, Pair above, Pair corner)
{
    const Pair twice = _mm_sub_epi16(_mm_add_epi16(corner, corner), above);
    const Pair threshold = _mm_sub_epi16(_mm_add_epi16(twice, corner), left);
    const Pair low = _mm_min_epi16(left, above), high = _mm_max_epi16(left, above);
    const Pair middle = choose(_mm_cmpgt_epi16(high, threshold), corner, low);
    const Pair predicted = choose(_mm_cmpgt_epi16(threshold, low), middle, high);
    return _mm_and_si128(_mm_add_epi16(predicted, filtered), _mm_set1_epi16(255));
}

static INLINE uint64_t bytes_of(Pair pair)
{
    return (uint64_t)_mm_cvtsi128_si64(_mm_packus_epi16(pair, pair));
}

#elif defined(__aarch64__) || defined(_M_ARM64)

#include <arm_neon.h>

#define PAIRS
typedef int16x8_t Pair;

static INLINE Pair load_pair(uint32_t upper, uint32_t lower)
{
    const uint8x8_t bytes = vcreate_u8(upper | (uint64_t)lower << 32);
    return vreinterpretq_s16_u16(vmovl_u8(bytes));
}

static INLINE Pair push(uint32_t upper, Pair pair)
{
    const int16x8_t pixel = vreinterpretq_s16_u16(vmovl_u8(vcreate_u8(upper)));
    return vcombine_s16(vget_low_s16(pixel), vget_low_s16(pair));
}

static INLINE Pair undo_pair(Pair filtered, Pair left, Pair above, Pair corner)
{
    const Pair twice = vsubq_s16(vaddq_s16(corner, corner), above);
    const Pair threshold = vsubq_s16(vaddq_s16(twice, corner), left);
    const Pair low = vminq_s16(left, above), high = vmaxq_s16(left, above);
    const Pair middle = vbslq_s16(vcgtq_s16(high, threshold), corner, low);
    const Pair predicted = vbslq_s16(vcgtq_s16(threshold, low), middle, high);
    return vandq_s16(vaddq_s16(predicted, filtered), vdupq_n_s16(255));
}

static INLINE uint64_t bytes_of(Pair pair)
{
    return vget_lane_u64(vreinterpret_u64_u8(vmovn_u16(vreinterpretq_u16_s16(pair))), 0);
}

#endif

/* Undo the filter of a row of `count` bytes; `above` is the row before it. Return 0 if it is unknown. */
static INLINE int undo(
    uint8_t *row, const uint8_t *above, const uint8_t *filtered, int filter, size_t count, int channels)
{
    const size_t step = (size_t)channels;
    uint8_t left[MAX_CHANNELS] = {0}, corner[MAX_CHANNELS] = {0};
    switch (filter) {
    case NONE:
        memcpy(row, filtered, count);
        return 1;
    case UP:
        for (size_t i = 0; i < count; i++)
            row[i] = (uint8_t)(filtered[i] + above[i]);
        return 1;
    case SUB:
        for (size_t i = 0; i < count; i += step)
            for (int c = 0; c < channels; c++)
                row[i + c] = left[c] = (uint8_t)(left[c] + filtered[i + c]);
        return 1;
    case AVERAGE:
        for (size_t i = 0; i < count; i += step)
            for (int c = 0; c < channels; c++)
                row[i + c] = left[c]
                    = (uint8_t)(((left[c] + above[i + c]) >> 1) + filtered[i + c]);
        return 1;
    case PAETH:
        for (size_t i = 0; i < count; i += step)
            for (int c = 0; c < channels; c++) {
                const int predicted = paeth(left[c], above[i + c], corner[c]);
                corner[c] = above[i + c];
                row[i + c] = left[c] = (uint8_t)(predicted + filtered[i + c]);
            }
        return 1;
    default:
        return 0;
    }
}

#ifdef PAIRS
static INLINE uint32_t load_bytes(const uint8_t *bytes, size_t count)
{
    uint32_t pixel = 0;
    memcpy(&pixel, bytes, count);
    return pixel;
}

static INLINE void store_bytes(uint8_t *bytes, uint32_t pixel, size_t count)
{
    memcpy(bytes, &pixel, count);
}

/* Two rows with Paeth, the lower one below the upper one, during their undoing. */
typedef struct {
    uint8_t *upper, *lower;
    const uint8_t *above, *filtered_upper, *filtered_lower;
    Pair left, corner;
} TwoRows;

/* Undo the upper row's pixel at a byte, and the lower row's pixel before it. `bytes` of a pixel are read
and written, of which those beyond its channels are overwritten later. */
static INLINE void undo_step(TwoRows *rows, size_t at, size_t step, size_t bytes)
{
    const Pair over = push(load_bytes(rows->above + at, bytes), rows->left);
    const Pair filtered = load_pair(
        load_bytes(rows->filtered_upper + at, bytes),
        load_bytes(rows->filtered_lower + at - step, bytes));
    rows->left = undo_pair(filtered, rows->left, over, rows->corner);
    rows->corner = over;
    const uint64_t both = bytes_of(rows->left);
    store_bytes(rows->upper + at, (uint32_t)both, bytes);
    store_bytes(rows->lower + at - step, (uint32_t)(both >> 32), bytes);
}

static INLINE void undo_two(TwoRows *rows, size_t count, int channels)
{
    const size_t step = (size_t)channels;
    const Pair zero = load_pair(0, 0);
    const Pair first = push(load_bytes(rows->above, step), zero);
    rows->corner = first;
    rows->left = undo_pair(
        load_pair(load_bytes(rows->filtered_upper, step), 0), zero, first, zero);
    store_bytes(rows->upper, (uint32_t)bytes_of(rows->left), step);
    size_t at = step;
    for (; at + sizeof(uint32_t) <= count; at += step)
        undo_step(rows, at, step, sizeof(uint32_t));
    for (; at < count; at += step)
        undo_step(rows, at, step, step);
    const Pair last = undo_pair(
        load_pair(0, load_bytes(rows->filtered_lower + count - step, step)), rows->left,
        push(0, rows->left), rows->corner);
    store_bytes(rows->lower + count - step, (uint32_t)(bytes_of(last) >> 32), step);
}
#endif

/* Copy a row's colours, without alpha. */
static INLINE void pack(
    uint8_t *to, const uint8_t *row, size_t columns, int channels, int target_channels)
{
    const int is_grey = channels < CHANNELS;
    const size_t step = (size_t)channels, target_step = (size_t)target_channels;
    size_t x = 0;
    if (target_channels == CHANNELS)
        for (; x + 1 < columns; x++) { /* the fourth byte is overwritten by the next pixel */
            uint32_t pixel = row[x * step] * 0x01010101u;
            if (channels == MAX_CHANNELS)
                memcpy(&pixel, row + x * step, sizeof pixel);
            memcpy(to + x * target_step, &pixel, sizeof pixel);
        }
    for (; x < columns; x++)
        for (size_t c = 0; c < target_step; c++)
            to[x * target_step + c] = row[x * step + (is_grey ? 0 : c)];
}

typedef struct {
    const uint8_t *data; /* rows: the filter, then `row_bytes` */
    size_t row_bytes;
    uint8_t *target; /* rows from `top` on */
    size_t top, height, columns;
    int channels, target_channels;
    uint8_t *memory; /* SCRATCH rows of the columns, and one of zeros */
} Rows;

static INLINE int undo_rows(const Rows *rows, int channels)
{
    const size_t count = rows->columns * (size_t)channels, stop = rows->top + rows->height;
    const size_t target_row = rows->columns * (size_t)rows->target_channels;
    const int direct = channels == rows->target_channels;
    const uint8_t *above = rows->memory + SCRATCH * count;
#ifdef PAIRS
    const Pair zero = load_pair(0, 0);
#endif
    for (size_t y = 0; y < stop;) {
        const uint8_t *from = rows->data + y * (rows->row_bytes + 1);
        uint8_t *to[2];
        int together = 1;
        for (size_t k = 0; k < 2; k++)
            to[k] = direct && y + k >= rows->top && y + k < stop
                ? rows->target + (y + k - rows->top) * target_row
                : rows->memory + (y + k) % SCRATCH * count;
#ifdef PAIRS
        const uint8_t *next = from + rows->row_bytes + 1;
        if (from[0] == PAETH && y + 1 < stop && next[0] == PAETH) {
            TwoRows two = {to[0], to[1], above, from + 1, next + 1, zero, zero};
            undo_two(&two, count, channels);
            together = 2;
        } else
#endif
        if (!undo(to[0], above, from + 1, from[0], count, channels))
            return 0;
        for (int k = 0; k < together; k++, y++)
            if (!direct && y >= rows->top)
                pack(
                    rows->target + (y - rows->top) * target_row, to[k], rows->columns, channels,
                    rows->target_channels);
        above = to[together - 1];
    }
    return 1;
}

static int run(const Rows *rows)
{
    switch (rows->channels) {
    case 1: return undo_rows(rows, 1);
    case 2: return undo_rows(rows, 2);
    case 3: return undo_rows(rows, 3);
    default: return undo_rows(rows, 4);
    }
}

/* Fill in the sizes. Return the reason why the arguments are invalid, or NULL. */
static const char *check(
    Rows *rows, const Py_buffer *data, const Py_buffer *target, Py_ssize_t width, int channels,
    Py_ssize_t top)
{
    if (target->ndim != 3 || strcmp(target->format, "B") != 0 || target->len == 0
        || (target->shape[2] != 1 && target->shape[2] != CHANNELS))
        return "the target must be uint8 (h, w, 1 or 3), not empty";
    if (channels < 1 || channels > MAX_CHANNELS)
        return "the channels must be 1 to 4";
    if (target->shape[2] == 1 && channels >= CHANNELS)
        return "the target of colours must have 3 channels";
    if (width < target->shape[1] || width > (PY_SSIZE_T_MAX - 1) / MAX_CHANNELS)
        return "the target must not be wider than the image";
    const Py_ssize_t row = width * channels + 1;
    if (top < 0 || top > PY_SSIZE_T_MAX - target->shape[0]
        || data->len / row < top + target->shape[0])
        return "the data must have the target's rows";
    rows->data = data->buf;
    rows->row_bytes = (size_t)(row - 1);
    rows->target = target->buf;
    rows->top = (size_t)top;
    rows->height = (size_t)target->shape[0];
    rows->columns = (size_t)target->shape[1];
    rows->channels = channels;
    rows->target_channels = (int)target->shape[2];
    return NULL;
}

static PyObject *unfilter(PyObject *module, PyObject *args)
{
    PyObject *arrays[2], *result = NULL;
    Py_buffer views[2];
    Py_ssize_t width, top;
    int channels;
    Rows rows;
    (void)module;
    if (!PyArg_ParseTuple(
            args, "OOnin:unfilter", &arrays[0], &arrays[1], &width, &channels, &top)
        || !get_buffers(views, arrays, 2, PyBUF_C_CONTIGUOUS))
        return NULL;
    const char *wrong = check(&rows, &views[0], &views[1], width, channels, top);
    if (wrong) {
        PyErr_SetString(PyExc_ValueError, wrong);
    } else if (!(rows.memory = calloc(SCRATCH + 1, rows.columns * (size_t)channels))) {
        PyErr_NoMemory();
    } else {
        int known;
        Py_BEGIN_ALLOW_THREADS
        known = run(&rows);
        Py_END_ALLOW_THREADS
        free(rows.memory);
        result = PyBool_FromLong(known);
    }
    release_buffers(views, 2);
    return result;
}

static PyMethodDef methods[] = {
    {"unfilter", unfilter, METH_VARARGS, "Undo the filters of rows; see _png.pyi."},
    {NULL, NULL, 0, NULL},
};

static int initialise(PyObject *module)
{
    (void)module;
    return 0;
}

MODULE(_png, methods, initialise)
