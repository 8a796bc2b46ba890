/* A part of a JPEG, decoded without the rest of it.

Guarantees: the bytes that a decode of the whole gives there, or the answer that this is not the
way: for whatever libjpeg warns of or refuses, for codes that are not as they should be, for files
without an end, for colours other than grey, YCbCr and RGB. (Lossless files must not be asked for
smaller: libjpeg-turbo does not say that it cannot.) What is wrong where nothing had to be read is
not noticed. Nothing is read outside the data or written outside the memory given. Python's lock is
not held while pixels are decoded.

Relies on the jpeg_crop_scanline and jpeg_skip_scanlines of libjpeg-turbo 3, which pass over columns
and rows without transforming them (before 3.0 they had errors, says its ChangeLog.md); on Pillow,
or any other library that links to it, for having loaded it; on the binary interface of libjpeg 6b
and 8, which libjpeg-turbo keeps (https://github.com/libjpeg-turbo/libjpeg-turbo, jpeglib.h) and
checks by its size when a decoder is made. So no header and no copy of the library is needed, and
Pillow's updates are ours.

How it is quick: Huffman codes, which are most of the work, are read by `_entropy.c` in the place of
libjpeg's decode_mcu, and with restart markers only those of the part. Above, below and beside the
part nothing is transformed. A decoder and its memory are kept from image to
image; the header is read once.

That function is in no interface of libjpeg's; it is the second one of its entropy decoder in
libjpeg-turbo 1.0 to 3.2 (jpegint.h). So each of our decoders sees for itself: two functions of the
library have to be there, and a small image has to come out the same with ours in the second one's
place. Else, and for what is not baseline in one scan, libjpeg reads the codes. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <dlfcn.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "_entropy.h"
#include "_libjpeg.h"

enum { GREY = 1, RGB = 2, YCBCR = 3 }; /* libjpeg's numbers for colours */

enum {
    /* Interpolated chroma looks one sample, two pixels, beyond its own. Below the part libjpeg sees
    to that itself. Across, a crop of fewer than two samples is not interpolated at all. */
    MARGIN_ROWS = 2,
    MARGIN_COLUMNS = 4,
    /* A structure serves so many images and is made anew: libjpeg looks for room for tables among
    all that it ever made. 8 and 16 were measured quickest; with 64 an image takes 16 us more. */
    IMAGES = 8,
    BLOCK = 32,  /* pixels that a crop may begin too early: the widest block, of 4:1:1 */
    AT_ONCE = 8, /* rows asked for in one call; libjpeg gives at most as many */
};

typedef struct {
    PyObject_HEAD
    Jpeg jpeg;
    Errors errors;
    jmp_buf escape;
    const Interface *interface;
    int (*replaced)(Jpeg *, int16_t **); /* libjpeg's decode_mcu, if ours can stand in for it */
    char reads_codes;                    /* it is to */
    Entropy entropy;
    struct {
        unsigned next, row, column, across; /* what libjpeg asks for next; MCUs of a row */
        unsigned top, left, right;          /* what is wanted: from which row, which columns */
        unsigned made;
    } mcus;
    int busy;    /* a thread is in here */
    int created; /* the structure is to be destroyed in the end */
    int images;  /* that it served */
    int opened;  /* the header of `data` was read */
    int warnings;
    Py_buffer data;
    void *library;
    Errors *(*std_error)(Errors *);
    void (*create)(Jpeg *, int, size_t);
    void (*destroy)(Jpeg *);
    void (*abort)(Jpeg *);
    void (*mem_src)(Jpeg *, const uint8_t *, unsigned long);
    int (*read_header)(Jpeg *, int);
    int (*start)(Jpeg *);
    void (*crop)(Jpeg *, unsigned *, unsigned *);
    unsigned (*skip)(Jpeg *, unsigned);
    unsigned (*read)(Jpeg *, uint8_t **, unsigned);
} Decoder;

/* What is to be decoded, in pixels of what comes out, and where to. */
typedef struct {
    unsigned top, left, height, width;
    uint8_t *memory;
    size_t bytes;
    size_t first, stride; /* the answer: where the part begins, and from row to row */
    int too_small;
} Part;

static void fail(Jpeg *jpeg)
{
    longjmp(((Decoder *)jpeg->owner)->escape, 1);
}

static void tell(Jpeg *jpeg, int level)
{
    ((Decoder *)jpeg->owner)->warnings += level < 0;
}

static void print(Jpeg *jpeg)
{
    (void)jpeg;
}

/* Find libjpeg-turbo's functions among what `path` links to; 0, or -1 with an exception. */
static int bind(Decoder *self, const char *path)
{
    void *version_3;
    const struct {
        const char *name;
        void *function;
    } wanted[] = {
        {"jpeg_std_error", &self->std_error},
        {"jpeg_CreateDecompress", &self->create},
        {"jpeg_destroy_decompress", &self->destroy},
        {"jpeg_abort_decompress", &self->abort},
        {"jpeg_mem_src", &self->mem_src},
        {"jpeg_read_header", &self->read_header},
        {"jpeg_start_decompress", &self->start},
        {"jpeg_crop_scanline", &self->crop},
        {"jpeg_skip_scanlines", &self->skip},
        {"jpeg_read_scanlines", &self->read},
        {"jpeg12_read_scanlines", &version_3}, /* which no earlier one has, nor MozJPEG 4 */
    };
    self->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!self->library) {
        PyErr_SetString(PyExc_OSError, dlerror());
        return -1;
    }
    const void *home = NULL; /* where the library of the functions found so far lies */
    for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++) {
        void *found = dlsym(self->library, wanted[k].name);
        Dl_info info;
        if (!found || !dladdr(found, &info) || (home && info.dli_fbase != home)) {
            PyErr_Format(PyExc_OSError, "%s links to no %s", path, wanted[k].name);
            return -1;
        }
        home = info.dli_fbase;
        memcpy(wanted[k].function, &found, sizeof found);
    }
    return 0;
}

static void destroy(Decoder *self)
{
    if (self->created) {
        self->created = 0;
        self->destroy(&self->jpeg);
    }
}

/* Make libjpeg's structure by one of the interfaces; 0, or -1 where it has another. */
static int create(Decoder *self)
{
    self->images = 0;
    for (volatile size_t k = 0; k < sizeof interfaces / sizeof *interfaces; k++) {
        memset(&self->jpeg, 0, sizeof self->jpeg);
        self->jpeg.errors = self->std_error(&self->errors);
        self->errors.fail = fail;
        self->errors.tell = tell;
        self->errors.print = print;
        self->jpeg.owner = self;
        if (setjmp(self->escape) == 0) {
            self->interface = &interfaces[k];
            self->create(&self->jpeg, interfaces[k].version, interfaces[k].bytes);
            self->created = 1;
            return 0;
        }
    }
    return -1;
}

/* Let go of the image; what was allocated for it is freed. */
static void let_go(Decoder *self)
{
    if (self->created)
        self->abort(&self->jpeg);
    if (self->data.obj)
        PyBuffer_Release(&self->data);
    self->opened = 0;
}

/* Whether an end-of-image marker follows. A file that was cut off has none: in the bytes of pixels,
which are its last, 0 follows each 0xFF. */
static int ends(const Jpeg *jpeg)
{
    const uint8_t *bytes = jpeg->source->next;
    for (size_t at = jpeg->source->left; at >= 2; at--)
        if (bytes[at - 1] == 0xD9 && bytes[at - 2] == 0xFF)
            return 1;
    return 0;
}

/* Read the header of an image; whether this is the way to decode the rest. */
static int begin(Decoder *self, const uint8_t *bytes, size_t count)
{
    Jpeg *jpeg = &self->jpeg;
    self->warnings = 0;
    entropy_begin(&self->entropy, NULL, 0, 0); /* that of the image before is gone */
    /* libjpeg keeps an image's tables for the next, which may bring none of its own. It makes
    others where it finds none, and frees all only with the structure. */
    if (!self->created || ++self->images > IMAGES) { /* or the last one could not be made */
        destroy(self);
        if (create(self) < 0)
            return 0;
    }
    memset(jpeg->tables, 0, sizeof jpeg->tables);
    if (setjmp(self->escape))
        return 0;
    self->mem_src(jpeg, bytes, (unsigned long)count);
    self->read_header(jpeg, 1);
    const int quick = jpeg->colours == GREY || jpeg->colours == RGB || jpeg->colours == YCBCR;
    return quick && !self->warnings && ends(jpeg);
}

/* Whether scans are missing: libjpeg makes up for them from the neighbourhood, and so from what is
not decoded here. */
static int incomplete(const Jpeg *jpeg)
{
    for (int component = 0; jpeg->missing && component < jpeg->components; component++)
        for (int k = 0; k < 64; k++)
            if (jpeg->missing[component][k])
                return 1;
    return 0;
}

static void *at(Jpeg *jpeg, size_t offset)
{
    return (uint8_t *)jpeg + offset;
}

static Decoding *decoding(Decoder *self)
{
    return *(Decoding **)at(&self->jpeg, self->interface->decoding);
}

/* In the place of libjpeg's decode_mcu, which is called for all MCUs in their order. */
static int next_mcu(Jpeg *jpeg, int16_t **blocks)
{
    Decoder *self = jpeg->owner;
    const unsigned mcu = self->mcus.next++, row = self->mcus.row, column = self->mcus.column;
    if (++self->mcus.column == self->mcus.across) {
        self->mcus.column = 0;
        self->mcus.row++;
    }
    if (blocks && row >= self->mcus.top && column >= self->mcus.left && column < self->mcus.right)
        self->mcus.made += (unsigned)entropy_mcu(&self->entropy, mcu, blocks);
    return 1;
}

/* Have the codes read by `_entropy.c`, if that can be, and only those of the MCUs that reach into
the rows from `top` on and into the columns from `left` on. */
static void read_codes(Decoder *self, unsigned top, unsigned left, unsigned columns)
{
    Jpeg *jpeg = &self->jpeg;
    Entropy *entropy = &self->entropy;
    const Coding *coding = at(jpeg, self->interface->coding);
    const Scan *scan = at(jpeg, self->interface->scan);
    if (!self->reads_codes || decoding(self)->mcu != self->replaced || coding->progressive
        || coding->arithmetic || jpeg->precision != 8 || scan->components != jpeg->components)
        return;
    entropy_begin(entropy, jpeg->source->next, jpeg->source->left, coding->restart);
    int tall = 1, wide = 1; /* blocks of an MCU; in a scan of one component it is one block */
    for (int block = 0; block < scan->blocks; block++) {
        const Component *of = scan->of[scan->component[block]];
        const uint8_t *dc = jpeg->tables[1][of->dc & 3], *ac = jpeg->tables[2][of->ac & 3];
        if (!entropy_block(entropy, scan->component[block], of->dc, dc, of->ac, ac))
            return;
        if (scan->components > 1 && of->down > tall)
            tall = of->down;
        if (scan->components > 1 && of->across > wide)
            wide = of->across;
    }
    const unsigned height = (unsigned)tall * 8 / jpeg->scale_of;
    const unsigned width = (unsigned)wide * 8 / jpeg->scale_of;
    self->mcus.next = self->mcus.row = self->mcus.column = self->mcus.made = 0;
    self->mcus.across = scan->mcus_across;
    self->mcus.top = top / height;
    self->mcus.left = left / width;
    self->mcus.right = (left + columns + width - 1) / width;
    decoding(self)->mcu = next_mcu;
}

/* Decode a part; whether all went well. */
static int decode(Decoder *self, Part *part)
{
    Jpeg *jpeg = &self->jpeg;
    if (setjmp(self->escape))
        return 0;
    self->start(jpeg);
    if (incomplete(jpeg))
        return 0;
    const unsigned top = part->top > MARGIN_ROWS ? part->top - MARGIN_ROWS : 0;
    const unsigned rows = part->top - top + part->height;
    const unsigned width = jpeg->width_out;
    unsigned left = part->left > MARGIN_COLUMNS ? part->left - MARGIN_COLUMNS : 0;
    unsigned columns = part->left - left + part->width + MARGIN_COLUMNS;
    if (columns > width - left)
        columns = width - left;
    if (columns < width)
        self->crop(jpeg, &left, &columns); /* to whole blocks on the left, by as much wider */
    read_codes(self, top, left, columns);
    part->stride = 3 * (size_t)columns;
    part->first = (part->top - top) * part->stride + 3 * (size_t)(part->left - left);
    part->too_small = rows > part->bytes / part->stride;
    if (part->too_small || (top && self->skip(jpeg, top) != top))
        return 0;
    for (unsigned made = 0, now; made < rows && !self->warnings; made += now) {
        uint8_t *lines[AT_ONCE];
        const unsigned count = rows - made < AT_ONCE ? rows - made : AT_ONCE;
        for (unsigned k = 0; k < count; k++)
            lines[k] = part->memory + (made + k) * part->stride;
        now = self->read(jpeg, lines, count);
        if (!now || self->entropy.broken)
            return 0;
    }
    return !self->warnings && entropy_ended(&self->entropy);
}

/* An image of 32 x 16 pixels, in two MCUs, without tables of codes: libjpeg has the usual ones. */
static const uint8_t trial[] = {
    0xFF, 0xD8, 0xFF, 0xDB, 0, 67, 0, [7 ... 70] = 64, /* the steps of quantisation */
    0xFF, 0xC0, 0, 17, 8, 0, 16, 0, 32, 3, 1, 0x22, 0, 2, 0x11, 0, 3, 0x11, 0,
    0xFF, 0xDA, 0, 12, 3, 1, 0, 2, 0x11, 3, 0x11, 0, 63, 0,
    0x77, 0xEB, 0xFE, 0x3F, 0x9F, 0xF9, 0xFC, 0xC5, 0x2F, 0x5F, 0xF3, 0xD7, 0xF2, 0xE9, 0xFF, 0x00,
    0xEB, 0xE2, 0xA3, 0x1F, 0xE7, 0xF1, 0xFF, 0x00, 0x3E, 0xD4, 0x73, 0xFE, 0x7F, 0xFD, 0x7F, 0x9D,
    0x22, 0xE3, 0xAD, 0xC7, 0x7A, 0x9F, 0xA8, 0xA9, 0x33, 0xFE, 0x7F, 0xFD, 0x7D, 0xB8, 0xA5, 0xF5,
    0xE9, 0xFA, 0xFF, 0x00, 0x93, 0xFD, 0x73, 0x50, 0xFB, 0xF1, 0xDF, 0x8F, 0xF3, 0xEB, 0xFA, 0x50,
    0xDF, 0x91, 0x93, 0x77, 0x3F, 0xFF, 0xD9,
};

/* Whether a function is one of the library that libjpeg's others are in. */
static int is_libjpeg(const Decoder *self, void *function)
{
    Dl_info own, other;
    void *known;
    memcpy(&known, &self->start, sizeof known);
    return dladdr(known, &own) && dladdr(function, &other) && own.dli_fbase == other.dli_fbase;
}

/* Decode the trial image; whether all went well. */
static int try(Decoder *self, uint8_t *pixels, size_t bytes)
{
    Part part = {.height = 16, .width = 32, .memory = pixels, .bytes = bytes};
    if (!begin(self, trial, sizeof trial))
        return 0;
    self->jpeg.scale = self->jpeg.scale_of = 1;
    self->jpeg.colours_wanted = RGB;
    return decode(self, &part);
}

/* Find libjpeg's function for an MCU, and see whether ours can stand in for it. */
static void find_replaced(Decoder *self)
{
    uint8_t own[16 * 32 * 3], ours[sizeof own];
    void *found[2];
    if (try(self, own, sizeof own)) {
        memcpy(found, decoding(self), sizeof found);
        if (is_libjpeg(self, found[0]) && is_libjpeg(self, found[1]))
            self->replaced = decoding(self)->mcu;
    }
    let_go(self);
    self->reads_codes = self->replaced != NULL;
    if (!try(self, ours, sizeof ours) || self->mcus.made != 2 || memcmp(own, ours, sizeof own)) {
        self->reads_codes = 0;
        self->replaced = NULL;
    }
    let_go(self);
}

static int enter(Decoder *self)
{
    if (__atomic_exchange_n(&self->busy, 1, __ATOMIC_ACQUIRE)) {
        PyErr_SetString(PyExc_RuntimeError, "a decoder serves one thread at a time");
        return -1;
    }
    return 0;
}

static void leave(Decoder *self)
{
    __atomic_store_n(&self->busy, 0, __ATOMIC_RELEASE);
}

static PyObject *decoder_open(Decoder *self, PyObject *data)
{
    PyObject *answer = NULL;
    if (enter(self) < 0)
        return NULL;
    let_go(self);
    if (PyObject_GetBuffer(data, &self->data, PyBUF_SIMPLE) == 0) {
        self->opened = begin(self, self->data.buf, (size_t)self->data.len);
        if (self->opened) {
            answer = Py_BuildValue("II", self->jpeg.height, self->jpeg.width);
        } else {
            let_go(self);
            answer = Py_NewRef(Py_None);
        }
    }
    leave(self);
    return answer;
}

/* Check what is asked for against the opened image; 0, or -1 with an exception. */
static int check(
    Decoder *self, Part *part, long by, long top, long left, long height, long width)
{
    if (!self->opened) {
        PyErr_SetString(PyExc_ValueError, "no image is open");
        return -1;
    }
    if (by != 1 && by != 2 && by != 4 && by != 8) {
        PyErr_SetString(PyExc_ValueError, "an image is decoded smaller by 1, 2, 4 or 8");
        return -1;
    }
    const long whole_height = (self->jpeg.height + by - 1) / by;
    const long whole_width = (self->jpeg.width + by - 1) / by;
    if (height < 1 || width < 1 || top < 0 || left < 0 || height > whole_height
        || width > whole_width || top > whole_height - height || left > whole_width - width) {
        PyErr_SetString(PyExc_ValueError, "the part must lie in the image");
        return -1;
    }
    self->jpeg.scale = 1;
    self->jpeg.scale_of = (unsigned)by;
    self->jpeg.colours_wanted = RGB;
    part->top = (unsigned)top;
    part->left = (unsigned)left;
    part->height = (unsigned)height;
    part->width = (unsigned)width;
    return 0;
}

static PyObject *decoder_read(Decoder *self, PyObject *args)
{
    PyObject *memory, *answer = NULL;
    long by, top, left, height, width;
    Py_buffer into;
    Part part = {0};
    if (!PyArg_ParseTuple(args, "Olllll:read", &memory, &by, &top, &left, &height, &width)
        || PyObject_GetBuffer(memory, &into, PyBUF_WRITABLE) < 0)
        return NULL;
    part.memory = into.buf;
    part.bytes = (size_t)into.len;
    if (enter(self) == 0) {
        if (check(self, &part, by, top, left, height, width) == 0) {
            int made;
            Py_BEGIN_ALLOW_THREADS
            made = decode(self, &part);
            Py_END_ALLOW_THREADS
            let_go(self);
            if (made)
                answer = Py_BuildValue("nn", (Py_ssize_t)part.first, (Py_ssize_t)part.stride);
            else if (part.too_small)
                PyErr_SetString(PyExc_ValueError, "the memory is too small for the part");
            else
                answer = Py_NewRef(Py_None);
        }
        leave(self);
    }
    PyBuffer_Release(&into);
    return answer;
}

static void decoder_dealloc(Decoder *self)
{
    PyTypeObject *type = Py_TYPE(self);
    let_go(self);
    destroy(self);
    if (self->library)
        dlclose(self->library);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *decoder_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"", NULL}; /* by position only */
    PyObject *path;
    if (!PyArg_ParseTupleAndKeywords(
            args, named, "O&:Decoder", names, PyUnicode_FSConverter, &path))
        return NULL;
    Decoder *self = (Decoder *)type->tp_alloc(type, 0);
    int failed = !self || bind(self, PyBytes_AS_STRING(path)) < 0;
    if (!failed && create(self) < 0) {
        PyErr_Format(PyExc_OSError, "%s has an unknown libjpeg", PyBytes_AS_STRING(path));
        failed = 1;
    }
    if (!failed)
        find_replaced(self);
    Py_DECREF(path);
    if (failed) {
        Py_XDECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyMethodDef decoder_methods[] = {
    {"open", (PyCFunction)decoder_open, METH_O, "Read the header of a JPEG; see _jpeg.pyi."},
    {"read", (PyCFunction)decoder_read, METH_VARARGS, "Decode a part of it; see _jpeg.pyi."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef decoder_members[] = {
    {"reads_codes", T_BOOL, offsetof(Decoder, reads_codes), 0, "See _jpeg.pyi."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot decoder_slots[] = {
    {Py_tp_new, decoder_new},
    {Py_tp_dealloc, decoder_dealloc},
    {Py_tp_methods, decoder_methods},
    {Py_tp_members, decoder_members},
    {Py_tp_doc, "Decodes parts of JPEGs; see _jpeg.pyi."},
    {0, NULL},
};

static PyType_Spec decoder_spec = {
    .name = "feedline.images._jpeg.Decoder",
    .basicsize = sizeof(Decoder),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = decoder_slots,
};

static int fill_module(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&decoder_spec);
    PyObject *margins = Py_BuildValue("ii", MARGIN_ROWS, 2 * MARGIN_COLUMNS + BLOCK);
    const int failed = !type || PyModule_AddObjectRef(module, "Decoder", type) < 0 || !margins
        || PyModule_AddObjectRef(module, "MARGINS", margins) < 0;
    Py_XDECREF(type);
    Py_XDECREF(margins);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill_module},
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_jpeg",
    .m_doc = "Parts of JPEGs, decoded without the rest of them.",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__jpeg(void)
{
    return PyModuleDef_Init(&definition);
}
