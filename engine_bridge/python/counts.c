/* The ledger's numbers as a dict. GIL; the ledger locks itself, briefly. */
#include <stdlib.h>

#include "base/clock.h"
#include "module.h"

/* Takes over `value`. */
static int put(PyObject *dict, const char *key, PyObject *value) {
    int result = value ? PyDict_SetItemString(dict, key, value) : -1;
    Py_XDECREF(value);
    return result;
}

static int put_u64(PyObject *dict, const char *key, uint64_t number) {
    return put(dict, key, PyLong_FromUnsignedLongLong(number));
}

/* Causes that have not happened are left out. */
static PyObject *by_cause(const uint64_t counts[RK_CAUSES]) {
    PyObject *dict = PyDict_New();
    for (int cause = 0; dict && cause < RK_CAUSES; cause++)
        if (counts[cause] > 0 && put_u64(dict, rk_cause_name((rk_cause)cause), counts[cause]) < 0)
            Py_CLEAR(dict);
    return dict;
}

static PyObject *by_state(const uint32_t counts[RK_LEG_STATES]) {
    PyObject *dict = PyDict_New();
    for (int state = 0; dict && state < RK_LEG_STATES; state++)
        if (put_u64(dict, rk_leg_state_name((rk_leg_state)state), counts[state]) < 0)
            Py_CLEAR(dict);
    return dict;
}

static PyObject *rank_dict(const rk_rank_counts *rank) {
    const struct {
        const char *key;
        uint64_t number;
    } rows[] = {
        {"window", rank->window},
        {"held_slots", rank->held_slots},
        {"releasing", rank->releasing},
        {"waiting", rank->waiting},
        {"waiting_slots", rank->waiting_slots},
        {"running", rank->running},
        {"claimed_tokens", rank->claimed_tokens},
        {"kv_tokens", rank->kv_tokens},
        {"oldest_releasing_ms", rank->oldest_releasing_ms},
        {"oldest_waiting_ms", rank->oldest_waiting_ms},
    };
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict && i < sizeof rows / sizeof rows[0]; i++)
        if (put_u64(dict, rows[i].key, rows[i].number) < 0)
            Py_CLEAR(dict);
    return dict;
}

static PyObject *all_ranks(rk_ledger *ledger) {
    uint32_t count = rk_ledger_read_ranks(ledger, rk_now_ms(), NULL, 0);
    rk_rank_counts *ranks = calloc(count ? count : 1, sizeof *ranks);
    if (!ranks)
        return PyErr_NoMemory();
    (void)rk_ledger_read_ranks(ledger, rk_now_ms(), ranks, count);
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < count; i++) {
        PyObject *dict = rank_dict(&ranks[i]);
        if (!dict || PyList_Append(list, dict) < 0)
            Py_CLEAR(list);
        Py_XDECREF(dict);
    }
    free(ranks);
    return list;
}

static int fill(PyObject *dict, rk_servicer *servicer) {
    rk_ledger *ledger = rk_servicer_ledger(servicer);
    rk_ledger_counts counts;
    rk_ledger_read(ledger, &counts);
    if (put(dict, "legs", by_state(counts.legs)) < 0 || put(dict, "refused", by_cause(counts.refused)) < 0 ||
        put(dict, "ended", by_cause(counts.ended)) < 0 || put(dict, "ranks", all_ranks(ledger)) < 0)
        return -1;
    if (put_u64(dict, "held", counts.held) < 0 || put_u64(dict, "tombstones", counts.tombstones) < 0 ||
        put_u64(dict, "announced", counts.announced) < 0 || put_u64(dict, "arrived", counts.arrived) < 0 ||
        put_u64(dict, "admitted", counts.admitted) < 0 || put_u64(dict, "stranded", counts.stranded) < 0 ||
        put_u64(dict, "tombstones_dropped", counts.tombstones_dropped) < 0)
        return -1;
    if (put_u64(dict, "open_calls", rk_servicer_open_calls(servicer)) < 0)
        return -1;
    return put(dict, "draining", PyBool_FromLong(counts.draining));
}

PyObject *rk_py_counts(rk_servicer *servicer) {
    PyObject *dict = PyDict_New();
    if (dict && fill(dict, servicer) < 0)
        Py_CLEAR(dict);
    return dict;
}
