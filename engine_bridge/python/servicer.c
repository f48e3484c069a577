/* `Servicer`: the C servicer as an object. Methods need the GIL; those that may take long let it go.
 *
 * The object owns the servicer and the queue towards the engine. A forked child has neither threads nor a
 * right to the parent's sockets: there every method refuses, and the end of the object frees nothing of
 * gRPC's. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "module.h"
#include "roomkeeper/metrics.h"

typedef struct rk_py_servicer {
    PyObject_HEAD PyObject *module; /* a reference: keeps `state` valid */
    rk_module_state *state;
    rk_servicer *servicer;
    rk_bridge bridge;
    bool bridged; /* `bridge` is initialised */
    pid_t pid;    /* of the process that made it */
} rk_py_servicer;

/* NULL with an exception in a forked child. */
static rk_py_servicer *own(PyObject *self) {
    rk_py_servicer *servicer = (rk_py_servicer *)self;
    pid_t pid = getpid();
    if (servicer->pid == pid)
        return servicer;
    PyErr_Format(PyExc_RuntimeError,
                 "this servicer belongs to process %d and cannot be used in a forked child (process %d); "
                 "start the child with spawn",
                 (int)servicer->pid, (int)pid);
    return NULL;
}

static void servicer_dealloc(PyObject *self) {
    rk_py_servicer *servicer = (rk_py_servicer *)self;
    if (servicer->pid == getpid()) { /* else: leaked, and the queue with what it points to */
        if (servicer->servicer)
            rk_servicer_free(servicer->servicer);
        if (servicer->bridged)
            rk_bridge_destroy(&servicer->bridge);
    }
    Py_XDECREF(servicer->module);
    rk_py_free(self);
}

static int make(rk_py_servicer *self, const rk_py_config *config, PyObject *fields, bool release_agent) {
    rk_arena *arena = rk_arena_new((size_t)64 << 20);
    if (!arena) {
        (void)PyErr_NoMemory();
        return -1;
    }
    rk_worker_info info;
    rk_info_trees trees = {NULL, NULL};
    int result = rk_py_worker_info(fields, arena, &info, &trees);
    if (result == 0) {
        char error[RK_ERROR_MAX] = "";
        self->servicer =
            rk_servicer_new(&config->config, &info, rk_bridge_ops(release_agent), &self->bridge, error);
        if (!self->servicer) {
            PyErr_SetString(self->state->servicer_error, error);
            result = -1;
        }
    }
    rk_value_free(trees.server_args);
    rk_value_free(trees.scheduler_info);
    rk_arena_free(arena);
    return result;
}

static int set_up(rk_py_servicer *self, PyTypeObject *type, PyObject *args) {
    self->pid = getpid();
    self->module = Py_NewRef(PyType_GetModule(type));
    self->state = PyModule_GetState(self->module);
    PyObject *config, *fields;
    int release_agent = 0;
    if (!PyArg_ParseTuple(args, "OO!|p", &config, &PyDict_Type, &fields, &release_agent))
        return -1;
    if (!PyObject_TypeCheck(config, self->state->config_type)) {
        PyErr_Format(PyExc_TypeError, "config is %R; it must be a roomkeeper._bridge.Config", config);
        return -1;
    }
    int result = rk_bridge_init(&self->bridge);
    if (result < 0) {
        PyErr_Format(self->state->servicer_error, "no eventfd for the engine's queue: %s", strerror(-result));
        return -1;
    }
    self->bridged = true;
    return make(self, (rk_py_config *)config, fields, release_agent != 0);
}

static PyObject *servicer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    if (kwargs && PyDict_Size(kwargs) > 0) {
        PyErr_SetString(PyExc_TypeError, "Servicer takes no keyword arguments; use roomkeeper.Servicer");
        return NULL;
    }
    PyObject *self = PyType_GenericAlloc(type, 0);
    if (self && set_up((rk_py_servicer *)self, type, args) < 0)
        Py_CLEAR(self);
    return self;
}

/* ---- life ---- */

static PyObject *listen_by(PyObject *self, PyObject *args,
                           int (*bind)(rk_servicer *servicer, const char *address, char *error)) {
    rk_py_servicer *servicer = own(self);
    const char *address;
    if (!servicer || !PyArg_ParseTuple(args, "s", &address))
        return NULL;
    char error[RK_ERROR_MAX] = "";
    int port;
    Py_BEGIN_ALLOW_THREADS port = bind(servicer->servicer, address, error);
    Py_END_ALLOW_THREADS if (port >= 0) return PyLong_FromLong(port);
    PyErr_SetString(servicer->state->servicer_error, error);
    return NULL;
}

static PyObject *servicer_listen(PyObject *self, PyObject *args) {
    return listen_by(self, args, rk_servicer_listen);
}

static PyObject *servicer_listen_link(PyObject *self, PyObject *args) {
    return listen_by(self, args, rk_servicer_listen_link);
}

static PyObject *servicer_listen_metrics(PyObject *self, PyObject *args) {
    return listen_by(self, args, rk_servicer_listen_metrics);
}

static PyObject *servicer_metrics(PyObject *self, PyObject *unused) {
    (void)unused;
    rk_py_servicer *servicer = own(self);
    if (!servicer)
        return NULL;
    size_t size = 0;
    char *text = rk_servicer_metrics(servicer->servicer, &size);
    if (!text)
        return PyErr_NoMemory();
    PyObject *result = PyUnicode_FromStringAndSize(text, (Py_ssize_t)size);
    free(text);
    return result;
}

static PyObject *servicer_start(PyObject *self, PyObject *unused) {
    (void)unused;
    rk_py_servicer *servicer = own(self);
    if (!servicer)
        return NULL;
    char error[RK_ERROR_MAX] = "";
    int result;
    Py_BEGIN_ALLOW_THREADS result = rk_servicer_start(servicer->servicer, error);
    Py_END_ALLOW_THREADS if (result == 0) Py_RETURN_NONE;
    PyErr_SetString(servicer->state->servicer_error, error);
    return NULL;
}

static PyObject *servicer_drain(PyObject *self, PyObject *unused) {
    (void)unused;
    rk_py_servicer *servicer = own(self);
    if (!servicer)
        return NULL;
    rk_servicer_drain(servicer->servicer);
    Py_RETURN_NONE;
}

static PyObject *servicer_wait_idle(PyObject *self, PyObject *args) {
    rk_py_servicer *servicer = own(self);
    unsigned long long timeout_ms;
    if (!servicer || !PyArg_ParseTuple(args, "K", &timeout_ms))
        return NULL;
    int result;
    Py_BEGIN_ALLOW_THREADS result = rk_servicer_wait_idle(servicer->servicer, timeout_ms);
    Py_END_ALLOW_THREADS return PyBool_FromLong(result == 0);
}

static PyObject *servicer_stop(PyObject *self, PyObject *unused) {
    (void)unused;
    rk_py_servicer *servicer = own(self);
    if (!servicer)
        return NULL;
    Py_BEGIN_ALLOW_THREADS rk_servicer_stop(servicer->servicer);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *servicer_open_calls(PyObject *self, PyObject *unused) {
    (void)unused;
    rk_py_servicer *servicer = own(self);
    return servicer ? PyLong_FromUnsignedLongLong(rk_servicer_open_calls(servicer->servicer)) : NULL;
}

static PyObject *servicer_counts(PyObject *self, PyObject *unused) {
    (void)unused;
    rk_py_servicer *servicer = own(self);
    return servicer ? rk_py_counts(servicer->servicer) : NULL;
}

/* ---- down ---- */

static PyObject *servicer_fileno(PyObject *self, PyObject *unused) {
    (void)unused;
    rk_py_servicer *servicer = own(self);
    return servicer ? PyLong_FromLong(servicer->bridge.wake_fd) : NULL;
}

/* Takes over the value; a no-op on a NULL sequence. */
static void set_item(PyObject **sequence, Py_ssize_t at, PyObject *value) {
    if (!value)
        Py_CLEAR(*sequence);
    if (*sequence)
        PyStructSequence_SetItem(*sequence, at, value);
    else
        Py_XDECREF(value);
}

static PyObject *small_command(rk_module_state *state, const rk_command *command) {
    PyTypeObject *types[] = {NULL, state->abort_type, state->query_type, state->release_type};
    PyObject *tuple = PyStructSequence_New(types[command->kind]);
    set_item(&tuple, 0, PyLong_FromUnsignedLongLong(command->handle));
    switch (command->kind) {
    case RK_COMMAND_ABORT:
        set_item(&tuple, 1, PyLong_FromUnsignedLong(command->choice));
        break;
    case RK_COMMAND_QUERY:
        set_item(&tuple, 1, PyUnicode_FromString(rk_query_name(command->query)));
        set_item(&tuple, 2, command->argument ? rk_py_from_value(command->argument) : Py_NewRef(Py_None));
        break;
    case RK_COMMAND_RELEASE_ROOM:
        set_item(&tuple, 1, PyUnicode_FromString(command->text));
        set_item(&tuple, 2, PyLong_FromLong(command->port));
        set_item(&tuple, 3, PyLong_FromLongLong(command->room));
        set_item(&tuple, 4, PyUnicode_FromString(command->reason));
        break;
    case RK_COMMAND_SUBMIT:
    case RK_COMMAND_ENCODE:
        break;
    }
    return tuple;
}

/* Takes over the command. */
static PyObject *command_object(rk_module_state *state, rk_command *command) {
    if (command->kind == RK_COMMAND_SUBMIT || command->kind == RK_COMMAND_ENCODE)
        return rk_py_submission_new(state, command);
    PyObject *object = small_command(state, command);
    rk_command_free(command);
    return object;
}

static PyObject *servicer_take(PyObject *self, PyObject *unused) {
    (void)unused;
    rk_py_servicer *servicer = own(self);
    PyObject *list = servicer ? PyList_New(0) : NULL;
    if (!list)
        return NULL;
    bool failed = false; /* out of memory: what is left is dropped, and its legs end by their deadlines */
    for (rk_command *command = rk_bridge_take(&servicer->bridge); command;) {
        rk_command *next = rk_command_next(command);
        PyObject *object = NULL;
        if (failed)
            rk_command_free(command);
        else
            object = command_object(servicer->state, command);
        failed = failed || !object || PyList_Append(list, object) < 0;
        Py_XDECREF(object);
        command = next;
    }
    if (failed)
        Py_CLEAR(list);
    return list;
}

/* ---- up ---- */

static PyObject *servicer_push(PyObject *self, PyObject *step) {
    rk_py_servicer *servicer = own(self);
    if (!servicer || rk_py_push(servicer->state, servicer->servicer, step) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *servicer_push_asyncllm(PyObject *self, PyObject *step) {
    rk_py_servicer *servicer = own(self);
    if (!servicer || rk_py_push_asyncllm(servicer->state, servicer->servicer, step) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *servicer_push_tokens(PyObject *self, PyObject *args) {
    rk_py_servicer *servicer = own(self);
    rk_py_arrays arrays;
    if (!servicer || !PyArg_ParseTuple(args, "OOOOOO", &arrays.handles, &arrays.token_ids, &arrays.ends,
                                       &arrays.choices, &arrays.counts, &arrays.logprobs))
        return NULL;
    if (rk_py_push_tokens(servicer->state, servicer->servicer, &arrays) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *servicer_aborted(PyObject *self, PyObject *args) {
    rk_py_servicer *servicer = own(self);
    unsigned long long handle;
    unsigned long choice;
    if (!servicer || !PyArg_ParseTuple(args, "Kk", &handle, &choice))
        return NULL;
    rk_sink_aborted(servicer->servicer, handle, choice > UINT32_MAX ? RK_ALL_CHOICES : (uint32_t)choice);
    Py_RETURN_NONE;
}

static PyObject *servicer_released(PyObject *self, PyObject *args) {
    rk_py_servicer *servicer = own(self);
    unsigned long long handle;
    if (!servicer || !PyArg_ParseTuple(args, "K", &handle))
        return NULL;
    rk_sink_released(servicer->servicer, handle);
    Py_RETURN_NONE;
}

static PyObject *servicer_beat(PyObject *self, PyObject *unused) {
    (void)unused;
    rk_py_servicer *servicer = own(self);
    if (!servicer)
        return NULL;
    rk_sink_beat(servicer->servicer);
    Py_RETURN_NONE;
}

static PyObject *servicer_loads(PyObject *self, PyObject *loads) {
    rk_py_servicer *servicer = own(self);
    if (!servicer || rk_py_loads(servicer->servicer, loads) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *servicer_state(PyObject *self, PyObject *args) {
    static const char *const names[] = {
        [RK_ENGINE_STARTING] = "starting",
        [RK_ENGINE_READY] = "ready",
        [RK_ENGINE_STALLED] = "stalled",
        [RK_ENGINE_DEAD] = "dead",
    };
    rk_py_servicer *servicer = own(self);
    const char *name, *why;
    if (!servicer || !PyArg_ParseTuple(args, "ss", &name, &why))
        return NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i], name) == 0) {
            rk_sink_state(servicer->servicer, (rk_engine_state)i, why);
            Py_RETURN_NONE;
        }
    }
    PyErr_Format(PyExc_ValueError,
                 "engine state '%s' is unknown; it must be starting, ready, stalled or dead", name);
    return NULL;
}

static PyObject *servicer_set_weight_version(PyObject *self, PyObject *args) {
    rk_py_servicer *servicer = own(self);
    const char *version;
    if (!servicer || !PyArg_ParseTuple(args, "s", &version))
        return NULL;
    rk_servicer_set_weight_version(servicer->servicer, version);
    Py_RETURN_NONE;
}

static PyObject *servicer_answer(PyObject *self, PyObject *args) {
    rk_py_servicer *servicer = own(self);
    unsigned long long query_id;
    PyObject *object;
    if (!servicer || !PyArg_ParseTuple(args, "KO", &query_id, &object))
        return NULL;
    rk_value *answer = NULL;
    if (object != Py_None && !(answer = rk_py_to_value(object)))
        return NULL;
    rk_sink_answer(servicer->servicer, query_id, answer);
    Py_RETURN_NONE;
}

static PyMethodDef servicer_methods[] = {
    {"listen", servicer_listen, METH_VARARGS, "listen(address) -> port"},
    {"listen_metrics", servicer_listen_metrics, METH_VARARGS, "listen_metrics(address) -> port, HTTP"},
    {"metrics", servicer_metrics, METH_NOARGS, "The metrics as Prometheus text."},
    {"listen_link", servicer_listen_link, METH_VARARGS, "listen_link(address) -> port, for room links"},
    {"start", servicer_start, METH_NOARGS, "Serves."},
    {"drain", servicer_drain, METH_NOARGS, "Takes nothing new."},
    {"wait_idle", servicer_wait_idle, METH_VARARGS, "wait_idle(timeout_ms) -> whether no call is open"},
    {"stop", servicer_stop, METH_NOARGS, "Ends everything. Again is fine."},
    {"open_calls", servicer_open_calls, METH_NOARGS, "Open calls."},
    {"counts", servicer_counts, METH_NOARGS, "The ledger's numbers."},
    {"fileno", servicer_fileno, METH_NOARGS, "Readable while commands wait."},
    {"take", servicer_take, METH_NOARGS, "The commands so far."},
    {"push", servicer_push, METH_O, "push(step): tuples."},
    {"push_tokens", servicer_push_tokens, METH_VARARGS,
     "push_tokens(handles, token_ids, ends, choices, counts, logprobs): buffers."},
    {"push_asyncllm", servicer_push_asyncllm, METH_O, "push_asyncllm(step): (Choice, dict) tuples."},
    {"aborted", servicer_aborted, METH_VARARGS, "aborted(handle, choice)"},
    {"released", servicer_released, METH_VARARGS, "released(handle)"},
    {"beat", servicer_beat, METH_NOARGS, "The engine is alive."},
    {"loads", servicer_loads, METH_O, "loads(list of dicts)"},
    {"state", servicer_state, METH_VARARGS, "state(name, why)"},
    {"set_weight_version", servicer_set_weight_version, METH_VARARGS, "set_weight_version(version)"},
    {"answer", servicer_answer, METH_VARARGS, "answer(query_id, value)"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot servicer_slots[] = {
    {Py_tp_doc, "The C servicer; see roomkeeper.servicer."},
    {Py_tp_new, servicer_new},
    {Py_tp_dealloc, servicer_dealloc},
    {Py_tp_methods, servicer_methods},
    {0, NULL},
};

PyType_Spec rk_py_servicer_spec = {
    .name = "roomkeeper._bridge.Servicer",
    .basicsize = sizeof(rk_py_servicer),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = servicer_slots,
};
