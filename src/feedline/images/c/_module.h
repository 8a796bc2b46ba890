/* Python and compiler differences shared by the extension modules.

Python: the limited API, so one binary serves all versions. Buffers are part of it from 3.11 on; 3.10
has the same functions and layout. Compilers: GCC, Clang and MSVC. */

#ifndef FEEDLINE_MODULE_H
#define FEEDLINE_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include "_compiler.h"

enum { CHANNELS = 3, LEVELS = 256, CONTIGUOUS = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT };

#ifdef Py_GIL_DISABLED
#define WITHOUT_GIL {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#else
#define WITHOUT_GIL
#endif

/* Define a module: its functions, and the one that initialises it. */
#define MODULE(name, methods, initialise) \
    static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)initialise}, WITHOUT_GIL {0, NULL}}; \
    static PyModuleDef definition = { \
        PyModuleDef_HEAD_INIT, .m_name = #name, .m_doc = "See " #name ".pyi.", \
        .m_methods = methods, .m_slots = slots}; \
    PyMODINIT_FUNC PyInit_##name(void) { return PyModuleDef_Init(&definition); }

static inline void release_buffers(Py_buffer *views, int count)
{
    while (count)
        PyBuffer_Release(&views[--count]);
}

/* Get the buffers of arrays: of the last one to write to, of the others with these flags. Return 0,
with an exception and without any buffer, on failure. */
static inline int get_buffers(Py_buffer *views, PyObject *const *arrays, int count, int flags)
{
    for (int k = 0; k < count; k++)
        if (PyObject_GetBuffer(
                arrays[k], &views[k], k == count - 1 ? CONTIGUOUS | PyBUF_WRITABLE : flags) < 0) {
            release_buffers(views, k);
            return 0;
        }
    return 1;
}

static inline int is_rgb(const Py_buffer *view)
{
    return view->ndim == 3 && view->shape[2] == CHANNELS && strcmp(view->format, "B") == 0;
}

#endif
