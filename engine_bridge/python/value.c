/* Python's JSON-like objects to the core's trees and back. GIL. */
#include <math.h>

#include "module.h"

#define DEPTH_MAX 100 /* levels; a tree deeper than that is a mistake (or a cycle) */

static rk_value *convert(PyObject *object, unsigned depth);

static rk_value *no_memory(rk_value *value) {
    if (!value)
        (void)PyErr_NoMemory();
    return value;
}

static rk_value *text_value(PyObject *object) {
    Py_ssize_t bytes = 0;
    const char *text = PyUnicode_AsUTF8AndSize(object, &bytes);
    if (text)
        return no_memory(rk_value_string(text, (size_t)bytes));
    if (!PyErr_ExceptionMatches(PyExc_UnicodeError))
        return NULL;
    PyErr_Clear(); /* lone surrogates */
    PyObject *encoded = PyUnicode_AsEncodedString(object, "utf-8", "replace");
    if (!encoded)
        return NULL;
    rk_value *value = rk_value_string(PyBytes_AsString(encoded), (size_t)PyBytes_Size(encoded));
    Py_DECREF(encoded);
    return no_memory(value);
}

/* A number that JSON has no word for becomes null, one too large for a double its digits. */
static rk_value *number_value(PyObject *object) {
    double number = PyFloat_Check(object) ? PyFloat_AsDouble(object) : PyLong_AsDouble(object);
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError))
            return NULL;
        PyErr_Clear();
        PyObject *digits = PyObject_Str(object);
        rk_value *value = digits ? text_value(digits) : NULL;
        Py_XDECREF(digits);
        return value;
    }
    return no_memory(isfinite(number) ? rk_value_number(number) : rk_value_null());
}

static rk_value *list_value(PyObject *object, unsigned depth) {
    PyObject *items = PySequence_List(object);
    rk_value *list = items ? no_memory(rk_value_list()) : NULL;
    for (Py_ssize_t i = 0; list && i < PyList_Size(items); i++) {
        rk_value *item = convert(PyList_GetItem(items, i), depth + 1);
        if (!item || rk_value_append(list, item) < 0) {
            if (item)
                (void)PyErr_NoMemory();
            rk_value_free(list);
            list = NULL;
        }
    }
    Py_XDECREF(items);
    return list;
}

static int set_entry(rk_value *map, PyObject *key, PyObject *value, unsigned depth) {
    PyObject *name = PyUnicode_Check(key) ? Py_NewRef(key) : PyObject_Str(key);
    const char *text = name ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    rk_value *item = text ? convert(value, depth + 1) : NULL;
    int result = item ? rk_value_set(map, text, item) : -1;
    if (item && result < 0)
        (void)PyErr_NoMemory();
    Py_XDECREF(name);
    return result < 0 ? -1 : 0;
}

static rk_value *map_value(PyObject *object, unsigned depth) {
    rk_value *map = no_memory(rk_value_map());
    PyObject *entries = map ? PyMapping_Items(object) : NULL;
    bool failed = map && !entries;
    for (Py_ssize_t i = 0; entries && !failed && i < PyList_Size(entries); i++) {
        PyObject *entry = PyList_GetItem(entries, i);
        PyObject *key = entry ? PyTuple_GetItem(entry, 0) : NULL;
        PyObject *value = key ? PyTuple_GetItem(entry, 1) : NULL;
        failed = !value || set_entry(map, key, value, depth) < 0;
    }
    Py_XDECREF(entries);
    if (failed) {
        rk_value_free(map);
        return NULL;
    }
    return map;
}

static rk_value *convert(PyObject *object, unsigned depth) {
    if (!object)
        return NULL;
    if (depth > DEPTH_MAX) {
        PyErr_Format(PyExc_ValueError, "a value is nested deeper than %d levels; flatten it", DEPTH_MAX);
        return NULL;
    }
    if (object == Py_None)
        return no_memory(rk_value_null());
    if (PyBool_Check(object))
        return no_memory(rk_value_bool(object == Py_True));
    if (PyLong_Check(object) || PyFloat_Check(object))
        return number_value(object);
    if (PyUnicode_Check(object))
        return text_value(object);
    if (PyList_Check(object) || PyTuple_Check(object))
        return list_value(object, depth);
    if (PyMapping_Check(object) && !PyBytes_Check(object))
        return map_value(object, depth);
    PyErr_Format(PyExc_TypeError, "%R is no JSON-like value; give None, bool, number, str, list or dict",
                 object);
    return NULL;
}

rk_value *rk_py_to_value(PyObject *object) {
    return convert(object, 0);
}

static PyObject *from_list(const rk_value *value) {
    PyObject *list = PyList_New((Py_ssize_t)value->count);
    for (size_t i = 0; list && i < value->count; i++) {
        PyObject *item = rk_py_from_value(value->items[i]);
        if (item)
            (void)PyList_SetItem(list, (Py_ssize_t)i, item);
        else
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *from_map(const rk_value *value) {
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict && i < value->count; i++) {
        PyObject *item = rk_py_from_value(value->items[i]);
        if (!item || PyDict_SetItemString(dict, value->keys[i], item) < 0)
            Py_CLEAR(dict);
        Py_XDECREF(item);
    }
    return dict;
}

PyObject *rk_py_from_value(const rk_value *value) {
    switch (value->kind) {
    case RK_VALUE_BOOL:
        return PyBool_FromLong(value->boolean);
    case RK_VALUE_NUMBER:
        return PyFloat_FromDouble(value->number);
    case RK_VALUE_STRING:
        return PyUnicode_FromStringAndSize(value->string, (Py_ssize_t)value->string_bytes);
    case RK_VALUE_LIST:
        return from_list(value);
    case RK_VALUE_MAP:
        return from_map(value);
    case RK_VALUE_NULL:
        break;
    }
    return Py_NewRef(Py_None);
}
