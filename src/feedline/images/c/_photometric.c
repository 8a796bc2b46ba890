/* Change an image's colours, sharpness and geometry as Pillow and torchvision do.

Guarantees: the bytes of Pillow for brightness, contrast, saturation, grey, sharpness, Gaussian blur by
boxes, table lookup, histogram and affine transforms (ImageEnhance, conversion to "L" and "HSV",
ImageFilter.GaussianBlur, Image.point, histogram, transform). Hue: Pillow's HSV conversion with
torchvision's shift. Blur: torchvision's float kernel, equal except for rounding. All sizes and layouts are checked; nothing outside the target is written,
which may be the image itself. The GIL is released. Without a compiler torchvision's steps run.

Speed: an image keeps its layout. Functions of few values are looked up: a hue by its sextant, the
spread and the middle one of three colours (largest less smallest, middle less smallest), a saturation
by spread and largest. */

#include "_module.h"
#include "_simd.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

enum { SEXTANTS = 6, MAX_KERNEL = 127 };
enum { BOX_PASSES = 3, MAX_REACH = 4, BOX_BITS = 24 };
enum { BRIGHTNESS, CONTRAST, SATURATION, HUE, GREY, KINDS };

static uint8_t hue_of[SEXTANTS][LEVELS][LEVELS];   /* by sextant, spread, middle less smallest */
static uint8_t saturation_of[LEVELS][LEVELS];      /* by largest, spread */

static uint8_t clipped(int value)
{
    return value < 0 ? 0 : value > 255 ? 255 : (uint8_t)value;
}

/* Pillow's weights of red, green and blue, which add up to 1 << 16. */
static INLINE int luma(const uint8_t *rgb)
{
    return (rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16;
}

/* Pillow's blend of two levels, not clipped. On aarch64 compilers fuse it, in Pillow's wheels too. */
static INLINE float extrapolated(int from, int to, float share)
{
#ifdef __aarch64__
    return fmaf(share, (float)(to - from), (float)from);
#else
    return (float)from + share * (float)(to - from);
#endif
}

static INLINE uint8_t blended(int from, int to, float share)
{
    /* Written so that compilers use vectors. */
    const float level = extrapolated(from, to, share), above = level > 0.0f ? level : 0.0f;
    return (uint8_t)(int)(above < 255.0f ? above : 255.0f);
}

/* Channels of each sextant's smallest, middle and largest colour. */
static const int order[SEXTANTS][3] = {
    {2, 1, 0}, {1, 2, 0}, {2, 0, 1}, {0, 2, 1}, {1, 0, 2}, {0, 1, 2}};

/* Pillow's arithmetic, float for float and double for double, once for each entry. */
static void fill_tables(void)
{
    for (int sextant = 0; sextant < SEXTANTS; sextant++)
        for (int spread = 1; spread < LEVELS; spread++)
            for (int middle = 0; middle <= spread; middle++) {
                int rgb[3] = {0};
                rgb[order[sextant][1]] = middle;
                rgb[order[sextant][2]] = spread;
                const float cr = (float)spread;
                const float rc = (float)(spread - rgb[0]) / cr;
                const float gc = (float)(spread - rgb[1]) / cr;
                const float bc = (float)(spread - rgb[2]) / cr;
                const int largest = order[sextant][2];
                float h = largest == 0 ? bc - gc
                        : largest == 1 ? (float)(2.0 + rc - bc) : (float)(4.0 + gc - rc);
                h = (float)fmod(h / 6.0 + 1.0, 1.0);
                hue_of[sextant][spread][middle] = clipped((int)(h * 255.0));
            }
    for (int largest = 1; largest < LEVELS; largest++)
        for (int spread = 0; spread <= largest; spread++) {
            const float s = (float)spread / (float)largest;
            saturation_of[largest][spread] = clipped((int)(s * 255.0));
        }
}

/* Sextant of a colour, by the comparisons r >= g, r >= b and g >= b as bits. Of equal channels the first
of red, green, blue is the largest, as in Pillow. */
static const uint8_t sextant_of[8] = {5, 4, 5, 1, 3, 3, 2, 0};

/* Channels of the largest, the middle and the smallest colour in the conversion back, by sextant. */
static const uint8_t places_of[SEXTANTS][CHANNELS] = {
    {0, 1, 2}, {1, 0, 2}, {1, 2, 0}, {2, 1, 0}, {2, 0, 1}, {0, 2, 1}};

static INLINE void shift_hue(const uint8_t *from, uint8_t *to, size_t pixels, int by)
{
    /* Of each hue, shifted: its places, and the share of its saturation that the middle colour has. */
    const uint8_t *places[LEVELS];
    double shares[LEVELS], saturations[LEVELS];
    for (int h = 0; h < LEVELS; h++) {
        const double place = (double)((float)((h + by) & 255) * 6.0 / 255.0);
        const double part = (double)(float)(place - floor(place));
        const int sextant = (int)floor(place) % SEXTANTS;
        places[h] = places_of[sextant];
        shares[h] = sextant % 2 ? part : 1.0 - part;
        saturations[h] = (double)(float)(h / 255.0);
    }
    for (size_t i = 0; i < pixels; i++, from += CHANNELS, to += CHANNELS) {
        const int r = from[0], g = from[1], b = from[2];
        const int sextant = sextant_of[(r >= g) | (r >= b) << 1 | (g >= b) << 2];
        const int less = r < g ? r : g, more = r < g ? g : r;
        const int low = less < b ? less : b, v = more > b ? more : b;
        const int s = saturation_of[v][v - low];
        if (s == 0) { /* grey, or nearly so: a shifted grey has no saturation */
            to[0] = to[1] = to[2] = (uint8_t)v;
            continue;
        }
        const int h = hue_of[sextant][v - low][r + g + b - v - 2 * low];
        /* For all values this rounds as round(), which takes longer. */
        const double saturation = saturations[s];
        to[places[h][0]] = (uint8_t)v;
        to[places[h][1]] = (uint8_t)(int)(v * (1.0 - saturation * shares[h]) + 0.5);
        to[places[h][2]] = (uint8_t)(int)(v * (1.0 - saturation) + 0.5);
    }
}

static INLINE void look_up(const uint8_t *from, uint8_t *to, size_t bytes, const uint8_t *table)
{
    for (size_t i = 0; i < bytes; i++)
        to[i] = table[from[i]];
}

/* Blend each level with its pixel's grey level. */
static INLINE void saturate(const uint8_t *from, uint8_t *to, size_t pixels, float factor)
{
    enum { BLOCK = 256 };
    uint8_t levels[CHANNELS * BLOCK]; /* not `to`, which may be `from`, so that compilers use vectors */
    for (size_t start = 0; start < pixels; start += BLOCK) {
        const size_t bytes = CHANNELS * (pixels - start < BLOCK ? pixels - start : BLOCK);
        for (size_t i = 0; i < bytes; i += CHANNELS)
            levels[i] = levels[i + 1] = levels[i + 2] = (uint8_t)luma(from + i);
        for (size_t i = 0; i < bytes; i++)
            levels[i] = blended(levels[i], from[i], factor);
        memcpy(to, levels, bytes);
        from += bytes;
        to += bytes;
    }
}

static INLINE void change(
    const uint8_t *from, uint8_t *to, size_t pixels, int kind, float factor, int by)
{
    uint8_t table[LEVELS];
    int grey = 0;
    switch (kind) {
    case CONTRAST: {
        uint64_t sum = 0;
        for (size_t i = 0; i < pixels; i++)
            sum += (uint64_t)luma(from + CHANNELS * i);
        grey = (int)((double)sum / (double)pixels + 0.5);
    } /* fall through */
    case BRIGHTNESS:
        for (int level = 0; level < LEVELS; level++)
            table[level] = blended(grey, level, factor);
        look_up(from, to, pixels * CHANNELS, table);
        break;
    case SATURATION:
        saturate(from, to, pixels, factor);
        break;
    case HUE:
        shift_hue(from, to, pixels, by);
        break;
    default:
        for (size_t i = 0; i < pixels; i++, from += CHANNELS, to += CHANNELS)
            to[0] = to[1] = to[2] = (uint8_t)luma(from);
    }
}

/* Reflect a position beyond the ends at the outer pixels. */
static Py_ssize_t mirrored(Py_ssize_t at, Py_ssize_t length)
{
    at = at < 0 ? -at : at;
    return at >= length ? 2 * (length - 1) - at : at;
}

/* Pad a row by reflection, as floats, and blur it. */
static INLINE void blur_row(
    const uint8_t *from, Py_ssize_t width, const float *kernel, int taps, float *padded, float *to)
{
    const Py_ssize_t half = taps / 2, bytes = CHANNELS * width;
    for (Py_ssize_t x = -half; x < width + half; x++)
        for (int c = 0; c < CHANNELS; c++)
            padded[CHANNELS * (x + half) + c] = from[CHANNELS * mirrored(x, width) + c];
    for (Py_ssize_t i = 0; i < bytes; i++)
        to[i] = 0.0f;
    for (int k = 0; k < taps; k++) {
        const float weight = kernel[k];
        const float *shifted = padded + CHANNELS * k;
        for (Py_ssize_t i = 0; i < bytes; i++)
            to[i] += weight * shifted[i];
    }
}

/* Return 0, or -1 if memory is missing. */
static INLINE int blur(
    const uint8_t *from, uint8_t *to, Py_ssize_t height, Py_ssize_t width, const float *across,
    int wide, const float *down, int tall)
{
    const Py_ssize_t bytes = CHANNELS * width, padding = CHANNELS * (wide - 1);
    float *rows = malloc(sizeof(float) * (size_t)(bytes * (height + 2) + padding));
    if (!rows)
        return -1;
    float *padded = rows + bytes * height, *sum = padded + bytes + padding;
    for (Py_ssize_t y = 0; y < height; y++)
        blur_row(from + y * bytes, width, across, wide, padded, rows + y * bytes);
    for (Py_ssize_t y = 0; y < height; y++) {
        for (Py_ssize_t i = 0; i < bytes; i++)
            sum[i] = 0.0f;
        for (int k = 0; k < tall; k++) {
            const float *row = rows + bytes * mirrored(y + k - tall / 2, height);
            for (Py_ssize_t i = 0; i < bytes; i++)
                sum[i] += down[k] * row[i];
        }
        for (Py_ssize_t i = 0; i < bytes; i++) {
            const float level = sum[i] + 0.5f, above = level > 0.0f ? level : 0.0f; /* NaN: 0 */
            to[y * bytes + i] = (uint8_t)(int)(above < 255.0f ? above : 255.0f);
        }
    }
    free(rows);
    return 0;
}

/* Mean of the pixels within `reach` and of two further ones, with Pillow's weights in 2 ** -24. */
typedef struct {
    int reach;
    uint32_t near, far;
} Box;

/* Box of Pillow's Gaussian blur: of three passes that approximate one. */
static Box box_of(float sigma)
{
    const float variance = sigma * sigma / BOX_PASSES;
    const float length = (float)sqrt(12.0 * variance + 1.0);
    const float whole = (float)floor((length - 1.0) / 2.0);
    float part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance);
    part /= 6 * (variance - (whole + 1) * (whole + 1));
    const float radius = whole + part;
    if (!(radius >= 0.0f && radius < (float)(MAX_REACH + 1)))
        return (Box){.reach = -1};
    const int reach = (int)radius;
    const uint32_t near = (uint32_t)((float)(1 << BOX_BITS) / (radius * 2 + 1));
    return (Box){reach, near, ((1 << BOX_BITS) - (uint32_t)(2 * reach + 1) * near) / 2};
}

/* Blur the bytes of one line from those of 2 * reach + 3 neighbouring ones. */
static INLINE void blur_line(
    int reach, Box box, const uint8_t *const *lines, uint8_t *to, size_t bytes)
{
    enum { BLOCK = 256 };
    const int last = 2 * reach + 2;
    for (size_t start = 0; start < bytes; start += BLOCK) {
        const size_t count = bytes - start < BLOCK ? bytes - start : BLOCK;
        uint8_t levels[BLOCK]; /* not `to`, which a line may be, so that compilers use vectors */
        for (size_t i = start; i < start + count; i++) {
            uint32_t near = 0;
            for (int k = 1; k < last; k++)
                near += lines[k][i];
            const uint32_t far = (uint32_t)lines[0][i] + lines[last][i];
            levels[i - start]
                = (uint8_t)((near * box.near + far * box.far + (1u << (BOX_BITS - 1))) >> BOX_BITS);
        }
        memcpy(to + start, levels, count);
    }
}

/* The same; each reach gets its own code, without inner loops. */
static INLINE void blur_box(Box box, const uint8_t *const *lines, uint8_t *to, size_t bytes)
{
    switch (box.reach) {
    case 0: blur_line(0, box, lines, to, bytes); break;
    case 1: blur_line(1, box, lines, to, bytes); break;
    case 2: blur_line(2, box, lines, to, bytes); break;
    case 3: blur_line(3, box, lines, to, bytes); break;
    default: blur_line(MAX_REACH, box, lines, to, bytes);
    }
}

/* Blur by boxes, each pass rounded to bytes; outer pixels are repeated. Return 0, or -1 if memory is
missing. */
static INLINE int blur_boxes(
    const uint8_t *from, uint8_t *to, Py_ssize_t height, Py_ssize_t width, Box across, Box down)
{
    const size_t bytes = CHANNELS * (size_t)width, padding = CHANNELS * (size_t)(across.reach + 1);
    const size_t padded = bytes + 2 * padding;
    uint8_t *const rows = malloc(bytes * (size_t)height + 2 * padded);
    const uint8_t *lines[2 * MAX_REACH + 3];
    if (!rows)
        return -1;
    for (Py_ssize_t y = 0; y < height; y++) {
        uint8_t *line = rows + bytes * (size_t)height, *other = line + padded;
        memcpy(line + padding, from + (size_t)y * bytes, bytes);
        for (int pass = 0; pass < BOX_PASSES; pass++) {
            for (size_t at = 0; at < padding; at += CHANNELS) {
                memcpy(line + at, line + padding, CHANNELS);
                memcpy(line + padding + bytes + at, line + padding + bytes - CHANNELS, CHANNELS);
            }
            for (int k = 0; k < 2 * across.reach + 3; k++)
                lines[k] = line + CHANNELS * k;
            const int is_last = pass == BOX_PASSES - 1;
            blur_box(across, lines, is_last ? rows + (size_t)y * bytes : other + padding, bytes);
            uint8_t *const blurred = other;
            other = line;
            line = blurred;
        }
    }
    uint8_t *image = rows, *blurred = to;
    for (int pass = 0; pass < BOX_PASSES; pass++) {
        for (Py_ssize_t y = 0; y < height; y++) {
            for (int k = 0; k < 2 * down.reach + 3; k++) {
                const Py_ssize_t at = y + k - down.reach - 1;
                lines[k] = image + bytes * (size_t)(at < 0 ? 0 : at < height ? at : height - 1);
            }
            blur_box(down, lines, blurred + (size_t)y * bytes, bytes);
        }
        uint8_t *const next = image;
        image = blurred;
        blurred = next;
    }
    free(rows);
    return 0;
}

#ifdef SIMD_NAME
/* The same code with wider vectors, and so the same bytes: multiplications and additions stay apart. */
SIMD void change_with_simd(
    const uint8_t *from, uint8_t *to, size_t pixels, int kind, float factor, int by)
{
    change(from, to, pixels, kind, factor, by);
}

SIMD int blur_with_simd(
    const uint8_t *from, uint8_t *to, Py_ssize_t height, Py_ssize_t width, const float *across,
    int wide, const float *down, int tall)
{
    return blur(from, to, height, width, across, wide, down, tall);
}

SIMD int blur_boxes_with_simd(
    const uint8_t *from, uint8_t *to, Py_ssize_t height, Py_ssize_t width, Box across, Box down)
{
    return blur_boxes(from, to, height, width, across, down);
}

static int uses_simd;
#define FASTEST(function) (uses_simd ? function##_with_simd : function)
#else
#define FASTEST(function) function
#endif

/* Blend Pillow's SMOOTH filter (5 surrounded by ones) with the image; not in place. */
static void sharpen(
    const uint8_t *from, uint8_t *to, Py_ssize_t height, Py_ssize_t width, float factor)
{
    const Py_ssize_t bytes = CHANNELS * width;
    for (Py_ssize_t y = 0; y < height; y++) {
        const uint8_t *here = from + y * bytes;
        uint8_t *out = to + y * bytes;
        if (y == 0 || y == height - 1 || width < 3) {
            memcpy(out, here, (size_t)bytes);
            continue;
        }
        memcpy(out, here, CHANNELS);
        memcpy(out + bytes - CHANNELS, here + bytes - CHANNELS, CHANNELS);
        const uint8_t *up = here - bytes, *down = here + bytes;
        for (Py_ssize_t i = CHANNELS; i < bytes - CHANNELS; i++) {
            const int sum = up[i - 3] + up[i] + up[i + 3] + here[i - 3] + 5 * here[i] + here[i + 3]
                + down[i - 3] + down[i] + down[i + 3];
            /* Never halfway between two levels: 13 is odd. */
            const int smooth = (2 * sum + 13) / 26;
            const float level = extrapolated(smooth, here[i], factor);
            out[i] = (uint8_t)(level <= 0.0f ? 0.0f : level >= 255.0f ? 255.0f : level);
        }
    }
}

typedef struct {
    const uint8_t *from;
    Py_ssize_t height, width;
} Image;

static Py_ssize_t within(Py_ssize_t at, Py_ssize_t length)
{
    return at < 0 ? 0 : at < length ? at : length - 1;
}

static const uint8_t *pixel_at(const Image *image, Py_ssize_t y, Py_ssize_t x)
{
    return image->from + CHANNELS * (y * image->width + x);
}

static void put(uint8_t *out, const uint8_t *pixel)
{
    out[0] = pixel[0];
    out[1] = pixel[1];
    out[2] = pixel[2];
}

/* The same in one move of 4 bytes: another pixel must follow both. */
static void put_on(uint8_t *out, const uint8_t *pixel)
{
    uint32_t four;
    memcpy(&four, pixel, sizeof four);
    memcpy(out, &four, sizeof four);
}

/* Pillow's nearest without rotation or shear: positions add up as doubles. Return 0, or -1 if memory is missing. */
static int scale(const Image *image, uint8_t *to, Py_ssize_t height, Py_ssize_t width, const double *a)
{
    Py_ssize_t *places = malloc(sizeof(Py_ssize_t) * (size_t)width);
    if (!places)
        return -1;
    /* Positions are monotone: those in the image are contiguous. */
    Py_ssize_t begin = 0, end = 0;
    double at = a[2] + a[0] * 0.5;
    for (Py_ssize_t x = 0; x < width; x++, at += a[0])
        if (at >= 0.0 && at < (double)image->width) {
            begin = end ? begin : x;
            end = x + 1;
            places[x] = CHANNELS * (Py_ssize_t)at;
        }
    at = a[5] + a[4] * 0.5;
    for (Py_ssize_t y = 0; end && y < height; y++, at += a[4]) {
        if (at < 0.0 || at >= (double)image->height)
            continue;
        const uint8_t *row = pixel_at(image, (Py_ssize_t)at, 0);
        uint8_t *out = to + CHANNELS * (y * width + begin);
        Py_ssize_t x = begin;
        /* No pixel follows the last row. */
        if ((Py_ssize_t)at + 1 < image->height)
            for (; x < end - 1; x++, out += CHANNELS)
                put_on(out, row + places[x]);
        for (; x < end; x++, out += CHANNELS)
            put(out, row + places[x]);
    }
    free(places);
    return 0;
}

static int64_t fixed(double value)
{
    return (int64_t)floor(value * 65536.0 + 0.5);
}

static inline int is_in(const Image *image, int64_t at_x, int64_t at_y)
{
    return at_x >= 0 && at_x >> 16 < image->width && at_y >= 0 && at_y >> 16 < image->height;
}

/* Pillow's nearest: positions in 65536ths of a pixel. */
static void turn(const Image *image, uint8_t *to, Py_ssize_t height, Py_ssize_t width, const double *a)
{
    const int64_t across_x = fixed(a[0]), across_y = fixed(a[3]);
    const int64_t down_x = fixed(a[1]), down_y = fixed(a[4]);
    int64_t first_x = fixed(a[2] + a[0] * 0.5 + a[1] * 0.5);
    int64_t first_y = fixed(a[5] + a[3] * 0.5 + a[4] * 0.5);
    for (Py_ssize_t y = 0; y < height; y++, first_x += down_x, first_y += down_y) {
        /* Positions are monotone: those in the image are contiguous. */
        Py_ssize_t begin = 0, end = width;
        while (begin < end && !is_in(image, first_x + begin * across_x, first_y + begin * across_y))
            begin++;
        while (begin < end
               && !is_in(image, first_x + (end - 1) * across_x, first_y + (end - 1) * across_y))
            end--;
        if (begin == end)
            continue;
        int64_t at_x = first_x + begin * across_x, at_y = first_y + begin * across_y;
        const int64_t last_y = at_y + (end - 1 - begin) * across_y;
        const uint8_t *from = image->from;
        const Py_ssize_t pitch = CHANNELS * image->width;
        uint8_t *out = to + CHANNELS * (y * width + begin);
        Py_ssize_t x = begin;
        /* No pixel follows the last row. */
        if ((at_y > last_y ? at_y : last_y) >> 16 < image->height - 1)
            for (; x < end - 1; x++, out += CHANNELS, at_x += across_x, at_y += across_y)
                put_on(out, from + (at_y >> 16) * pitch + CHANNELS * (at_x >> 16));
        for (; x < end; x++, out += CHANNELS, at_x += across_x, at_y += across_y)
            put(out, from + (at_y >> 16) * pitch + CHANNELS * (at_x >> 16));
    }
}

/* Position of a target pixel in the image, less half a pixel. Return 0 if it is outside. */
static inline int locate(
    const Image *image, const double *a, Py_ssize_t x, Py_ssize_t y, double *at_x, double *at_y)
{
    const double mid_x = (double)x + 0.5, mid_y = (double)y + 0.5;
    *at_x = a[0] * mid_x + a[1] * mid_y + a[2];
    *at_y = a[3] * mid_x + a[4] * mid_y + a[5];
    if (!(*at_x >= 0.0 && *at_x < (double)image->width && *at_y >= 0.0
            && *at_y < (double)image->height))
        return 0;
    *at_x -= 0.5;
    *at_y -= 0.5;
    return 1;
}

/* Round down a number of at least -0.5. */
static inline Py_ssize_t round_down(double at)
{
    return at < 0.0 ? -1 : (Py_ssize_t)at;
}

/* Pillow's bilinear: 2 x 2 pixels; the outer ones are repeated beyond the edges. */
static void bilinear(
    const Image *image, uint8_t *to, Py_ssize_t height, Py_ssize_t width, const double *a)
{
    for (Py_ssize_t y = 0; y < height; y++)
        for (Py_ssize_t x = 0; x < width; x++, to += CHANNELS) {
            double dx, dy;
            if (!locate(image, a, x, y, &dx, &dy))
                continue;
            const Py_ssize_t left = round_down(dx), top = round_down(dy);
            dx -= (double)left;
            dy -= (double)top;
            const uint8_t *from = pixel_at(image, within(top, image->height),
                                           within(left, image->width));
            const Py_ssize_t right = left >= 0 && left + 1 < image->width ? CHANNELS : 0;
            const Py_ssize_t down
                = top >= 0 && top + 1 < image->height ? CHANNELS * image->width : 0;
            for (int c = 0; c < CHANNELS; c++, from++) {
                const double upper = from[0] + (from[right] - from[0]) * dx;
                const double lower = from[down] + (from[down + right] - from[down]) * dx;
                to[c] = (uint8_t)(int)(upper + (lower - upper) * dy);
            }
        }
}

static int is_image(const Py_buffer *view)
{
    return is_rgb(view) && view->len > 0;
}

static int is_kernel(const Py_buffer *view, Py_ssize_t side)
{
    return view->ndim == 1 && strcmp(view->format, "f") == 0 && view->shape[0] % 2 == 1
        && view->shape[0] <= MAX_KERNEL && view->shape[0] / 2 < side;
}

/* Return 1 if both are images of one size; otherwise 0, with an exception. */
static int alike(const Py_buffer *image, const Py_buffer *target)
{
    if (is_image(image) && is_image(target) && image->shape[0] == target->shape[0]
        && image->shape[1] == target->shape[1])
        return 1;
    PyErr_SetString(PyExc_ValueError, "image and target must be uint8 (h, w, 3), and alike");
    return 0;
}

/* Return 1 if two images do not overlap; otherwise 0, with an exception. */
static int apart(const Py_buffer *image, const Py_buffer *target)
{
    const char *from = image->buf, *to = target->buf;
    if (from + image->len <= to || to + target->len <= from)
        return 1;
    PyErr_SetString(PyExc_ValueError, "image and target must not overlap");
    return 0;
}

/* The nearest float: a factor beyond all floats becomes the largest one, not infinite. */
static float to_float(double factor)
{
    return (float)fmax(-FLT_MAX, fmin(factor, FLT_MAX));
}

static PyObject *py_adjust(PyObject *module, PyObject *args)
{
    PyObject *arrays[2], *result = NULL;
    Py_buffer views[2];
    int kind;
    double factor;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOid:adjust", &arrays[0], &arrays[1], &kind, &factor))
        return NULL;
    if (kind < 0 || kind >= KINDS || !isfinite(factor) || (kind == HUE && fabs(factor) > 0.5))
        return PyErr_Format(PyExc_ValueError, "no such change");
    if (!get_buffers(views, arrays, 2, CONTIGUOUS))
        return NULL;
    if (alike(&views[0], &views[1])) {
        /* torchvision adds a part of 255 to the hue, cut to a whole number that wraps around. */
        const int by = kind == HUE ? (int)(factor * 255.0) & 255 : 0;
        Py_BEGIN_ALLOW_THREADS
        FASTEST(change)(views[0].buf, views[1].buf, (size_t)(views[0].len / CHANNELS), kind,
               to_float(factor), by);
        Py_END_ALLOW_THREADS
        result = Py_NewRef(Py_None);
    }
    release_buffers(views, 2);
    return result;
}

static PyObject *py_blur(PyObject *module, PyObject *args)
{
    PyObject *arrays[4], *result = NULL;
    Py_buffer views[4]; /* the target is the last one */
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOO:blur", &arrays[0], &arrays[3], &arrays[1], &arrays[2])
        || !get_buffers(views, arrays, 4, CONTIGUOUS))
        return NULL;
    const Py_buffer *image = &views[0], *across = &views[1], *down = &views[2], *target = &views[3];
    if (alike(image, target)) {
        if (!is_kernel(across, image->shape[1]) || !is_kernel(down, image->shape[0])) {
            PyErr_SetString(
                PyExc_ValueError,
                "kernels must be float32, of an odd length, and reach within the image");
        } else {
            int failed;
            Py_BEGIN_ALLOW_THREADS
            failed = FASTEST(blur)(image->buf, target->buf, image->shape[0], image->shape[1], across->buf,
                          (int)across->shape[0], down->buf, (int)down->shape[0]);
            Py_END_ALLOW_THREADS
            result = failed ? PyErr_NoMemory() : Py_NewRef(Py_None);
        }
    }
    release_buffers(views, 4);
    return result;
}

static PyObject *py_blur_boxes(PyObject *module, PyObject *args)
{
    PyObject *arrays[2], *result = NULL;
    Py_buffer views[2];
    float across, down;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOff:blur_boxes", &arrays[0], &arrays[1], &across, &down)
        || !get_buffers(views, arrays, 2, CONTIGUOUS))
        return NULL;
    const Py_buffer *image = &views[0], *target = &views[1];
    const Box boxes[2] = {box_of(across), box_of(down)};
    if (!(across >= 0.0f && down >= 0.0f) || boxes[0].reach < 0 || boxes[1].reach < 0) {
        PyErr_SetString(PyExc_ValueError, "the standard deviations must be in 0 to 5");
    } else if (alike(image, target)) {
        int failed;
        Py_BEGIN_ALLOW_THREADS
        failed = FASTEST(blur_boxes)(
            image->buf, target->buf, image->shape[0], image->shape[1], boxes[0], boxes[1]);
        Py_END_ALLOW_THREADS
        result = failed ? PyErr_NoMemory() : Py_NewRef(Py_None);
    }
    release_buffers(views, 2);
    return result;
}

static PyObject *py_look_up(PyObject *module, PyObject *args)
{
    PyObject *arrays[3], *result = NULL;
    Py_buffer views[3]; /* the target is the last one */
    (void)module;
    if (!PyArg_ParseTuple(args, "OOO:look_up", &arrays[0], &arrays[2], &arrays[1])
        || !get_buffers(views, arrays, 3, CONTIGUOUS))
        return NULL;
    if (views[1].len != CHANNELS * LEVELS) {
        PyErr_SetString(PyExc_ValueError, "levels must be 3 x 256 bytes");
    } else if (alike(&views[0], &views[2])) {
        const uint8_t *from = views[0].buf;
        const uint8_t *red = views[1].buf, *green = red + LEVELS, *blue = green + LEVELS;
        uint8_t *to = views[2].buf;
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < views[0].len; i += CHANNELS) {
            to[i] = red[from[i]];
            to[i + 1] = green[from[i + 1]];
            to[i + 2] = blue[from[i + 2]];
        }
        Py_END_ALLOW_THREADS
        result = Py_NewRef(Py_None);
    }
    release_buffers(views, 3);
    return result;
}

static PyObject *py_count(PyObject *module, PyObject *args)
{
    PyObject *arrays[2], *result = NULL;
    Py_buffer views[2];
    (void)module;
    if (!PyArg_ParseTuple(args, "OO:count", &arrays[0], &arrays[1])
        || !get_buffers(views, arrays, 2, CONTIGUOUS))
        return NULL;
    if (!is_image(&views[0]) || strcmp(views[1].format, "I") != 0
        || views[1].len != CHANNELS * LEVELS * (Py_ssize_t)sizeof(uint32_t)) {
        PyErr_SetString(PyExc_ValueError, "image must be uint8 (h, w, 3), counts uint32 (3, 256)");
    } else {
        const uint8_t *from = views[0].buf;
        uint32_t *red = views[1].buf, *green = red + LEVELS, *blue = green + LEVELS;
        Py_BEGIN_ALLOW_THREADS
        memset(red, 0, (size_t)views[1].len);
        for (Py_ssize_t i = 0; i < views[0].len; i += CHANNELS) {
            red[from[i]]++;
            green[from[i + 1]]++;
            blue[from[i + 2]]++;
        }
        Py_END_ALLOW_THREADS
        result = Py_NewRef(Py_None);
    }
    release_buffers(views, 2);
    return result;
}

static PyObject *py_sharpen(PyObject *module, PyObject *args)
{
    PyObject *arrays[2], *result = NULL;
    Py_buffer views[2];
    double factor;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOd:sharpen", &arrays[0], &arrays[1], &factor))
        return NULL;
    if (!isfinite(factor))
        return PyErr_Format(PyExc_ValueError, "the factor must be finite");
    if (!get_buffers(views, arrays, 2, CONTIGUOUS))
        return NULL;
    if (alike(&views[0], &views[1]) && apart(&views[0], &views[1])) {
        Py_BEGIN_ALLOW_THREADS
        sharpen(views[0].buf, views[1].buf, views[0].shape[0], views[0].shape[1], to_float(factor));
        Py_END_ALLOW_THREADS
        result = Py_NewRef(Py_None);
    }
    release_buffers(views, 2);
    return result;
}

static PyObject *py_warp(PyObject *module, PyObject *args)
{
    PyObject *arrays[2], *result = NULL;
    Py_buffer views[2];
    double a[6];
    int taps, failed = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO(dddddd)i:warp", &arrays[0], &arrays[1], a, a + 1, a + 2, a + 3,
                          a + 4, a + 5, &taps)
        || !get_buffers(views, arrays, 2, CONTIGUOUS))
        return NULL;
    int fits = is_image(&views[0]) && is_image(&views[1]) && (taps == 1 || taps == 2);
    if (fits) {
        /* All positions, corners included, can be counted in 65536ths of a pixel. */
        const double height = (double)views[1].shape[0], width = (double)views[1].shape[1];
        for (int row = 0; row < 6; row += 3)
            fits &= fabs(a[row]) * width + fabs(a[row + 1]) * height + fabs(a[row + 2]) < 32768.0;
    }
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "images must be uint8 (h, w, 3), a map within 32768 pixels");
    } else if (apart(&views[0], &views[1])) {
        const Image from = {views[0].buf, views[0].shape[0], views[0].shape[1]};
        const Py_ssize_t height = views[1].shape[0], width = views[1].shape[1];
        uint8_t *to = views[1].buf;
        Py_BEGIN_ALLOW_THREADS
        if (taps == 2)
            bilinear(&from, to, height, width, a);
        else if (a[1] == 0.0 && a[3] == 0.0)
            failed = scale(&from, to, height, width, a);
        else
            turn(&from, to, height, width, a);
        Py_END_ALLOW_THREADS
        result = failed ? PyErr_NoMemory() : Py_NewRef(Py_None);
    }
    release_buffers(views, 2);
    return result;
}

static PyMethodDef methods[] = {
    {"adjust", py_adjust, METH_VARARGS, "Change the colours of an image; see _photometric.pyi."},
    {"blur", py_blur, METH_VARARGS, "Blur an image; see _photometric.pyi."},
    {"blur_boxes", py_blur_boxes, METH_VARARGS, "Blur an image by boxes; see _photometric.pyi."},
    {"look_up", py_look_up, METH_VARARGS, "Map the levels of an image; see _photometric.pyi."},
    {"count", py_count, METH_VARARGS, "Count the levels of an image; see _photometric.pyi."},
    {"sharpen", py_sharpen, METH_VARARGS, "Sharpen or smooth an image; see _photometric.pyi."},
    {"warp", py_warp, METH_VARARGS, "Map an image affinely; see _photometric.pyi."},
    {NULL, NULL, 0, NULL},
};

static int initialise(PyObject *module)
{
    (void)module;
    fill_tables();
#ifdef SIMD_NAME
    uses_simd = has_simd();
#endif
    return 0;
}

MODULE(_photometric, methods, initialise)
