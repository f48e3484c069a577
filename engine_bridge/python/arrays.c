/* One step as arrays: handles and token ids of all its outputs in two buffers, and a few words on those that
 * end. No Python object is made or read per token. The counts are the servicer's own (rk_output.counted).
 *
 * The stable ABI has no buffers before Python 3.11, so what is no `bytes` is copied into one: a copy a step.
 * GIL. */
#include <string.h>

#include "module.h"

/* A buffer of `count` items of `size` bytes; `object` keeps it alive. */
typedef struct column {
    PyObject *object;
    const char *bytes;
    size_t count;
} column;

/* The bytes of a buffer whose items are of `size`. An array of another width is a mistake; plain bytes are
 * taken as they are. NULL with an exception. */
static PyObject *bytes_of(PyObject *from, const char *name, size_t size) {
    if (PyBytes_Check(from))
        return Py_NewRef(from);
    PyObject *view = PyMemoryView_FromObject(from);
    if (!view) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_TypeError, "%s is %R; it must be a buffer of native uint%zu", name, from,
                         8 * size);
        return NULL;
    }
    PyObject *width = PyObject_GetAttrString(view, "itemsize");
    size_t items = width ? PyLong_AsSize_t(width) : 0;
    Py_XDECREF(width);
    PyObject *bytes = NULL;
    if (items == size || items == 1)
        bytes = PyObject_CallMethod(view, "tobytes", NULL);
    else if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "%s has items of %zu bytes; it must be a buffer of native uint%zu",
                     name, items, 8 * size);
    Py_DECREF(view);
    return bytes;
}

static int column_open(column *c, PyObject *from, const char *name, size_t size) {
    c->object = bytes_of(from, name, size);
    if (!c->object)
        return -1;
    size_t bytes = (size_t)PyBytes_Size(c->object);
    c->bytes = PyBytes_AsString(c->object);
    c->count = bytes / size;
    if (bytes % size == 0)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s has %zu bytes; native uint%zu take a multiple of %zu", name, bytes,
                 8 * size, size);
    return -1;
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
    column handles, token_ids, choices, counts;
} step_arrays;

static void arrays_close(step_arrays *a) {
    Py_XDECREF(a->handles.object);
    Py_XDECREF(a->token_ids.object);
    Py_XDECREF(a->choices.object);
    Py_XDECREF(a->counts.object);
}

static int as_many(const column *c, const char *name, size_t rows) {
    if (!c->object || c->count == rows)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s has %zu items and handles has %zu; they must be as many", name,
                 c->count, rows);
    return -1;
}

/* Every token belongs to a row: as `counts` says, or one to each. */
static int check_lengths(const step_arrays *a) {
    size_t rows = a->handles.count;
    if (as_many(&a->choices, "choices", rows) < 0 || as_many(&a->counts, "counts", rows) < 0)
        return -1;
    if (!a->counts.object)
        return as_many(&a->token_ids, "token_ids", rows);
    uint64_t tokens = 0;
    for (size_t row = 0; row < rows; row++)
        tokens += u32_at(&a->counts, row);
    if (tokens == a->token_ids.count)
        return 0;
    PyErr_Format(PyExc_ValueError, "token_ids has %zu items and counts add up to %llu; they must agree",
                 a->token_ids.count, (unsigned long long)tokens);
    return -1;
}

static int arrays_open(step_arrays *a, const rk_py_arrays *from) {
    memset(a, 0, sizeof *a);
    if (column_open(&a->handles, from->handles, "handles", sizeof(uint64_t)) < 0 ||
        column_open(&a->token_ids, from->token_ids, "token_ids", sizeof(uint32_t)) < 0 ||
        (from->choices != Py_None &&
         column_open(&a->choices, from->choices, "choices", sizeof(uint32_t)) < 0) ||
        (from->counts != Py_None && column_open(&a->counts, from->counts, "counts", sizeof(uint32_t)) < 0))
        return -1;
    return check_lengths(a);
}

/* The tokens as they lie in the arena: of row after row. */
static const uint32_t *copy_tokens(rk_step_reader *reader, const column *ids) {
    uint32_t *tokens = rk_arena_alloc(reader->arena, ids->count * sizeof *tokens + 1);
    if (!tokens)
        (void)PyErr_NoMemory();
    else
        memcpy(tokens, ids->bytes, ids->count * sizeof *tokens);
    return tokens;
}

static int add_rows(rk_step_reader *reader, const step_arrays *a) {
    const uint32_t *tokens = copy_tokens(reader, &a->token_ids);
    if (!tokens)
        return -1;
    for (size_t row = 0; row < a->handles.count; row++) {
        rk_output output = {.counted = true};
        output.handle = u64_at(&a->handles, row);
        output.choice = a->choices.object ? u32_at(&a->choices, row) : 0;
        output.token_count = a->counts.object ? u32_at(&a->counts, row) : 1;
        output.token_ids = tokens;
        tokens += output.token_count;
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

static int add_ends(rk_step_reader *reader, PyObject *ends) {
    PyObject *items = PySequence_List(ends);
    if (!items)
        return -1;
    int result = 0;
    bool bad = false;
    for (Py_ssize_t i = 0; result == 0 && i < PyList_Size(items); i++)
        result = add_end(reader, PyList_GetItem(items, i), i, &bad);
    Py_DECREF(items);
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
    int result = arrays_open(&arrays, from);
    if (result == 0)
        result = rk_reader_open(&reader, state);
    if (result == 0) {
        result = add_rows(&reader, &arrays);
        if (result == 0)
            result = add_ends(&reader, from->ends);
        result = rk_reader_close(&reader, servicer, result);
    }
    arrays_close(&arrays);
    return result;
}
