/* `Choice`: one engine request as the bridge knows it. Python's side may subclass it, so that its own record
 * of a request is the very object it pushes. GIL. */
#include "module.h"

static int choice_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    rk_py_choice *choice = (rk_py_choice *)self;
    static char *names[] = {"handle", "choice", "cumulative", NULL};
    unsigned long long handle;
    unsigned long long number;
    int cumulative = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KK|p", names, &handle, &number, &cumulative))
        return -1;
    if (number >= RK_ALL_CHOICES) {
        PyErr_Format(PyExc_ValueError, "choice is %llu; it must be below %u", number, RK_ALL_CHOICES);
        return -1;
    }
    choice->handle = handle;
    choice->choice = (uint32_t)number;
    choice->cumulative = cumulative;
    choice->finished = false;
    choice->pushed = 0;
    return 0;
}

static PyObject *get_handle(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong(((rk_py_choice *)self)->handle);
}

static PyObject *get_choice(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLong(((rk_py_choice *)self)->choice);
}

static PyObject *get_pushed(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong(((rk_py_choice *)self)->pushed);
}

static PyObject *get_finished(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(((rk_py_choice *)self)->finished);
}

static PyGetSetDef choice_getset[] = {
    {"handle", get_handle, NULL, "the leg", NULL},
    {"choice", get_choice, NULL, "its number within the leg", NULL},
    {"pushed_tokens", get_pushed, NULL, "tokens pushed so far", NULL},
    {"finished", get_finished, NULL, "its last output has been pushed", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot choice_slots[] = {
    {Py_tp_doc, "One engine request, and how much of it has been pushed."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, choice_init},
    {Py_tp_dealloc, rk_py_free},
    {Py_tp_getset, choice_getset},
    {0, NULL},
};

PyType_Spec rk_py_choice_spec = {
    .name = "roomkeeper._bridge.Choice",
    .basicsize = sizeof(rk_py_choice),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = choice_slots,
};
