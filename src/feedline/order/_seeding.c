/* Seeds by splitmix64, and states of the Mersenne Twister for many seeds at once.

Guarantees: `mix` and `extend` are those of seeds.py. A state is the one that
numpy.random.seed, random.seed or torch's manual_seed sets, so draws are the same without this module.
Writes only to the given buffer, whose size is checked.

Speed: each word of a state depends on the one before, so one state waits for 624 multiplications, or
1871 for Python's. GCC and Clang take LANES states at a time, by vector instructions. */

#include "../images/c/_module.h"

#include <stdint.h>

#if defined(__GNUC__) || defined(__clang__)
enum { WIDTH = 8, VECTORS = 2 }; /* the second vector is multiplied while the first one waits */
typedef uint32_t Vector __attribute__((vector_size(4 * WIDTH)));
#else
enum { WIDTH = 1, VECTORS = 4 };
typedef uint32_t Vector;
#endif
enum { WORDS = 624, LANES = WIDTH * VECTORS };
typedef Vector Lanes[VECTORS];

static uint64_t extended(uint64_t mixed, uint64_t part)
{
    uint64_t z = mixed + 0x9E3779B97F4A7C15u + part;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static PyObject *mixed_with(uint64_t mixed, PyObject *const *parts, Py_ssize_t count)
{
    for (Py_ssize_t k = 0; k < count; k++) {
        uint64_t part = PyLong_AsUnsignedLongLongMask(parts[k]);
        if (part == (uint64_t)-1 && PyErr_Occurred())
            return NULL;
        mixed = extended(mixed, part);
    }
    return PyLong_FromUnsignedLongLong(mixed);
}

static PyObject *mix(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    return mixed_with(0, args, count);
}

static PyObject *extend(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "extend takes 2 arguments, got %zd", count);
    uint64_t mixed = PyLong_AsUnsignedLongLongMask(args[0]);
    if (mixed == (uint64_t)-1 && PyErr_Occurred())
        return NULL;
    return mixed_with(mixed, args + 1, 1);
}

/* init_genrand of the reference implementation (Matsumoto, Nishimura, 2002). */
static INLINE void seed_by_number(Lanes *state, const Lanes *seed)
{
    memcpy(state[0], *seed, sizeof *seed);
    for (uint32_t i = 1; i < WORDS; i++)
        for (int v = 0; v < VECTORS; v++) {
            const Vector last = state[i - 1][v];
            state[i][v] = (last ^ last >> 30) * 1812433253u + i;
        }
}

static uint32_t array_base[WORDS]; /* of the number 19650218 */

/* Its init_by_array, as random.seed calls it: with the one or two words of a seed. */
static INLINE void seed_by_array(Lanes *state, const Lanes *keys)
{
    const Vector none = keys[0][0] - keys[0][0];
    Vector last[VECTORS];
    for (int v = 0; v < VECTORS; v++)
        last[v] = none + array_base[0];
    for (int k = 0; k < WORDS; k++)
        for (int v = 0; v < VECTORS; v++) {
            Vector *word = &state[k < WORDS - 1 ? k + 1 : 1][v];
            const Vector before = k < WORDS - 1 ? none + array_base[k + 1] : *word;
            *word = last[v] = (before ^ (last[v] ^ last[v] >> 30) * 1664525u) + keys[k & 1][v];
        }
    for (int k = 1; k < WORDS; k++) {
        const int i = k < WORDS - 1 ? k + 1 : 1;
        for (int v = 0; v < VECTORS; v++) {
            last[v] = (state[i][v] ^ (last[v] ^ last[v] >> 30) * 1566083941u) - (uint32_t)i;
            state[i][v] = last[v];
        }
    }
    for (int v = 0; v < VECTORS; v++)
        state[0][v] = none + 0x80000000u;
}

static void seed_baseline(Lanes *state, const Lanes *keys, int is_array)
{
    if (is_array)
        seed_by_array(state, keys);
    else
        seed_by_number(state, keys);
}

#if defined(__x86_64__)
TARGET("avx2") static void seed_avx2(Lanes *state, const Lanes *keys, int is_array)
{
    if (is_array)
        seed_by_array(state, keys);
    else
        seed_by_number(state, keys);
}
#endif

static void (*seed_lanes)(Lanes *, const Lanes *, int);

/* Convert seeds to lanes: the low words, then the second words of keys. Return 0 on failure. */
static int read_seeds(PyObject *sequence, Lanes *keys)
{
    uint32_t *low = (uint32_t *)keys[0], *second = (uint32_t *)keys[1];
    for (Py_ssize_t lane = 0; lane < LANES; lane++) {
        PyObject *number = PySequence_GetItem(sequence, lane);
        if (!number)
            return 0;
        const uint64_t seed = PyLong_AsUnsignedLongLongMask(number);
        Py_DECREF(number);
        if (seed == (uint64_t)-1 && PyErr_Occurred())
            return 0;
        low[lane] = (uint32_t)seed;
        /* init_by_array adds a key's index; a key of one word repeats it. */
        second[lane] = seed >> 32 ? (uint32_t)(seed >> 32) + 1 : low[lane];
    }
    return 1;
}

static PyObject *states(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer view;
    Lanes keys[2], state[WORDS];
    (void)module;
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "states takes 3 arguments, got %zd", count);
    const int is_array = PyObject_IsTrue(args[1]);
    if (is_array < 0 || !read_seeds(args[0], keys))
        return NULL;
    if (PyObject_GetBuffer(args[2], &view, PyBUF_STRIDES | PyBUF_WRITABLE) < 0)
        return NULL;
    if (view.ndim != 2 || view.shape[0] != LANES || view.shape[1] != WORDS || view.itemsize != 4
        || view.strides[1] != 4 || view.strides[0] % 4 || (uintptr_t)view.buf % 4) {
        PyBuffer_Release(&view);
        return PyErr_Format(PyExc_ValueError, "the target must be uint32 (%d, %d)", LANES, WORDS);
    }
    seed_lanes(state, keys, is_array);
    uint32_t *target = view.buf;
    const Py_ssize_t distance = view.strides[0] / 4;
    for (int i = 0; i < WORDS; i++)
        for (int lane = 0; lane < LANES; lane++)
            target[lane * distance + i] = ((uint32_t *)state[i])[lane];
    PyBuffer_Release(&view);
    return Py_NewRef(Py_None);
}

static PyMethodDef methods[] = {
    {"mix", (PyCFunction)(void (*)(void))mix, METH_FASTCALL, "See _seeding.pyi."},
    {"extend", (PyCFunction)(void (*)(void))extend, METH_FASTCALL, "See _seeding.pyi."},
    {"states", (PyCFunction)(void (*)(void))states, METH_FASTCALL, "See _seeding.pyi."},
    {NULL, NULL, 0, NULL},
};

static int initialise(PyObject *module)
{
    seed_lanes = seed_baseline;
#if defined(__x86_64__)
    if (cpu_has(AVX2))
        seed_lanes = seed_avx2;
#endif
    array_base[0] = 19650218;
    for (uint32_t i = 1; i < WORDS; i++)
        array_base[i] = (array_base[i - 1] ^ array_base[i - 1] >> 30) * 1812433253u + i;
    return PyModule_AddIntConstant(module, "LANES", LANES);
}

MODULE(_seeding, methods, initialise)
