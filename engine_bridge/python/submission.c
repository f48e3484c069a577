/* `Submission` and `Encode`: a request on its way into the engine, an item on its way to its tower.
 * Attributes are made when asked for, from the shared C request; a new object each time, since the engine may
 * change what it is given. GIL. */
#include "module.h"

typedef struct rk_py_submission {
    PyObject_HEAD rk_command *command; /* owned; SUBMIT or ENCODE */
} rk_py_submission;

static const rk_command *command_of(PyObject *self) {
    return ((rk_py_submission *)self)->command;
}

static const rk_request *request_of(PyObject *self) {
    return command_of(self)->request;
}

PyObject *rk_py_submission_new(rk_module_state *state, rk_command *command) {
    PyTypeObject *type = command->kind == RK_COMMAND_ENCODE ? state->encode_type : state->submission_type;
    PyObject *self = PyType_GenericAlloc(type, 0);
    if (self)
        ((rk_py_submission *)self)->command = command;
    else
        rk_command_free(command);
    return self;
}

static void submission_dealloc(PyObject *self) {
    rk_command *command = ((rk_py_submission *)self)->command;
    if (command)
        rk_command_free(command);
    rk_py_free(self);
}

static PyObject *text_object(rk_text text) {
    return PyUnicode_FromStringAndSize(text.data, (Py_ssize_t)text.bytes);
}

static PyObject *id_list(const uint32_t *ids, size_t count) {
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list && i < count; i++) {
        PyObject *id = PyLong_FromUnsignedLong(ids[i]);
        if (id)
            (void)PyList_SetItem(list, (Py_ssize_t)i, id);
        else
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *get_handle(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong(command_of(self)->handle);
}

static PyObject *get_engine_id(PyObject *self, void *unused) {
    (void)unused;
    return PyUnicode_FromString(command_of(self)->text);
}

static PyObject *get_request_id(PyObject *self, void *unused) {
    (void)unused;
    return text_object(request_of(self)->request_id);
}

static PyObject *get_rank(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLong(command_of(self)->rank);
}

static PyObject *get_n(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLong(request_of(self)->n);
}

static PyObject *get_stream(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(request_of(self)->stream);
}

static PyObject *get_input_count(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromSize_t(request_of(self)->input_count);
}

static PyObject *get_input_ids(PyObject *self, void *unused) {
    (void)unused;
    return id_list(request_of(self)->input_ids, request_of(self)->input_count);
}

static PyObject *get_input_ids_bytes(PyObject *self, void *unused) {
    (void)unused;
    const rk_request *request = request_of(self);
    return PyBytes_FromStringAndSize((const char *)request->input_ids,
                                     (Py_ssize_t)(request->input_count * sizeof *request->input_ids));
}

static PyObject *get_sampling(PyObject *self, void *unused) {
    (void)unused;
    return rk_py_sampling(&request_of(self)->sampling);
}

static PyObject *get_return_logprob(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(request_of(self)->return_logprob);
}

static PyObject *get_logprob_start_len(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLong(request_of(self)->logprob_start_len);
}

static PyObject *get_top_logprobs_num(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLong(request_of(self)->top_logprobs_num);
}

static PyObject *get_token_ids_logprob(PyObject *self, void *unused) {
    (void)unused;
    const rk_request *request = request_of(self);
    if (request->token_id_logprob_count == 0)
        Py_RETURN_NONE;
    return id_list(request->token_ids_logprob, request->token_id_logprob_count);
}

static PyObject *get_bootstrap(PyObject *self, void *unused) {
    (void)unused;
    const rk_request *request = request_of(self);
    if (!request->has_bootstrap)
        Py_RETURN_NONE;
    return Py_BuildValue("(NiL)", text_object(request->bootstrap_host), (int)request->bootstrap_port,
                         (long long)request->bootstrap_room);
}

static PyObject *get_has_media(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(request_of(self)->media_count > 0);
}

static PyObject *get_media_bytes(PyObject *self, void *unused) {
    (void)unused;
    const rk_request *request = request_of(self);
    size_t bytes = 0;
    for (size_t i = 0; i < request->media_count; i++) {
        const rk_media *media = &request->media[i];
        bytes += media->has_encoder_input ? media->encoder_input.nbytes : 0;
        for (size_t t = 0; t < media->tensor_count; t++)
            bytes += media->tensors[t].tensor.nbytes;
    }
    return PyLong_FromSize_t(bytes);
}

static PyObject *take_media(PyObject *self, PyObject *unused) {
    (void)unused;
    return rk_py_take_media(command_of(self)->request);
}

static PyObject *get_room(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLongLong(command_of(self)->room);
}

static PyMethodDef media_methods[] = {
    {"take_media", take_media, METH_NOARGS,
     "The multimodal inputs, once; what their bytes are in is let go of."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef submission_getset[] = {
    {"handle", get_handle, NULL, "the leg's number, never reused", NULL},
    {"engine_id", get_engine_id, NULL, "what the engine calls it; choices of n > 1 append -n<i>", NULL},
    {"request_id", get_request_id, NULL, "as on the wire", NULL},
    {"rank", get_rank, NULL, "the DP rank it belongs to; -1: the engine chooses", NULL},
    {"n", get_n, NULL, "choices", NULL},
    {"stream", get_stream, NULL, "the client wants chunks", NULL},
    {"input_count", get_input_count, NULL, "tokens of the prompt", NULL},
    {"input_ids", get_input_ids, NULL, "the prompt, a new list", NULL},
    {"input_ids_bytes", get_input_ids_bytes, NULL, "the prompt as native uint32", NULL},
    {"sampling", get_sampling, NULL, "a new dict for TokenSpeed's SamplingParams, without n", NULL},
    {"return_logprob", get_return_logprob, NULL, "logprobs are wanted", NULL},
    {"logprob_start_len", get_logprob_start_len, NULL, "-1: no prompt logprobs", NULL},
    {"top_logprobs_num", get_top_logprobs_num, NULL, "alternatives per position", NULL},
    {"token_ids_logprob", get_token_ids_logprob, NULL, "a list, or None", NULL},
    {"bootstrap", get_bootstrap, NULL, "(host, port, room), or None", NULL},
    {"has_media", get_has_media, NULL, "there are multimodal inputs", NULL},
    {"media_bytes", get_media_bytes, NULL, "how large their tensors are", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot submission_slots[] = {
    {Py_tp_doc, "A request on its way into the engine. Every attribute is made anew when read."},
    {Py_tp_dealloc, submission_dealloc},
    {Py_tp_getset, submission_getset},
    {Py_tp_methods, media_methods},
    {0, NULL},
};

PyType_Spec rk_py_submission_spec = {
    .name = "roomkeeper._bridge.Submission",
    .basicsize = sizeof(rk_py_submission),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = submission_slots,
};

static PyGetSetDef encode_getset[] = {
    {"query_id", get_handle, NULL, "what the answer names", NULL},
    {"request_id", get_request_id, NULL, "as on the wire, maybe empty", NULL},
    {"media_bytes", get_media_bytes, NULL, "how large its tensors are", NULL},
    {"room", get_room, NULL, "where a prefill asks for the embedding", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot encode_slots[] = {
    {Py_tp_doc, "An item on its way to an encode worker's tower."},
    {Py_tp_dealloc, submission_dealloc},
    {Py_tp_getset, encode_getset},
    {Py_tp_methods, media_methods},
    {0, NULL},
};

PyType_Spec rk_py_encode_spec = {
    .name = "roomkeeper._bridge.Encode",
    .basicsize = sizeof(rk_py_submission),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = encode_slots,
};

/* ---- sampling ---- */

/* Takes over `value`. */
static int put(PyObject *dict, const char *key, PyObject *value) {
    int result = value ? PyDict_SetItemString(dict, key, value) : -1;
    Py_XDECREF(value);
    return result;
}

/* Only what the client has set, so that an absent field is the engine's default and a 0 is a 0. */
static int put_scalars(PyObject *dict, const rk_sampling *s) {
    const struct {
        const char *key;
        uint32_t bit;
        float value;
    } floats[] = {
        {"temperature", RK_HAS_TEMPERATURE, s->temperature},
        {"top_p", RK_HAS_TOP_P, s->top_p},
        {"min_p", RK_HAS_MIN_P, s->min_p},
        {"frequency_penalty", RK_HAS_FREQUENCY_PENALTY, s->frequency_penalty},
        {"presence_penalty", RK_HAS_PRESENCE_PENALTY, s->presence_penalty},
        {"repetition_penalty", RK_HAS_REPETITION_PENALTY, s->repetition_penalty},
    };
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++)
        if ((s->has & floats[i].bit) && put(dict, floats[i].key, PyFloat_FromDouble(floats[i].value)) < 0)
            return -1;
    if ((s->has & RK_HAS_TOP_K) && put(dict, "top_k", PyLong_FromLong(s->top_k)) < 0)
        return -1;
    if ((s->has & RK_HAS_MAX_NEW_TOKENS) &&
        put(dict, "max_new_tokens", PyLong_FromUnsignedLong(s->max_new_tokens)) < 0)
        return -1;
    if ((s->has & RK_HAS_SEED) && put(dict, "seed", PyLong_FromUnsignedLongLong(s->seed)) < 0)
        return -1;
    return s->min_new_tokens ? put(dict, "min_new_tokens", PyLong_FromUnsignedLong(s->min_new_tokens)) : 0;
}

static int put_flags(PyObject *dict, const rk_sampling *s) {
    return put(dict, "ignore_eos", PyBool_FromLong(s->ignore_eos)) < 0 ||
                   put(dict, "skip_special_tokens", PyBool_FromLong(s->skip_special_tokens)) < 0 ||
                   put(dict, "spaces_between_special_tokens",
                       PyBool_FromLong(s->spaces_between_special_tokens)) < 0 ||
                   put(dict, "no_stop_trim", PyBool_FromLong(s->no_stop_trim)) < 0
               ? -1
               : 0;
}

static int put_stops(PyObject *dict, const rk_sampling *s) {
    if (s->stop_count > 0) {
        PyObject *list = PyList_New((Py_ssize_t)s->stop_count);
        for (size_t i = 0; list && i < s->stop_count; i++) {
            PyObject *text = text_object(s->stop[i]);
            if (text)
                (void)PyList_SetItem(list, (Py_ssize_t)i, text);
            else
                Py_CLEAR(list);
        }
        if (put(dict, "stop", list) < 0)
            return -1;
    }
    if (s->stop_token_id_count == 0)
        return 0;
    return put(dict, "stop_token_ids", id_list(s->stop_token_ids, s->stop_token_id_count));
}

static int put_bias(PyObject *dict, const rk_sampling *s) {
    if (s->logit_bias_count == 0)
        return 0;
    PyObject *biases = PyDict_New();
    for (size_t i = 0; biases && i < s->logit_bias_count; i++) {
        PyObject *token = text_object(s->logit_bias[i].token);
        PyObject *bias = PyFloat_FromDouble(s->logit_bias[i].bias);
        if (!token || !bias || PyDict_SetItem(biases, token, bias) < 0)
            Py_CLEAR(biases);
        Py_XDECREF(token);
        Py_XDECREF(bias);
    }
    return put(dict, "logit_bias", biases);
}

static int put_constraint(PyObject *dict, const rk_sampling *s) {
    static const char *const keys[] = {
        [RK_CONSTRAINT_REGEX] = "regex",
        [RK_CONSTRAINT_JSON_SCHEMA] = "json_schema",
        [RK_CONSTRAINT_EBNF] = "ebnf",
        [RK_CONSTRAINT_STRUCTURAL_TAG] = "structural_tag",
    };
    if (s->constraint == RK_CONSTRAINT_NONE)
        return 0;
    return put(dict, keys[s->constraint], text_object(s->constraint_text));
}

PyObject *rk_py_sampling(const rk_sampling *sampling) {
    PyObject *dict = PyDict_New();
    if (!dict)
        return NULL;
    if (put_scalars(dict, sampling) < 0 || put_flags(dict, sampling) < 0 || put_stops(dict, sampling) < 0 ||
        put_bias(dict, sampling) < 0 || put_constraint(dict, sampling) < 0 ||
        (sampling->custom_params &&
         put(dict, "custom_params", rk_py_from_value(sampling->custom_params)) < 0)) {
        Py_DECREF(dict);
        return NULL;
    }
    return dict;
}
