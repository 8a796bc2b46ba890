/* Look up the pixels of an image in a table per channel.

Guarantees: writes only values of the tables, and only to the target; all sizes and layouts are
checked. The GIL is released. Without a compiler resize.py does the same with numpy, to the same bytes.

Speed: the values of four neighbours are collected and written at once. A gather of eight was slower,
and so were writes that bypass the caches. */

#include "_module.h"

#include <stdint.h>

enum { AT_ONCE = 4 };

#define LOOK_UP(Value) \
    static void look_up_##Value(const uint8_t *from, const void *tables, void *target, size_t count) \
    { \
        const Value *table = tables; \
        Value *to = target; \
        size_t i = 0; \
        for (; i + AT_ONCE <= count; i += AT_ONCE, from += AT_ONCE * CHANNELS) \
            for (int c = 0; c < CHANNELS; c++) { \
                const Value *of = table + c * LEVELS; \
                const Value four[AT_ONCE] = { \
                    of[from[c]], of[from[c + 3]], of[from[c + 6]], of[from[c + 9]]}; \
                memcpy(to + c * count + i, four, sizeof four); \
            } \
        for (; i < count; i++, from += CHANNELS) \
            for (int c = 0; c < CHANNELS; c++) \
                to[c * count + i] = table[c * LEVELS + from[c]]; \
    }

LOOK_UP(uint8_t)
LOOK_UP(uint16_t)
LOOK_UP(uint32_t)
LOOK_UP(uint64_t)

/* Return the reason why the arguments are invalid, or NULL. */
static const char *invalid(const Py_buffer *image, const Py_buffer *tables, const Py_buffer *target)
{
    if (!is_rgb(image))
        return "the image must be uint8 (h, w, 3)";
    if (tables->ndim != 2 || tables->shape[0] != CHANNELS || tables->shape[1] != LEVELS)
        return "the tables must be (3, 256)";
    if (target->ndim != 3 || target->shape[0] != CHANNELS || target->shape[1] != image->shape[0]
        || target->shape[2] != image->shape[1])
        return "the target must be (3, h, w)";
    if (strcmp(tables->format, target->format) != 0 || tables->itemsize != target->itemsize)
        return "the tables and the target must have one dtype";
    if (((uintptr_t)tables->buf | (uintptr_t)target->buf) % (size_t)target->itemsize)
        return "the tables and the target must be aligned";
    return NULL;
}

static PyObject *apply_lut(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer views[3];
    PyObject *result = NULL;
    (void)module;
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "apply_lut takes 3 arguments, got %zd", count);
    if (!get_buffers(views, args, 3, CONTIGUOUS))
        return NULL;
    const Py_buffer *image = &views[0], *tables = &views[1], *target = &views[2];
    void (*run)(const uint8_t *, const void *, void *, size_t) = NULL;
    switch (target->itemsize) {
    case 1: run = look_up_uint8_t; break;
    case 2: run = look_up_uint16_t; break;
    case 4: run = look_up_uint32_t; break;
    case 8: run = look_up_uint64_t; break;
    }
    const char *wrong = run ? invalid(image, tables, target) : NULL;
    if (!run || wrong) {
        PyErr_SetString(PyExc_ValueError, run ? wrong : "values must have 1, 2, 4 or 8 bytes");
    } else {
        Py_BEGIN_ALLOW_THREADS
        run(image->buf, tables->buf, target->buf, (size_t)(image->len / CHANNELS));
        Py_END_ALLOW_THREADS
        result = Py_NewRef(Py_None);
    }
    release_buffers(views, 3);
    return result;
}

static PyMethodDef methods[] = {
    {"apply_lut", (PyCFunction)(void (*)(void))apply_lut, METH_FASTCALL,
     "Write tables[c, image[y, x, c]] to target[c, y, x]; see _lut.pyi."},
    {NULL, NULL, 0, NULL},
};

static int initialise(PyObject *module)
{
    (void)module;
    return 0;
}

MODULE(_lut, methods, initialise)
