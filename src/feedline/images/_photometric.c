/* Colours, sharpness and place of an image's pixels, changed as Pillow and torchvision change them.

Guarantees: brightness, contrast, saturation, hue and grey are Pillow's bytes (ImageEnhance, its conversions
to "L" and "HSV"), hue shifted as torchvision shifts it; so are sharpness, levels that are looked up or
counted, and affine maps (Image.point, histogram, transform); a blur is torchvision's, whose sums are floats,
within a rounding. All sizes and layouts are checked; nothing outside the target is written, which
may be the image itself. Python's lock is not held meanwhile.

Relies on nothing: without a compiler the steps of torchvision run themselves.

How it is quick: an image stays in the layout it has. What depends on few values is looked up: a hue on
its sextant, the spread and the middle one of three colours, of which the largest and the smallest are
the ends; a saturation on spread and largest. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { CHANNELS = 3, GREYS = 256, SEXTANTS = 6, WIDEST = 127 };
enum { BRIGHTNESS, CONTRAST, SATURATION, HUE, GREY, KINDS };

static uint8_t hue_of[SEXTANTS][GREYS][GREYS];   /* by sextant, spread, middle less smallest */
static uint8_t saturation_of[GREYS][GREYS];      /* by largest, spread */

static uint8_t clipped(int value)
{
    return value < 0 ? 0 : value > 255 ? 255 : (uint8_t)value;
}

/* Pillow's weighing of red, green and blue, which sum up to 1 << 16. */
static int luma(const uint8_t *rgb)
{
    return (rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16;
}

/* Pillow's blend: of `from` with a share of the way to `to`, which may be above 1. */
static uint8_t blended(int from, int to, float share)
{
    const float made = (float)from + share * (float)(to - from);
    if (share >= 0.0f && share <= 1.0f)
        return (uint8_t)made;
    return made <= 0.0f ? 0 : made >= 255.0f ? 255 : (uint8_t)made;
}

/* The colour in which each sextant has its smallest, middle and largest. */
static const int order[SEXTANTS][3] = {
    {2, 1, 0}, {1, 2, 0}, {2, 0, 1}, {0, 2, 1}, {1, 0, 2}, {0, 1, 2}};

/* Pillow's arithmetic, float for float and double for double, once for each entry. */
static void fill_tables(void)
{
    for (int sextant = 0; sextant < SEXTANTS; sextant++)
        for (int spread = 1; spread < GREYS; spread++)
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
    for (int largest = 1; largest < GREYS; largest++)
        for (int spread = 0; spread <= largest; spread++) {
            const float s = (float)spread / (float)largest;
            saturation_of[largest][spread] = clipped((int)(s * 255.0));
        }
}

/* Which sextant; where colours are equal, Pillow's first of red, green, blue is the largest. */
static int sextant_of(int r, int g, int b)
{
    if (r >= g && r >= b)
        return b <= g ? 0 : 1;
    if (g >= b)
        return b <= r ? 2 : 3;
    return g <= r ? 4 : 5;
}

static void shift_hue(const uint8_t *from, uint8_t *to, size_t pixels, int by)
{
    /* Of each hue: its sextant in the way back, and how far in it. */
    int sextants[GREYS];
    double parts[GREYS];
    for (int h = 0; h < GREYS; h++) {
        const double place = (double)((float)h * 6.0 / 255.0);
        sextants[h] = (int)floor(place) % 6;
        parts[h] = (double)(float)(place - floor(place));
    }
    for (size_t i = 0; i < pixels; i++, from += CHANNELS, to += CHANNELS) {
        const int rgb[3] = {from[0], from[1], from[2]};
        const int sextant = sextant_of(rgb[0], rgb[1], rgb[2]);
        const int low = rgb[order[sextant][0]], v = rgb[order[sextant][2]];
        const int spread = v - low;
        const int s = saturation_of[v][spread];
        /* Pillow has hue 0 for greys, and a shifted grey has no saturation. */
        if (spread == 0 || s == 0) {
            to[0] = to[1] = to[2] = (uint8_t)v;
            continue;
        }
        const int h = (hue_of[sextant][spread][rgb[order[sextant][1]] - low] + by) & 255;
        const double fs = (double)(float)(s / 255.0), f = parts[h];
        const uint8_t p = clipped((int)round(v * (1.0 - fs)));
        const uint8_t q = clipped((int)round(v * (1.0 - fs * f)));
        const uint8_t t = clipped((int)round(v * (1.0 - fs * (1.0 - f))));
        switch (sextants[h]) {
        case 0: to[0] = (uint8_t)v; to[1] = t; to[2] = p; break;
        case 1: to[0] = q; to[1] = (uint8_t)v; to[2] = p; break;
        case 2: to[0] = p; to[1] = (uint8_t)v; to[2] = t; break;
        case 3: to[0] = p; to[1] = q; to[2] = (uint8_t)v; break;
        case 4: to[0] = t; to[1] = p; to[2] = (uint8_t)v; break;
        default: to[0] = (uint8_t)v; to[1] = p; to[2] = q; break;
        }
    }
}

static void look_up(const uint8_t *from, uint8_t *to, size_t bytes, const uint8_t *table)
{
    for (size_t i = 0; i < bytes; i++)
        to[i] = table[from[i]];
}

static void change(const uint8_t *from, uint8_t *to, size_t pixels, int kind, float factor, int by)
{
    uint8_t table[GREYS];
    int grey = 0;
    switch (kind) {
    case CONTRAST: {
        uint64_t sum = 0;
        for (size_t i = 0; i < pixels; i++)
            sum += (uint64_t)luma(from + CHANNELS * i);
        grey = (int)((double)sum / (double)pixels + 0.5);
    } /* fall through */
    case BRIGHTNESS:
        for (int level = 0; level < GREYS; level++)
            table[level] = blended(grey, level, factor);
        look_up(from, to, pixels * CHANNELS, table);
        break;
    case SATURATION:
        for (size_t i = 0; i < pixels; i++, from += CHANNELS, to += CHANNELS) {
            const int l = luma(from);
            for (int c = 0; c < CHANNELS; c++)
                to[c] = blended(l, from[c], factor);
        }
        break;
    case HUE:
        shift_hue(from, to, pixels, by);
        break;
    default:
        for (size_t i = 0; i < pixels; i++, from += CHANNELS, to += CHANNELS)
            to[0] = to[1] = to[2] = (uint8_t)luma(from);
    }
}

/* Where a place beyond the ends lies within, mirrored at the outer pixels. */
static Py_ssize_t mirrored(Py_ssize_t at, Py_ssize_t length)
{
    at = at < 0 ? -at : at;
    return at >= length ? 2 * (length - 1) - at : at;
}

/* A row, padded by mirroring, as floats; then blurred along itself. */
static void blur_row(
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

/* 0, or -1 where memory is missing. */
static int blur(
    const uint8_t *from, uint8_t *to, Py_ssize_t height, Py_ssize_t width, const float *across,
    int wide, const float *down, int tall)
{
    const Py_ssize_t bytes = CHANNELS * width, padding = CHANNELS * (wide - 1);
    float *rows = PyMem_RawMalloc(sizeof(float) * (size_t)(bytes * (height + 2) + padding));
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
        for (Py_ssize_t i = 0; i < bytes; i++)
            to[y * bytes + i] = clipped((int)(sum[i] + 0.5f));
    }
    PyMem_RawFree(rows);
    return 0;
}

/* With a share of the way from Pillow's SMOOTH, 5 in the middle of 1, to the image; not in place. */
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
            const float made = (float)smooth + factor * (float)(here[i] - smooth);
            out[i] = (uint8_t)(made <= 0.0f ? 0.0f : made >= 255.0f ? 255.0f : made);
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

/* The same in one move, with a byte more of both: where another pixel follows each. */
static void put_on(uint8_t *out, const uint8_t *pixel)
{
    uint32_t four;
    memcpy(&four, pixel, sizeof four);
    memcpy(out, &four, sizeof four);
}

/* Pillow's nearest where nothing turns: places add up as doubles. 0 where memory is missing. */
static int scale(const Image *image, uint8_t *to, Py_ssize_t height, Py_ssize_t width, const double *a)
{
    Py_ssize_t *places = PyMem_RawMalloc(sizeof(Py_ssize_t) * (size_t)width);
    if (!places)
        return 0;
    /* They run evenly, so what lies within the image is in one piece. */
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
        /* Nothing follows the last row. */
        if ((Py_ssize_t)at + 1 < image->height)
            for (; x < end - 1; x++, out += CHANNELS)
                put_on(out, row + places[x]);
        for (; x < end; x++, out += CHANNELS)
            put(out, row + places[x]);
    }
    PyMem_RawFree(places);
    return 1;
}

static int64_t fixed(double value)
{
    return (int64_t)floor(value * 65536.0 + 0.5);
}

static inline int is_in(const Image *image, int64_t at_x, int64_t at_y)
{
    return at_x >= 0 && at_x >> 16 < image->width && at_y >= 0 && at_y >> 16 < image->height;
}

/* Pillow's nearest: places are whole numbers of a 65536th of a pixel. */
static void turn(const Image *image, uint8_t *to, Py_ssize_t height, Py_ssize_t width, const double *a)
{
    const int64_t across_x = fixed(a[0]), across_y = fixed(a[3]);
    const int64_t down_x = fixed(a[1]), down_y = fixed(a[4]);
    int64_t first_x = fixed(a[2] + a[0] * 0.5 + a[1] * 0.5);
    int64_t first_y = fixed(a[5] + a[3] * 0.5 + a[4] * 0.5);
    for (Py_ssize_t y = 0; y < height; y++, first_x += down_x, first_y += down_y) {
        /* Both run evenly, so what lies within the image is in one piece. */
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
        /* Nothing follows the last row. */
        if ((at_y > last_y ? at_y : last_y) >> 16 < image->height - 1)
            for (; x < end - 1; x++, out += CHANNELS, at_x += across_x, at_y += across_y)
                put_on(out, from + (at_y >> 16) * pitch + CHANNELS * (at_x >> 16));
        for (; x < end; x++, out += CHANNELS, at_x += across_x, at_y += across_y)
            put(out, from + (at_y >> 16) * pitch + CHANNELS * (at_x >> 16));
    }
}

/* Where a place of the target lies in the image, half a pixel less; 0 where that is outside. */
static inline int place_of(
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

/* The whole part of a number from -0.5 on. */
static inline Py_ssize_t whole(double at)
{
    return at < 0.0 ? -1 : (Py_ssize_t)at;
}

/* Pillow's bilinear: of 2 x 2 pixels, of which the outer ones go on beyond the edges. */
static void bilinear(
    const Image *image, uint8_t *to, Py_ssize_t height, Py_ssize_t width, const double *a)
{
    for (Py_ssize_t y = 0; y < height; y++)
        for (Py_ssize_t x = 0; x < width; x++, to += CHANNELS) {
            double dx, dy;
            if (!place_of(image, a, x, y, &dx, &dy))
                continue;
            const Py_ssize_t left = whole(dx), top = whole(dy);
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

enum { LAYOUT = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT };

static int is_image(const Py_buffer *view)
{
    return view->ndim == 3 && view->shape[2] == CHANNELS && strcmp(view->format, "B") == 0
        && view->len > 0;
}

static int is_kernel(const Py_buffer *view, Py_ssize_t along)
{
    return view->ndim == 1 && strcmp(view->format, "f") == 0 && view->shape[0] % 2 == 1
        && view->shape[0] <= WIDEST && view->shape[0] / 2 < along;
}

/* The image and the target, or 0 with an exception; both are to be released. */
static int both(PyObject *given, PyObject *written, Py_buffer *image, Py_buffer *target)
{
    if (PyObject_GetBuffer(given, image, LAYOUT) < 0)
        return 0;
    if (PyObject_GetBuffer(written, target, LAYOUT | PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(image);
        return 0;
    }
    const int alike = is_image(image) && is_image(target) && image->shape[0] == target->shape[0]
        && image->shape[1] == target->shape[1];
    if (!alike) {
        PyErr_SetString(PyExc_ValueError, "image and target must be uint8 (h, w, 3), and alike");
        PyBuffer_Release(target);
        PyBuffer_Release(image);
    }
    return alike;
}

static PyObject *py_adjust(PyObject *module, PyObject *args)
{
    PyObject *given, *written;
    Py_buffer image, target;
    int kind;
    double factor;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOid:adjust", &given, &written, &kind, &factor))
        return NULL;
    if (kind < 0 || kind >= KINDS || !isfinite(factor))
        return PyErr_Format(PyExc_ValueError, "no such change");
    if (!both(given, written, &image, &target))
        return NULL;
    /* torchvision adds a part of 255 to the hue, cut to a whole number that wraps around. */
    const int by = kind == HUE ? (int)(factor * 255.0) & 255 : 0;
    const size_t pixels = (size_t)image.shape[0] * (size_t)image.shape[1];
    Py_BEGIN_ALLOW_THREADS
    change(image.buf, target.buf, pixels, kind, (float)factor, by);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&target);
    PyBuffer_Release(&image);
    Py_RETURN_NONE;
}

static PyObject *py_blur(PyObject *module, PyObject *args)
{
    PyObject *given, *written, *wide, *tall, *answer = NULL;
    Py_buffer image, target, across, down;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOO:blur", &given, &written, &wide, &tall))
        return NULL;
    if (!both(given, written, &image, &target))
        return NULL;
    if (PyObject_GetBuffer(wide, &across, LAYOUT) < 0)
        goto with_images;
    if (PyObject_GetBuffer(tall, &down, LAYOUT) < 0)
        goto with_across;
    if (!is_kernel(&across, image.shape[1]) || !is_kernel(&down, image.shape[0])) {
        PyErr_SetString(
            PyExc_ValueError, "kernels must be float32, of an odd length, and reach within the image");
    } else {
        int failed;
        Py_BEGIN_ALLOW_THREADS
        failed = blur(image.buf, target.buf, image.shape[0], image.shape[1], across.buf,
                      (int)across.shape[0], down.buf, (int)down.shape[0]);
        Py_END_ALLOW_THREADS
        answer = failed ? PyErr_NoMemory() : Py_NewRef(Py_None);
    }
    PyBuffer_Release(&down);
with_across:
    PyBuffer_Release(&across);
with_images:
    PyBuffer_Release(&target);
    PyBuffer_Release(&image);
    return answer;
}

/* A buffer of this many items of a format. */
static int is_table(const Py_buffer *view, const char *format, Py_ssize_t items)
{
    return strcmp(view->format, format) == 0 && view->len == items * view->itemsize;
}

static PyObject *py_look_up(PyObject *module, PyObject *args)
{
    PyObject *given, *written;
    Py_buffer image, target, levels;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOy*:look_up", &given, &written, &levels))
        return NULL;
    if (levels.len != CHANNELS * GREYS) {
        PyErr_SetString(PyExc_ValueError, "levels must be 3 x 256 bytes");
        goto failed;
    }
    if (!both(given, written, &image, &target))
        goto failed;
    const uint8_t *from = image.buf, *red = levels.buf, *green = red + GREYS, *blue = green + GREYS;
    uint8_t *to = target.buf;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < image.len; i += CHANNELS) {
        to[i] = red[from[i]];
        to[i + 1] = green[from[i + 1]];
        to[i + 2] = blue[from[i + 2]];
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&target);
    PyBuffer_Release(&image);
    PyBuffer_Release(&levels);
    Py_RETURN_NONE;
failed:
    PyBuffer_Release(&levels);
    return NULL;
}

static PyObject *py_count(PyObject *module, PyObject *args)
{
    PyObject *given, *written, *answer = NULL;
    Py_buffer image, counts;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO:count", &given, &written))
        return NULL;
    if (PyObject_GetBuffer(given, &image, LAYOUT) < 0)
        return NULL;
    if (PyObject_GetBuffer(written, &counts, LAYOUT | PyBUF_WRITABLE) < 0)
        goto with_image;
    if (!is_image(&image) || !is_table(&counts, "I", CHANNELS * GREYS)) {
        PyErr_SetString(PyExc_ValueError, "image must be uint8 (h, w, 3), counts uint32 (3, 256)");
    } else {
        const uint8_t *from = image.buf;
        uint32_t *red = counts.buf, *green = red + GREYS, *blue = green + GREYS;
        Py_BEGIN_ALLOW_THREADS
        memset(red, 0, (size_t)counts.len);
        for (Py_ssize_t i = 0; i < image.len; i += CHANNELS) {
            red[from[i]]++;
            green[from[i + 1]]++;
            blue[from[i + 2]]++;
        }
        Py_END_ALLOW_THREADS
        answer = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&counts);
with_image:
    PyBuffer_Release(&image);
    return answer;
}

/* Whether two images of one thread's overlap: what is read must not have been written. */
static int apart(const Py_buffer *image, const Py_buffer *target)
{
    const char *from = image->buf, *to = target->buf;
    if (from + image->len <= to || to + target->len <= from)
        return 1;
    PyErr_SetString(PyExc_ValueError, "image and target must lie apart");
    return 0;
}

static PyObject *py_sharpen(PyObject *module, PyObject *args)
{
    PyObject *given, *written, *answer = NULL;
    Py_buffer image, target;
    double factor;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOd:sharpen", &given, &written, &factor))
        return NULL;
    if (!isfinite(factor))
        return PyErr_Format(PyExc_ValueError, "no such factor");
    if (!both(given, written, &image, &target))
        return NULL;
    if (apart(&image, &target)) {
        Py_BEGIN_ALLOW_THREADS
        sharpen(image.buf, target.buf, image.shape[0], image.shape[1], (float)factor);
        Py_END_ALLOW_THREADS
        answer = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&target);
    PyBuffer_Release(&image);
    return answer;
}

static PyObject *py_warp(PyObject *module, PyObject *args)
{
    PyObject *given, *written, *answer = NULL;
    Py_buffer image, target;
    double a[6];
    int taps, done = 1;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO(dddddd)i:warp", &given, &written, a, a + 1, a + 2, a + 3, a + 4,
                          a + 5, &taps))
        return NULL;
    if (PyObject_GetBuffer(given, &image, LAYOUT) < 0)
        return NULL;
    if (PyObject_GetBuffer(written, &target, LAYOUT | PyBUF_WRITABLE) < 0)
        goto with_image;
    int fits = is_image(&image) && is_image(&target) && (taps == 1 || taps == 2);
    if (fits) {
        /* Within what a 65536th of a pixel can be counted in, corners and all. */
        const double height = (double)target.shape[0], width = (double)target.shape[1];
        for (int row = 0; row < 6; row += 3)
            fits &= fabs(a[row]) * width + fabs(a[row + 1]) * height + fabs(a[row + 2]) < 32768.0;
    }
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "images must be uint8 (h, w, 3), a map within 32768 pixels");
    } else if (apart(&image, &target)) {
        const Image from = {image.buf, image.shape[0], image.shape[1]};
        const Py_ssize_t height = target.shape[0], width = target.shape[1];
        Py_BEGIN_ALLOW_THREADS
        if (taps == 2)
            bilinear(&from, target.buf, height, width, a);
        else if (a[1] == 0.0 && a[3] == 0.0)
            done = scale(&from, target.buf, height, width, a);
        else
            turn(&from, target.buf, height, width, a);
        Py_END_ALLOW_THREADS
        answer = done ? Py_NewRef(Py_None) : PyErr_NoMemory();
    }
    PyBuffer_Release(&target);
with_image:
    PyBuffer_Release(&image);
    return answer;
}

static PyMethodDef methods[] = {
    {"look_up", py_look_up, METH_VARARGS, "Give each level of an image another; see _photometric.pyi."},
    {"count", py_count, METH_VARARGS, "Count the levels of an image; see _photometric.pyi."},
    {"sharpen", py_sharpen, METH_VARARGS, "Sharpen or smooth an image; see _photometric.pyi."},
    {"warp", py_warp, METH_VARARGS, "Map an image affinely; see _photometric.pyi."},
    {"adjust", py_adjust, METH_VARARGS, "Change the colours of an image; see _photometric.pyi."},
    {"blur", py_blur, METH_VARARGS, "Blur an image; see _photometric.pyi."},
    {NULL, NULL, 0, NULL},
};

static int begin(PyObject *module)
{
    (void)module;
    fill_tables();
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, begin},
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_photometric",
    .m_doc = "Colours and sharpness of an image, changed.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__photometric(void)
{
    return PyModuleDef_Init(&definition);
}
