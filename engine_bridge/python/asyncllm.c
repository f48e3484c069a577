/* TokenSpeed's output dicts:
 *
 *   {"output_ids": [...], "meta_info": {"finish_reason", "prompt_tokens", "completion_tokens",
 * "cached_tokens", "output_token_logprobs": [(logprob, id, text)], "output_top_logprobs": [[...] or None],
 * …}}
 *
 * `output_ids` may be all tokens so far, the new ones, or several outputs run together, and a chat header may
 * stand before them; `completion_tokens` counts the choice's tokens so far. So the new tokens are the last
 * (completion_tokens - pushed) ones, whatever the mode. GIL. */
#include <math.h>

#include "module.h"

/* A key's value, borrowed; NULL for absent, None or (with an exception) an error. */
static PyObject *get(PyObject *dict, PyObject *key) {
    PyObject *value = PyDict_GetItemWithError(dict, key);
    return value == Py_None ? NULL : value;
}

static int count_of(PyObject *meta, PyObject *key, uint32_t *out, bool *present) {
    PyObject *number = get(meta, key);
    if (present)
        *present = number != NULL;
    if (!number)
        return PyErr_Occurred() ? -1 : 0;
    if (rk_py_u32(number, out) == 0)
        return 0;
    PyErr_Format(PyExc_ValueError, "meta_info[%R] is %R; it must be a whole number from 0 to %u", key, number,
                 UINT32_MAX);
    return -1;
}

static int read_counts(rk_step_reader *reader, PyObject *meta, rk_output *output, bool *counted) {
    rk_module_state *names = reader->state;
    return count_of(meta, names->str_prompt_tokens, &output->prompt_tokens, NULL) < 0 ||
                   count_of(meta, names->str_completion_tokens, &output->completion_tokens, counted) < 0 ||
                   count_of(meta, names->str_cached_tokens, &output->cached_tokens, NULL) < 0 ||
                   count_of(meta, names->str_spec_accepted_tokens, &output->spec_accepted_tokens, NULL) < 0 ||
                   count_of(meta, names->str_spec_draft_tokens, &output->spec_draft_tokens, NULL) < 0
               ? -1
               : 0;
}

/* The version is the same object in every output of a step, and is copied once. */
static int read_version(rk_step_reader *reader, PyObject *meta, rk_output *output) {
    PyObject *version = get(meta, reader->state->str_weight_version);
    if (!version)
        return PyErr_Occurred() ? -1 : 0;
    if (version != reader->version) {
        const char *text;
        size_t bytes;
        if (rk_reader_text(reader, version, &text, &bytes) < 0)
            return -1;
        Py_XDECREF(reader->version);
        reader->version = Py_NewRef(version);
        reader->version_text = text;
    }
    output->weight_version = reader->version_text;
    return 0;
}

/* Where the new tokens are among `given`. */
static size_t fresh_tokens(const rk_py_choice *choice, size_t given, bool counted, uint64_t completion) {
    uint64_t fresh = given;
    if (counted)
        fresh = completion > choice->pushed ? completion - choice->pushed : 0;
    else if (choice->cumulative)
        fresh = given > choice->pushed ? given - choice->pushed : 0;
    return fresh < given ? (size_t)fresh : given;
}

static int read_tokens(rk_step_reader *reader, const rk_py_choice *choice, PyObject *dict, bool counted,
                       rk_output *output) {
    PyObject *ids = get(dict, reader->state->str_output_ids);
    if (!ids)
        return PyErr_Occurred() ? -1 : 0;
    if (PyList_Check(ids) || PyTuple_Check(ids))
        Py_INCREF(ids);
    else if (!(ids = PySequence_List(ids)))
        return -1;
    size_t given = (size_t)PySequence_Size(ids);
    output->token_count = fresh_tokens(choice, given, counted, output->completion_tokens);
    int result =
        rk_reader_tokens(reader, ids, given - output->token_count, output->token_count, &output->token_ids);
    Py_DECREF(ids);
    return result;
}

/* ---- logprobs ---- */

/* A position: (logprob, token id, text). A logprob that is None is not a number on the wire either. */
static int read_entry(PyObject *entry, float *logprob, uint32_t *id) {
    PyObject *value = PySequence_Check(entry) ? PySequence_GetItem(entry, 0) : NULL;
    PyObject *token = value ? PySequence_GetItem(entry, 1) : NULL;
    double number = value && value != Py_None ? PyFloat_AsDouble(value) : (double)NAN;
    int result = token && !PyErr_Occurred() ? rk_py_u32(token, id) : -1;
    *logprob = (float)number;
    Py_XDECREF(value);
    Py_XDECREF(token);
    if (result < 0) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "a logprob is %R; it must be (logprob, token id, text)", entry);
    }
    return result;
}

static int read_entries(rk_step_reader *reader, PyObject *list, size_t from, size_t count,
                        const float **logprobs, const uint32_t **ids) {
    float *values = rk_arena_alloc(reader->arena, count * sizeof *values);
    uint32_t *tokens = rk_arena_alloc(reader->arena, count * sizeof *tokens);
    if (!values || !tokens) {
        (void)PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        PyObject *entry = PySequence_GetItem(list, (Py_ssize_t)(from + i));
        int result = entry ? read_entry(entry, &values[i], &tokens[i]) : -1;
        Py_XDECREF(entry);
        if (result < 0)
            return -1;
    }
    *logprobs = values;
    *ids = tokens;
    return 0;
}

/* A list as long as all tokens so far is all of them, and is read by position: the engine may have grown it
 * since. A shorter one ends with this output's last token. */
static size_t entries_start(size_t size, size_t count, bool counted, uint64_t completion) {
    if (counted && size >= completion && completion >= count)
        return (size_t)completion - count;
    return size - count;
}

static int read_top(rk_step_reader *reader, PyObject *meta, size_t start, rk_output *output) {
    PyObject *list = get(meta, reader->state->str_output_top_logprobs);
    Py_ssize_t size = list && PyList_Check(list) ? PyList_Size(list) : 0;
    if (size == 0)
        return PyErr_Occurred() ? -1 : 0;
    rk_top_logprobs *tops = rk_arena_alloc(reader->arena, output->logprob_count * sizeof *tops);
    if (!tops) {
        (void)PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < output->logprob_count; i++) {
        tops[i] = (rk_top_logprobs){NULL, NULL, 0};
        if ((Py_ssize_t)(start + i) >= size)
            continue;
        PyObject *entry = PyList_GetItem(list, (Py_ssize_t)(start + i));
        if (!entry)
            return -1;
        if (entry == Py_None)
            continue;
        Py_INCREF(entry);
        Py_ssize_t count = PySequence_Size(entry);
        int result = count < 0
                         ? -1
                         : read_entries(reader, entry, 0, (size_t)count, &tops[i].values, &tops[i].token_ids);
        Py_DECREF(entry);
        if (result < 0)
            return -1;
        tops[i].count = (size_t)count;
    }
    output->top_logprobs = tops;
    return 0;
}

static int read_logprobs(rk_step_reader *reader, PyObject *meta, bool counted, rk_output *output) {
    PyObject *list = get(meta, reader->state->str_output_token_logprobs);
    if (!list || output->token_count == 0)
        return PyErr_Occurred() ? -1 : 0;
    if (!PyList_Check(list) && !PyTuple_Check(list)) {
        PyErr_Format(PyExc_ValueError, "meta_info['output_token_logprobs'] is %R; it must be a list", list);
        return -1;
    }
    size_t size = (size_t)PySequence_Size(list);
    size_t count = size < output->token_count ? size : output->token_count;
    if (count == 0)
        return 0;
    size_t start = entries_start(size, count, counted, output->completion_tokens);
    output->logprob_count = count;
    Py_INCREF(list);
    int result = read_entries(reader, list, start, count, &output->logprobs, &output->logprob_ids);
    Py_DECREF(list);
    return result < 0 ? -1 : read_top(reader, meta, start, output);
}

static int read_parts(rk_step_reader *reader, rk_py_choice *choice, PyObject *dict, PyObject *meta,
                      rk_output *output) {
    bool counted = false;
    if (read_counts(reader, meta, output, &counted) < 0 ||
        read_tokens(reader, choice, dict, counted, output) < 0 ||
        read_logprobs(reader, meta, counted, output) < 0 || read_version(reader, meta, output) < 0 ||
        rk_reader_finish(reader, get(meta, reader->state->str_finish_reason), output) < 0)
        return -1;
    uint64_t pushed = choice->pushed + output->token_count;
    choice->pushed = counted && output->completion_tokens > pushed ? output->completion_tokens : pushed;
    if (!counted)
        output->completion_tokens = (uint32_t)choice->pushed;
    choice->finished = output->finish != RK_FINISH_NONE;
    return 0;
}

int rk_reader_asyncllm(rk_step_reader *reader, rk_py_choice *choice, PyObject *dict, rk_output *output) {
    if (!PyDict_Check(dict)) {
        PyErr_Format(PyExc_TypeError, "an output is %R; it must be a dict", dict);
        return -1;
    }
    PyObject *meta = get(dict, reader->state->str_meta_info);
    if (!meta && PyErr_Occurred())
        return -1;
    if (meta && !PyDict_Check(meta)) {
        PyErr_Format(PyExc_TypeError, "meta_info is %R; it must be a dict", meta);
        return -1;
    }
    meta = meta ? Py_NewRef(meta) : PyDict_New();
    int result = meta ? read_parts(reader, choice, dict, meta, output) : -1;
    Py_XDECREF(meta);
    return result;
}
