/* One step's outputs on their way to the core: tuples of plain values, and what both shapes share.
 *
 * Everything an output points to is copied into the step's arena, so that nothing depends on what Python
 * code does meanwhile. An output that cannot be read is named and left out; the rest goes through. GIL. */
#include <stdlib.h>
#include <string.h>

#include "module.h"

#define STEP_BYTES_MAX ((size_t)1 << 30) /* of copied values in one push */

int rk_py_u32(PyObject *number, uint32_t *out) {
    unsigned long value;
    if (PyLong_Check(number)) {
        value = PyLong_AsUnsignedLong(number);
    } else {
        PyObject *whole = PyNumber_Index(number);
        value = whole ? PyLong_AsUnsignedLong(whole) : (unsigned long)-1;
        Py_XDECREF(whole);
    }
    if (value == (unsigned long)-1 && PyErr_Occurred()) {
        PyErr_Clear();
        return -1;
    }
    if (value > UINT32_MAX)
        return -1;
    *out = (uint32_t)value;
    return 0;
}

static void *alloc(rk_step_reader *reader, size_t bytes) {
    void *at = rk_arena_alloc(reader->arena, bytes);
    if (!at)
        (void)PyErr_NoMemory();
    return at;
}

static int bytes_tokens(rk_step_reader *reader, PyObject *ids, size_t from, size_t count,
                        const uint32_t **out) {
    uint32_t *tokens = alloc(reader, count * sizeof *tokens);
    if (!tokens)
        return -1;
    memcpy(tokens, PyBytes_AsString(ids) + from * sizeof *tokens, count * sizeof *tokens);
    *out = tokens;
    return 0;
}

int rk_reader_tokens(rk_step_reader *reader, PyObject *ids, size_t from, size_t count, const uint32_t **out) {
    if (PyBytes_Check(ids))
        return bytes_tokens(reader, ids, from, count, out);
    uint32_t *tokens = alloc(reader, count * sizeof *tokens);
    bool list = PyList_Check(ids);
    for (size_t i = 0; tokens && i < count; i++) {
        Py_ssize_t at = (Py_ssize_t)(from + i);
        PyObject *id = list ? PyList_GetItem(ids, at) : PyTuple_GetItem(ids, at);
        if (!id)
            return -1;
        if (rk_py_u32(id, &tokens[i]) < 0) {
            PyErr_Format(PyExc_ValueError, "token_ids[%zd] is %R; a token id is a whole number from 0 to %u",
                         at, id, UINT32_MAX);
            return -1;
        }
    }
    *out = tokens;
    return tokens ? 0 : -1;
}

int rk_reader_text(rk_step_reader *reader, PyObject *object, const char **text, size_t *bytes) {
    PyObject *string = PyUnicode_Check(object) ? Py_NewRef(object) : PyObject_Str(object);
    PyObject *encoded = string ? PyUnicode_AsEncodedString(string, "utf-8", "replace") : NULL;
    Py_XDECREF(string);
    if (!encoded)
        return -1;
    *bytes = (size_t)PyBytes_Size(encoded);
    *text = rk_arena_strndup(reader->arena, PyBytes_AsString(encoded), *bytes);
    Py_DECREF(encoded);
    if (!*text)
        (void)PyErr_NoMemory();
    return *text ? 0 : -1;
}

/* ---- finish reasons ---- */

static int read_kind(PyObject *type, rk_finish *finish) {
    static const struct {
        const char *name;
        rk_finish finish;
    } kinds[] = {{"stop", RK_FINISH_STOP}, {"length", RK_FINISH_LENGTH}, {"abort", RK_FINISH_ABORT}};
    for (size_t i = 0; PyUnicode_Check(type) && i < sizeof kinds / sizeof kinds[0]; i++) {
        if (PyUnicode_CompareWithASCIIString(type, kinds[i].name) == 0) {
            *finish = kinds[i].finish;
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError, "finish reason %R is unknown; it must be stop, length or abort", type);
    return -1;
}

/* What the engine says matched. A list, or a number that is no token id, says nothing we could pass on. */
static int read_matched(rk_step_reader *reader, PyObject *matched, rk_output *output) {
    if (PyUnicode_Check(matched)) {
        output->matched = RK_MATCHED_STRING;
        return rk_reader_text(reader, matched, &output->matched_string, &output->matched_bytes);
    }
    if (PyLong_Check(matched) && !PyBool_Check(matched) && rk_py_u32(matched, &output->matched_token_id) == 0)
        output->matched = RK_MATCHED_TOKEN;
    return 0;
}

/* TokenSpeed loses the status of its aborts on the way to the frontend. What its grammar backend does not
 * take is the client's to mend, so it is told from the engine's own faults by the engine's words. */
static bool is_about_a_constraint(const char *message, size_t bytes) {
    static const char *const openings[] = {"Failed to compile ", "Grammar-based generation "};
    for (size_t i = 0; i < sizeof openings / sizeof openings[0]; i++) {
        size_t length = strlen(openings[i]);
        if (bytes >= length && memcmp(message, openings[i], length) == 0)
            return true;
    }
    return false;
}

static int read_failure(rk_step_reader *reader, PyObject *reason, rk_output *output) {
    PyObject *status = PyDict_GetItemWithError(reason, reader->state->str_status_code);
    uint32_t number;
    if (status && PyLong_Check(status) && rk_py_u32(status, &number) == 0 && number < 1000)
        output->http_status = (int)number;
    PyObject *message = PyDict_GetItemWithError(reason, reader->state->str_message);
    if (!message || message == Py_None)
        return PyErr_Occurred() ? -1 : 0;
    if (rk_reader_text(reader, message, &output->message, &output->message_bytes) < 0)
        return -1;
    if (output->http_status == 0 && is_about_a_constraint(output->message, output->message_bytes))
        output->http_status = 400;
    return 0;
}

static int finish_dict(rk_step_reader *reader, PyObject *reason, rk_output *output) {
    PyObject *type = PyDict_GetItemWithError(reason, reader->state->str_type);
    if (!type) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "finish reason %R has no type; it must be stop, length or abort",
                         reason);
        return -1;
    }
    if (read_kind(type, &output->finish) < 0)
        return -1;
    PyObject *matched = PyDict_GetItemWithError(reason, reader->state->str_matched);
    if (output->finish == RK_FINISH_STOP && matched && read_matched(reader, matched, output) < 0)
        return -1;
    return output->finish == RK_FINISH_ABORT ? read_failure(reader, reason, output) : 0;
}

int rk_reader_finish(rk_step_reader *reader, PyObject *finish, rk_output *output) {
    if (!finish || finish == Py_None)
        return 0;
    if (PyUnicode_Check(finish))
        return read_kind(finish, &output->finish);
    if (PyDict_Check(finish))
        return finish_dict(reader, finish, output);
    Py_INCREF(finish); /* borrowed from a dict that the call below may change */
    PyObject *to_json = PyObject_GetAttr(finish, reader->state->str_to_json);
    PyObject *reason = to_json ? PyObject_CallObject(to_json, NULL) : NULL;
    Py_XDECREF(to_json);
    int result = -1;
    if (reason && PyDict_Check(reason))
        result = finish_dict(reader, reason, output);
    else if (reason || PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Format(PyExc_ValueError,
                     "finish reason %R is neither None, str, dict nor an object whose "
                     "to_json() gives a dict",
                     finish);
    Py_XDECREF(reason);
    Py_DECREF(finish);
    return result;
}

/* ---- tuples ---- */

static int read_count(PyObject *number, const char *name, uint32_t *out) {
    if (rk_py_u32(number, out) == 0)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s is %R; it must be a whole number from 0 to %u", name, number,
                 UINT32_MAX);
    return -1;
}

static int tuple_tokens(rk_step_reader *reader, PyObject *ids, rk_output *output) {
    if (PyBytes_Check(ids)) {
        size_t bytes = (size_t)PyBytes_Size(ids);
        if (bytes % sizeof(uint32_t) != 0) {
            PyErr_Format(PyExc_ValueError, "token_ids are %zu bytes; native uint32 take a multiple of 4",
                         bytes);
            return -1;
        }
        output->token_count = bytes / sizeof(uint32_t);
        return bytes_tokens(reader, ids, 0, output->token_count, &output->token_ids);
    }
    PyObject *items = PyList_Check(ids) || PyTuple_Check(ids) ? Py_NewRef(ids) : PySequence_List(ids);
    if (!items)
        return -1;
    output->token_count = (size_t)PySequence_Size(items);
    int result = rk_reader_tokens(reader, items, 0, output->token_count, &output->token_ids);
    Py_DECREF(items);
    return result;
}

#define TUPLE_ITEMS 7

/* Who it is about comes first, so that a bad output can be named. */
static int tuple_head(PyObject *item, rk_output *output) {
    if (!PyTuple_Check(item) || PyTuple_Size(item) != TUPLE_ITEMS) {
        PyErr_Format(PyExc_TypeError,
                     "an output is a tuple of %d: (handle, choice, token_ids, finish, "
                     "prompt_tokens, completion_tokens, cached_tokens)",
                     TUPLE_ITEMS);
        return -1;
    }
    PyObject *handle = PyTuple_GetItem(item, 0);
    output->handle = PyLong_Check(handle) ? PyLong_AsUnsignedLongLong(handle) : 0;
    if (!PyLong_Check(handle) || PyErr_Occurred()) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "handle is %R; it must be one that take() gave", handle);
        return -1;
    }
    return read_count(PyTuple_GetItem(item, 1), "choice", &output->choice);
}

static int read_tuple(rk_step_reader *reader, PyObject *item, rk_output *output) {
    if (tuple_tokens(reader, PyTuple_GetItem(item, 2), output) < 0 ||
        rk_reader_finish(reader, PyTuple_GetItem(item, 3), output) < 0)
        return -1;
    return read_count(PyTuple_GetItem(item, 4), "prompt_tokens", &output->prompt_tokens) < 0 ||
                   read_count(PyTuple_GetItem(item, 5), "completion_tokens", &output->completion_tokens) <
                       0 ||
                   read_count(PyTuple_GetItem(item, 6), "cached_tokens", &output->cached_tokens) < 0
               ? -1
               : 0;
}

/* ---- the step ---- */

int rk_reader_append(rk_step_reader *reader, const rk_output *output) {
    if (reader->count == reader->capacity) {
        size_t capacity = reader->capacity ? 2 * reader->capacity : 64;
        rk_output *larger = realloc(reader->outputs, capacity * sizeof *larger);
        if (!larger) {
            (void)PyErr_NoMemory();
            return -1;
        }
        reader->outputs = larger;
        reader->capacity = capacity;
    }
    reader->outputs[reader->count++] = *output;
    return 0;
}

int rk_reader_note_bad(rk_step_reader *reader, const char *what, Py_ssize_t at, const rk_output *about) {
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (!reader->error)
        reader->error = PyUnicode_FromFormat("%s[%zd]: %S", what, at, value);
    if (!reader->failed)
        reader->failed = PyList_New(0);
    PyObject *who =
        about ? Py_BuildValue("(KI)", (unsigned long long)about->handle, (unsigned)about->choice) : NULL;
    if (who && reader->failed)
        (void)PyList_Append(reader->failed, who);
    Py_XDECREF(who);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    PyErr_Clear();
    return reader->error && reader->failed ? 0 : -1;
}

static int raise_bad(rk_step_reader *reader) {
    PyObject *error = PyObject_CallFunctionObjArgs(reader->state->bad_output_error, reader->error, NULL);
    if (error && PyObject_SetAttrString(error, "failed", reader->failed) == 0)
        PyErr_SetObject(reader->state->bad_output_error, error);
    Py_XDECREF(error);
    return -1;
}

int rk_reader_open(rk_step_reader *reader, rk_module_state *state) {
    memset(reader, 0, sizeof *reader);
    reader->state = state;
    reader->arena = rk_arena_new(STEP_BYTES_MAX);
    if (!reader->arena)
        (void)PyErr_NoMemory();
    return reader->arena ? 0 : -1;
}

int rk_reader_close(rk_step_reader *reader, rk_servicer *servicer, int result) {
    if (reader->count > 0)
        rk_sink_push(servicer, reader->outputs, reader->count);
    if (result == 0 && reader->error)
        result = raise_bad(reader);
    free(reader->outputs);
    rk_arena_free(reader->arena);
    Py_XDECREF(reader->version);
    Py_XDECREF(reader->error);
    Py_XDECREF(reader->failed);
    return result;
}

static int add_tuple(rk_step_reader *reader, PyObject *item, Py_ssize_t at) {
    rk_output output = {0};
    if (tuple_head(item, &output) < 0)
        return rk_reader_note_bad(reader, "step", at, NULL);
    if (read_tuple(reader, item, &output) < 0)
        return rk_reader_note_bad(reader, "step", at, &output);
    return rk_reader_append(reader, &output);
}

int rk_py_push(rk_module_state *state, rk_servicer *servicer, PyObject *step) {
    PyObject *items = PySequence_List(step);
    rk_step_reader reader;
    if (!items || rk_reader_open(&reader, state) < 0) {
        Py_XDECREF(items);
        return -1;
    }
    int result = 0;
    for (Py_ssize_t i = 0; result == 0 && i < PyList_Size(items); i++)
        result = add_tuple(&reader, PyList_GetItem(items, i), i);
    Py_DECREF(items);
    return rk_reader_close(&reader, servicer, result);
}

static int add_dict(rk_step_reader *reader, PyObject *item, Py_ssize_t at) {
    rk_output output = {0};
    PyObject *choice = PyTuple_Check(item) && PyTuple_Size(item) == 2 ? PyTuple_GetItem(item, 0) : NULL;
    if (!choice || !PyObject_TypeCheck(choice, reader->state->choice_type)) {
        PyErr_SetString(PyExc_TypeError, "an output is a tuple of 2: (Choice, dict)");
        return rk_reader_note_bad(reader, "step", at, NULL);
    }
    rk_py_choice *request = (rk_py_choice *)choice;
    if (request->finished)
        return 0; /* late: nobody is left to hear it */
    output.handle = request->handle;
    output.choice = request->choice;
    if (rk_reader_asyncllm(reader, request, PyTuple_GetItem(item, 1), &output) < 0)
        return rk_reader_note_bad(reader, "step", at, &output);
    return rk_reader_append(reader, &output);
}

int rk_py_push_asyncllm(rk_module_state *state, rk_servicer *servicer, PyObject *step) {
    PyObject *items = PySequence_List(step);
    rk_step_reader reader;
    if (!items || rk_reader_open(&reader, state) < 0) {
        Py_XDECREF(items);
        return -1;
    }
    int result = 0;
    for (Py_ssize_t i = 0; result == 0 && i < PyList_Size(items); i++)
        result = add_dict(&reader, PyList_GetItem(items, i), i);
    Py_DECREF(items);
    return rk_reader_close(&reader, servicer, result);
}
