/* An image, resized into a row of a batch, in one pass.

Guarantees: the bytes of torch's antialiased bilinear or bicubic resize of uint8, which is Pillow's
algorithm with 16-bit weights: horizontally first, rounded to bytes, then vertically; or the other
way round, as newer Pillows do it with some images. Pillow's box, Hamming and Lanczos filters likewise. Of a box in the image whose edges lie within pixels, those
that the same arithmetic gives with Pillow's weights for a box. No byte before the image's first or behind its last is
read, none between its rows counts, none outside the row is written. Python's lock is not held
meanwhile.

Relies on AVX2, of which `supported` tells. Without it, or where there was no compiler, `resize.py`
calls torch.

How it is quick: neighbouring pixels of the row find their first two source pixels in the same 16
bytes. A shuffle sets these side by side, as pairs of 16-bit numbers; a multiply-add weighs the
pairs and adds each up. The third and fourth source pixels lie 6 bytes further on, and so forth.
Two rows go through at once. They are kept only while the vertical pass needs them, for usual sizes
in the first-level cache. Mirroring is another order of the shuffles and costs nothing. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define AVX2 __attribute__((target("avx2")))
#define UNROLLED inline __attribute__((always_inline))

enum {
    LARGEST = 4096, /* pixels of the resized whole, in each direction */
    MOST_TAPS = 32, /* source pixels that one of the row's is made of, in each direction */
    MOST_PAIRS = MOST_TAPS / 2,
    WIDE = 16, /* bytes looked at, and written, at once */
    SPAN = 4,  /* from the first to the last source pixel that lie whole in those */
    MOST_PIXELS = 5, /* of the row, likewise */
    PAIR = 6,  /* bytes of two source pixels */
    SLACK = 112, /* bytes behind a row of ours that may be read or written, and do not count */
};
_Static_assert(SLACK >= PAIR * (MOST_PAIRS - 1) + WIDE, "so far a copied row is read");
_Static_assert(SLACK >= 32, "so far a kept row is read and written");

/* Of which source pixels a pixel is made: those from `start` on, weighed; 0 beyond the last. */
typedef struct {
    int start;
    int16_t weights[MOST_TAPS];
} Pixel;

/* How a source pixel counts, by its distance in pixels of the smaller of the two images. */
typedef double (*Filter)(double distance);

static double triangle(double x)
{
    x = x < 0.0 ? -x : x;
    return x < 1.0 ? 1.0 - x : 0.0;
}

static double cubic(double x) /* Keys' with a = -0.5, as Pillow and torch have it */
{
    const double a = -0.5;
    x = x < 0.0 ? -x : x;
    if (x < 1.0)
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    return x < 2.0 ? (((x - 5.0) * x + 8.0) * x - 4.0) * a : 0.0;
}

static double box(double x)
{
    return x > -0.5 && x <= 0.5 ? 1.0 : 0.0;
}

static double sinc(double x)
{
    x *= 3.14159265358979323846;
    return x == 0.0 ? 1.0 : sin(x) / x;
}

static double hamming(double x)
{
    x = x < 0.0 ? -x : x;
    return x < 1.0 ? sinc(x) * (0.54 + 0.46 * cos(3.14159265358979323846 * x)) : 0.0;
}

static double lanczos(double x)
{
    return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3.0) : 0.0;
}

/* With how far each looks, in the order of `FILTERS` in resample_filter.py. */
static const struct {
    Filter of;
    double support;
} filters[] = {{triangle, 1.0}, {cubic, 2.0}, {box, 0.5}, {hamming, 1.0}, {lanczos, 3.0}};
enum { FILTERS = sizeof filters / sizeof *filters };

/* One direction: pairs of source pixels that a pixel has at most, and bits after the point. */
typedef struct {
    int pairs, precision;
} Axis;

/* How the row's pixels are made, some neighbours at a time. */
typedef struct {
    int pixels;  /* neighbours made together: a block */
    int vectors; /* that hold their bytes, four in each */
    int blocks;
    int reach;   /* bytes of a row of the source that are looked at */
    int *source; /* where a block's first 16 bytes begin in a row, for each block */
    int32_t *steps; /* for each block: its shuffles, then for each pair its weights, 8 a vector */
} Blocks;

/* What is asked for: an image, resized to `whole`, and of that a window. */
typedef struct {
    const uint8_t *image;
    const uint8_t *end; /* behind the last byte of the image */
    Py_ssize_t stride;
    int height, width;       /* of the image */
    double from_top, from_left, from_height, from_width; /* the box in it that is resized */
    int to_height, to_width; /* of the whole */
    int top, left, tall, wide; /* the window */
    int flip, down_first, filter;
    uint8_t *row;
} Task;

/* How far a pixel looks, to both sides, in source pixels. */
static double support_of(int filter, double extent, int resized)
{
    const double scale = extent / resized;
    return filters[filter].support * (scale >= 1.0 ? scale : 1.0);
}

/* torch's arithmetic for the weights of uint8, step by step: they are the same to the bit.

What is resized begins at `first` and has `extent` of the `source` pixels that there are. */
static Axis weigh(
    Pixel *pixels, double *shares, int filter, int source, double first, double extent,
    int resized)
{
    const Filter weight = filters[filter].of;
    const double scale = extent / resized;
    const double support = support_of(filter, extent, resized);
    const double shrink = scale >= 1.0 ? 1.0 / scale : 1.0;
    /* The ends of a pixel's sources are 2 * support apart: it has at most that many, rounded up. */
    const int whole = (int)(2.0 * support), room = whole + (whole < 2.0 * support);
    const int taps = room > MOST_TAPS ? MOST_TAPS : (room + 1) / 2 * 2;
    double largest = 0.0;
    int precision = 0;
    for (int i = 0; i < resized; i++) {
        double *share = shares + i * MOST_TAPS, total = 0.0;
        const double centre = first + scale * (i + 0.5);
        int start = (int)(centre - support + 0.5), stop = (int)(centre + support + 0.5);
        start = start < 0 ? 0 : start;
        stop = stop > source ? source : stop;
        const int own = stop - start < taps ? stop - start : taps;
        for (int k = 0; k < own; k++) {
            share[k] = weight((k + start - centre + 0.5) * shrink);
            total += share[k];
        }
        for (int k = 0; k < own; k++) {
            if (total != 0.0)
                share[k] /= total;
            largest = share[k] > largest ? share[k] : largest;
        }
        for (int k = own; k < taps; k++)
            share[k] = 0.0;
        pixels[i].start = start;
    }
    while (precision < 22 && (int)(0.5 + largest * (1 << (precision + 1))) < 1 << 15)
        precision++;
    for (int i = 0; i < resized; i++)
        for (int k = 0; k < taps; k++) {
            const double exact = shares[i * MOST_TAPS + k] * (1 << precision);
            pixels[i].weights[k] = (int16_t)(exact < 0.0 ? exact - 0.5 : exact + 0.5);
        }
    return (Axis){taps / 2, precision};
}

static int32_t pair_of(const Pixel *pixel, int pair)
{
    int32_t both;
    memcpy(&both, pixel->weights + 2 * pair, sizeof both);
    return both;
}

/* The pixels of a block: as many as surely find their source pixels in the same 16 bytes.

Pixels n - 1 apart start at most ceil((n - 1) * scale) source pixels apart, which is at most 3 where
(n - 1) * scale is. Where that is 3 exactly, and whole pixels are resized, the scale is 3, 3/2, 1 or
3/4 and no double is rounded; else it is less by 1/4096 or more, far above any rounding. A box
is given that much. */
static int together(const Task *task)
{
    const int whole = task->from_left == 0.0 && task->from_width == task->width;
    const int most = whole ? 1 + (SPAN - 1) * task->to_width / task->width
                           : 1 + (int)((SPAN - 1 - 1.0 / 4096) * task->to_width / task->from_width);
    const int pixels = most < MOST_PIXELS ? most : MOST_PIXELS;
    return pixels < task->wide ? pixels : task->wide;
}

/* Where a block begins in the row; the last one overlaps the one before. */
static int begins(const Blocks *plan, int block, int size)
{
    const int first = block * plan->pixels;
    return first + plan->pixels <= size ? first : size - plan->pixels;
}

static void divide(Blocks *plan, const Pixel *columns, const Task *task, int pairs)
{
    int32_t *step = plan->steps;
    plan->reach = 0;
    for (int block = 0; block < plan->blocks; block++) {
        const Pixel *pixels[MOST_PIXELS];
        const int first = begins(plan, block, task->wide);
        for (int k = 0; k < plan->pixels; k++) {
            const int at = first + k;
            pixels[k] = columns + task->left + (task->flip ? task->wide - 1 - at : at);
        }
        const int low = pixels[task->flip ? plan->pixels - 1 : 0]->start;
        const int reach = 3 * low + PAIR * (pairs - 1) + WIDE;
        plan->source[block] = 3 * low;
        plan->reach = reach > plan->reach ? reach : plan->reach;
        for (int byte = 0; byte < 4 * plan->vectors; byte++) {
            const int k = byte / 3; /* its pixel, if there is one */
            const Pixel *pixel = k < plan->pixels ? pixels[k] : NULL;
            /* Two rows are made at once, one in each half of a vector, in the same way. */
            int32_t *lane = step + byte / 4 * 8 + byte % 4;
            /* Two bytes, each widened to 16 bits: 0x80 gives a zero. */
            const uint32_t at = pixel ? (uint32_t)(3 * (pixel->start - low) + byte % 3) : 0;
            const uint32_t both = pixel ? 0x80008000u | (at + 3) << 16 | at : 0x80808080u;
            lane[0] = lane[4] = (int32_t)both;
            for (int pair = 0; pair < pairs; pair++) {
                lane += 8 * plan->vectors;
                lane[0] = lane[4] = pixel ? pair_of(pixel, pair) : 0;
            }
        }
        step += 8 * plan->vectors * (1 + pairs);
    }
}

/* Two rows, horizontally. */
AVX2 static UNROLLED void across(
    int pairs, int vectors, uint8_t *const to[2], const uint8_t *const from[2],
    const Blocks *plan, int size, int precision)
{
    const __m256i half = _mm256_set1_epi32(1 << (precision - 1));
    const __m128i shift = _mm_cvtsi32_si128(precision);
    const __m256i *step = (const __m256i *)plan->steps;
    for (int block = 0; block < plan->blocks; block++) {
        const int source = plan->source[block], target = 3 * begins(plan, block, size);
        const __m256i *weights = step + vectors;
        __m256i sum[4] = {half, half, half, half};
        for (int pair = 0; pair < pairs; pair++) {
            const __m128i *first = (const __m128i *)(from[0] + source + PAIR * pair);
            const __m128i *second = (const __m128i *)(from[1] + source + PAIR * pair);
            const __m256i bytes = _mm256_inserti128_si256(
                _mm256_castsi128_si256(_mm_loadu_si128(first)), _mm_loadu_si128(second), 1);
            for (int k = 0; k < vectors; k++, weights++) {
                const __m256i both = _mm256_shuffle_epi8(bytes, _mm256_loadu_si256(step + k));
                sum[k] = _mm256_add_epi32(
                    sum[k], _mm256_madd_epi16(both, _mm256_loadu_si256(weights)));
            }
        }
        for (int k = 0; k < vectors; k++)
            sum[k] = _mm256_sra_epi32(sum[k], shift);
        const __m256i packed = _mm256_packus_epi16(
            _mm256_packs_epi32(sum[0], sum[1]), _mm256_packs_epi32(sum[2], sum[3]));
        _mm_storeu_si128((__m128i *)(to[0] + target), _mm256_castsi256_si128(packed));
        _mm_storeu_si128((__m128i *)(to[1] + target), _mm256_extracti128_si256(packed, 1));
        step += vectors * (1 + pairs);
    }
}

/* 32 bytes of a row, vertically. */
AVX2 static UNROLLED __m256i blend(
    const uint8_t *const *rows, int at, const __m256i *weights, int pairs, int precision)
{
    const __m256i none = _mm256_setzero_si256();
    const __m128i shift = _mm_cvtsi32_si128(precision);
    __m256i sum[4];
    for (int k = 0; k < 4; k++)
        sum[k] = _mm256_set1_epi32(1 << (precision - 1));
    for (int pair = 0; pair < pairs; pair++) {
        const __m256i above = _mm256_loadu_si256((const __m256i *)(rows[2 * pair] + at));
        const __m256i below = _mm256_loadu_si256((const __m256i *)(rows[2 * pair + 1] + at));
        const __m256i low = _mm256_unpacklo_epi8(above, below);
        const __m256i high = _mm256_unpackhi_epi8(above, below);
        const __m256i part[4] = {
            _mm256_unpacklo_epi8(low, none), _mm256_unpackhi_epi8(low, none),
            _mm256_unpacklo_epi8(high, none), _mm256_unpackhi_epi8(high, none)};
        for (int k = 0; k < 4; k++)
            sum[k] = _mm256_add_epi32(sum[k], _mm256_madd_epi16(part[k], weights[pair]));
    }
    for (int k = 0; k < 4; k++)
        sum[k] = _mm256_sra_epi32(sum[k], shift);
    return _mm256_packus_epi16(
        _mm256_packs_epi32(sum[0], sum[1]), _mm256_packs_epi32(sum[2], sum[3]));
}

AVX2 static UNROLLED void down(
    int pairs, uint8_t *to, const uint8_t *const *rows, const Pixel *pixel, int bytes,
    int precision)
{
    __m256i weights[MOST_PAIRS];
    for (int pair = 0; pair < pairs; pair++)
        weights[pair] = _mm256_set1_epi32(pair_of(pixel, pair));
    if (bytes < 32) {
        uint8_t few[32];
        _mm256_storeu_si256((__m256i *)few, blend(rows, 0, weights, pairs, precision));
        memcpy(to, few, (size_t)bytes);
        return;
    }
    for (int at = 0; at < bytes; at += 32) {
        at = at + 32 <= bytes ? at : bytes - 32; /* the last overlap those before */
        _mm256_storeu_si256((__m256i *)(to + at), blend(rows, at, weights, pairs, precision));
    }
}

/* The usual numbers of pairs and vectors get code of their own, without inner loops. */
#define EACH_PAIRS(function, pairs, ...) \
    switch (pairs) { \
    case 1: function(1, __VA_ARGS__); break; \
    case 2: function(2, __VA_ARGS__); break; \
    case 3: function(3, __VA_ARGS__); break; \
    case 4: function(4, __VA_ARGS__); break; \
    case 5: function(5, __VA_ARGS__); break; \
    default: function(pairs, __VA_ARGS__); \
    }

/* Rows that are kept: a power of two. Those that one is made of, and one, as two are made at a time. */
static int ring_rows(Axis vertical)
{
    int rows = 4;
    while (rows < 2 * vertical.pairs + 2)
        rows *= 2;
    return rows;
}

AVX2 static void resize(
    const Task *task, const Blocks *plan, Axis horizontal, const Pixel *lines, Axis vertical,
    uint8_t *ring, uint8_t *copies)
{
    const int bytes = 3 * task->wide, kept = bytes + SLACK;
    const int last = ring_rows(vertical) - 1;
    int next = lines[task->top].start;
    for (int y = 0; y < task->tall; y++) {
        const Pixel *line = lines + task->top + y;
        const uint8_t *rows[MOST_TAPS];
        int stop = line->start + 2 * vertical.pairs;
        stop = stop > task->height ? task->height : stop;
        for (; next < stop; next += 2) {
            const uint8_t *from[2];
            uint8_t *to[2];
            for (int k = 0; k < 2; k++) { /* beyond the last row the last once more */
                const int at = next + k < task->height ? next + k : next;
                from[k] = task->image + at * task->stride;
                to[k] = ring + ((next + k) & last) * kept;
                if (plan->reach > task->end - from[k]) {
                    uint8_t *copy = copies + k * (3 * task->width + SLACK);
                    from[k] = memcpy(copy, from[k], (size_t)(3 * task->width));
                }
            }
#define ACROSS(vectors) \
    EACH_PAIRS( \
        across, horizontal.pairs, vectors, to, from, plan, task->wide, horizontal.precision)
            switch (plan->vectors) {
            case 1: ACROSS(1) break;
            case 2: ACROSS(2) break;
            case 3: ACROSS(3) break;
            default: ACROSS(4)
            }
#undef ACROSS
        }
        for (int k = 0; k < 2 * vertical.pairs; k++) /* beyond the last row the weight is 0 */
            rows[k] = ring + ((line->start + k < stop ? line->start + k : line->start) & last) * kept;
        uint8_t *to = task->row + (Py_ssize_t)y * bytes;
        EACH_PAIRS(down, vertical.pairs, to, rows, line, bytes, vertical.precision)
    }
}
#undef EACH_PAIRS

/* The passes the other way round, rounded to bytes between them all the same. */
AVX2 static void resize_down_first(
    const Task *task, const Blocks *plan, Axis horizontal, const Pixel *lines, Axis vertical,
    uint8_t *made, uint8_t *blended)
{
    const int bytes = 3 * task->wide, wide = 3 * task->width;
    for (int y = 0; y < task->tall; y += 2) {
        uint8_t *to[2];
        const uint8_t *from[2];
        for (int k = 0; k < 2; k++) { /* beyond the last row the last once more */
            const int at = task->top + (y + k < task->tall ? y + k : y);
            const uint8_t *rows[MOST_TAPS];
            for (int tap = 0; tap < 2 * vertical.pairs; tap++) {
                const int row = lines[at].start + tap; /* beyond the last the weight is 0 */
                rows[tap] = task->image + (row < task->height ? row : lines[at].start) * task->stride;
            }
            to[k] = made + k * (bytes + SLACK);
            from[k] = blended + k * (wide + SLACK);
            down(vertical.pairs, (uint8_t *)from[k], rows, lines + at, wide, vertical.precision);
        }
        across(
            horizontal.pairs, plan->vectors, to, from, plan, task->wide, horizontal.precision);
        for (int k = 0; k < 2 && y + k < task->tall; k++)
            memcpy(task->row + (Py_ssize_t)(y + k) * bytes, to[k], (size_t)bytes);
    }
}

/* Do a task; 0, or -1 where memory is missing. */
static int run(const Task *task)
{
    Blocks plan = {.pixels = together(task)};
    plan.vectors = (3 * plan.pixels + 3) / 4;
    plan.blocks = (task->wide + plan.pixels - 1) / plan.pixels;
    const int largest = task->to_height > task->to_width ? task->to_height : task->to_width;
    const int vectors = plan.blocks * plan.vectors * (1 + MOST_PAIRS);
    const size_t steps = (size_t)vectors * sizeof(__m256i);
    const size_t shares = (size_t)largest * MOST_TAPS * sizeof(double);
    const size_t pixels = (size_t)(task->to_height + task->to_width) * sizeof(Pixel);
    const size_t sources = (size_t)plan.blocks * sizeof *plan.source;
    const size_t ring = 2 * MOST_TAPS * (3 * (size_t)task->wide + SLACK);
    const size_t copies = 2 * (3 * (size_t)task->width + SLACK);
    uint8_t *memory = PyMem_RawMalloc(steps + shares + pixels + sources + ring + copies);
    if (!memory)
        return -1;
    plan.steps = (int32_t *)memory;
    double *share = (double *)(memory + steps);
    Pixel *columns = (Pixel *)(memory + steps + shares), *lines = columns + task->to_width;
    plan.source = (int *)(lines + task->to_height);
    uint8_t *kept = (uint8_t *)(plan.source + plan.blocks);
    const Axis horizontal = weigh(
        columns, share, task->filter, task->width, task->from_left, task->from_width, task->to_width);
    const Axis vertical = weigh(
        lines, share, task->filter, task->height, task->from_top, task->from_height, task->to_height);
    divide(&plan, columns, task, horizontal.pairs);
    if (task->down_first)
        resize_down_first(task, &plan, horizontal, lines, vertical, kept, kept + ring);
    else
        resize(task, &plan, horizontal, lines, vertical, kept, kept + ring);
    PyMem_RawFree(memory);
    return 0;
}

static int is_image(const Py_buffer *view)
{
    return view->ndim == 3 && view->shape[2] == 3 && strcmp(view->format, "B") == 0;
}

static int supported(void)
{
    return __builtin_cpu_supports("avx2") != 0;
}

static PyObject *resample(PyObject *module, PyObject *args)
{
    PyObject *given_image, *given_row, *answer = NULL;
    Py_buffer image, row;
    long to_height, to_width, to_top, to_left;
    int flip, down_first = 0, filter = 0;
    double top = 0.0, left = 0.0, tall = 0.0, wide = 0.0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOllllp|pi(dddd):resample", &given_image, &given_row, &to_height,
                          &to_width, &to_top, &to_left, &flip, &down_first, &filter, &top, &left,
                          &tall, &wide))
        return NULL;
    if (PyObject_GetBuffer(given_image, &image, PyBUF_STRIDES | PyBUF_FORMAT) < 0)
        return NULL;
    if (PyObject_GetBuffer(
            given_row, &row, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0) {
        PyBuffer_Release(&image);
        return NULL;
    }
    if (!is_image(&image) || !is_image(&row) || filter < 0 || filter >= FILTERS) {
        PyErr_SetString(
            PyExc_ValueError, "image and row must be uint8 (h, w, 3), and the filter a known one");
        goto done;
    }
    const long rows = (long)row.shape[0], columns = (long)row.shape[1];
    const Py_ssize_t height = image.shape[0], width = image.shape[1];
    const int boxed = PyTuple_GET_SIZE(args) > 9;
    tall = boxed ? tall : (double)height;
    wide = boxed ? wide : (double)width;
    if (rows < 1 || columns < 1 || height < 1 || width < 1 || to_top < 0 || to_left < 0
        || to_height < rows || to_width < columns || to_top > to_height - rows
        || to_left > to_width - columns) {
        PyErr_SetString(
            PyExc_ValueError, "the image must hold pixels, the window must lie in the whole");
    } else if (!(top >= 0.0 && left >= 0.0 && tall > 0.0 && wide > 0.0 && top + tall <= height
                 && left + wide <= width)) { /* not true of what is no number */
        PyErr_SetString(PyExc_ValueError, "the box must lie in the image");
    } else if (
        !supported() || image.strides[2] != 1 || image.strides[1] != 3 || image.strides[0] < 0
        || to_height > LARGEST || to_width > LARGEST
        || 2.0 * support_of(filter, tall, (int)to_height) > MOST_TAPS
        || 2.0 * support_of(filter, wide, (int)to_width) > MOST_TAPS
        || (down_first && 3 * width < 2 * WIDE)) { /* so many of a row are read at once */
        answer = Py_NewRef(Py_False);
    } else {
        const Task task = {
            .image = image.buf,
            .end = (const uint8_t *)image.buf + (height - 1) * image.strides[0] + width * 3,
            .stride = image.strides[0],
            .height = (int)height, .width = (int)width,
            .from_top = top, .from_left = left, .from_height = tall, .from_width = wide,
            .to_height = (int)to_height, .to_width = (int)to_width,
            .top = (int)to_top, .left = (int)to_left, .tall = (int)rows, .wide = (int)columns,
            .flip = flip, .down_first = down_first, .filter = filter,
            .row = row.buf,
        };
        int failed;
        Py_BEGIN_ALLOW_THREADS
        failed = run(&task);
        Py_END_ALLOW_THREADS
        answer = failed ? PyErr_NoMemory() : Py_NewRef(Py_True);
    }
done:
    PyBuffer_Release(&image);
    PyBuffer_Release(&row);
    return answer;
}

static PyMethodDef methods[] = {
    {"resample", resample, METH_VARARGS, "Resize an image into a row; see _resample.pyi."},
    {NULL, NULL, 0, NULL},
};

static int fill_module(PyObject *module)
{
    return PyModule_AddObjectRef(module, "supported", supported() ? Py_True : Py_False);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill_module},
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_resample",
    .m_doc = "A part of an image, resized into a row of a batch.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__resample(void)
{
    return PyModuleDef_Init(&definition);
}
