/* Resize of an image into a row; see _resample.c. */

#ifndef FEEDLINE_RESAMPLE_H
#define FEEDLINE_RESAMPLE_H

#include "_module.h"

#include <limits.h>
#include <stdint.h>

enum { MAX_SIDE = INT_MAX / 16 }; /* pixels of an image, so that offsets in a row fit in an int */

/* Resize of a box in an image, of which the window from (to_top, to_left) is written to a row. */
typedef struct {
    const uint8_t *image; /* its rows `stride` bytes apart */
    Py_ssize_t stride, height, width, channels;
    double top, left, box_height, box_width;
    Py_ssize_t to_height, to_width, to_top, to_left;
    int flip, down_first, filter, is_split; /* split weights: Pillow's precision */
    uint8_t *row; /* (rows, columns, channels), contiguous */
    Py_ssize_t rows, columns;
} Request;

typedef enum { POSSIBLE, BAD_WINDOW, BAD_BOX, UNSUPPORTED } Check;

/* Check the sizes and the filter of a request. */
Check resample_check(const Request *request);

/* Run a request that is possible. Return 0, or -1 if memory is missing. */
int resample_run(const Request *request);

/* Functions of the module for many rows, in _rows.c. */
PyObject *rows_place_crops(PyObject *module, PyObject *args);
PyObject *rows_resample(PyObject *module, PyObject *args);

/* Choose the code of checksums, by the number of the path. */
void rows_use_path(int number);

#endif
