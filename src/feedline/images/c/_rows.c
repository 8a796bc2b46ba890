/* Rows of a batch from raw pixels: draw all crops, then check and resize one image after another.

Guarantees: crops and pixels are those of `crops.TrainCrop` and of `resample`, which make a row each. A
row that they might refuse is left out and reported, so that they say why. Before each row, and after
its parts if asked, Python is called: it notes progress, and may interrupt. Nothing outside a copy is
read, nothing outside the rows is written; all sizes are checked. The GIL is released in between. */

#include "_resample.h"

#include <math.h>

#include "_checksum.h"

/* Columns of a placement: the copy, its part and the area in that, as in `crops.Box`; the size to which
the area is resized, and the row's corner in it. In the order of `place_rows` in resize.py. */
enum {
    HEIGHT, WIDTH, TOP, LEFT, ROWS, COLUMNS, AREA_TOP, AREA_LEFT, AREA_HEIGHT, AREA_WIDTH,
    TO_HEIGHT, TO_WIDTH, TO_TOP, TO_LEFT, FLIP, FILTER, PLACEMENT
};
enum { TRIES = 10, ORIGINAL_HEIGHT = 0, ORIGINAL_WIDTH, COPY_HEIGHT, COPY_WIDTH, SIZES };

static Mix *mix = mix_scalar; /* in use */

void rows_use_path(int number)
{
    mix = mixes[number];
}

/* Return True if an array has a dtype of 8 bytes, one of these formats, and this shape. */
static int is_array(const Py_buffer *view, const char *formats, Py_ssize_t rows, int columns)
{
    return view->itemsize == 8 && strlen(view->format) == 1 && strchr(formats, *view->format)
        && (uintptr_t)view->buf % 8 == 0 && view->shape[0] == rows
        && (columns ? view->ndim == 2 && view->shape[1] == columns : view->ndim == 1);
}

/* The random numbers of `seeds.RandomStream`. */
static uint64_t next_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

typedef struct {
    double strength, smallest, largest, log_low, log_high, lowest, highest, flip;
} Crop;

/* Draw a crop as `TrainCrop.box`, in the same arithmetic: top, left, height, width. Return its flip. */
static int draw(const Crop *crop, uint64_t seed, double height, double width, double box[4])
{
    const double weakened = 1.0 - crop->strength * (1.0 - crop->smallest);
    const double smallest = crop->largest < weakened ? crop->largest : weakened;
    for (int k = 0; k < TRIES; k++) {
        const uint64_t bits = next_bits(&seed);
        const double share = (double)(bits >> 32) * 0x1p-32;
        const double shape = (double)(bits & 0xFFFFFFFFu) * 0x1p-32;
        const double target = height * width * (smallest + (crop->largest - smallest) * share);
        const double ratio = exp(crop->log_low + (crop->log_high - crop->log_low) * shape);
        const double w = rint(sqrt(target * ratio)), h = rint(sqrt(target / ratio));
        if (0.0 < w && w <= width && 0.0 < h && h <= height) {
            const uint64_t more = next_bits(&seed);
            box[0] = floor((double)(more >> 40) * 0x1p-24 * (height - h + 1.0));
            box[1] = floor((double)(more >> 16 & 0xFFFFFFu) * 0x1p-24 * (width - w + 1.0));
            box[2] = h;
            box[3] = w;
            return (double)(more & 0xFFFFu) * 0x1p-16 < crop->flip;
        }
    }
    double h = height, w = width;
    if (width < height * crop->lowest) {
        h = rint(width / crop->lowest);
        h = h > height ? height : h < 1.0 ? 1.0 : h;
    } else if (width > height * crop->highest) {
        w = rint(height * crop->highest);
        w = w > width ? width : w < 1.0 ? 1.0 : w;
    }
    box[0] = floor((height - h) / 2.0);
    box[1] = floor((width - w) / 2.0);
    box[2] = h;
    box[3] = w;
    return (double)(next_bits(&seed) >> 11) * 0x1p-53 < crop->flip;
}

/* Map an interval of `of` pixels to a copy of `length` as `crops._interval`: first pixel, number of
pixels, and the interval in them. An image itself is no copy. */
static void map_interval(
    double first, double extent, double length, double of, int is_copy, double *start,
    double *count, double *edge, double *mapped)
{
    double low = first, high = first + extent;
    if (is_copy) {
        const double most = length - 1e-3;
        low = first * length / of;
        low = low > most ? most : low;
        high = (first + extent) * length / of;
        high = high < low + 1e-3 ? low + 1e-3 : high;
        high = high > length ? length : high;
    }
    *start = floor(low);
    *count = ceil(high) - *start;
    *edge = low - *start;
    *mapped = high - low;
}

PyObject *rows_place_crops(PyObject *module, PyObject *args)
{
    PyObject *arrays[3], *result = NULL;
    Py_buffer views[3];
    Crop crop;
    Py_ssize_t size;
    int filter;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOO(dddddddd)ni:place_crops", &arrays[0], &arrays[1], &arrays[2],
                          &crop.strength, &crop.smallest, &crop.largest, &crop.log_low,
                          &crop.log_high, &crop.lowest, &crop.highest, &crop.flip, &size, &filter)
        || !get_buffers(views, arrays, 3, CONTIGUOUS))
        return NULL;
    const Py_ssize_t rows = views[2].ndim ? views[2].shape[0] : 0;
    if (views[0].ndim != 1 || views[1].ndim != 2 || views[2].ndim != 2
        || !is_array(&views[0], "LQ", rows, 0) || !is_array(&views[1], "lq", rows, SIZES)
        || !is_array(&views[2], "d", rows, PLACEMENT)) {
        PyErr_SetString(PyExc_ValueError,
                        "seeds, sizes and placements must be uint64 (n), int64 (n, 4), float64 (n, 16)");
        goto done;
    }
    const uint64_t *seeds = views[0].buf;
    double *placement = views[2].buf;
    for (Py_ssize_t row = 0; row < rows; row++, placement += PLACEMENT) {
        const int64_t *sizes = (const int64_t *)views[1].buf + row * SIZES;
        double side[SIZES], box[4];
        memset(placement, 0, PLACEMENT * sizeof *placement); /* which `resample_rows` leaves out */
        int fits = 1;
        for (int k = 0; k < SIZES; k++) {
            fits &= 0 < sizes[k] && sizes[k] <= MAX_SIDE / 4; /* a product is exact */
            side[k] = (double)sizes[k];
        }
        if (!fits)
            continue;
        const double height = side[ORIGINAL_HEIGHT], width = side[ORIGINAL_WIDTH];
        placement[FLIP] = draw(&crop, seeds[row], height, width, box);
        placement[HEIGHT] = side[COPY_HEIGHT];
        placement[WIDTH] = side[COPY_WIDTH];
        const int is_copy = side[COPY_HEIGHT] != height || side[COPY_WIDTH] != width;
        for (int axis = 0; axis < 2; axis++) {
            const double of = side[ORIGINAL_HEIGHT + axis], length = side[COPY_HEIGHT + axis];
            map_interval(box[axis], box[axis + 2], length, of, is_copy, &placement[TOP + axis],
                         &placement[ROWS + axis], &placement[AREA_TOP + axis],
                         &placement[AREA_HEIGHT + axis]);
            placement[TO_HEIGHT + axis] = (double)size;
        }
        placement[FILTER] = filter;
    }
    result = Py_NewRef(Py_None);
done:
    release_buffers(views, 3);
    return result;
}

/* Read whole numbers from `count` columns. Return 0 if one is not in 0 .. MAX_SIDE. */
static int whole_numbers(const double *columns, int count, Py_ssize_t *numbers)
{
    for (int k = 0; k < count; k++) {
        if (!(columns[k] >= 0.0 && columns[k] <= (double)MAX_SIDE))
            return 0;
        numbers[k] = (Py_ssize_t)columns[k];
    }
    return 1;
}

/* Fill in a request for an image in `bytes` from `pixels` on. Return 0 if it is not possible. */
static int request_of(
    Request *request, const double *placement, const uint8_t *pixels, Py_ssize_t bytes)
{
    Py_ssize_t copy[6], to[6];
    if (!whole_numbers(placement, 6, copy) || !whole_numbers(placement + TO_HEIGHT, 6, to))
        return 0;
    const Py_ssize_t height = copy[HEIGHT], width = copy[WIDTH];
    if (bytes != CHANNELS * height * width || copy[TOP] > height || copy[ROWS] > height - copy[TOP]
        || copy[LEFT] > width || copy[COLUMNS] > width - copy[LEFT])
        return 0;
    request->stride = CHANNELS * width;
    request->image = pixels + copy[TOP] * request->stride + CHANNELS * copy[LEFT];
    request->height = copy[ROWS];
    request->width = copy[COLUMNS];
    request->top = placement[AREA_TOP];
    request->left = placement[AREA_LEFT];
    request->box_height = placement[AREA_HEIGHT];
    request->box_width = placement[AREA_WIDTH];
    request->to_height = to[0];
    request->to_width = to[1];
    request->to_top = to[2];
    request->to_left = to[3];
    request->flip = to[4] != 0;
    request->filter = (int)to[5];
    return resample_check(request) == POSSIBLE;
}

/* Call a function with the number of a row. Return 0 on failure; None is not called. */
static int call(PyObject *function, Py_ssize_t row)
{
    if (Py_IsNone(function))
        return 1;
    PyObject *result = PyObject_CallFunction(function, "n", row);
    Py_XDECREF(result);
    return result != NULL;
}

/* Make a row. Return 1 if it was made, 0 if not, -1 with an exception. */
static int make_row(
    PyObject *image, Py_ssize_t header, const double *placement, const uint64_t *checks,
    Request *request, PyObject *checked, Py_ssize_t row)
{
    Py_buffer view;
    int made = 0;
    if (Py_IsNone(image))
        return 0;
    if (PyObject_GetBuffer(image, &view, PyBUF_SIMPLE) < 0)
        return -1;
    const uint8_t *bytes = view.buf;
    if (view.len > header && request_of(request, placement, bytes + header, view.len - header)) {
        int intact = 1;
        if (checks) {
            Py_BEGIN_ALLOW_THREADS
            intact = view.len >= SHORTEST_HASHED
                && hash(bytes, (size_t)view.len, checks[0], mix) == checks[1];
            Py_END_ALLOW_THREADS
        }
        if (intact) {
            made = call(checked, row) ? 1 : -1;
            if (made > 0) {
                Py_BEGIN_ALLOW_THREADS
                made = resample_run(request) == 0; /* without memory, `resample` says so */
                Py_END_ALLOW_THREADS
            }
        }
    }
    PyBuffer_Release(&view);
    return made;
}

PyObject *rows_resample(PyObject *module, PyObject *args)
{
    PyObject *images, *begin, *checked, *end, *arrays[3], *left = NULL;
    Py_buffer views[3];
    Py_ssize_t header;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!nOOOOOO:resample_rows", &PyTuple_Type, &images, &header,
                          &arrays[0], &arrays[1], &arrays[2], &begin, &checked, &end)
        || !get_buffers(views, arrays, 3, CONTIGUOUS))
        return NULL;
    const Py_buffer *rows = &views[2];
    const Py_ssize_t count = PyTuple_Size(images);
    const int has_checks = views[1].ndim == 2 && views[1].shape[0] > 0;
    if (header < 0 || rows->ndim != 4 || strcmp(rows->format, "B") != 0 || rows->shape[0] != count
        || rows->shape[3] != CHANNELS || views[0].ndim != 2 || views[1].ndim != 2
        || !is_array(&views[0], "d", count, PLACEMENT)
        || !is_array(&views[1], "LQ", has_checks ? count : 0, 2)) {
        PyErr_SetString(PyExc_ValueError, "placements, checksums and rows must be float64 (n, 16), "
                        "uint64 (n, 2) or (0, 2), and uint8 (n, h, w, 3)");
        goto done;
    }
    const Py_ssize_t row_bytes = count ? rows->len / count : 0;
    left = PyList_New(0);
    for (Py_ssize_t row = 0; left && row < count; row++) {
        Request request = {
            .row = (uint8_t *)rows->buf + row * row_bytes,
            .rows = rows->shape[1], .columns = rows->shape[2], .channels = CHANNELS,
        };
        int made = -1;
        if (call(begin, row))
            made = make_row(PyTuple_GetItem(images, row), header,
                            (const double *)views[0].buf + row * PLACEMENT,
                            has_checks ? (const uint64_t *)views[1].buf + 2 * row : NULL, &request,
                            checked, row);
        if (made > 0 && !call(end, row))
            made = -1;
        if (made == 0) {
            PyObject *number = PyLong_FromSsize_t(row);
            made = number ? PyList_Append(left, number) : -1;
            Py_XDECREF(number);
        }
        if (made < 0)
            Py_CLEAR(left);
    }
done:
    release_buffers(views, 3);
    return left;
}
