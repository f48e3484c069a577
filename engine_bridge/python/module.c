/* The extension module `roomkeeper._bridge`: its state, its types, its start and end. */
#include "module.h"

void rk_py_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF((PyObject *)type);
}

static int add_type(PyObject *module, PyTypeObject **slot, PyType_Spec *spec) {
    *slot = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *slot ? PyModule_AddType(module, *slot) : -1;
}

static int add_sequence(PyObject *module, PyTypeObject **slot, const char *name, const char *doc,
                        PyStructSequence_Field *fields, int count) {
    PyStructSequence_Desc description = {name, doc, fields, count};
    *slot = PyStructSequence_NewType(&description);
    return *slot ? PyModule_AddType(module, *slot) : -1;
}

static int add_commands(PyObject *module, rk_module_state *state) {
    PyStructSequence_Field abort_fields[] = {
        {"handle", "the leg"}, {"choice", "which, or ALL_CHOICES"}, {NULL, NULL}};
    PyStructSequence_Field query_fields[] = {
        {"query_id", "what the answer names"},
        {"kind", "probe, is_paused, flush_cache, start_profile, stop_profile or tokenizer"},
        {"argument", "a dict, or None"},
        {NULL, NULL}};
    PyStructSequence_Field release_fields[] = {{"handle", "the leg"},
                                               {"bootstrap_host", "of the prefill"},
                                               {"bootstrap_port", "of the prefill"},
                                               {"room", "the bootstrap room"},
                                               {"reason", "for the engine's log"},
                                               {NULL, NULL}};
    if (add_sequence(module, &state->abort_type, "roomkeeper._bridge.Abort", "End engine requests.",
                     abort_fields, 2) < 0 ||
        add_sequence(module, &state->query_type, "roomkeeper._bridge.Query", "A question to the engine.",
                     query_fields, 3) < 0)
        return -1;
    return add_sequence(module, &state->release_type, "roomkeeper._bridge.ReleaseRoom",
                        "End a room in the scheduler processes.", release_fields, 5);
}

static int find_errors(rk_module_state *state) {
    PyObject *errors = PyImport_ImportModule("roomkeeper.errors");
    if (!errors)
        return -1;
    state->config_error = PyObject_GetAttrString(errors, "ConfigError");
    state->servicer_error = PyObject_GetAttrString(errors, "ServicerError");
    state->bad_output_error = PyObject_GetAttrString(errors, "BadOutputError");
    Py_DECREF(errors);
    return state->config_error && state->servicer_error && state->bad_output_error ? 0 : -1;
}

static int module_exec(PyObject *module) {
    rk_module_state *state = PyModule_GetState(module);
#define RK_NAME_INTERN(name)                                                                                 \
    state->str_##name = PyUnicode_InternFromString(#name);                                                   \
    if (!state->str_##name)                                                                                  \
        return -1;
    RK_NAMES(RK_NAME_INTERN)
#undef RK_NAME_INTERN
    if (find_errors(state) < 0 || add_commands(module, state) < 0 ||
        add_type(module, &state->config_type, &rk_py_config_spec) < 0 ||
        add_type(module, &state->choice_type, &rk_py_choice_spec) < 0 ||
        add_type(module, &state->submission_type, &rk_py_submission_spec) < 0 ||
        add_type(module, &state->encode_type, &rk_py_encode_spec) < 0 ||
        add_type(module, &state->servicer_type, &rk_py_servicer_spec) < 0)
        return -1;
    return PyModule_AddStringConstant(module, "__version__", rk_version());
}

static int module_traverse(PyObject *module, visitproc visit, void *arg) {
    rk_module_state *state = PyModule_GetState(module);
    Py_VISIT(state->config_type);
    Py_VISIT(state->servicer_type);
    Py_VISIT(state->submission_type);
    Py_VISIT(state->encode_type);
    Py_VISIT(state->choice_type);
    Py_VISIT(state->abort_type);
    Py_VISIT(state->query_type);
    Py_VISIT(state->release_type);
    Py_VISIT(state->config_error);
    Py_VISIT(state->servicer_error);
    Py_VISIT(state->bad_output_error);
    return 0;
}

static int module_clear(PyObject *module) {
    rk_module_state *state = PyModule_GetState(module);
    Py_CLEAR(state->config_type);
    Py_CLEAR(state->servicer_type);
    Py_CLEAR(state->submission_type);
    Py_CLEAR(state->encode_type);
    Py_CLEAR(state->choice_type);
    Py_CLEAR(state->abort_type);
    Py_CLEAR(state->query_type);
    Py_CLEAR(state->release_type);
    Py_CLEAR(state->config_error);
    Py_CLEAR(state->servicer_error);
    Py_CLEAR(state->bad_output_error);
#define RK_NAME_CLEAR(name) Py_CLEAR(state->str_##name);
    RK_NAMES(RK_NAME_CLEAR)
#undef RK_NAME_CLEAR
    return 0;
}

static void module_free(void *module) {
    (void)module_clear(module);
}

static PyMethodDef module_methods[] = {
    {"config_keys", rk_py_config_keys, METH_NOARGS,
     "(name, type, default, min, max, choices, unit, help) of every configuration key."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "roomkeeper._bridge",
    .m_doc = "The servicer's C core, for roomkeeper.servicer and roomkeeper.config.",
    .m_size = sizeof(rk_module_state),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__bridge(void) {
    return PyModuleDef_Init(&module_definition);
}
