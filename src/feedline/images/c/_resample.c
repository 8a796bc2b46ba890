/* Resize an image into a row of a batch, in one pass.

Guarantees: the bytes of torch's antialiased bilinear or bicubic resize of uint8, which is Pillow's
algorithm with 16-bit weights: horizontal pass, rounded to bytes, then vertical pass; or the vertical
pass first, as newer Pillows do it with some images. Pillow's box, Hamming and Lanczos filters
likewise, at any ratio and with any number of channels. A box with fractional edges gets Pillow's
weights. With Pillow's precision, all filters have Pillow's bytes: weights have 22 bits. Nothing
outside the image is read, nothing outside the row is written; padding between the image's rows does
not affect the result. The GIL is released.

Relies on AVX2 or NEON (`_simd.h`), or plain C: the same bytes, chosen at run time.

Speed: a block of neighbouring output pixels finds its first two source pixels within the same 16
bytes. A shuffle arranges these as pairs of int16, and a multiply-add weighs and sums the pairs. The
third and fourth source pixels are 6 bytes further, and so on; RGB, and usual ratios, get their own
code. Two rows are processed at once. Rows between the passes are kept only while the vertical pass
needs them, usually in the L1 cache. Mirroring only changes the shuffles and costs nothing. Memory of
the row is prefetched shortly before it is written. The next image is not: reading it is bound by the
memory's bandwidth, and many prefetches delay the reads of the image itself. A weight of 22 bits is a
coarse one times 2048, plus a fine one: both are summed as int16, from the same shuffled pixels.

AVX-512 makes 32 or 64 bytes of a row from 64 bytes of a source row, by byte permutations.

Sums fit in int32: weights have at most 22 fractional bits, and those of an output pixel add up to 1,
or to less than 2 if each is so small that rounding doubles it. */

#include "_resample.h"

#include <math.h>
#include <stdlib.h>

#include "_avx512.h"

enum {
    MAX_RESIZED = 1 << 17, /* pixels of the resized image, in each direction */
    MAX_BYTES = INT_MAX / 4, /* of a row, so that offsets fit in an int */
    USUAL_PAIRS = 5, /* of source pixels, with their own code */
    HALF = 16, /* bytes that are loaded, and stored, at once */
    MAX_CHANNELS = HALF / 2, /* of which two pixels lie in those; others take the scalar path */
    BLOCK = 64, /* bytes of a vector of AVX-512 */
    LINE = 64, /* bytes of a cache line */
    AHEAD = 1024, /* bytes of output between what is written and what is prefetched */
    SLACK = BLOCK, /* bytes after a row between the passes that may be read and written */
    MAX_PRECISION = 22, /* fractional bits of weights, and those of split ones, as in Pillow */
    FINE_BITS = 11, /* of these in the fine weights */
};

enum { DOWN_FIRST = 1, PILLOW_PRECISION = 2 }; /* bits of an argument, as in resize.py */

/* The source pixels of an output pixel: the first, and their weights; 0 beyond the last. If weights are
split, the coarse ones of all source pixels come first, then the fine ones. */
typedef struct {
    int start;
    const int16_t *weights;
} Taps;

/* Weight of a source pixel by its distance, in pixels of the smaller of the two images. */
typedef double (*Filter)(double distance);

static inline double triangle(double x)
{
    x = fabs(x);
    const double y = 1.0 - x;
    return x < 1.0 ? y : 0.0;
}

static inline double cubic(double x) /* Keys' with a = -0.5, as in Pillow and torch */
{
    const double a = -0.5;
    x = fabs(x);
    const double near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    const double far = (((x - 5.0) * x + 8.0) * x - 4.0) * a;
    return x < 1.0 ? near : x < 2.0 ? far : 0.0;
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

static double hamming(double x) /* with Pillow's floats */
{
    x = x < 0.0 ? -x : x;
    return x < 1.0 ? sinc(x) * (0.54f + 0.46f * cos(3.14159265358979323846 * x)) : 0.0;
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

/* One direction: pairs of source pixels of an output pixel, and fractional bits of the weights;
`is_split` if each weight is a coarse and a fine one. */
typedef struct {
    int pairs, precision, is_split;
} Axis;

/* The horizontal pass. */
typedef struct {
    Axis axis;
    int channels;
    const Taps *first; /* of the leftmost pixel of the row; `step` to the next, -1 if mirrored */
    int step, width;
    int pixels;  /* neighbours computed together: a block */
    int vectors; /* that hold their bytes, four in each half; 0 for the scalar path */
    int blocks;
    int kernel;  /* of AVX-512, which has its own blocks and program; 0 for none */
    int reach;   /* bytes of a source row that are read */
    int *source; /* offset of the first bytes of each block, or part, in a source row */
    int32_t *program; /* of each block, or part: its shuffles, then for each pair its weights */
} Plan;

/* Resize of an image, or of a box in it, of which a window is written to `row`. */
typedef struct {
    const uint8_t *image;
    const uint8_t *end; /* of the image */
    Py_ssize_t stride;
    int height, width, channels;                   /* of the image */
    double box_top, box_left, box_height, box_width;
    int resized_height, resized_width;
    int top, left, row_height, row_width; /* the window */
    int flip, down_first, filter, is_split;
    uint8_t *row;
} Task;

/* Memory between the passes. */
typedef struct {
    const uint8_t **rows; /* of the source pixels of a row */
    uint8_t *made; /* rows of the first pass */
    uint8_t *copies; /* two source rows, or two rows of them blended, and what is read after each */
    int copy_bytes;
} Space;

/* Horizontal pass over two rows, and vertical pass over the `bytes` of one. */
typedef struct {
    const char *name;
    Axis (*weigh)(
        Taps *taps, double *shares, int16_t *weights, int count, int is_split, int filter, int source,
        double first, double extent, int resized);
    void (*across)(const Plan *plan, uint8_t *const to[2], const uint8_t *const from[2]);
    void (*down)(Axis axis, const Taps *taps, uint8_t *to, const uint8_t *const *rows, int bytes);
} Path;

/* Reach of a filter to both sides, in source pixels. */
static double support_of(int filter, double extent, int resized)
{
    const double scale = extent / resized;
    return filters[filter].support * (scale >= 1.0 ? scale : 1.0);
}

/* Number of weights of an output pixel, even: the ends of its source pixels are 2 * support apart. */
static int taps_of(int filter, int source, double extent, int resized)
{
    const double apart = 2.0 * support_of(filter, extent, resized);
    const int whole = (int)apart, room = whole + (whole < apart);
    return ((room < source ? room : source) + 1) / 2 * 2;
}

/* Compute weights by torch's arithmetic for uint8, or by Pillow's if they are split, step by step: they
are equal to the bit.

The resized part begins at `first` and has `extent` of the `source` pixels. An output pixel has
`count` of the `weights`. `shares` are those of a group of pixels after the other, by their number.
Loops over a group have no branches, so that compilers vectorise them; `is_quick` if the filter has
none either. */
static INLINE Axis weigh_by(
    Filter weight, int is_quick, Taps *taps, double *shares, int16_t *weights, int count, int is_split,
    int filter, int source, double first, double extent, int resized)
{
    enum { GROUP = 64 };
    const size_t own_weights = (size_t)count * (is_split ? 2 : 1);
    const double scale = extent / resized;
    const double support = support_of(filter, extent, resized);
    const double shrink = scale >= 1.0 ? 1.0 / scale : 1.0;
    double largest = 0.0, most[GROUP] = {0.0}, *share = shares;
    int precision = 0;
    for (int i = 0; i < resized; i += GROUP) {
        const int group = resized - i < GROUP ? resized - i : GROUP;
        double centres[GROUP], totals[GROUP];
        int starts[GROUP], owns[GROUP];
        for (int j = 0; j < group; j++) {
            const double centre = first + scale * (i + j + 0.5);
            int start = (int)(centre - support + 0.5), stop = (int)(centre + support + 0.5);
            start = start < 0 ? 0 : start;
            start = start < source ? start : source - 1; /* rounded up to the end */
            stop = stop > source ? source : stop;
            centres[j] = centre;
            starts[j] = start;
            owns[j] = stop - start < count ? stop - start : count;
            totals[j] = 0.0;
        }
        double *const begin = share;
        for (int k = 0; k < count; k++, share += group)
            for (int j = 0; j < group; j++) {
                const int is_own = k < owns[j];
                const double distance = (k + starts[j] - centres[j] + 0.5) * shrink;
                const double all = is_quick || is_own ? weight(distance) : 0.0;
                share[j] = is_own ? all : 0.0;
                totals[j] += share[j];
            }
        for (int j = 0; j < group; j++) {
            totals[j] = totals[j] != 0.0 ? totals[j] : 1.0;
            taps[i + j] = (Taps){starts[j], weights + (size_t)(i + j) * own_weights};
        }
        share = begin;
        for (int k = 0; k < count; k++, share += group)
            for (int j = 0; j < group; j++) {
                const double part = share[j] / totals[j];
                share[j] = part;
                most[j] = part > most[j] ? part : most[j];
            }
    }
    for (int j = 0; j < GROUP; j++)
        largest = most[j] > largest ? most[j] : largest;
    while (precision < MAX_PRECISION
           && (is_split || (int)(0.5 + largest * (1 << (precision + 1))) < 1 << 15))
        precision++;
    const double one = 1 << precision;
    share = shares;
    for (int i = 0; i < resized; i += GROUP) {
        const int group = resized - i < GROUP ? resized - i : GROUP;
        int16_t *const to = weights + (size_t)i * own_weights;
        for (int k = 0; k < count; k++, share += group) {
            int whole[GROUP];
            for (int j = 0; j < group; j++) {
                const double exact = share[j] * one;
                whole[j] = (int)(exact + (exact < 0.0 ? -0.5 : 0.5));
            }
            if (!is_split) {
                for (int j = 0; j < group; j++)
                    to[j * count + k] = (int16_t)whole[j];
                continue;
            }
            for (int j = 0; j < group; j++) { /* the fine weight may be negative */
                const int coarse = (whole[j] + (1 << (FINE_BITS - 1))) >> FINE_BITS;
                to[2 * j * count + k] = (int16_t)coarse;
                to[(2 * j + 1) * count + k] = (int16_t)(whole[j] - coarse * (1 << FINE_BITS));
            }
        }
    }
    return (Axis){count / 2, precision, is_split};
}

#define WEIGH(attributes, name) \
    attributes Axis name( \
        Taps *taps, double *shares, int16_t *weights, int count, int is_split, int filter, int source, \
        double first, double extent, int resized) \
    { \
        switch (filter) { \
        case 0: return weigh_by(triangle, 1, taps, shares, weights, count, is_split, filter, source, first, extent, resized); \
        case 1: return weigh_by(cubic, 1, taps, shares, weights, count, is_split, filter, source, first, extent, resized); \
        default: return weigh_by(filters[filter].weight, 0, taps, shares, weights, count, is_split, filter, source, first, extent, resized); \
        } \
    }

WEIGH(static, weigh_scalar)
#ifdef SIMD_NAME
WEIGH(SIMD, weigh_simd)
#endif
#ifdef WIDE_NAME
WEIGH(WIDE, weigh_wide)
#endif

/* Pairs of weights of an output pixel. */
static INLINE int weight_pairs(Axis axis)
{
    return axis.is_split ? 2 * axis.pairs : axis.pairs;
}

/* A weight as one number. */
static INLINE int32_t weight_of(Axis axis, const int16_t *weights, int k)
{
    return axis.is_split ? weights[k] * (1 << FINE_BITS) + weights[2 * axis.pairs + k] : weights[k];
}

static INLINE int32_t pair_of(const int16_t *weights, int pair)
{
    int32_t both;
    memcpy(&both, weights + 2 * pair, sizeof both);
    return both;
}

/* Number of pixels of a block: as many as surely find their source pixels in the same 16 bytes.

Pixels n - 1 apart start at most ceil((n - 1) * scale) source pixels apart, at most `last` if
(n - 1) * scale is. If that is 3 exactly, of RGB without a box, the scale is 3, 3/2, 1 or 3/4 and no
double is rounded; otherwise it is less by 1 / MAX_RESIZED or more, far above any rounding. A box, and
other channels, are given that margin. */
static int block_pixels(const Task *task)
{
    if (task->channels > MAX_CHANNELS)
        return 1;
    const int last = HALF / task->channels - 2, most = HALF / task->channels;
    const int whole = task->channels == CHANNELS && task->box_left == 0.0
        && task->box_width == task->width;
    const double apart = whole ? last * task->resized_width / task->width
        : last ? floor((last - 1.0 / MAX_RESIZED) * task->resized_width / task->box_width) : 0.0;
    const int pixels = apart + 1.0 < most ? (int)apart + 1 : most;
    return pixels < task->row_width ? pixels : task->row_width;
}

/* First output pixel of a block; the last block overlaps the one before. */
static int block_start(const Plan *plan, int block)
{
    const int first = block * plan->pixels;
    return first + plan->pixels <= plan->width ? first : plan->width - plan->pixels;
}

/* Bytes from a block's first source pixel on that are read. */
static int block_reach(int channels, int pairs)
{
    const int before_last = 2 * channels * (pairs - 1);
    return before_last + (channels > MAX_CHANNELS ? 2 * channels : HALF);
}

/* Two bytes from `at` and a pixel later, each widened to 16 bits: 0x80 gives a zero. */
static int32_t pick_two(int at, int channels)
{
    return (int32_t)(0x80008000u | (uint32_t)(at + channels) << 16 | (uint32_t)at);
}

/* Return True if blocks are single pixels with many source pixels, of which four lie in 16 bytes. */
static int is_steep(const Plan *plan)
{
    return plan->pixels == 1 && plan->axis.pairs > USUAL_PAIRS
        && plan->channels <= MAX_CHANNELS / 2;
}

/* Write the shuffles and weights of all blocks. */
static void plan_blocks(Plan *plan)
{
    const int channels = plan->channels;
    int32_t *step = plan->program;
    plan->reach = 0;
    for (int block = 0; block < plan->blocks; block++) {
        const Taps *first = plan->first + block_start(plan, block) * plan->step;
        const int low = (plan->step > 0 ? first : first - (plan->pixels - 1))->start;
        const int reach = channels * low + block_reach(channels, plan->axis.pairs);
        plan->source[block] = channels * low;
        plan->reach = reach > plan->reach ? reach : plan->reach;
        if (is_steep(plan))
            continue;
        for (int byte = 0; byte < 4 * plan->vectors; byte++) {
            const int k = byte / channels; /* the pixel; none in the last bytes */
            const Taps *taps = k < plan->pixels ? first + k * plan->step : NULL;
            /* Two rows, one in each half of a vector, are processed alike. */
            int32_t *lane = step + byte / 4 * 8 + byte % 4;
            const int at = taps ? channels * (taps->start - low) + byte % channels : 0;
            lane[0] = lane[4] = taps ? pick_two(at, channels) : (int32_t)0x80808080u;
            for (int pair = 0; pair < weight_pairs(plan->axis); pair++) {
                lane += 8 * plan->vectors;
                lane[0] = lane[4] = taps ? pair_of(taps->weights, pair) : 0;
            }
        }
        step += 8 * (Py_ssize_t)plan->vectors * (1 + weight_pairs(plan->axis));
    }
    for (int lane = 0; is_steep(plan) && lane < 16; lane++) /* two vectors */
        step[lane] = pick_two(lane / 8 * 2 * channels + lane % 4, channels);
}

static uint8_t clip(int32_t value)
{
    return value < 0 ? 0 : value > 255 ? 255 : (uint8_t)value;
}

static void across_scalar(const Plan *plan, uint8_t *const to[2], const uint8_t *const from[2])
{
    const int channels = plan->channels;
    for (int row = 0; row < 2; row++)
        for (int x = 0; x < plan->width; x++) {
            const Taps *taps = plan->first + x * plan->step;
            for (int channel = 0; channel < channels; channel++) {
                const uint8_t *source = from[row] + channels * taps->start + channel;
                int32_t sum = 1 << (plan->axis.precision - 1);
                for (int k = 0; k < 2 * plan->axis.pairs; k++)
                    sum += weight_of(plan->axis, taps->weights, k) * source[channels * k];
                to[row][channels * x + channel] = clip(sum >> plan->axis.precision);
            }
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
        for (int k = 0; k < 2 * axis.pairs; k++) {
            const int32_t weight = weight_of(axis, taps->weights, k);
            for (int i = 0; i < count; i++)
                sums[i] += weight * rows[k][at + i];
        }
        for (int i = 0; i < count; i++)
            to[at + i] = clip(sums[i] >> axis.precision);
    }
}

#ifdef SIMD_NAME
/* Add the sums by coarse weights to those by fine ones. */
SIMD INLINE void add_coarse(Vector sums[4], const Vector coarse[4])
{
    for (int k = 0; k < 4; k++)
        sums[k] = add_shifted(sums[k], coarse[k], FINE_BITS);
}

SIMD INLINE void across(
    int pairs, int is_split, int vectors, int channels, const Plan *plan, uint8_t *const to[2],
    const uint8_t *const from[2])
{
    const Plan local = *plan; /* which no store can change */
    const uint8_t *const low = from[0], *const high = from[1];
    uint8_t *const to_low = to[0], *const to_high = to[1];
    const Vector half = repeat(1 << (local.axis.precision - 1)), none = repeat(0);
    const int32_t *step = local.program;
    for (int block = 0; block < local.blocks; block++) {
        const int source = local.source[block], target = channels * block_start(&local, block);
        const int32_t *weights = step + 8 * vectors;
        Vector sums[4] = {half, half, half, half}, coarse[4] = {none, none, none, none};
        for (int pair = 0; pair < pairs; pair++) {
            const int at = source + 2 * channels * pair;
            const Vector bytes = load_halves(low + at, high + at);
            for (int k = 0; k < vectors; k++, weights += 8) {
                const Vector pixels = shuffle(bytes, load(step + 8 * k));
                if (is_split) {
                    coarse[k] = multiply_add(coarse[k], pixels, load(weights));
                    sums[k] = multiply_add(sums[k], pixels, load(weights + 8 * vectors * pairs));
                } else {
                    sums[k] = multiply_add(sums[k], pixels, load(weights));
                }
            }
        }
        if (is_split) {
            add_coarse(sums, coarse);
            weights += 8 * vectors * pairs;
        }
        store_halves(to_low + target, to_high + target, pack(sums, local.axis.precision));
        step = weights;
    }
}

/* The same if `is_steep`: the shuffles of the first four source pixels are equal in all blocks, and the
weights are read where they are. */
SIMD INLINE void across_steep(
    int is_split, const Plan *plan, uint8_t *const to[2], const uint8_t *const from[2])
{
    const Plan local = *plan;
    const uint8_t *const low = from[0], *const high = from[1];
    uint8_t *const to_low = to[0], *const to_high = to[1];
    const Vector half = repeat(1 << (local.axis.precision - 1)), none = repeat(0);
    const Vector first = load(local.program), second = load(local.program + 8);
    const int pairs = local.axis.pairs;
    for (int x = 0; x < local.width; x++) {
        const int16_t *weights = local.first[x * local.step].weights;
        Vector sums[4] = {half, half, half, half}, coarse[4] = {none, none, none, none};
        int at = local.source[x];
        for (int pair = 0; pair < pairs; pair++) {
            const Vector bytes = load_halves(low + at, high + at);
            const Vector pixels = shuffle(bytes, pair % 2 ? second : first);
            Vector *const sum = is_split ? coarse : sums;
            sum[0] = multiply_add(sum[0], pixels, repeat(pair_of(weights, pair)));
            if (is_split)
                sums[0] = multiply_add(sums[0], pixels, repeat(pair_of(weights, pairs + pair)));
            at += pair % 2 ? 4 * local.channels : 0;
        }
        if (is_split)
            add_coarse(sums, coarse);
        store_halves(
            to_low + local.channels * x, to_high + local.channels * x,
            pack(sums, local.axis.precision));
    }
}

/* 32 bytes of a row, vertically; `held` are the weights, if they are few. */
SIMD INLINE Vector blend(
    const uint8_t *const *rows, int at, const Vector *held, const int16_t *weights, int pairs,
    int is_split, int precision)
{
    const Vector half = repeat(1 << (precision - 1)), none = repeat(0);
    Vector sums[4] = {half, half, half, half}, coarse[4] = {none, none, none, none};
    for (int pair = 0; pair < pairs; pair++) {
        Vector parts[4];
        const Vector weight = held ? held[pair] : repeat(pair_of(weights, pair));
        interleave(load(rows[2 * pair] + at), load(rows[2 * pair + 1] + at), parts);
        Vector *const sum = is_split ? coarse : sums;
        for (int k = 0; k < 4; k++)
            sum[k] = multiply_add(sum[k], parts[k], weight);
        if (!is_split)
            continue;
        const Vector fine = held ? held[pairs + pair] : repeat(pair_of(weights, pairs + pair));
        for (int k = 0; k < 4; k++)
            sums[k] = multiply_add(sums[k], parts[k], fine);
    }
    if (is_split)
        add_coarse(sums, coarse);
    return pack(sums, precision);
}

SIMD INLINE void blend_all(
    const uint8_t *const *rows, uint8_t *to, int bytes, const Vector *held, const int16_t *weights,
    int pairs, int is_split, int precision)
{
    if (bytes < 2 * HALF) {
        uint8_t few[2 * HALF];
        store(few, blend(rows, 0, held, weights, pairs, is_split, precision));
        memcpy(to, few, (size_t)bytes);
        return;
    }
    for (int at = 0; at < bytes; at += 2 * HALF) {
        at = at + 2 * HALF <= bytes ? at : bytes - 2 * HALF; /* the last overlap those before */
        store(to + at, blend(rows, at, held, weights, pairs, is_split, precision));
    }
}

SIMD INLINE void down(
    int pairs, int is_split, int precision, const Taps *taps, uint8_t *to, const uint8_t *const *rows,
    int bytes)
{
    Vector held[2 * USUAL_PAIRS];
    for (int pair = 0; pair < (is_split ? 2 * pairs : pairs); pair++)
        held[pair] = repeat(pair_of(taps->weights, pair));
    blend_all(rows, to, bytes, held, NULL, pairs, is_split, precision);
}

/* The usual numbers of pairs and vectors get their own code, without inner loops. */
#define EACH_PAIRS(function, ...) \
    case 1: function(1, __VA_ARGS__); break; \
    case 2: function(2, __VA_ARGS__); break; \
    case 3: function(3, __VA_ARGS__); break; \
    case 4: function(4, __VA_ARGS__); break; \
    case USUAL_PAIRS: function(USUAL_PAIRS, __VA_ARGS__); break;
#define ACROSS_PAIRS(is_split, vectors, channels) \
    switch (plan->axis.pairs) { \
    EACH_PAIRS(across, is_split, vectors, channels, plan, to, from) \
    default: across(plan->axis.pairs, is_split, vectors, channels, plan, to, from); \
    }
#define ACROSS(vectors) \
    if (plan->axis.is_split) { \
        ACROSS_PAIRS(1, vectors, plan->channels) \
    } else if (plan->channels == CHANNELS) { \
        ACROSS_PAIRS(0, vectors, CHANNELS) \
    } else { \
        ACROSS_PAIRS(0, vectors, plan->channels) \
    }

SIMD void across_simd(const Plan *plan, uint8_t *const to[2], const uint8_t *const from[2])
{
    if (is_steep(plan)) {
        if (plan->axis.is_split)
            across_steep(1, plan, to, from);
        else
            across_steep(0, plan, to, from);
        return;
    }
    switch (plan->vectors) {
    case 1: ACROSS(1) break;
    case 2: ACROSS(2) break;
    case 3: ACROSS(3) break;
    default: ACROSS(4)
    }
}

SIMD void down_simd(
    Axis axis, const Taps *taps, uint8_t *to, const uint8_t *const *rows, int bytes)
{
    if (axis.is_split) {
        switch (axis.pairs) {
        EACH_PAIRS(down, 1, MAX_PRECISION, taps, to, rows, bytes)
        default: blend_all(rows, to, bytes, NULL, taps->weights, axis.pairs, 1, MAX_PRECISION);
        }
        return;
    }
    switch (axis.pairs) {
    EACH_PAIRS(down, 0, axis.precision, taps, to, rows, bytes)
    default: blend_all(rows, to, bytes, NULL, taps->weights, axis.pairs, 0, axis.precision);
    }
}
#ifdef WIDE_NAME
/* The horizontal pass, by the source pixels of an output pixel: two whose weights add up to 1; up to
four without negative weights; any. Each makes some bytes of a row, a part, from 64 of a source row. */
enum { LINEAR = 1, QUADS, PAIRS };
enum { QUAD = 4, PART = BLOCK / 2, PAIRS_PART = BLOCK / 4, LANES = BLOCK / 4 };

/* Return True if the weights of a single pair add up to 1. */
static inline int is_linear(Axis axis, const int16_t *weights)
{
    return axis.pairs == 1 && axis.precision <= 15 && weights[0] >= 0 && weights[1] >= 0
        && weights[0] + weights[1] == 1 << axis.precision;
}

/* Return True for four weights that are at least 0 and below 1. */
static inline int is_quad(Axis axis, const int16_t *weights)
{
    if (2 * axis.pairs != QUAD || axis.precision > 15)
        return 0;
    const int all = weights[0] | weights[1] | weights[2] | weights[3];
    return all >= 0 && all < 1 << axis.precision;
}

/* Minus the second weight of a linear pair, in 32768ths. */
static inline int16_t linear_weight(Axis axis, const int16_t *weights)
{
    return (int16_t)-(weights[1] * (1 << (15 - axis.precision)));
}

static int wide_blocks(int bytes)
{
    return (bytes + BLOCK - 1) / BLOCK;
}

/* Find the source bytes of all parts. Return 0 if those of one do not lie within 64. */
static int place_parts(Plan *plan)
{
    const int channels = plan->channels, end = channels * plan->width;
    const int bytes = plan->kernel == PAIRS ? PAIRS_PART : PART;
    plan->reach = 0;
    for (int part = 0; part < plan->blocks * (BLOCK / bytes); part++) {
        const int from = part * bytes < end ? part * bytes : end - 1;
        const int last = from + bytes < end ? from + bytes - 1 : end - 1;
        const Taps *left = plan->first + from / channels * plan->step;
        const Taps *right = plan->first + last / channels * plan->step;
        const int low = left->start < right->start ? left->start : right->start;
        const int high = left->start < right->start ? right->start : left->start;
        const int reach = channels * low + BLOCK;
        if (channels * (high - low + 2 * plan->axis.pairs) > BLOCK)
            return 0;
        plan->source[part] = channels * low;
        plan->reach = reach > plan->reach ? reach : plan->reach;
    }
    return 1;
}

/* Write the shuffles and weights of a row: in words for linear pairs, otherwise in lanes of 32 bits. */
static INLINE void write_program(int kernel, int vectors, const Plan *plan)
{
    const Plan local = *plan; /* which no store can change */
    const int channels = local.channels;
    const size_t block_lanes = (size_t)LANES * (size_t)(kernel == LINEAR ? 4 : 4 * vectors);
    memset(local.program + (size_t)(local.blocks - 1) * block_lanes, 0, block_lanes * sizeof(int32_t));
    unsigned byte = 0;
    for (int x = 0; x < local.width; x++) {
        const Taps taps = local.first[x * local.step];
        uint32_t lanes[1 + 2 * USUAL_PAIRS] = {(uint32_t)channels << 16};
        if (kernel == QUADS) { /* 65536ths: their sum, as the first term, and their upper and lower bytes */
            lanes[0] = (uint32_t)channels * 0x03020100u;
            lanes[1] = 128;
            for (int k = 0; k < QUAD; k++) {
                const uint32_t weight = (uint32_t)taps.weights[k] << (16 - local.axis.precision);
                lanes[1] += weight / 2;
                lanes[2] |= (weight >> 8) << 8 * k;
                lanes[3] |= (weight & 0xFF) << 8 * k;
            }
        } else if (kernel == PAIRS) {
            memcpy(lanes + 1, taps.weights, (size_t)(vectors - 1) * sizeof *lanes);
        }
        for (int channel = 0; channel < channels; channel++, byte++) {
            const unsigned part = byte / (kernel == PAIRS ? PAIRS_PART : PART);
            const int at = channels * taps.start + channel - local.source[part];
            if (kernel == LINEAR) {
                int16_t *to = (int16_t *)local.program + part * 2 * PART + byte % PART;
                to[0] = (int16_t)(at | (at + channels) << 8);
                to[PART] = linear_weight(local.axis, taps.weights);
            } else {
                int32_t *to = local.program + byte / LANES * LANES * (unsigned)vectors + byte % LANES;
                to[0] = (int32_t)(lanes[0] + (uint32_t)at * (kernel == QUADS ? 0x01010101u : 0x00010001u));
                for (int k = 1; k < vectors; k++)
                    to[k * LANES] = (int32_t)lanes[k];
            }
        }
    }
}

/* Plan a row by the first kernel that makes it. Return 0, with the plan unchanged, if none does. */
static int plan_wide(Plan *plan)
{
    if (plan->channels > MAX_CHANNELS || plan->axis.pairs > USUAL_PAIRS)
        return 0;
    Plan wide = *plan;
    int all_linear = 1, all_quads = 1;
    for (int x = 0; x < plan->width; x++) {
        const int16_t *weights = plan->first[x * plan->step].weights;
        all_linear &= is_linear(plan->axis, weights);
        all_quads &= is_quad(plan->axis, weights);
    }
    wide.blocks = wide_blocks(plan->channels * plan->width);
    wide.kernel = all_linear ? LINEAR : all_quads ? QUADS : PAIRS;
    if (!place_parts(&wide)) {
        wide.kernel = PAIRS;
        if (!place_parts(&wide))
            return 0;
    }
    switch (wide.kernel) {
    case LINEAR: write_program(LINEAR, 2, &wide); break;
    case QUADS: write_program(QUADS, 4, &wide); break;
    default: write_program(PAIRS, 1 + weight_pairs(plan->axis), &wide);
    }
    *plan = wide;
    return 1;
}

/* Store the first half of a vector. */
WIDE INLINE void store_part(uint8_t *to, Wide vector)
{
    _mm256_storeu_si256((__m256i *)to, _mm512_castsi512_si256(vector));
}

/* Every `step`th byte of two vectors, from the `first`. */
WIDE INLINE Wide every(int step, int first)
{
    uint8_t indices[BLOCK];
    for (int k = 0; k < BLOCK; k++)
        indices[k] = (uint8_t)(step * k + first);
    return load_wide(indices);
}

/* Linear interpolation, in words of 16 bits. */
WIDE void across_linear(const Plan *plan, uint8_t *const to[2], const uint8_t *const from[2])
{
    const Plan local = *plan; /* which no store can change */
    const uint8_t *const sources[2] = {from[0], from[1]};
    uint8_t *const targets[2] = {to[0], to[1]};
    const uint8_t *step = (const uint8_t *)local.program;
    const Wide lower = every(2, 0);
    for (int part = 0; part < 2 * local.blocks; part++, step += 2 * BLOCK) {
        const Wide shuffle = load_once(step), weights = load_once(step + BLOCK);
        for (int row = 0; row < 2; row++) {
            const Wide bytes = load_wide(sources[row] + local.source[part]);
            const Wide words = blend_pairs(_mm512_permutexvar_epi8(shuffle, bytes), weights);
            store_part(targets[row] + PART * part, _mm512_permutexvar_epi8(lower, words));
        }
    }
}

/* Four source pixels, of which 128 is subtracted, times the upper bytes of their weights, and the
lower. The first term of the sum makes up for the 128, and rounds. */
WIDE void across_quads(const Plan *plan, uint8_t *const to[2], const uint8_t *const from[2])
{
    const Plan local = *plan;
    const uint8_t *const sources[2] = {from[0], from[1]};
    uint8_t *const targets[2] = {to[0], to[1]};
    const uint8_t *step = (const uint8_t *)local.program;
    const Wide whole = every(4, 2), sign = _mm512_set1_epi8((char)0x80);
    for (int part = 0; part < 2 * local.blocks; part++) {
        Wide bytes[2], sums[2][2];
        for (int row = 0; row < 2; row++)
            bytes[row] = _mm512_xor_si512(load_wide(sources[row] + local.source[part]), sign);
        for (int half = 0; half < 2; half++, step += 4 * BLOCK) {
            const Wide shuffle = load_once(step), first = load_once(step + BLOCK);
            const Wide upper = load_once(step + 2 * BLOCK), lower = load_once(step + 3 * BLOCK);
            for (int row = 0; row < 2; row++) {
                const Wide pixels = _mm512_permutexvar_epi8(shuffle, bytes[row]);
                const Wide sum = _mm512_slli_epi32(_mm512_dpbusd_epi32(first, upper, pixels), 8);
                sums[row][half] = _mm512_dpbusd_epi32(sum, lower, pixels);
            }
        }
        for (int row = 0; row < 2; row++)
            store_part(targets[row] + PART * part,
                       _mm512_permutex2var_epi8(sums[row][0], whole, sums[row][1]));
    }
}

/* Add a sum by coarse weights to one by fine weights. */
WIDE INLINE Wide add_coarse_wide(Wide sum, Wide coarse)
{
    return _mm512_add_epi32(sum, _mm512_slli_epi32(coarse, FINE_BITS));
}

WIDE INLINE void across_pairs(
    int pairs, int is_split, const Plan *plan, uint8_t *const to[2], const uint8_t *const from[2])
{
    enum { PARTS = BLOCK / PAIRS_PART };
    const Plan local = *plan;
    const uint8_t *const low = from[0], *const high = from[1];
    uint8_t *const to_low = to[0], *const to_high = to[1];
    const Wide half = _mm512_set1_epi32(1 << (local.axis.precision - 1));
    const Wide none = _mm512_setzero_si512();
    const Wide next = _mm512_set1_epi32(0x010001 * 2 * local.channels);
    const __mmask64 bytes = 0x5555555555555555u; /* widened to 16 bits */
    const Wide in_order
        = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const uint8_t *step = (const uint8_t *)local.program;
    const int *source = local.source;
    for (int block = 0; block < local.blocks; block++, source += PARTS) {
        const int target = BLOCK * block;
        Wide low_sums[PARTS], high_sums[PARTS];
        for (int part = 0; part < PARTS; part++) {
            const Wide low_bytes = load_wide(low + source[part]);
            const Wide high_bytes = load_wide(high + source[part]);
            Wide shuffle = load_once(step);
            Wide low_sum = half, high_sum = half, low_coarse = none, high_coarse = none;
            step += BLOCK;
            for (int pair = 0; pair < pairs; pair++, step += BLOCK) {
                const Wide weights = load_once(step);
                const Wide low_pixels = _mm512_maskz_permutexvar_epi8(bytes, shuffle, low_bytes);
                const Wide high_pixels = _mm512_maskz_permutexvar_epi8(bytes, shuffle, high_bytes);
                if (is_split) {
                    const Wide fine = load_once(step + BLOCK * pairs);
                    low_coarse = _mm512_dpwssd_epi32(low_coarse, low_pixels, weights);
                    high_coarse = _mm512_dpwssd_epi32(high_coarse, high_pixels, weights);
                    low_sum = _mm512_dpwssd_epi32(low_sum, low_pixels, fine);
                    high_sum = _mm512_dpwssd_epi32(high_sum, high_pixels, fine);
                } else {
                    low_sum = _mm512_dpwssd_epi32(low_sum, low_pixels, weights);
                    high_sum = _mm512_dpwssd_epi32(high_sum, high_pixels, weights);
                }
                shuffle = _mm512_add_epi32(shuffle, next);
            }
            if (is_split) {
                low_sum = add_coarse_wide(low_sum, low_coarse);
                high_sum = add_coarse_wide(high_sum, high_coarse);
                step += BLOCK * pairs;
            }
            low_sums[part] = low_sum;
            high_sums[part] = high_sum;
        }
        const int bits = local.axis.precision;
        store_wide(to_low + target, _mm512_permutexvar_epi32(in_order, pack_wide(low_sums, bits)));
        store_wide(to_high + target, _mm512_permutexvar_epi32(in_order, pack_wide(high_sums, bits)));
    }
}

WIDE INLINE Wide blend_linear(const uint8_t *const *rows, int at, Wide weight, Wide lower)
{
    const Wide above = load_wide(rows[0] + at), below = load_wide(rows[1] + at);
    const Wide low = blend_pairs(_mm512_unpacklo_epi8(above, below), weight);
    const Wide high = blend_pairs(_mm512_unpackhi_epi8(above, below), weight);
    return _mm512_packus_epi16(_mm512_and_si512(low, lower), _mm512_and_si512(high, lower));
}

WIDE void down_linear(int16_t weight, uint8_t *to, const uint8_t *const *rows, int bytes)
{
    const uint8_t *const local[2] = {rows[0], rows[1]};
    const Wide all = _mm512_set1_epi16(weight), lower = _mm512_set1_epi16(0xFF);
    int at = 0;
    for (; at + BLOCK <= bytes; at += BLOCK)
        store_wide(to + at, blend_linear(local, at, all, lower));
    if (at < bytes) /* the last overlap those before */
        store_wide(to + bytes - BLOCK, blend_linear(local, bytes - BLOCK, all, lower));
}

/* 64 bytes of a row, vertically. */
WIDE INLINE Wide blend_wide(
    const uint8_t *const *rows, int at, const Wide *held, const int16_t *weights, int pairs,
    int is_split, int precision)
{
    const Wide half = _mm512_set1_epi32(1 << (precision - 1)), zero = _mm512_setzero_si512();
    Wide sums[4] = {half, half, half, half}, coarse[4] = {zero, zero, zero, zero};
    for (int pair = 0; pair < pairs; pair++) {
        const Wide weight = held ? held[pair] : _mm512_set1_epi32(pair_of(weights, pair));
        const Wide above = load_wide(rows[2 * pair] + at), below = load_wide(rows[2 * pair + 1] + at);
        const Wide low = _mm512_unpacklo_epi8(above, below);
        const Wide high = _mm512_unpackhi_epi8(above, below);
        const Wide parts[4] = {
            _mm512_unpacklo_epi8(low, zero), _mm512_unpackhi_epi8(low, zero),
            _mm512_unpacklo_epi8(high, zero), _mm512_unpackhi_epi8(high, zero)};
        Wide *const sum = is_split ? coarse : sums;
        for (int k = 0; k < 4; k++)
            sum[k] = _mm512_dpwssd_epi32(sum[k], parts[k], weight);
        if (!is_split)
            continue;
        const Wide fine
            = held ? held[pairs + pair] : _mm512_set1_epi32(pair_of(weights, pairs + pair));
        for (int k = 0; k < 4; k++)
            sums[k] = _mm512_dpwssd_epi32(sums[k], parts[k], fine);
    }
    for (int k = 0; is_split && k < 4; k++)
        sums[k] = add_coarse_wide(sums[k], coarse[k]);
    return pack_wide(sums, precision);
}

WIDE INLINE void blend_all_wide(
    const uint8_t *const *rows, uint8_t *to, int bytes, const Wide *held, const int16_t *weights,
    int pairs, int is_split, int precision)
{
    int at = 0;
    for (; at + BLOCK <= bytes; at += BLOCK)
        store_wide(to + at, blend_wide(rows, at, held, weights, pairs, is_split, precision));
    if (at < bytes)
        store_wide(to + bytes - BLOCK,
                   blend_wide(rows, bytes - BLOCK, held, weights, pairs, is_split, precision));
}

WIDE INLINE void down_pairs(
    int pairs, int is_split, int precision, const Taps *taps, uint8_t *to, const uint8_t *const *rows,
    int bytes)
{
    const uint8_t *local[2 * USUAL_PAIRS];
    Wide held[2 * USUAL_PAIRS];
    for (int pair = 0; pair < pairs; pair++) {
        held[pair] = _mm512_set1_epi32(pair_of(taps->weights, pair));
        if (is_split)
            held[pairs + pair] = _mm512_set1_epi32(pair_of(taps->weights, pairs + pair));
        local[2 * pair] = rows[2 * pair];
        local[2 * pair + 1] = rows[2 * pair + 1];
    }
    blend_all_wide(local, to, bytes, held, NULL, pairs, is_split, precision);
}

WIDE void across_wide(const Plan *plan, uint8_t *const to[2], const uint8_t *const from[2])
{
    switch (plan->kernel) {
    case LINEAR: across_linear(plan, to, from); break;
    case QUADS: across_quads(plan, to, from); break;
    case PAIRS:
        if (plan->axis.is_split) {
            switch (plan->axis.pairs) { EACH_PAIRS(across_pairs, 1, plan, to, from) }
        } else {
            switch (plan->axis.pairs) { EACH_PAIRS(across_pairs, 0, plan, to, from) }
        }
        break;
    default: across_simd(plan, to, from);
    }
}

WIDE void down_wide(
    Axis axis, const Taps *taps, uint8_t *to, const uint8_t *const *rows, int bytes)
{
    if (bytes < BLOCK) {
        down_simd(axis, taps, to, rows, bytes);
    } else if (is_linear(axis, taps->weights)) {
        down_linear(linear_weight(axis, taps->weights), to, rows, bytes);
    } else if (axis.is_split) {
        switch (axis.pairs) {
        EACH_PAIRS(down_pairs, 1, MAX_PRECISION, taps, to, rows, bytes)
        default: blend_all_wide(rows, to, bytes, NULL, taps->weights, axis.pairs, 1, MAX_PRECISION);
        }
    } else {
        switch (axis.pairs) {
        EACH_PAIRS(down_pairs, 0, axis.precision, taps, to, rows, bytes)
        default: blend_all_wide(rows, to, bytes, NULL, taps->weights, axis.pairs, 0, axis.precision);
        }
    }
}
#endif
#endif

static const Path paths[] = {
    {"scalar", weigh_scalar, across_scalar, down_scalar},
#ifdef SIMD_NAME
    {SIMD_NAME, weigh_simd, across_simd, down_simd},
#endif
#ifdef WIDE_NAME
    {WIDE_NAME, weigh_wide, across_wide, down_wide},
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

/* Bytes from a row between the passes to the next one: each begins a cache line, as loads and stores
that cross two take longer. */
static size_t pitch_of(int bytes)
{
    return ((size_t)bytes + SLACK + LINE - 1) / LINE * LINE;
}

/* Prefetch as many bytes as a row has for the rows after it: memory of a batch is rarely in a cache. */
static void prefetch_output(const Task *task, int row)
{
    const size_t bytes = (size_t)task->channels * (size_t)task->row_width;
    const size_t all = bytes * (size_t)task->row_height, at = bytes * (size_t)row + AHEAD;
    const size_t stop = at + bytes < all ? at + bytes : all;
    for (size_t line = at; line < stop; line += LINE)
        PREFETCH(task->row + line);
}

static void resize(
    const Task *task, const Path *with, const Plan *plan, const Taps *lines, Axis vertical,
    const Space *space)
{
    const int bytes = task->channels * task->row_width;
    const int mask = ring_rows(vertical) - 1;
    const size_t pitch = pitch_of(bytes);
    int next = lines[task->top].start;
    for (int y = 0; y < task->row_height; y++) {
        const Taps *line = lines + task->top + y;
        prefetch_output(task, y);
        int stop = line->start + 2 * vertical.pairs;
        stop = stop > task->height ? task->height : stop;
        for (; next < stop; next += 2) {
            const uint8_t *from[2];
            uint8_t *to[2];
            for (int k = 0; k < 2; k++) { /* after the last row: the last again */
                const int at = next + k < task->height ? next + k : next;
                from[k] = task->image + at * task->stride;
                to[k] = space->made + (size_t)((next + k) & mask) * pitch;
                if (plan->reach > task->end - from[k]) {
                    uint8_t *copy = space->copies + (size_t)k * (size_t)space->copy_bytes;
                    from[k] = memcpy(copy, from[k], (size_t)task->channels * (size_t)task->width);
                }
            }
            with->across(plan, to, from);
        }
        for (int k = 0; k < 2 * vertical.pairs; k++) { /* after the last row the weight is 0 */
            const int row = line->start + k < stop ? line->start + k : line->start;
            space->rows[k] = space->made + (size_t)(row & mask) * pitch;
        }
        with->down(vertical, line, task->row + (Py_ssize_t)y * bytes, space->rows, bytes);
    }
}

/* Resize with the vertical pass first, also rounded to bytes in between. */
static void resize_down_first(
    const Task *task, const Path *with, const Plan *plan, const Taps *lines, Axis vertical,
    const Space *space)
{
    const int bytes = task->channels * task->row_width;
    const int source_bytes = task->channels * task->width;
    /* Narrower rows may not be read at once: nothing follows the last row. */
    const Path *blending = source_bytes < 2 * HALF ? paths : with;
    for (int y = 0; y < task->row_height; y += 2) {
        uint8_t *to[2];
        const uint8_t *from[2];
        for (int k = 0; k < 2; k++) { /* after the last row: the last again */
            const Taps *line = lines + task->top + (y + k < task->row_height ? y + k : y);
            uint8_t *const between = space->copies + (size_t)k * (size_t)space->copy_bytes;
            for (int tap = 0; tap < 2 * vertical.pairs; tap++) {
                const int row = line->start + tap; /* after the last the weight is 0 */
                space->rows[tap] =
                    task->image + (row < task->height ? row : line->start) * task->stride;
            }
            to[k] = space->made + (size_t)k * pitch_of(bytes);
            from[k] = between;
            blending->down(vertical, line, between, space->rows, source_bytes);
        }
        with->across(plan, to, from);
        for (int k = 0; k < 2 && y + k < task->row_height; k++)
            memcpy(task->row + (Py_ssize_t)(y + k) * bytes, to[k], (size_t)bytes);
    }
}

/* Run a task. Return 0, or -1 if memory is missing. */
static int run_task(const Task *task)
{
    const int channels = task->channels, height = task->resized_height, width = task->resized_width;
    const Path *const with = channels > MAX_CHANNELS ? paths : path;
    const int across = taps_of(task->filter, task->width, task->box_width, width);
    const int down = taps_of(task->filter, task->height, task->box_height, height);
    Plan plan = {
        .axis = {across / 2, 0, task->is_split}, .channels = channels, .width = task->row_width,
        .pixels = block_pixels(task),
    };
    plan.vectors = channels > MAX_CHANNELS ? 0 : (channels * plan.pixels + 3) / 4;
    plan.blocks = (plan.width + plan.pixels - 1) / plan.pixels;
    const Axis most = {down / 2, 0, task->is_split};
    Space space = {.copy_bytes = channels * (task->width - 1) + block_reach(channels, across / 2)};
    space.copy_bytes = space.copy_bytes > channels * task->width + SLACK
        ? space.copy_bytes : channels * task->width + SLACK;

    const size_t columns = (size_t)width * (size_t)across, lines = (size_t)height * (size_t)down;
    const size_t vectors = is_steep(&plan) ? 2
        : (size_t)plan.blocks * (size_t)plan.vectors * (size_t)(1 + weight_pairs(plan.axis));
    size_t program = vectors * 2 * HALF, source_count = (size_t)plan.blocks;
#ifdef WIDE_NAME
    const int is_wide = with->across == across_wide;
    if (is_wide && across / 2 <= USUAL_PAIRS) {
        const size_t parts = BLOCK / PAIRS_PART * (size_t)wide_blocks(channels * plan.width);
        const size_t wide = parts * BLOCK * (size_t)(2 + weight_pairs(plan.axis));
        program = wide > program ? wide : program;
        source_count = parts > source_count ? parts : source_count;
    }
#endif
    const size_t shares = (columns > lines ? columns : lines) * sizeof(double);
    const size_t taps = (size_t)(height + width) * sizeof(Taps);
    const size_t rows = (size_t)down * sizeof *space.rows;
    const size_t sources = source_count * sizeof *plan.source;
    const size_t split = task->is_split ? 2 : 1;
    const size_t weights = split * (columns + lines) * sizeof(int16_t);
    const size_t made = (size_t)ring_rows(most) * pitch_of(channels * plan.width);
    uint8_t *const allocated = malloc(
        LINE + made + program + shares + taps + rows + sources + weights
        + 2 * (size_t)space.copy_bytes);
    if (!allocated)
        return -1;
    uint8_t *memory = allocated + LINE - (uintptr_t)allocated % LINE;
    space.made = memory;
    memory += made;
    plan.program = (int32_t *)memory;
    double *share = (double *)(memory + program);
    Taps *column = (Taps *)(memory + program + shares), *line = column + width;
    space.rows = (const uint8_t **)(line + height);
    plan.source = (int *)(space.rows + down);
    int16_t *weight = (int16_t *)(plan.source + source_count);
    space.copies = (uint8_t *)(weight + split * (columns + lines));

    plan.axis = with->weigh(
        column, share, weight, across, task->is_split, task->filter, task->width, task->box_left,
        task->box_width, width);
    const Axis vertical = with->weigh(
        line, share, weight + split * columns, down, task->is_split, task->filter, task->height,
        task->box_top, task->box_height, height);
    plan.step = task->flip ? -1 : 1;
    plan.first = column + task->left + (task->flip ? plan.width - 1 : 0);
#ifdef WIDE_NAME
    if (!is_wide || !plan_wide(&plan))
#endif
        plan_blocks(&plan);
    (task->down_first ? resize_down_first : resize)(
        task, with, &plan, line, vertical, &space);
    free(allocated);
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
        || request->filter >= FILTERS || request->channels > MAX_BYTES / width
        || request->channels > MAX_BYTES / request->columns)
        return UNSUPPORTED;
    return POSSIBLE;
}

int resample_run(const Request *request)
{
    const Task task = {
        .image = request->image,
        .end = request->image + (request->height - 1) * request->stride + request->width * request->channels,
        .stride = request->stride,
        .height = (int)request->height, .width = (int)request->width,
        .channels = (int)request->channels,
        .box_top = request->top, .box_left = request->left,
        .box_height = request->box_height, .box_width = request->box_width,
        .resized_height = (int)request->to_height, .resized_width = (int)request->to_width,
        .top = (int)request->to_top, .left = (int)request->to_left,
        .row_height = (int)request->rows, .row_width = (int)request->columns,
        .flip = request->flip, .down_first = request->down_first, .filter = request->filter,
        .is_split = request->is_split,
        .row = request->row,
    };
    return run_task(&task);
}

static int is_image(const Py_buffer *view)
{
    return view->ndim == 3 && view->shape[2] > 0 && strcmp(view->format, "B") == 0;
}

static PyObject *resample(PyObject *module, PyObject *args)
{
    PyObject *arrays[2], *result = NULL;
    Py_buffer views[2];
    Request request = {.box_height = -1.0, .box_width = -1.0};
    int passes = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOnnnnp|ii(dddd):resample", &arrays[0], &arrays[1],
                          &request.to_height, &request.to_width, &request.to_top, &request.to_left,
                          &request.flip, &passes, &request.filter, &request.top,
                          &request.left, &request.box_height, &request.box_width)
        || !get_buffers(views, arrays, 2, PyBUF_STRIDES | PyBUF_FORMAT))
        return NULL;
    const Py_buffer *image = &views[0], *row = &views[1];
    if (!is_image(image) || !is_image(row) || image->shape[2] != row->shape[2]
        || request.filter < 0 || request.filter >= FILTERS
        || (passes & ~(DOWN_FIRST | PILLOW_PRECISION))) {
        PyErr_SetString(PyExc_ValueError, "image and row must be uint8 (h, w, channels), with "
                        "equal channels, and the filter in FILTERS");
        goto done;
    }
    request.down_first = passes & DOWN_FIRST;
    request.is_split = passes & PILLOW_PRECISION;
    request.channels = image->shape[2];
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
    } else if (found == UNSUPPORTED || image->strides[1] != request.channels
               || (request.channels > 1 && image->strides[2] != 1)) {
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
#if defined(WIDE_NAME)
    return 1 + has_simd() + (has_simd() && cpu_has_avx512());
#elif defined(SIMD_NAME)
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
            rows_use_path(k);
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
        rows_use_path(k);
    }
    const int failed = PyModule_AddObjectRef(module, "PATHS", names);
    Py_XDECREF(names);
    return failed;
}

MODULE(_resample, methods, initialise)
