/* The pixels of an image, each looked up in its channel's table, channel after channel.

Guarantees: nothing but what the tables hold is written, nothing outside the target; all sizes and
layouts are checked. Python's lock is not held meanwhile.

Relies on nothing: without a compiler `lut.py` does the same by numpy, to the same bytes.

How it is quick: the values of four neighbours are put together and written at once. Gathering eight
by one instruction was slower, and so was writing past the caches. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

enum { CHANNELS = 3, GREYS = 256, TOGETHER = 4 };

#define LOOK_UP(Value) \
    static void look_up_##Value(const uint8_t *from, const void *tables, void *target, size_t count) \
    { \
        const Value *table = tables; \
        Value *to = target; \
        size_t i = 0; \
        for (; i + TOGETHER <= count; i += TOGETHER, from += TOGETHER * CHANNELS) \
            for (int c = 0; c < CHANNELS; c++) { \
                const Value *of = table + c * GREYS; \
                const Value four[TOGETHER] = { \
                    of[from[c]], of[from[c + 3]], of[from[c + 6]], of[from[c + 9]]}; \
                memcpy(to + c * count + i, four, sizeof four); \
            } \
        for (; i < count; i++, from += CHANNELS) \
            for (int c = 0; c < CHANNELS; c++) \
                to[c * count + i] = table[c * GREYS + from[c]]; \
    }

LOOK_UP(uint8_t)
LOOK_UP(uint16_t)
LOOK_UP(uint32_t)
LOOK_UP(uint64_t)

/* What is wrong with the three, or NULL. */
static const char *unfit(const Py_buffer *image, const Py_buffer *tables, const Py_buffer *target)
{
    if (image->ndim != 3 || image->shape[2] != CHANNELS || strcmp(image->format, "B") != 0)
        return "the image must be uint8 (h, w, 3)";
    if (tables->ndim != 2 || tables->shape[0] != CHANNELS || tables->shape[1] != GREYS)
        return "the tables must be (3, 256)";
    if (target->ndim != 3 || target->shape[0] != CHANNELS || target->shape[1] != image->shape[0]
        || target->shape[2] != image->shape[1])
        return "the target must be (3, h, w)";
    if (strcmp(tables->format, target->format) != 0 || tables->itemsize != target->itemsize)
        return "the tables and the target must have one dtype";
    return NULL;
}

static PyObject *apply_lut(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    enum { LAYOUT = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT };
    Py_buffer image, tables, target;
    PyObject *answer = NULL;
    (void)module;
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "apply_lut takes 3 arguments");
    if (PyObject_GetBuffer(args[0], &image, LAYOUT) < 0)
        return NULL;
    if (PyObject_GetBuffer(args[1], &tables, LAYOUT) < 0)
        goto with_image;
    if (PyObject_GetBuffer(args[2], &target, LAYOUT | PyBUF_WRITABLE) < 0)
        goto with_tables;
    void (*run)(const uint8_t *, const void *, void *, size_t) = NULL;
    switch (target.itemsize) {
    case 1: run = look_up_uint8_t; break;
    case 2: run = look_up_uint16_t; break;
    case 4: run = look_up_uint32_t; break;
    case 8: run = look_up_uint64_t; break;
    }
    const char *wrong = unfit(&image, &tables, &target);
    if (wrong || !run) {
        PyErr_SetString(PyExc_ValueError, wrong ? wrong : "values must have 1, 2, 4 or 8 bytes");
    } else {
        Py_BEGIN_ALLOW_THREADS
        run(image.buf, tables.buf, target.buf, (size_t)image.shape[0] * (size_t)image.shape[1]);
        Py_END_ALLOW_THREADS
        answer = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&target);
with_tables:
    PyBuffer_Release(&tables);
with_image:
    PyBuffer_Release(&image);
    return answer;
}

static PyMethodDef methods[] = {
    {"apply_lut", (PyCFunction)(void (*)(void))apply_lut, METH_FASTCALL,
     "Write tables[c, image[y, x, c]] to target[c, y, x]; see _lut.pyi."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_lut",
    .m_doc = "The pixels of an image, each looked up in its channel's table.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__lut(void)
{
    return PyModuleDef_Init(&definition);
}
