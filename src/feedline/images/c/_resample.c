/* Resize an image into a row of a batch, in one pass.

Guarantees: the bytes of torch's antialiased bilinear or bicubic resize of uint8, which is Pillow's
algorithm with 16-bit weights: horizontal pass, rounded to bytes, then vertical pass; or the vertical
pass first, as newer Pillows do it with some images. Pillow's box, Hamming and Lanczos filters
likewise. A box with fractional edges gets Pillow's weights. Nothing outside the image is read,
nothing outside the row is written; padding between the image's rows does not affect the result. The
GIL is released.

Relies on AVX2 or NEON (`_simd.h`), or plain C: the same bytes, chosen at run time.

Speed: a block of neighbouring output pixels finds its first two source pixels within the same 16
bytes. A shuffle arranges these as pairs of int16, and a multiply-add weighs and sums the pairs. The
third and fourth source pixels are 6 bytes further, and so on. Two rows are processed at once. Rows
between the passes are kept only while the vertical pass needs them, usually in the L1 cache.
Mirroring only changes the shuffles and costs nothing. */

#include "_resample.h"

#include <math.h>
#include <stdlib.h>

#include "_simd.h"

enum {
    MAX_RESIZED = 4096, /* pixels of the resized image, in each direction */
    MAX_TAPS = 32, /* source pixels of an output pixel, in each direction */
    MAX_PAIRS = MAX_TAPS / 2,
    HALF = 16, /* bytes that are loaded, and stored, at once */
    SPAN = 4,  /* from the first to the last source pixel that lie entirely in those */
    MAX_BLOCK = 5, /* output pixels, likewise */
    PAIR = 2 * CHANNELS, /* bytes of two source pixels */
    SLACK = 112, /* bytes after a buffered row that may be read or written, and have no effect */
};
_Static_assert(SLACK >= PAIR * (MAX_PAIRS - 1) + HALF, "reads of a copied row");
_Static_assert(SLACK >= 2 * HALF, "reads and writes of a row between the passes");

/* The source pixels of an output pixel: the first, and their weights; 0 beyond the last. */
typedef struct {
    int start;
    int16_t weights[MAX_TAPS];
} Taps;

/* Weight of a source pixel by its distance, in pixels of the smaller of the two images. */
typedef double (*Filter)(double distance);

static double triangle(double x)
{
    x = x < 0.0 ? -x : x;
    return x < 1.0 ? 1.0 - x : 0.0;
}

static double cubic(double x) /* Keys' with a = -0.5, as in Pillow and torch */
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

/* In the order of `FILTERS` in resize.py. */
static const struct {
    Filter weight;
    double support;
} filters[] = {{triangle, 1.0}, {cubic, 2.0}, {box, 0.5}, {hamming, 1.0}, {lanczos, 3.0}};
enum { FILTERS = sizeof filters / sizeof *filters };

/* One direction: pairs of source pixels of an output pixel, and fractional bits of the weights. */
typedef struct {
    int pairs, precision;
} Axis;

/* The horizontal pass. */
typedef struct {
    Axis axis;
    const Taps *first; /* of the leftmost pixel of the row; `step` to the next, -1 if mirrored */
    int step, width;
    int pixels;  /* neighbours computed together: a block */
    int vectors; /* that hold their bytes, four in each half */
    int blocks;
    int reach;   /* bytes of a source row that are read */
    int *source; /* offset of each block's first 16 bytes in a source row */
    int32_t *program; /* of each block: its shuffles, then for each pair its weights, 8 a vector */
} Plan;

/* Resize of an image, or of a box in it, of which a window is written to `row`. */
typedef struct {
    const uint8_t *image;
    const uint8_t *end; /* of the image */
    Py_ssize_t stride;
    int height, width;                             /* of the image */
    double box_top, box_left, box_height, box_width;
    int resized_height, resized_width;
    int top, left, row_height, row_width; /* the window */
    int flip, down_first, filter;
    uint8_t *row;
} Task;

/* Horizontal pass over two rows, and vertical pass over the `bytes` of one. */
typedef struct {
    const char *name;
    void (*across)(const Plan *plan, uint8_t *const to[2], const uint8_t *const from[2]);
    void (*down)(Axis axis, const Taps *taps, uint8_t *to, const uint8_t *const *rows, int bytes);
} Path;

/* Reach of a filter to both sides, in source pixels. */
static double support_of(int filter, double extent, int resized)
{
    const double scale = extent / resized;
    return filters[filter].support * (scale >= 1.0 ? scale : 1.0);
}

/* Compute weights by torch's arithmetic for uint8, step by step: they are equal to the bit.

The resized part begins at `first` and has `extent` of the `source` pixels. */
static Axis weigh(
    Taps *taps, double *shares, int filter, int source, double first, double extent, int resized)
{
    const Filter weight = filters[filter].weight;
    const double scale = extent / resized;
    const double support = support_of(filter, extent, resized);
    const double shrink = scale >= 1.0 ? 1.0 / scale : 1.0;
    /* The ends of an output pixel's sources are 2 * support apart: at most that many, rounded up. */
    const int whole = (int)(2.0 * support), room = whole + (whole < 2.0 * support);
    const int count = room > MAX_TAPS ? MAX_TAPS : (room + 1) / 2 * 2;
    double largest = 0.0;
    int precision = 0;
    for (int i = 0; i < resized; i++) {
        double *share = shares + i * MAX_TAPS, total = 0.0;
        const double centre = first + scale * (i + 0.5);
        int start = (int)(centre - support + 0.5), stop = (int)(centre + support + 0.5);
        start = start < 0 ? 0 : start < source ? start : source - 1; /* rounded up to the end */
        stop = stop > source ? source : stop;
        const int own = stop - start < count ? stop - start : count;
        for (int k = 0; k < own; k++) {
            share[k] = weight((k + start - centre + 0.5) * shrink);
            total += share[k];
        }
        for (int k = 0; k < own; k++) {
            if (total != 0.0)
                share[k] /= total;
            largest = share[k] > largest ? share[k] : largest;
        }
        for (int k = own; k < count; k++)
            share[k] = 0.0;
        taps[i].start = start;
    }
    while (precision < 22 && (int)(0.5 + largest * (1 << (precision + 1))) < 1 << 15)
        precision++;
    for (int i = 0; i < resized; i++)
        for (int k = 0; k < count; k++) {
            const double exact = shares[i * MAX_TAPS + k] * (1 << precision);
            taps[i].weights[k] = (int16_t)(exact < 0.0 ? exact - 0.5 : exact + 0.5);
        }
    return (Axis){count / 2, precision};
}

static int32_t pair_of(const Taps *taps, int pair)
{
    int32_t both;
    memcpy(&both, taps->weights + 2 * pair, sizeof both);
    return both;
}

/* Number of pixels of a block: as many as surely find their source pixels in the same 16 bytes.

Pixels n - 1 apart start at most ceil((n - 1) * scale) source pixels apart, at most 3 if
(n - 1) * scale is. If that is 3 exactly, and there is no box, the scale is 3, 3/2, 1 or 3/4 and no
double is rounded; otherwise it is less by 1/4096 or more, far above any rounding. A box is given
that margin. */
static int block_pixels(const Task *task)
{
    const int whole = task->box_left == 0.0 && task->box_width == task->width;
    const double most = 1.0 + (whole ? (SPAN - 1) * task->resized_width / task->width
        : floor((SPAN - 1 - 1.0 / 4096) * task->resized_width / task->box_width));
    const int pixels = most < MAX_BLOCK ? (int)most : MAX_BLOCK;
    return pixels < task->row_width ? pixels : task->row_width;
}

/* First output pixel of a block; the last block overlaps the one before. */
static int block_start(const Plan *plan, int block)
{
    const int first = block * plan->pixels;
    return first + plan->pixels <= plan->width ? first : plan->width - plan->pixels;
}

/* Write the shuffles and weights of all blocks. */
static void plan_blocks(Plan *plan)
{
    int32_t *step = plan->program;
    plan->reach = 0;
    for (int block = 0; block < plan->blocks; block++) {
        const Taps *first = plan->first + block_start(plan, block) * plan->step;
        const int low = (plan->step > 0 ? first : first - (plan->pixels - 1))->start;
        const int reach = CHANNELS * low + PAIR * (plan->axis.pairs - 1) + HALF;
        plan->source[block] = CHANNELS * low;
        plan->reach = reach > plan->reach ? reach : plan->reach;
        for (int byte = 0; byte < 4 * plan->vectors; byte++) {
            const int k = byte / CHANNELS; /* the pixel; none in the last bytes */
            const Taps *taps = k < plan->pixels ? first + k * plan->step : NULL;
            /* Two rows, one in each half of a vector, are processed alike. */
            int32_t *lane = step + byte / 4 * 8 + byte % 4;
            /* Two bytes, each widened to 16 bits: 0x80 gives a zero. */
            const uint32_t at = taps ? (uint32_t)(CHANNELS * (taps->start - low) + byte % 3) : 0;
            const uint32_t both = taps ? 0x80008000u | (at + 3) << 16 | at : 0x80808080u;
            lane[0] = lane[4] = (int32_t)both;
            for (int pair = 0; pair < plan->axis.pairs; pair++) {
                lane += 8 * plan->vectors;
                lane[0] = lane[4] = taps ? pair_of(taps, pair) : 0;
            }
        }
        step += 8 * plan->vectors * (1 + plan->axis.pairs);
    }
}

static uint8_t clip(int32_t value)
{
    return value < 0 ? 0 : value > 255 ? 255 : (uint8_t)value;
}

static void across_scalar(const Plan *plan, uint8_t *const to[2], const uint8_t *const from[2])
{
    for (int row = 0; row < 2; row++)
        for (int at = 0; at < CHANNELS * plan->width; at++) {
            const Taps *taps = plan->first + at / CHANNELS * plan->step;
            const uint8_t *source = from[row] + CHANNELS * taps->start + at % CHANNELS;
            int32_t sum = 1 << (plan->axis.precision - 1);
            for (int k = 0; k < 2 * plan->axis.pairs; k++)
                sum += taps->weights[k] * source[CHANNELS * k];
            to[row][at] = clip(sum >> plan->axis.precision);
        }
}

static void down_scalar(
    Axis axis, const Taps *taps, uint8_t *to, const uint8_t *const *rows, int bytes)
{
    enum { AT_ONCE = 64 }; /* which compilers vectorise */
    for (int at = 0; at < bytes; at += AT_ONCE) {
        const int count = bytes - at < AT_ONCE ? bytes - at : AT_ONCE;
        int32_t sums[AT_ONCE];
        for (int i = 0; i < count; i++)
            sums[i] = 1 << (axis.precision - 1);
        for (int k = 0; k < 2 * axis.pairs; k++)
            for (int i = 0; i < count; i++)
                sums[i] += taps->weights[k] * rows[k][at + i];
        for (int i = 0; i < count; i++)
            to[at + i] = clip(sums[i] >> axis.precision);
    }
}

#ifdef SIMD_NAME
SIMD INLINE void across(
    int pairs, int vectors, const Plan *plan, uint8_t *const to[2], const uint8_t *const from[2])
{
    const Plan local = *plan; /* which no store can change */
    const uint8_t *const low = from[0], *const high = from[1];
    uint8_t *const to_low = to[0], *const to_high = to[1];
    const Vector half = repeat(1 << (local.axis.precision - 1));
    const int32_t *step = local.program;
    for (int block = 0; block < local.blocks; block++) {
        const int source = local.source[block], target = CHANNELS * block_start(&local, block);
        const int32_t *weights = step + 8 * vectors;
        Vector sums[4] = {half, half, half, half};
        for (int pair = 0; pair < pairs; pair++) {
            const Vector bytes = load_halves(low + source + PAIR * pair, high + source + PAIR * pair);
            for (int k = 0; k < vectors; k++, weights += 8)
                sums[k] = multiply_add(sums[k], shuffle(bytes, load(step + 8 * k)), load(weights));
        }
        store_halves(to_low + target, to_high + target, pack(sums, local.axis.precision));
        step += 8 * vectors * (1 + pairs);
    }
}

/* 32 bytes of a row, vertically. */
SIMD INLINE Vector blend(
    const uint8_t *const *rows, int at, const Vector *weights, int pairs, int precision)
{
    const Vector half = repeat(1 << (precision - 1));
    Vector sums[4] = {half, half, half, half};
    for (int pair = 0; pair < pairs; pair++) {
        Vector parts[4];
        interleave(load(rows[2 * pair] + at), load(rows[2 * pair + 1] + at), parts);
        for (int k = 0; k < 4; k++)
            sums[k] = multiply_add(sums[k], parts[k], weights[pair]);
    }
    return pack(sums, precision);
}

SIMD INLINE void down(
    int pairs, int precision, const Taps *taps, uint8_t *to, const uint8_t *const *rows, int bytes)
{
    Vector weights[MAX_PAIRS];
    for (int pair = 0; pair < pairs; pair++)
        weights[pair] = repeat(pair_of(taps, pair));
    if (bytes < 2 * HALF) {
        uint8_t few[2 * HALF];
        store(few, blend(rows, 0, weights, pairs, precision));
        memcpy(to, few, (size_t)bytes);
        return;
    }
    for (int at = 0; at < bytes; at += 2 * HALF) {
        at = at + 2 * HALF <= bytes ? at : bytes - 2 * HALF; /* the last overlap those before */
        store(to + at, blend(rows, at, weights, pairs, precision));
    }
}

/* The usual numbers of pairs and vectors get their own code, without inner loops. */
#define EACH_PAIRS(function, pairs, ...) \
    switch (pairs) { \
    case 1: function(1, __VA_ARGS__); break; \
    case 2: function(2, __VA_ARGS__); break; \
    case 3: function(3, __VA_ARGS__); break; \
    case 4: function(4, __VA_ARGS__); break; \
    case 5: function(5, __VA_ARGS__); break; \
    default: function(pairs, __VA_ARGS__); \
    }

SIMD void across_simd(const Plan *plan, uint8_t *const to[2], const uint8_t *const from[2])
{
    switch (plan->vectors) {
    case 1: EACH_PAIRS(across, plan->axis.pairs, 1, plan, to, from) break;
    case 2: EACH_PAIRS(across, plan->axis.pairs, 2, plan, to, from) break;
    case 3: EACH_PAIRS(across, plan->axis.pairs, 3, plan, to, from) break;
    default: EACH_PAIRS(across, plan->axis.pairs, 4, plan, to, from)
    }
}

SIMD void down_simd(
    Axis axis, const Taps *taps, uint8_t *to, const uint8_t *const *rows, int bytes)
{
    EACH_PAIRS(down, axis.pairs, axis.precision, taps, to, rows, bytes)
}
#endif

static const Path paths[] = {
    {"scalar", across_scalar, down_scalar},
#ifdef SIMD_NAME
    {SIMD_NAME, across_simd, down_simd},
#endif
};
static const Path *path = paths; /* in use */

/* Buffered rows, a power of two: those of one output row, and one more, as two are made at once. */
static int ring_rows(Axis vertical)
{
    int rows = 4;
    while (rows < 2 * vertical.pairs + 2)
        rows *= 2;
    return rows;
}

static void resize(
    const Task *task, const Plan *plan, const Taps *lines, Axis vertical, uint8_t *ring,
    uint8_t *copies)
{
    const int bytes = CHANNELS * task->row_width, pitch = bytes + SLACK;
    const int mask = ring_rows(vertical) - 1;
    int next = lines[task->top].start;
    for (int y = 0; y < task->row_height; y++) {
        const Taps *line = lines + task->top + y;
        const uint8_t *rows[MAX_TAPS];
        int stop = line->start + 2 * vertical.pairs;
        stop = stop > task->height ? task->height : stop;
        for (; next < stop; next += 2) {
            const uint8_t *from[2];
            uint8_t *to[2];
            for (int k = 0; k < 2; k++) { /* after the last row: the last again */
                const int at = next + k < task->height ? next + k : next;
                from[k] = task->image + at * task->stride;
                to[k] = ring + ((next + k) & mask) * pitch;
                if (plan->reach > task->end - from[k]) {
                    uint8_t *copy = copies + k * (CHANNELS * task->width + SLACK);
                    from[k] = memcpy(copy, from[k], (size_t)(CHANNELS * task->width));
                }
            }
            path->across(plan, to, from);
        }
        for (int k = 0; k < 2 * vertical.pairs; k++) /* after the last row the weight is 0 */
            rows[k] = ring + ((line->start + k < stop ? line->start + k : line->start) & mask) * pitch;
        path->down(vertical, line, task->row + (Py_ssize_t)y * bytes, rows, bytes);
    }
}

/* Resize with the vertical pass first, also rounded to bytes in between. */
static void resize_down_first(
    const Task *task, const Plan *plan, const Taps *lines, Axis vertical, uint8_t *made,
    uint8_t *blended)
{
    const int bytes = CHANNELS * task->row_width, source_bytes = CHANNELS * task->width;
    for (int y = 0; y < task->row_height; y += 2) {
        uint8_t *to[2];
        const uint8_t *from[2];
        for (int k = 0; k < 2; k++) { /* after the last row: the last again */
            const Taps *line = lines + task->top + (y + k < task->row_height ? y + k : y);
            const uint8_t *rows[MAX_TAPS];
            for (int tap = 0; tap < 2 * vertical.pairs; tap++) {
                const int row = line->start + tap; /* after the last the weight is 0 */
                rows[tap] = task->image + (row < task->height ? row : line->start) * task->stride;
            }
            uint8_t *const between = blended + k * (source_bytes + SLACK);
            to[k] = made + k * (bytes + SLACK);
            from[k] = between;
            path->down(vertical, line, between, rows, source_bytes);
        }
        path->across(plan, to, from);
        for (int k = 0; k < 2 && y + k < task->row_height; k++)
            memcpy(task->row + (Py_ssize_t)(y + k) * bytes, to[k], (size_t)bytes);
    }
}

/* Run a task. Return 0, or -1 if memory is missing. */
static int run_task(const Task *task)
{
    Plan plan = {.pixels = block_pixels(task), .width = task->row_width};
    plan.vectors = (CHANNELS * plan.pixels + 3) / 4;
    plan.blocks = (plan.width + plan.pixels - 1) / plan.pixels;
    const int largest = task->resized_height > task->resized_width ? task->resized_height
                                                                   : task->resized_width;
    const size_t program = (size_t)plan.blocks * plan.vectors * (1 + MAX_PAIRS) * 2 * HALF;
    const size_t shares = (size_t)largest * MAX_TAPS * sizeof(double);
    const size_t taps = (size_t)(task->resized_height + task->resized_width) * sizeof(Taps);
    const size_t sources = (size_t)plan.blocks * sizeof *plan.source;
    const size_t ring = 2 * MAX_TAPS * (CHANNELS * (size_t)plan.width + SLACK);
    const size_t copies = 2 * (CHANNELS * (size_t)task->width + SLACK);
    uint8_t *memory = malloc(program + shares + taps + sources + ring + copies);
    if (!memory)
        return -1;
    plan.program = (int32_t *)memory;
    double *share = (double *)(memory + program);
    Taps *columns = (Taps *)(memory + program + shares), *lines = columns + task->resized_width;
    plan.source = (int *)(lines + task->resized_height);
    uint8_t *buffers = (uint8_t *)(plan.source + plan.blocks);
    plan.axis = weigh(
        columns, share, task->filter, task->width, task->box_left, task->box_width,
        task->resized_width);
    const Axis vertical = weigh(
        lines, share, task->filter, task->height, task->box_top, task->box_height,
        task->resized_height);
    plan.step = task->flip ? -1 : 1;
    plan.first = columns + task->left + (task->flip ? plan.width - 1 : 0);
    plan_blocks(&plan);
    (task->down_first ? resize_down_first : resize)(
        task, &plan, lines, vertical, buffers, buffers + ring);
    free(memory);
    return 0;
}

Check resample_check(const Request *request)
{
    const Py_ssize_t height = request->height, width = request->width;
    if (request->rows < 1 || request->columns < 1 || height < 1 || width < 1 || request->to_top < 0
        || request->to_left < 0 || request->to_height < request->rows
        || request->to_width < request->columns
        || request->to_top > request->to_height - request->rows
        || request->to_left > request->to_width - request->columns)
        return BAD_WINDOW;
    if (!(request->top >= 0.0 && request->left >= 0.0 && request->box_height > 0.0
          && request->box_width > 0.0 && request->top + request->box_height <= (double)height
          && request->left + request->box_width <= (double)width))
        return BAD_BOX; /* NaN, too */
    if (request->stride < 0 || request->to_height > MAX_RESIZED || request->to_width > MAX_RESIZED
        || height > MAX_SIDE || width > MAX_SIDE || request->filter < 0
        || request->filter >= FILTERS
        || 2.0 * support_of(request->filter, request->box_height, (int)request->to_height) > MAX_TAPS
        || 2.0 * support_of(request->filter, request->box_width, (int)request->to_width) > MAX_TAPS
        || (request->down_first && CHANNELS * width < 2 * HALF)) /* bytes that are read at once */
        return UNSUPPORTED;
    return POSSIBLE;
}

int resample_run(const Request *request)
{
    const Task task = {
        .image = request->image,
        .end = request->image + (request->height - 1) * request->stride + request->width * CHANNELS,
        .stride = request->stride,
        .height = (int)request->height, .width = (int)request->width,
        .box_top = request->top, .box_left = request->left,
        .box_height = request->box_height, .box_width = request->box_width,
        .resized_height = (int)request->to_height, .resized_width = (int)request->to_width,
        .top = (int)request->to_top, .left = (int)request->to_left,
        .row_height = (int)request->rows, .row_width = (int)request->columns,
        .flip = request->flip, .down_first = request->down_first, .filter = request->filter,
        .row = request->row,
    };
    return run_task(&task);
}

static PyObject *resample(PyObject *module, PyObject *args)
{
    PyObject *arrays[2], *result = NULL;
    Py_buffer views[2];
    Request request = {.box_height = -1.0, .box_width = -1.0};
    (void)module;
    if (!PyArg_ParseTuple(args, "OOnnnnp|pi(dddd):resample", &arrays[0], &arrays[1],
                          &request.to_height, &request.to_width, &request.to_top, &request.to_left,
                          &request.flip, &request.down_first, &request.filter, &request.top,
                          &request.left, &request.box_height, &request.box_width)
        || !get_buffers(views, arrays, 2, PyBUF_STRIDES | PyBUF_FORMAT))
        return NULL;
    const Py_buffer *image = &views[0], *row = &views[1];
    if (!is_rgb(image) || !is_rgb(row) || request.filter < 0 || request.filter >= FILTERS) {
        PyErr_SetString(
            PyExc_ValueError, "image and row must be uint8 (h, w, 3), and the filter in FILTERS");
        goto done;
    }
    request.image = image->buf;
    request.row = row->buf;
    request.stride = image->strides[0];
    request.height = image->shape[0];
    request.width = image->shape[1];
    request.rows = row->shape[0];
    request.columns = row->shape[1];
    if (PyTuple_Size(args) <= 9) {
        request.box_height = (double)request.height;
        request.box_width = (double)request.width;
    }
    const Check found = resample_check(&request);
    if (found == BAD_WINDOW) {
        PyErr_SetString(PyExc_ValueError,
                        "image and row must hold pixels, and the row must lie in the resized image");
    } else if (found == BAD_BOX) {
        PyErr_SetString(PyExc_ValueError, "the box must lie in the image");
    } else if (found == UNSUPPORTED || image->strides[2] != 1 || image->strides[1] != CHANNELS) {
        result = Py_NewRef(Py_False);
    } else {
        int failed;
        Py_BEGIN_ALLOW_THREADS
        failed = resample_run(&request);
        Py_END_ALLOW_THREADS
        result = failed ? PyErr_NoMemory() : Py_NewRef(Py_True);
    }
done:
    release_buffers(views, 2);
    return result;
}

/* Paths that this processor has. */
static int path_count(void)
{
#ifdef SIMD_NAME
    return 1 + has_simd();
#else
    return 1;
#endif
}

static PyObject *use_path(PyObject *module, PyObject *args)
{
    const char *name;
    (void)module;
    if (!PyArg_ParseTuple(args, "s:use_path", &name))
        return NULL;
    for (int k = 0; k < path_count(); k++)
        if (strcmp(paths[k].name, name) == 0) {
            path = &paths[k];
            rows_use_simd(k);
            return Py_NewRef(Py_None);
        }
    return PyErr_Format(PyExc_ValueError, "this processor has no path %s", name);
}

static PyMethodDef methods[] = {
    {"resample", resample, METH_VARARGS, "Resize an image into a row; see _resample.pyi."},
    {"place_crops", rows_place_crops, METH_VARARGS, "Draw the crops of rows; see _resample.pyi."},
    {"resample_rows", rows_resample, METH_VARARGS, "Fill rows of a batch; see _resample.pyi."},
    {"use_path", use_path, METH_VARARGS, "Choose the code that resizes; see _resample.pyi."},
    {NULL, NULL, 0, NULL},
};

static int initialise(PyObject *module)
{
    PyObject *names = PyTuple_New(path_count());
    for (int k = 0; names && k < path_count(); k++) {
        PyTuple_SetItem(names, k, PyUnicode_FromString(paths[k].name));
        path = &paths[k];
        rows_use_simd(k);
    }
    const int failed = PyModule_AddObjectRef(module, "PATHS", names);
    Py_XDECREF(names);
    return failed;
}

MODULE(_resample, methods, initialise)
