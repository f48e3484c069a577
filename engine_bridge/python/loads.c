/* The engine's load report: a list of dicts, one a rank, to the core's rows. GIL. */
#include <stddef.h>
#include <stdlib.h>

#include "module.h"

typedef enum rk_load_type { RK_LOAD_I32, RK_LOAD_I64, RK_LOAD_DOUBLE } rk_load_type;

typedef struct rk_load_key {
    const char *name;
    rk_load_type type;
    size_t offset;
} rk_load_key;

static const rk_load_key keys[] = {
    {"rank", RK_LOAD_I32, offsetof(rk_engine_load, rank)},
    {"running", RK_LOAD_I32, offsetof(rk_engine_load, running)},
    {"waiting", RK_LOAD_I32, offsetof(rk_engine_load, waiting)},
    {"used_tokens", RK_LOAD_I64, offsetof(rk_engine_load, used_tokens)},
    {"max_total_tokens", RK_LOAD_I64, offsetof(rk_engine_load, max_total_tokens)},
    {"token_usage", RK_LOAD_DOUBLE, offsetof(rk_engine_load, token_usage)},
    {"active_token_usage", RK_LOAD_DOUBLE, offsetof(rk_engine_load, active_token_usage)},
    {"gen_throughput", RK_LOAD_DOUBLE, offsetof(rk_engine_load, gen_throughput)},
    {"cache_hit_rate", RK_LOAD_DOUBLE, offsetof(rk_engine_load, cache_hit_rate)},
};

static void store(rk_engine_load *load, const rk_load_key *key, double number) {
    void *at = (char *)load + key->offset;
    if (key->type == RK_LOAD_I32)
        *(int32_t *)at = (int32_t)number;
    else if (key->type == RK_LOAD_I64)
        *(int64_t *)at = (int64_t)number;
    else
        *(double *)at = number;
}

static int read_key(PyObject *dict, const rk_load_key *key, rk_engine_load *load) {
    PyObject *object = PyMapping_GetItemString(dict, key->name);
    if (!object) {
        if (!PyErr_ExceptionMatches(PyExc_KeyError))
            return -1;
        PyErr_Clear();
        return 0;
    }
    double number = PyFloat_AsDouble(object);
    Py_DECREF(object);
    if (number == -1.0 && PyErr_Occurred())
        return -1;
    double limit = key->type == RK_LOAD_I32 ? 2147483647.0 : 9007199254740992.0;
    if (!(number >= 0 && number <= limit)) {
        char text[64];
        (void)PyOS_snprintf(text, sizeof text, "%s is %g; it must be 0 to %.0f", key->name, number, limit);
        PyErr_SetString(PyExc_ValueError, text);
        return -1;
    }
    store(load, key, number);
    return 0;
}

static int read_load(PyObject *dict, rk_engine_load *load) {
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        store(load, &keys[i], -1); /* not known */
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (read_key(dict, &keys[i], load) < 0)
            return -1;
    if (load->rank < 0) {
        PyErr_SetString(PyExc_ValueError, "a load has no rank; give it as {\"rank\": 0, …}");
        return -1;
    }
    return 0;
}

int rk_py_loads(rk_servicer *servicer, PyObject *loads) {
    PyObject *list = PySequence_List(loads);
    if (!list)
        return -1;
    size_t count = (size_t)PyList_Size(list);
    rk_engine_load *rows = calloc(count ? count : 1, sizeof *rows);
    int result = rows ? 0 : -1;
    if (!rows)
        (void)PyErr_NoMemory();
    for (size_t i = 0; result == 0 && i < count; i++)
        result = read_load(PyList_GetItem(list, (Py_ssize_t)i), &rows[i]);
    if (result == 0)
        rk_sink_loads(servicer, rows, count);
    free(rows);
    Py_DECREF(list);
    return result;
}
