/* Bursts: what the calls of a poller have to write goes out together, at the end of the poller's turn.
 *
 * A call that has something to write is *due*. The turn ends when no completion is left, and after
 * TURN_EVENTS of them or TURN_US at the latest; then all due calls write, and a connection with more than one
 * of them is corked until the poller has nothing more to do, or to the end of a turn when that has lasted
 * CORKED_US. So the outputs of one engine step, and the answers to a wave of requests, leave as few segments,
 * whichever way they came about.
 *
 * A call that wrote less than RK_CALL_APART_US ago is held until then: only outputs that follow each other
 * faster than any engine's steps ever wait, and they go out as one write.
 *
 * On a worker without room links the first submission after a rest ends the turn at once, and the poller
 * steps aside: where it shares a core with the engine, the engine hears of a wave of requests at the first of
 * them and not at the last, and its next step begins that much earlier. With room links it does not: there
 * the engine would get ahead of what the twin's worker says of the same rooms.
 *
 * Poller thread, all of it. */
#include <sched.h>

#include "base/clock.h"
#include "rpc/internal.h"

#define TURN_EVENTS 64
#define TURN_US 1000
#define CORKED_US 1000

static void append(rk_due_list *list, rk_call *call) {
    call->due_next = NULL;
    if (list->last)
        list->last->due_next = call;
    else
        list->first = call;
    list->last = call;
}

static rk_call *take_all(rk_due_list *list) {
    rk_call *first = list->first;
    list->first = NULL;
    list->last = NULL;
    return first;
}

void rk_burst_add(rk_call *call) {
    if (call->due)
        return;
    call->due = true;
    append(&call->poller->due, rk_call_ref(call));
}

/* ---- corks ---- */

static void cork(rk_poller *poller, rk_connection *connection, rk_cork *mark) {
    if (mark->on || poller->corked_count == RK_CORKED_MAX)
        return;
    mark->on = true;
    rk_connection_cork(connection, true);
    if (poller->corked_count == 0)
        poller->corked_us = poller->now_us;
    poller->corked[poller->corked_count++] = rk_connection_ref(connection);
}

static void uncork_all(rk_poller *poller) {
    for (size_t i = 0; i < poller->corked_count; i++) {
        rk_connection *connection = poller->corked[i];
        rk_connection_mark(connection, poller)->on = false;
        rk_connection_cork(connection, false);
        rk_connection_unref(connection);
    }
    poller->corked_count = 0;
}

/* Counts a connection's writes of this burst; the second one corks it. */
static void count_write(rk_poller *poller, rk_connection *connection) {
    if (!connection)
        return;
    rk_cork *mark = rk_connection_mark(connection, poller);
    if (++mark->writes == 2)
        cork(poller, connection, mark);
}

/* ---- writing ---- */

/* Those that were held are looked at again with the others, once the first one's time has come. */
static void take_back_held(rk_poller *poller) {
    if (!poller->held.first || poller->now_us < poller->held_until_us)
        return;
    if (poller->due.last)
        poller->due.last->due_next = poller->held.first;
    else
        poller->due.first = poller->held.first;
    poller->due.last = poller->held.last;
    (void)take_all(&poller->held);
}

/* Holds those that wrote a moment ago, and counts the others. */
static void sort_due(rk_poller *poller) {
    rk_call *call = take_all(&poller->due);
    if (!poller->held.first)
        poller->held_until_us = UINT64_MAX;
    while (call) {
        rk_call *next = call->due_next;
        if (poller->now_us < call->hold_until_us) {
            append(&poller->held, call);
            if (call->hold_until_us < poller->held_until_us)
                poller->held_until_us = call->hold_until_us;
        } else {
            append(&poller->due, call);
            count_write(poller, call->connection);
        }
        call = next;
    }
}

static void write_due(rk_poller *poller) {
    poller->now_us = rk_now_us();
    take_back_held(poller);
    sort_due(poller);
    rk_call *call = take_all(&poller->due);
    while (call) {
        rk_call *next = call->due_next;
        call->due = false;
        if (call->connection)
            rk_connection_mark(call->connection, poller)->writes = 0;
        call->write(call); /* may make it due again, for the next burst */
        rk_call_unref(call);
        call = next;
    }
}

/* ---- turns ---- */

static bool anything_to_write(const rk_poller *poller) {
    return poller->due.first || (poller->held.first && rk_now_us() >= poller->held_until_us);
}

void rk_burst_submitted(rk_poller *poller) {
    if (poller->rested && !poller->servicer->links)
        poller->steps_aside = true;
    poller->rested = false;
}

bool rk_burst_turn_over(rk_poller *poller) {
    uint64_t now = rk_now_us();
    if (poller->turn_events++ == 0)
        poller->turn_began_us = now;
    return poller->turn_events >= TURN_EVENTS || poller->steps_aside ||
           now - poller->turn_began_us >= TURN_US;
}

void rk_burst_write(rk_poller *poller) {
    poller->turn_events = 0;
    if (anything_to_write(poller))
        write_due(poller);
    bool aside = poller->steps_aside;
    poller->steps_aside = false;
    if (poller->corked_count > 0 && (aside || rk_now_us() - poller->corked_us >= CORKED_US))
        uncork_all(poller);
    if (aside)
        (void)sched_yield();
}

bool rk_burst_idle(rk_poller *poller) {
    poller->turn_events = 0;
    if (anything_to_write(poller)) {
        write_due(poller);
        return false;
    }
    uncork_all(poller);
    poller->rested = true;
    poller->steps_aside = false; /* it rests anyway */
    return true;
}

void rk_burst_drop(rk_poller *poller) {
    rk_due_list *lists[] = {&poller->due, &poller->held};
    for (size_t i = 0; i < 2; i++) {
        for (rk_call *call = take_all(lists[i]), *next; call; call = next) {
            next = call->due_next;
            call->due = false;
            rk_call_unref(call);
        }
    }
    uncork_all(poller);
}
