/* What the extension's files share. Everything here needs the GIL.
 *
 * Stable ABI of Python 3.10: heap types, module state, no macros that look into objects. The only static
 * objects are the tables that CPython's API takes by non-const pointer and the module definition. */
#ifndef RK_BRIDGE_MODULE_H
#define RK_BRIDGE_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "base/arena.h"
#include "engine.h"
#include "roomkeeper/config.h"
#include "roomkeeper/engine.h"
#include "roomkeeper/servicer.h"
#include "roomkeeper/value.h"

/* Names that are looked up for every output, interned once. X(name) */
#define RK_NAMES(X)                                                                                          \
    X(output_ids)                                                                                            \
    X(meta_info)                                                                                             \
    X(finish_reason)                                                                                         \
    X(prompt_tokens)                                                                                         \
    X(completion_tokens)                                                                                     \
    X(cached_tokens)                                                                                         \
    X(spec_accepted_tokens)                                                                                  \
    X(spec_draft_tokens)                                                                                     \
    X(weight_version)                                                                                        \
    X(output_token_logprobs)                                                                                 \
    X(output_top_logprobs)                                                                                   \
    X(type)                                                                                                  \
    X(matched)                                                                                               \
    X(message)                                                                                               \
    X(status_code)                                                                                           \
    X(to_json)

typedef struct rk_module_state {
    PyTypeObject *config_type;
    PyTypeObject *servicer_type;
    PyTypeObject *submission_type;
    PyTypeObject *encode_type;
    PyTypeObject *choice_type;
    PyTypeObject *abort_type; /* struct sequences */
    PyTypeObject *query_type;
    PyTypeObject *release_type;
    PyObject *config_error; /* of roomkeeper.errors */
    PyObject *servicer_error;
    PyObject *bad_output_error;
#define RK_NAME_FIELD(name) PyObject *str_##name;
    RK_NAMES(RK_NAME_FIELD)
#undef RK_NAME_FIELD
} rk_module_state;

/* config.c */
typedef struct rk_py_config {
    PyObject_HEAD rk_config config;
} rk_py_config;
extern PyType_Spec rk_py_config_spec;
PyObject *rk_py_config_keys(PyObject *module, PyObject *unused);

/* choice.c: one engine request and how much of it has been pushed */
typedef struct rk_py_choice {
    PyObject_HEAD uint64_t handle;
    uint32_t choice;
    bool cumulative; /* without a token count, output_ids are all so far (else: the new ones) */
    bool finished;   /* its last output has been pushed */
    uint64_t pushed; /* tokens */
} rk_py_choice;
extern PyType_Spec rk_py_choice_spec;

/* submission.c */
extern PyType_Spec rk_py_submission_spec;
extern PyType_Spec rk_py_encode_spec;
/* Takes over the command, SUBMIT or ENCODE; NULL with an exception. */
PyObject *rk_py_submission_new(rk_module_state *state, rk_command *command);
/* The dict that TokenSpeed's SamplingParams take, without `n`. */
PyObject *rk_py_sampling(const rk_sampling *sampling);

/* media.c: a list of (modality, content hash, encoder input, tensors, placeholders, token id, encoder), as
 * _bridge.pyi has it. Lets go of what the bytes were in: once. NULL with an exception. */
PyObject *rk_py_take_media(rk_request *request);

/* servicer.c */
extern PyType_Spec rk_py_servicer_spec;

/* value.c */
rk_value *rk_py_to_value(PyObject *object); /* NULL with an exception */
PyObject *rk_py_from_value(const rk_value *value);

/* info.c: reads the dict into `info`, whose parts live in `arena`, in the dict, and in the two trees (free
 * them with rk_value_free after use). 0, or -1 with an exception. */
typedef struct rk_info_trees {
    rk_value *server_args;
    rk_value *scheduler_info;
} rk_info_trees;
int rk_py_worker_info(PyObject *fields, rk_arena *arena, rk_worker_info *info, rk_info_trees *trees);

/* counts.c */
PyObject *rk_py_counts(rk_servicer *servicer);

/* loads.c: pushes a list of dicts. 0, or -1 with an exception. */
int rk_py_loads(rk_servicer *servicer, PyObject *loads);

/* One push on its way: outputs.c. Reads outputs one by one; what cannot be read is remembered. */
typedef struct rk_step_reader {
    rk_module_state *state;
    rk_arena *arena;    /* everything the outputs point to */
    rk_output *outputs; /* malloc'd */
    size_t count;
    size_t capacity;
    PyObject *version; /* the last weight_version seen, a reference, and its text in the arena */
    const char *version_text;
    PyObject *error;  /* the first message; NULL: none */
    PyObject *failed; /* list of (handle, choice) */
} rk_step_reader;

/* Both push `step` (any iterable) to the servicer. 0, or -1 with an exception. */
int rk_py_push(rk_module_state *state, rk_servicer *servicer, PyObject *step);
int rk_py_push_asyncllm(rk_module_state *state, rk_servicer *servicer, PyObject *step);

/* A step as arrays: buffers of native integers, one row an output. */
typedef struct rk_py_arrays {
    PyObject *handles;   /* uint64 */
    PyObject *token_ids; /* uint32, those of row after row */
    PyObject *ends;      /* iterable of (row, finish) */
    PyObject *choices;   /* uint32; None: 0 */
    PyObject *counts;    /* uint32, tokens of each row; None: 1 */
    PyObject *logprobs;  /* float32, one a token; None: none */
} rk_py_arrays;
/* arrays.c. Likewise; arrays that do not fit together push nothing. */
int rk_py_push_tokens(rk_module_state *state, rk_servicer *servicer, const rk_py_arrays *arrays);

/* For asyncllm.c and arrays.c. 0, or -1 with an exception. */
int rk_reader_open(rk_step_reader *reader, rk_module_state *state);
/* Hands over what could be read, frees the reader, and raises what could not. `result` < 0: an exception is
 * set already and wins. */
int rk_reader_close(rk_step_reader *reader, rk_servicer *servicer, int result);
int rk_reader_append(rk_step_reader *reader, const rk_output *output);
/* Remembers the exception that is set, with its place `what`[at], and whom it is about (NULL: nobody knows).
 * -1: it is none of ours to keep (KeyboardInterrupt and the like). */
int rk_reader_note_bad(rk_step_reader *reader, const char *what, Py_ssize_t at, const rk_output *about);
int rk_reader_tokens(rk_step_reader *reader, PyObject *ids, size_t from, size_t count, const uint32_t **out);
int rk_reader_finish(rk_step_reader *reader, PyObject *finish, rk_output *output);
int rk_reader_text(rk_step_reader *reader, PyObject *object, const char **text, size_t *bytes);
int rk_py_u32(PyObject *number, uint32_t *out); /* -1 and no exception: not a whole number in range */
int rk_reader_asyncllm(rk_step_reader *reader, rk_py_choice *choice, PyObject *dict, rk_output *output);

/* Frees a heap type's object; the last thing a dealloc does. */
void rk_py_free(PyObject *self);

#endif
