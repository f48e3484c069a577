/* One step as arrays: handles and token ids of all its outputs in two buffers, and a few words on those that
 * end. No Python object is made or read per token. The counts are the servicer's own (rk_output.counted).
 *
 * The stable ABI has no buffers before Python 3.11, so what is no `bytes` is copied into one: a copy a step.
 * GIL. */
#include <string.h>

#include "module.h"

/* A buffer of `count` items; `object` keeps it alive. */
typedef struct column {
    PyObject *object;
    const char *bytes;
    size_t count;
} column;

/* The bytes of a buffer whose items are of `size`. An array of another width is a mistake; plain bytes are
 * taken as they are. NULL with an exception. */
static PyObject *bytes_of(PyObject *from, const char *name, const char *type, size_t size) {
    if (PyBytes_Check(from))
        return Py_NewRef(from);
    PyObject *view = PyMemoryView_FromObject(from);
    if (!view) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_TypeError, "%s is %R; it must be a buffer of native %s", name, from, type);
        return NULL;
    }
    PyObject *width = PyObject_GetAttrString(view, "itemsize");
    size_t items = width ? PyLong_AsSize_t(width) : 0;
    Py_XDECREF(width);
    PyObject *bytes = NULL;
    if (items == size || items == 1)
        bytes = PyObject_CallMethod(view, "tobytes", NULL);
    else if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "%s has items of %zu bytes; it must be a buffer of native %s", name,
                     items, type);
    Py_DECREF(view);
    return bytes;
}

static int column_open(column *c, PyObject *from, const char *name, const char *type, size_t size) {
    c->object = bytes_of(from, name, type, size);
    if (!c->object)
        return -1;
    size_t bytes = (size_t)PyBytes_Size(c->object);
    c->bytes = PyBytes_AsString(c->object);
    c->count = bytes / size;
    if (bytes % size == 0)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s has %zu bytes; native %s take a multiple of %zu", name, bytes, type,
                 size);
    return -1;
}

/* None leaves the column empty. */
static int column_open_if(column *c, PyObject *from, const char *name, const char *type, size_t size) {
    return from == Py_None ? 0 : column_open(c, from, name, type, size);
}

static uint32_t u32_at(const column *c, size_t row) {
    uint32_t value;
    memcpy(&value, c->bytes + row * sizeof value, sizeof value);
    return value;
}

static uint64_t u64_at(const column *c, size_t row) {
    uint64_t value;
    memcpy(&value, c->bytes + row * sizeof value, sizeof value);
    return value;
}

typedef struct step_arrays {
    column handles, token_ids, choices, counts, logprobs;
} step_arrays;

static void arrays_close(step_arrays *a) {
    Py_XDECREF(a->handles.object);
    Py_XDECREF(a->token_ids.object);
    Py_XDECREF(a->choices.object);
    Py_XDECREF(a->counts.object);
    Py_XDECREF(a->logprobs.object);
}

static int as_many(const column *c, const char *name, const column *as, const char *as_name) {
    if (!c->object || c->count == as->count)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s has %zu items and %s has %zu; they must be as many", name, c->count,
                 as_name, as->count);
    return -1;
}

/* Every token belongs to a row: as `counts` says, or one to each. */
static int check_lengths(const step_arrays *a) {
    if (as_many(&a->choices, "choices", &a->handles, "handles") < 0 ||
        as_many(&a->counts, "counts", &a->handles, "handles") < 0 ||
        as_many(&a->logprobs, "logprobs", &a->token_ids, "token_ids") < 0)
        return -1;
    if (!a->counts.object)
        return as_many(&a->token_ids, "token_ids", &a->handles, "handles");
    uint64_t tokens = 0;
    for (size_t row = 0; row < a->handles.count; row++)
        tokens += u32_at(&a->counts, row);
    if (tokens == a->token_ids.count)
        return 0;
    PyErr_Format(PyExc_ValueError, "token_ids has %zu items and counts add up to %llu; they must agree",
                 a->token_ids.count, (unsigned long long)tokens);
    return -1;
}

#define U32 "uint32", sizeof(uint32_t)
#define U64 "uint64", sizeof(uint64_t)
#define F32 "float32", sizeof(float)

static int arrays_open(step_arrays *a, const rk_py_arrays *from) {
    memset(a, 0, sizeof *a);
    if (column_open(&a->handles, from->handles, "handles", U64) < 0 ||
        column_open(&a->token_ids, from->token_ids, "token_ids", U32) < 0 ||
        column_open_if(&a->choices, from->choices, "choices", U32) < 0 ||
        column_open_if(&a->counts, from->counts, "counts", U32) < 0 ||
        column_open_if(&a->logprobs, from->logprobs, "logprobs", F32) < 0)
        return -1;
    return check_lengths(a);
}

/* A copy in the arena, as aligned as its items; never NULL but with an exception. */
static const void *copy_of(rk_step_reader *reader, const column *c, size_t size) {
    void *copy = rk_arena_alloc(reader->arena, c->count * size + 1);
    if (!copy)
        (void)PyErr_NoMemory();
    else
        memcpy(copy, c->bytes, c->count * size);
    return copy;
}

static int add_rows(rk_step_reader *reader, const step_arrays *a) {
    const uint32_t *tokens = copy_of(reader, &a->token_ids, sizeof *tokens);
    const float *logprobs = a->logprobs.object ? copy_of(reader, &a->logprobs, sizeof *logprobs) : NULL;
    if (!tokens || (a->logprobs.object && !logprobs))
        return -1;
    for (size_t row = 0; row < a->handles.count; row++) {
        rk_output output = {.counted = true};
        output.handle = u64_at(&a->handles, row);
        output.choice = a->choices.object ? u32_at(&a->choices, row) : 0;
        output.token_count = a->counts.object ? u32_at(&a->counts, row) : 1;
        output.token_ids = tokens;
        tokens += output.token_count;
        if (logprobs) {
            output.logprobs = logprobs;
            output.logprob_count = output.token_count;
            logprobs += output.token_count;
        }
        if (rk_reader_append(reader, &output) < 0)
            return -1;
    }
    return 0;
}

/* (row, finish): the row's last output. A finish that cannot be read leaves its row out. */
static int add_end(rk_step_reader *reader, PyObject *end, Py_ssize_t at, bool *bad) {
    PyObject *number = PyTuple_Check(end) && PyTuple_Size(end) == 2 ? PyTuple_GetItem(end, 0) : NULL;
    uint32_t row;
    if (!number || rk_py_u32(number, &row) < 0 || row >= reader->count) {
        PyErr_Format(PyExc_ValueError, "it is %R; it must be (row, finish), with a row below %zu", end,
                     reader->count);
        return rk_reader_note_bad(reader, "ends", at, NULL);
    }
    if (rk_reader_finish(reader, PyTuple_GetItem(end, 1), &reader->outputs[row]) == 0)
        return 0;
    int result = rk_reader_note_bad(reader, "ends", at, &reader->outputs[row]);
    *bad = true;
    reader->outputs[row].handle = 0;
    return result;
}

/* `items`: a list. */
static int add_ends(rk_step_reader *reader, PyObject *items) {
    int result = 0;
    bool bad = false;
    for (Py_ssize_t i = 0; result == 0 && i < PyList_Size(items); i++)
        result = add_end(reader, PyList_GetItem(items, i), i, &bad);
    size_t kept = 0;
    for (size_t row = 0; bad && row < reader->count; row++)
        if (reader->outputs[row].handle != 0)
            reader->outputs[kept++] = reader->outputs[row];
    if (bad)
        reader->count = kept;
    return result;
}

int rk_py_push_tokens(rk_module_state *state, rk_servicer *servicer, const rk_py_arrays *from) {
    step_arrays arrays;
    rk_step_reader reader;
    PyObject *ends = NULL;
    int result = arrays_open(&arrays, from);
    if (result == 0) {
        ends = PySequence_List(from->ends);
        result = ends ? 0 : -1;
    }
    if (result == 0)
        result = rk_reader_open(&reader, state);
    if (result == 0) {
        result = add_rows(&reader, &arrays);
        if (result == 0)
            result = add_ends(&reader, ends);
        result = rk_reader_close(&reader, servicer, result);
    }
    Py_XDECREF(ends);
    arrays_close(&arrays);
    return result;
}
