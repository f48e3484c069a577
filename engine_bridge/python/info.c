/* The worker's description: a dict whose keys are the fields of rk_worker_info. GIL. */
#include <stddef.h>
#include <string.h>

#include "module.h"

typedef enum rk_info_type {
    RK_INFO_BOOL,
    RK_INFO_U32,
    RK_INFO_U64,
    RK_INFO_I32,
    RK_INFO_TEXT,
    RK_INFO_TEXTS,
    RK_INFO_I32S,
} rk_info_type;

typedef struct rk_info_key {
    const char *name;
    rk_info_type type;
    size_t offset;
    size_t count_offset; /* of the array's length */
} rk_info_key;

#define ROW(field, type)                                                                                     \
    { #field, type, offsetof(rk_worker_info, field), 0 }
#define ROWS(name, field, count, type)                                                                       \
    { name, type, offsetof(rk_worker_info, field), offsetof(rk_worker_info, count) }

static const rk_info_key keys[] = {
    ROW(ranks, RK_INFO_U32),
    ROW(window, RK_INFO_U32),
    ROW(kv_tokens, RK_INFO_U64),
    ROW(page_tokens, RK_INFO_U32),
    ROW(vocab_size, RK_INFO_U32),
    ROW(max_context, RK_INFO_U32),
    ROW(skip_warmup, RK_INFO_BOOL),
    ROW(model_path, RK_INFO_TEXT),
    ROW(tokenizer_path, RK_INFO_TEXT),
    ROW(served_model_name, RK_INFO_TEXT),
    ROW(model_type, RK_INFO_TEXT),
    ROWS("architectures", architectures, architecture_count, RK_INFO_TEXTS),
    ROW(max_req_input_len, RK_INFO_U32),
    ROWS("eos_token_ids", eos_token_ids, eos_token_id_count, RK_INFO_I32S),
    ROW(pad_token_id, RK_INFO_I32),
    ROW(bos_token_id, RK_INFO_I32),
    ROW(weight_version, RK_INFO_TEXT),
    ROW(default_sampling_params_json, RK_INFO_TEXT),
    ROW(supports_vision, RK_INFO_BOOL),
    ROWS("modalities", modalities, modality_count, RK_INFO_I32S),
    ROW(model_dtype, RK_INFO_TEXT),
    ROW(multimodal_encoder_dtype, RK_INFO_TEXT),
    ROW(engine_version, RK_INFO_TEXT),
    ROW(constrained_decoding, RK_INFO_TEXT),
    ROW(kv_endpoint, RK_INFO_TEXT),
    ROW(kv_replay_endpoint, RK_INFO_TEXT),
    ROW(kv_topic, RK_INFO_TEXT),
    ROW(kv_replay_batches, RK_INFO_U32),
};

static int read_text(PyObject *object, const char **text) {
    Py_ssize_t bytes = 0;
    *text = PyUnicode_Check(object) ? PyUnicode_AsUTF8AndSize(object, &bytes) : NULL;
    if (!PyUnicode_Check(object))
        PyErr_SetString(PyExc_TypeError, "it must be a str");
    else if (*text && strlen(*text) != (size_t)bytes)
        PyErr_SetString(PyExc_ValueError, "it must not contain NUL");
    return PyErr_Occurred() ? -1 : 0;
}

static int read_number(PyObject *object, long long min, unsigned long long max, long long *number) {
    PyObject *whole = PyNumber_Index(object);
    if (!whole)
        return -1;
    *number = PyLong_AsLongLong(whole);
    Py_DECREF(whole);
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_OverflowError))
        return -1;
    if (PyErr_Occurred() || *number < min || (*number > 0 && (unsigned long long)*number > max)) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "it is %S; it must be %lld to %llu", object, min, max);
        return -1;
    }
    return 0;
}

/* The list may be the only one that keeps its items alive, so they are copied. */
static int keep_text(rk_arena *arena, const char *text, const char **kept) {
    *kept = rk_arena_strndup(arena, text, strlen(text));
    if (!*kept)
        (void)PyErr_NoMemory();
    return *kept ? 0 : -1;
}

static int read_array(PyObject *object, const rk_info_key *key, rk_arena *arena, rk_worker_info *info) {
    PyObject *list = PySequence_List(object);
    if (!list)
        return -1;
    size_t count = (size_t)PyList_Size(list);
    bool texts = key->type == RK_INFO_TEXTS;
    void *array = rk_arena_alloc(arena, count * (texts ? sizeof(char *) : sizeof(int32_t)));
    int result = array ? 0 : -1;
    if (!array)
        (void)PyErr_NoMemory();
    for (size_t i = 0; result == 0 && i < count; i++) {
        PyObject *item = PyList_GetItem(list, (Py_ssize_t)i);
        const char *text = NULL;
        long long number = 0;
        result = texts ? read_text(item, &text) : read_number(item, INT32_MIN, INT32_MAX, &number);
        if (result == 0 && texts)
            result = keep_text(arena, text, &((const char **)array)[i]);
        else if (result == 0)
            ((int32_t *)array)[i] = (int32_t)number;
    }
    Py_DECREF(list);
    memcpy((char *)info + key->offset, &array, sizeof array);
    memcpy((char *)info + key->count_offset, &count, sizeof count);
    return result;
}

static int read_field(PyObject *object, const rk_info_key *key, rk_arena *arena, rk_worker_info *info) {
    void *at = (char *)info + key->offset;
    long long number = 0;
    int truth;
    switch (key->type) {
    case RK_INFO_BOOL:
        truth = PyObject_IsTrue(object);
        *(bool *)at = truth > 0;
        return truth < 0 ? -1 : 0;
    case RK_INFO_U32:
        if (read_number(object, 0, UINT32_MAX, &number) < 0)
            return -1;
        *(uint32_t *)at = (uint32_t)number;
        return 0;
    case RK_INFO_U64:
        if (read_number(object, 0, INT64_MAX, &number) < 0)
            return -1;
        *(uint64_t *)at = (uint64_t)number;
        return 0;
    case RK_INFO_I32:
        if (read_number(object, INT32_MIN, INT32_MAX, &number) < 0)
            return -1;
        *(int32_t *)at = (int32_t)number;
        return 0;
    case RK_INFO_TEXT:
        return read_text(object, (const char **)at);
    case RK_INFO_TEXTS:
    case RK_INFO_I32S:
        return read_array(object, key, arena, info);
    }
    return 0;
}

static int read_role(PyObject *object, rk_role *role) {
    const char *text;
    if (read_text(object, &text) < 0)
        return -1;
    for (int i = 0; i < RK_ROLES; i++) {
        if (strcmp(rk_role_name((rk_role)i), text) == 0) {
            *role = (rk_role)i;
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError, "it is %R; it must be null, prefill, decode or encode", object);
    return -1;
}

static int read_tree(PyObject *object, rk_value **tree) {
    if (object == Py_None)
        return 0;
    if (!PyDict_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "it must be a dict");
        return -1;
    }
    rk_value_free(*tree);
    *tree = rk_py_to_value(object);
    return *tree ? 0 : -1;
}

static int read_entry(const char *name, PyObject *object, rk_arena *arena, rk_worker_info *info,
                      rk_info_trees *trees) {
    if (strcmp(name, "role") == 0)
        return read_role(object, &info->role);
    if (strcmp(name, "server_args") == 0)
        return read_tree(object, &trees->server_args);
    if (strcmp(name, "scheduler_info") == 0)
        return read_tree(object, &trees->scheduler_info);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (strcmp(keys[i].name, name) == 0)
            return read_field(object, &keys[i], arena, info);
    PyErr_SetString(PyExc_TypeError, "there is no such field");
    return -1;
}

/* "worker info: role: it is 'encode'; …", of the same class. */
static void name_field(const char *name) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyErr_Format(type, "worker info: %s: %S", name, value);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
}

int rk_py_worker_info(PyObject *fields, rk_arena *arena, rk_worker_info *info, rk_info_trees *trees) {
    memset(info, 0, sizeof *info);
    info->ranks = 1;
    Py_ssize_t position = 0;
    PyObject *key, *value;
    while (PyDict_Next(fields, &position, &key, &value)) {
        const char *name = PyUnicode_Check(key) ? PyUnicode_AsUTF8AndSize(key, NULL) : "(not a str)";
        if (!name)
            return -1;
        if (read_entry(name, value, arena, info, trees) < 0) {
            name_field(name);
            return -1;
        }
    }
    if (info->ranks == 0) {
        PyErr_SetString(PyExc_ValueError, "worker info: ranks: it is 0; it must be at least 1");
        return -1;
    }
    info->server_args = trees->server_args;
    info->scheduler_info = trees->scheduler_info;
    return 0;
}
