/* `Config`: the core's configuration as an object, and the table of its keys. GIL; one thread at a time. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "module.h"

static rk_module_state *state_of(PyObject *self) {
    return PyType_GetModuleState(Py_TYPE(self));
}

static PyObject *fail(PyObject *self, int result, const char *error) {
    if (result == -ENOMEM)
        return PyErr_NoMemory();
    PyErr_SetString(state_of(self)->config_error, error);
    return NULL;
}

static PyObject *config_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    if (PyTuple_Size(args) > 0 || (kwargs && PyDict_Size(kwargs) > 0)) {
        PyErr_SetString(PyExc_TypeError, "Config takes no arguments; use set and load");
        return NULL;
    }
    PyObject *self = PyType_GenericAlloc(type, 0);
    if (self && rk_config_init(&((rk_py_config *)self)->config) < 0) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return self;
}

static void config_dealloc(PyObject *self) {
    rk_config_free(&((rk_py_config *)self)->config);
    rk_py_free(self);
}

static PyObject *config_set(PyObject *self, PyObject *args) {
    const char *key, *value, *where;
    if (!PyArg_ParseTuple(args, "sss", &key, &value, &where))
        return NULL;
    char error[RK_CONFIG_ERROR_MAX] = "";
    int result = rk_config_set(&((rk_py_config *)self)->config, key, value, where, error);
    if (result < 0)
        return fail(self, result, error);
    Py_RETURN_NONE;
}

static PyObject *config_load(PyObject *self, PyObject *args) {
    const char *path;
    if (!PyArg_ParseTuple(args, "s", &path))
        return NULL;
    char error[RK_CONFIG_ERROR_MAX] = "";
    int result = rk_config_load(&((rk_py_config *)self)->config, path, error);
    if (result < 0)
        return fail(self, result, error);
    Py_RETURN_NONE;
}

static PyObject *config_check(PyObject *self, PyObject *unused) {
    (void)unused;
    char error[RK_CONFIG_ERROR_MAX] = "";
    int result = rk_config_check(&((rk_py_config *)self)->config, error);
    if (result < 0)
        return fail(self, result, error);
    Py_RETURN_NONE;
}

static bool key_exists(const char *name) {
    size_t count = 0;
    const rk_key *keys = rk_config_keys(&count);
    for (size_t i = 0; i < count; i++)
        if (strcmp(keys[i].name, name) == 0)
            return true;
    return false;
}

static PyObject *config_get(PyObject *self, PyObject *args) {
    const char *key;
    if (!PyArg_ParseTuple(args, "s", &key))
        return NULL;
    if (!key_exists(key)) {
        PyErr_SetString(PyExc_KeyError, key);
        return NULL;
    }
    char *text = rk_config_get(&((rk_py_config *)self)->config, key);
    if (!text)
        return PyErr_NoMemory();
    PyObject *result = PyUnicode_FromString(text);
    free(text);
    return result;
}

static PyObject *config_copy(PyObject *self, PyObject *unused) {
    (void)unused;
    PyObject *copy = PyType_GenericAlloc(Py_TYPE(self), 0);
    if (copy && rk_config_copy(&((rk_py_config *)copy)->config, &((rk_py_config *)self)->config) < 0) {
        Py_DECREF(copy);
        return PyErr_NoMemory();
    }
    return copy;
}

static const char *type_name(rk_key_type type) {
    static const char *const names[] = {
        [RK_KEY_BOOL] = "bool",     [RK_KEY_INT] = "int",   [RK_KEY_NUMBER] = "number",
        [RK_KEY_CHOICE] = "choice", [RK_KEY_TEXT] = "text",
    };
    return names[type];
}

PyObject *rk_py_config_keys(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    size_t count = 0;
    const rk_key *keys = rk_config_keys(&count);
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < count; i++) {
        const rk_key *key = &keys[i];
        PyObject *row = Py_BuildValue("(sssddsss)", key->name, type_name(key->type), key->default_text,
                                      key->min, key->max, key->choices, key->unit, key->help);
        if (!row || PyList_Append(list, row) < 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

static PyMethodDef config_methods[] = {
    {"set", config_set, METH_VARARGS, "set(key, value, where): one key from text."},
    {"load", config_load, METH_VARARGS, "load(path): a YAML file."},
    {"check", config_check, METH_NOARGS, "What no single key can show."},
    {"get", config_get, METH_VARARGS, "get(key): its value as text."},
    {"copy", config_copy, METH_NOARGS, "A copy that shares nothing."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot config_slots[] = {
    {Py_tp_doc, "The configuration of a servicer."},
    {Py_tp_new, config_new},
    {Py_tp_dealloc, config_dealloc},
    {Py_tp_methods, config_methods},
    {0, NULL},
};

PyType_Spec rk_py_config_spec = {
    .name = "roomkeeper._bridge.Config",
    .basicsize = sizeof(rk_py_config),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = config_slots,
};
