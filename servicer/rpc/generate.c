/* Generate: one leg, from its bytes to its last word.
 *
 * The call lives on its poller. The ledger decides (admit, hold, refuse, end) and its decisions come as
 * effects, posted to the poller; the engine's outputs come as steps, posted likewise. Here they become
 * writes, one batch at a time as gRPC core wants it: what cannot be written yet waits as tokens in its
 * choice, and as a short queue of marks that say up to where each Chunk goes.
 *
 * When do headers go out? With the admission, never earlier, since a gateway takes headers for "started"; a
 * held prefill opens with headers and one empty Chunk, since a gateway takes silence for a wedge; a refusal
 * is a status alone. With `--rooms off` headers go with the first message, as the engine's own servicer does.
 */
#include "rpc/generate.h"

#include <errno.h>
#include <grpc/byte_buffer.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "rpc/inputs.h"
#include "rpc/links.h"

/* Chunks that may wait for the reader one by one; past that the last one grows instead. */
#define MARKS_MAX 256
/* Messages in a row that gRPC core may keep for the next one: then one that waits for the reader. */
#define HINTED_MAX 128

static void pump(rk_generate *g);
static void client_lost(rk_generate *g);
static void end_unencoded(rk_generate *g);

size_t rk_generate_size(void) {
    return sizeof(rk_generate);
}

rk_call *rk_generate_call(rk_generate *generate) {
    return &generate->call;
}

static void generate_destroy(rk_call *call) {
    rk_generate *g = (rk_generate *)call;
    for (uint32_t i = 0; i < g->choice_count; i++)
        rk_choice_free(&g->choices[i]);
    free(g->choices);
    free(g->marks);
    rk_request_unref(g->request);
    atomic_fetch_sub(&call->servicer->open_generates, 1);
}

/* The call is over as far as the ledger and the sink are concerned. */
static void leave_table(rk_generate *g) {
    if (!g->in_table)
        return;
    g->in_table = false;
    rk_calls_remove(g->call.servicer, g->handle);
}

/* The handler's own reference, dropped once nothing more will be started. */
static void release(rk_generate *g) {
    if (g->released)
        return;
    g->released = true;
    leave_table(g);
    rk_call_unref(&g->call);
}

/* ---- marks: what is to be written, in order ---- */

static int push_mark(rk_generate *g, uint32_t choice, bool complete) {
    rk_choice *of = &g->choices[choice];
    if (!complete && g->mark_count > 0) {
        rk_mark *last = &g->marks[g->mark_first + g->mark_count - 1];
        if (g->mark_count >= MARKS_MAX && last->choice == choice && !last->complete) {
            last->end = of->count;
            last->completion_tokens = of->completion_tokens;
            return 0;
        }
    }
    if (g->mark_first + g->mark_count == g->mark_capacity) {
        if (g->mark_first > 0) {
            memmove(g->marks, g->marks + g->mark_first, g->mark_count * sizeof *g->marks);
            g->mark_first = 0;
        } else {
            size_t capacity = g->mark_capacity ? 2 * g->mark_capacity : 8;
            rk_mark *larger = realloc(g->marks, capacity * sizeof *larger);
            if (!larger)
                return -ENOMEM;
            g->marks = larger;
            g->mark_capacity = capacity;
        }
    }
    g->marks[g->mark_first + g->mark_count++] = (rk_mark){
        .choice = choice,
        .complete = complete,
        .end = of->count,
        .completion_tokens = of->completion_tokens,
    };
    return 0;
}

static void encode_mark(rk_generate *g, const rk_mark *mark, rk_buf *out) {
    rk_choice *choice = &g->choices[mark->choice];
    const rk_dialect *dialect = g->call.servicer->dialect;
    if (mark->complete) {
        rk_completion completion = rk_choice_completion(choice);
        dialect->encode_complete(out, &g->request->request_id, &completion);
        return;
    }
    size_t end = mark->end < choice->count ? mark->end : choice->count;
    rk_tokens tokens = rk_choice_tokens(choice, choice->written, end);
    tokens.completion_tokens = mark->completion_tokens;
    dialect->encode_chunk(out, &g->request->request_id, &tokens);
    choice->written = end;
}

/* ---- writing ---- */

static void written(rk_tag *tag, rk_poller *poller, bool ok) {
    (void)poller;
    rk_generate *g = RK_CONTAINER(tag, rk_generate, write_tag);
    g->writing = false;
    if (g->hinted == 0)
        g->unread_bytes = 0; /* it went out, and with it all before it */
    if (!ok)
        client_lost(g);
    else if (g->call.ended)
        release(g);
    else
        pump(g);
    rk_call_unref(&g->call);
}

static void add_metadata(grpc_metadata *metadata, const char *key, char *text, size_t size, uint64_t number) {
    int length = snprintf(text, size, "%" PRIu64, number);
    metadata->key = grpc_slice_from_static_string(key);
    metadata->value = grpc_slice_from_copied_buffer(text, (size_t)length);
}

#define METADATA_MAX 4

/* What a gateway needs to decide where and when to try again. */
static size_t retry_metadata(rk_generate *g, grpc_metadata metadata[METADATA_MAX]) {
    rk_servicer *servicer = g->call.servicer;
    rk_rank_counts ranks[1];
    uint64_t window = 0;
    uint64_t admitted = 0;
    uint64_t waiting = 0;
    uint32_t count = rk_ledger_read_ranks(servicer->ledger, rk_now_ms(), ranks, 1);
    if (count > 1) {
        rk_rank_counts *all = calloc(count, sizeof *all);
        count = all ? rk_ledger_read_ranks(servicer->ledger, rk_now_ms(), all, count) : 0;
        for (uint32_t i = 0; i < count; i++) {
            window += all[i].window;
            admitted += all[i].held_slots + all[i].releasing;
            waiting += all[i].waiting;
        }
        free(all);
    } else if (count == 1) {
        window = ranks[0].window;
        admitted = ranks[0].held_slots + ranks[0].releasing;
        waiting = ranks[0].waiting;
    }
    char text[24];
    memset(metadata, 0, METADATA_MAX * sizeof *metadata);
    add_metadata(&metadata[0], "grpc-retry-pushback-ms", text, sizeof text,
                 (uint64_t)servicer->config.pushback_ms);
    add_metadata(&metadata[1], "roomkeeper-window", text, sizeof text, window);
    add_metadata(&metadata[2], "roomkeeper-admitted", text, sizeof text, admitted);
    add_metadata(&metadata[3], "roomkeeper-waiting", text, sizeof text, waiting);
    return METADATA_MAX;
}

/* Starts one batch: headers if they are due, the next message, and the status behind the last one. A message
 * that has more behind it may wait in gRPC core for those, once the headers are out; such a batch is complete
 * at once. */
static void start_write(rk_generate *g, bool with_message) {
    grpc_op ops[3];
    memset(ops, 0, sizeof ops);
    size_t count = 0;
    bool opened = g->headers_sent;
    if (!g->headers_sent) {
        ops[count++].op = GRPC_OP_SEND_INITIAL_METADATA;
        g->headers_sent = true;
    }
    grpc_byte_buffer *bytes = NULL;
    if (with_message) {
        rk_buf *scratch = &g->call.poller->scratch;
        scratch->size = 0;
        scratch->failed = false;
        const rk_mark *mark = &g->marks[g->mark_first];
        rk_choice *choice = &g->choices[mark->choice];
        size_t before = rk_choice_backlog(choice);
        encode_mark(g, mark, scratch);
        size_t taken = before - rk_choice_backlog(choice);
        g->mark_first++;
        g->mark_count--;
        if (scratch->failed) {
            end_unencoded(g);
        } else {
            bytes = rk_call_message(scratch);
            ops[count].op = GRPC_OP_SEND_MESSAGE;
            bool hinted = opened && g->mark_count > 0 && g->hinted < HINTED_MAX;
            g->hinted = hinted ? g->hinted + 1 : 0;
            g->unread_bytes += hinted ? taken : 0;
            if (hinted)
                ops[count].flags = GRPC_WRITE_BUFFER_HINT;
            else
                g->call.hold_until_us = g->call.poller->now_us + RK_CALL_APART_US;
            ops[count++].data.send_message.send_message = bytes;
        }
    }
    grpc_slice text = grpc_empty_slice();
    grpc_metadata metadata[METADATA_MAX];
    size_t metadata_count = 0;
    if (g->end_set && g->mark_count == 0) {
        g->call.ended = true;
        text = grpc_slice_from_copied_string(g->end.text);
        if (g->end_retry)
            metadata_count = retry_metadata(g, metadata);
        ops[count].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
        ops[count].data.send_status_from_server.status = (grpc_status_code)g->end.code;
        ops[count].data.send_status_from_server.status_details = &text;
        ops[count].data.send_status_from_server.trailing_metadata = metadata;
        ops[count++].data.send_status_from_server.trailing_metadata_count = metadata_count;
    }
    if (count > 0) {
        g->writing = true;
        rk_call_batch(&g->call, ops, count, &g->write_tag);
    }
    for (size_t i = 0; i < metadata_count; i++)
        grpc_slice_unref(metadata[i].value);
    grpc_slice_unref(text);
    if (bytes)
        grpc_byte_buffer_destroy(bytes);
}

/* There may be something to write: in this turn's burst. */
static void pump(rk_generate *g) {
    if (!g->writing && !g->call.ended)
        rk_burst_add(&g->call);
}

/* Its part of the burst. */
static void write_next(rk_call *call) {
    rk_generate *g = (rk_generate *)call;
    if (g->writing || g->call.ended)
        return;
    if (g->mark_count > 0)
        start_write(g, true);
    else if (g->end_set || (g->headers_due && !g->headers_sent))
        start_write(g, false);
}

/* ---- endings ---- */

/* Decides the status; it goes out behind what is still to be written. */
static void set_end(rk_generate *g, const rk_status *status, bool retry) {
    if (g->end_set || g->call.ended)
        return;
    g->end_set = true;
    g->end = *status;
    g->end_retry = retry;
    leave_table(g);
    if (status->code != RK_OK)
        g->mark_count = 0; /* an answer that failed is not finished politely */
    pump(g);
}

static void end_ok(rk_generate *g) {
    rk_status ok;
    (void)rk_status_set(&ok, RK_OK, "%s", "");
    set_end(g, &ok, false);
}

/* A choice that was aborted by name: what it has so far, as its Complete. */
static int complete_as_aborted(rk_generate *g, uint32_t index) {
    rk_choice *choice = &g->choices[index];
    if (choice->finished)
        return 0;
    choice->finished = true;
    choice->finish = RK_FINISH_ABORT;
    g->open_choices--;
    return push_mark(g, index, true);
}

static void end_out_of_memory(rk_generate *g) {
    rk_effects fx;
    rk_effects_clear(&fx);
    rk_ledger_cancel(g->call.servicer->ledger, rk_now_ms(), g->handle, RK_CAUSE_NO_MEMORY, &fx);
    rk_status status;
    (void)rk_status_set(&status, RK_RESOURCE_EXHAUSTED,
                        "out of memory: request %s was ended, try again later", g->request->request_id.data);
    set_end(g, &status, true);
    rk_effects_run(g->call.servicer, &fx, g->call.poller);
}

/* A message could not be encoded: the status goes out in its place, whatever it was to be. */
static void end_unencoded(rk_generate *g) {
    if (!g->end_set)
        end_out_of_memory(g);
    g->mark_count = 0;
    g->end_retry = true;
    (void)rk_status_set(&g->end, RK_RESOURCE_EXHAUSTED,
                        "out of memory while encoding the answer of request %s, try again later",
                        g->request->request_id.data);
}

/* The Abort RPC: nothing more comes than what is there. That is written to the end: the Chunks of a choice
 * are its Complete's tokens, and a choice that was over before keeps its Complete. */
static void end_aborted(rk_generate *g) {
    for (uint32_t i = 0; i < g->choice_count; i++)
        if (complete_as_aborted(g, i) < 0)
            break;
    end_ok(g);
}

static void end_by_effect(rk_generate *g, const rk_effect *effect) {
    if (effect->cause == RK_CAUSE_ABORT_RPC && effect->code == RK_OK) {
        end_aborted(g);
        return;
    }
    rk_status status;
    rk_cause_text(effect->cause, effect->twin_cause, NULL, &g->call.servicer->config, &status);
    rk_engine_view view;
    rk_engine_look(g->call.servicer, rk_now_ms(), &view);
    if (effect->cause == RK_CAUSE_ENGINE_DEAD && view.state == RK_ENGINE_DEAD && view.why[0])
        (void)rk_status_set(&status, effect->code, "the engine is gone: %s", view.why);
    status.code = effect->code;
    set_end(g, &status, effect->retry);
}

static void log_end(rk_generate *g, const rk_effect *effect) {
    rk_servicer *servicer = g->call.servicer;
    char peer[RK_ROOM_HOST_MAX + 8] = "";
    if (servicer->links)
        rk_peers_address(servicer->links->peers, effect->peer, peer);
    bool twins = effect->cause == RK_CAUSE_TWIN_ENDED;
    rk_log_event(&servicer->log, RK_LOG_INFO, "leg ended",
                 RK_FIELD_TEXT("request", g->request->request_id.data),
                 RK_FIELD_INT("room", g->request->has_bootstrap ? g->request->bootstrap_room : -1),
                 RK_FIELD_TEXT("role", rk_role_name(servicer->rooms.role)), RK_FIELD_TEXT("peer", peer),
                 RK_FIELD_TEXT("cause", rk_cause_name(effect->cause)),
                 RK_FIELD_TEXT("twin_cause", twins ? rk_cause_name(effect->twin_cause) : ""),
                 RK_FIELD_TEXT("code", rk_code_name(effect->code)), RK_FIELD_IF("trace_id", g->trace_id));
}

/* Nothing can be written any more: the client has gone, or its deadline has passed. */
static void client_lost(rk_generate *g) {
    rk_servicer *servicer = g->call.servicer;
    bool live = g->in_table && !g->end_set;
    g->call.ended = true;
    leave_table(g);
    if (live) {
        const rk_effect gone = {.cause = RK_CAUSE_CLIENT_CANCEL, .code = RK_CANCELLED, .peer = g->peer};
        rk_effects fx;
        rk_effects_clear(&fx);
        log_end(g, &gone);
        rk_ledger_cancel(servicer->ledger, rk_now_ms(), g->handle, RK_CAUSE_CLIENT_CANCEL, &fx);
        rk_effects_run(servicer, &fx, g->call.poller);
    }
    if (!g->writing)
        release(g);
}

static void call_closed(rk_call *call) {
    if (call->cancelled)
        client_lost((rk_generate *)call);
}

/* The reader lets too much pile up: its stream is reset, which needs no room in its window. */
static void end_slow_reader(rk_generate *g, size_t backlog) {
    rk_servicer *servicer = g->call.servicer;
    char text[160];
    (void)snprintf(text, sizeof text,
                   "the reader is too slow: %zu bytes of output unread, the limit is %" PRId64
                   " (backlog_bytes)",
                   backlog, servicer->config.backlog_bytes);
    rk_effects fx;
    rk_effects_clear(&fx);
    rk_ledger_cancel(servicer->ledger, rk_now_ms(), g->handle, RK_CAUSE_SLOW_READER, &fx);
    g->call.ended = true;
    g->mark_count = 0;
    leave_table(g);
    (void)grpc_call_cancel_with_status(g->call.grpc, GRPC_STATUS_RESOURCE_EXHAUSTED, text, NULL);
    rk_effects_run(servicer, &fx, g->call.poller);
    if (!g->writing)
        release(g);
}

/* ---- outputs ---- */

/* The engine gave up on a choice, and with it the call ends. */
static void end_by_engine(rk_generate *g, const rk_output *output) {
    rk_status status;
    char message[RK_STATUS_TEXT_MAX];
    if (output->message_bytes > 0)
        (void)rk_utf8_clean(message, sizeof message, output->message, output->message_bytes);
    else
        (void)snprintf(message, sizeof message, "the engine aborted the request");
    (void)rk_status_set(&status, rk_code_of_http(output->http_status), "%s", message);
    const rk_effect failed = {.cause = RK_CAUSE_ENGINE_ERROR, .code = status.code, .peer = g->peer};
    log_end(g, &failed);
    rk_effects fx;
    rk_effects_clear(&fx);
    if (g->choice_count > 1) /* the others of this call go with it */
        rk_ledger_cancel(g->call.servicer->ledger, rk_now_ms(), g->handle, RK_CAUSE_ENGINE_ERROR, &fx);
    set_end(g, &status, false);
    rk_effects_run(g->call.servicer, &fx, g->call.poller);
}

/* Without streaming, nothing goes out before every choice is there: an abort of the last one is then still
 * the call's status. */
static int mark_all_complete(rk_generate *g) {
    for (uint32_t i = 0; i < g->choice_count; i++)
        if (push_mark(g, i, true) < 0)
            return -ENOMEM;
    return 0;
}

void rk_generate_output(rk_generate *g, const rk_output *output) {
    if (g->call.ended || g->end_set || output->choice >= g->choice_count)
        return;
    rk_choice *choice = &g->choices[output->choice];
    if (choice->finished)
        return;
    if (output->finish == RK_FINISH_ABORT) {
        end_by_engine(g, output);
        return;
    }
    const rk_request *request = g->request;
    size_t before = choice->count;
    if (output->counted)
        choice->prompt_tokens = (uint32_t)request->input_count;
    int result = rk_choice_add(choice, output, request->return_logprob, !request->sampling.no_stop_trim);
    if (result == 0 && request->stream && (choice->count > before || !choice->announced)) {
        choice->announced = true;
        result = push_mark(g, output->choice, false);
    }
    if (result == 0 && choice->finished) {
        g->open_choices--;
        if (request->stream)
            result = push_mark(g, output->choice, true);
        else if (g->open_choices == 0)
            result = mark_all_complete(g);
    }
    if (result < 0) {
        end_out_of_memory(g);
        return;
    }
    if (g->open_choices == 0) {
        end_ok(g);
        return;
    }
    pump(g);
    if (request->stream && (g->mark_count > 1 || g->unread_bytes > 0)) {
        size_t backlog = g->unread_bytes;
        for (uint32_t i = 0; i < g->choice_count; i++)
            backlog += rk_choice_backlog(&g->choices[i]);
        if (backlog > (size_t)g->call.servicer->config.backlog_bytes)
            end_slow_reader(g, backlog);
    }
}

bool rk_generate_first_output(rk_generate *generate) {
    bool seen = generate->output_seen;
    generate->output_seen = true;
    return !seen;
}

/* ---- effects ---- */

static void open_held(rk_generate *g) {
    if (g->call.ended || g->end_set)
        return;
    g->headers_due = true;
    g->choices[0].announced = true;
    if (push_mark(g, 0, false) < 0) {
        end_out_of_memory(g);
        return;
    }
    pump(g);
}

static void admit(rk_generate *g) {
    rk_servicer *servicer = g->call.servicer;
    if (g->call.ended || g->end_set)
        return;
    rk_effects fx;
    rk_effects_clear(&fx);
    if (rk_ledger_begin_submit(servicer->ledger, rk_now_ms(), g->handle, &fx) == 0) {
        if (servicer->rooms.enabled) {
            g->headers_due = true;
            pump(g);
        }
        char id[RK_REQUEST_ID_MAX + 32];
        (void)snprintf(id, sizeof id, "%s~%" PRIu64, g->request->request_id.data, g->handle);
        rk_submission submission = {
            .handle = g->handle,
            .request = g->request,
            .engine_id = id,
            .rank = g->rank,
        };
        int result = servicer->ops->submit(servicer->engine, &submission);
        if (result < 0) {
            rk_log_event(&servicer->log, RK_LOG_ERROR, "the engine did not take a request",
                         RK_FIELD_TEXT("request", id), RK_FIELD_TEXT("error", strerror(-result)),
                         RK_FIELD_IF("trace_id", g->trace_id));
            rk_ledger_submit_failed(servicer->ledger, rk_now_ms(), g->handle, &fx);
        } else {
            rk_burst_submitted(g->call.poller);
        }
    }
    rk_effects_run(servicer, &fx, g->call.poller);
}

/* Poller thread: the effects that have been handed over since the last time. */
static void effects_posted(rk_post *post, rk_poller *poller) {
    (void)poller;
    rk_generate *g = RK_CONTAINER(post, rk_generate, post);
    unsigned bits = atomic_exchange(&g->posted, 0);
    if (bits & RK_POSTED_OPEN)
        open_held(g);
    if (bits & RK_POSTED_ADMIT)
        admit(g);
    if (bits & RK_POSTED_END) {
        log_end(g, &g->end_effect);
        end_by_effect(g, &g->end_effect);
    }
    rk_call_unref(&g->call);
}

void rk_generate_post_effect(rk_generate *g, const rk_effect *effect, rk_poller *self) {
    unsigned bit = RK_POSTED_OPEN;
    if (effect->kind == RK_FX_ADMIT) {
        g->rank = effect->rank; /* told once, before the bit is set */
        bit = RK_POSTED_ADMIT;
    } else if (effect->kind == RK_FX_END) {
        g->end_effect = *effect; /* likewise */
        bit = RK_POSTED_END;
    }
    if (atomic_fetch_or(&g->posted, bit) == 0) {
        rk_call_ref(&g->call);
        rk_call_post(&g->call, &g->post, self);
    }
}

typedef struct rk_choice_post {
    rk_post post;
    rk_generate *generate;
    uint32_t choice;
} rk_choice_post;

static void choice_ended(rk_post *post, rk_poller *poller) {
    (void)poller;
    rk_choice_post *ended = (rk_choice_post *)post;
    rk_generate *g = ended->generate;
    if (!g->call.ended && !g->end_set && ended->choice < g->choice_count) {
        bool stream = g->request->stream;
        rk_choice *choice = &g->choices[ended->choice];
        int result = 0;
        if (stream) {
            result = complete_as_aborted(g, ended->choice);
        } else if (!choice->finished) {
            choice->finished = true;
            choice->finish = RK_FINISH_ABORT;
            g->open_choices--;
            if (g->open_choices == 0)
                result = mark_all_complete(g);
        }
        if (result < 0)
            end_out_of_memory(g);
        else if (g->open_choices == 0)
            end_ok(g);
        else
            pump(g);
    }
    rk_call_unref(&g->call);
    free(ended);
}

void rk_generate_end_choice(rk_generate *g, uint32_t choice, rk_poller *self) {
    rk_choice_post *ended = calloc(1, sizeof *ended);
    if (!ended)
        return; /* the engine has its abort; the choice ends with the engine's last output or the call */
    ended->post.run = choice_ended;
    ended->generate = g;
    ended->choice = choice;
    rk_call_ref(&g->call);
    rk_call_post(&g->call, &ended->post, self);
}

/* ---- arrival ---- */

static void room_of(const rk_request *request, rk_room *room) {
    size_t length = request->bootstrap_host.bytes;
    if (length >= sizeof room->host)
        length = sizeof room->host - 1;
    for (size_t i = 0; i < length; i++) {
        char c = request->bootstrap_host.data[i];
        room->host[i] = (char)(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
    }
    room->host[length] = '\0';
    room->port = request->bootstrap_port;
    room->room = request->bootstrap_room;
}

/* The peer that has the other leg; 0: nobody whom we could tell. */
static uint32_t peer_of(const rk_generate *g, const rk_room *room) {
    const rk_servicer *servicer = g->call.servicer;
    if (!servicer->links || room->room == 0)
        return 0;
    return rk_peers_of_room(servicer->links->peers, rk_now_ms(), room);
}

/* Refused before it reached the ledger; the other leg would wait for it. */
static void tell_twin(rk_generate *g) {
    rk_servicer *servicer = g->call.servicer;
    if (!servicer->links || !g->request->has_bootstrap)
        return;
    rk_room room;
    room_of(g->request, &room);
    uint32_t peer = peer_of(g, &room);
    rk_cause cause = atomic_load(&servicer->draining) ? RK_CAUSE_DRAIN : RK_CAUSE_ENGINE_DEAD;
    rk_effects fx;
    rk_effects_clear(&fx);
    rk_ledger_turned_away(servicer->ledger, rk_now_ms(), &room, peer != 0, peer, cause, &fx);
    rk_effects_run(servicer, &fx, g->call.poller);
}

static bool refuse_state(rk_generate *g) {
    rk_status status;
    if (rk_state_refusal(g->call.servicer, &status) == RK_OK)
        return false;
    tell_twin(g);
    set_end(g, &status, false);
    return true;
}

static void refuse(rk_generate *g, const rk_verdict *verdict) {
    rk_servicer *servicer = g->call.servicer;
    rk_status status;
    rk_cause_text(verdict->cause, verdict->twin_cause, verdict, &servicer->config, &status);
    status.code = verdict->code;
    rk_log_event(&servicer->log, RK_LOG_DEBUG, "leg refused",
                 RK_FIELD_TEXT("request", g->request->request_id.data),
                 RK_FIELD_INT("room", g->request->has_bootstrap ? g->request->bootstrap_room : -1),
                 RK_FIELD_TEXT("cause", rk_cause_name(verdict->cause)), RK_FIELD_IF("trace_id", g->trace_id));
    set_end(g, &status, verdict->retry);
}

static int prepare(rk_generate *g) {
    g->choices = calloc(g->request->n, sizeof *g->choices);
    if (!g->choices)
        return -ENOMEM;
    g->choice_count = g->request->n;
    g->open_choices = g->request->n;
    for (uint32_t i = 0; i < g->choice_count; i++)
        g->choices[i].index = i;
    return 0;
}

static void arrive(rk_generate *g) {
    rk_servicer *servicer = g->call.servicer;
    rk_room room = {.room = 0};
    if (g->request->has_bootstrap)
        room_of(g->request, &room);
    g->handle = rk_ledger_new_handle(servicer->ledger);
    if (rk_calls_add(servicer, g->handle, g) < 0) {
        end_out_of_memory(g);
        return;
    }
    g->in_table = true;
    uint32_t peer = peer_of(g, &room);
    g->peer = peer;
    rk_leg_spec spec = {
        .handle = g->handle,
        .request_id = g->request->request_id.data,
        .request_id_bytes = g->request->request_id.bytes,
        .room = g->request->has_bootstrap ? &room : NULL,
        .n = g->request->n,
        .prompt_tokens = g->request->input_count,
        .rank = g->request->has_rank ? g->request->rank : -1,
        .linked = peer != 0,
        .peer = peer,
    };
    rk_verdict verdict;
    rk_effects fx;
    rk_effects_clear(&fx);
    if (rk_ledger_arrive(servicer->ledger, rk_now_ms(), &spec, &verdict, &fx) < 0)
        end_out_of_memory(g);
    else if (!verdict.accepted)
        refuse(g, &verdict);
    rk_effects_run(servicer, &fx, g->call.poller);
}

void rk_generate_handle(rk_call *call, const uint8_t *bytes, size_t size) {
    rk_generate *g = (rk_generate *)call;
    rk_servicer *servicer = call->servicer;
    call->destroy = generate_destroy;
    call->on_closed = call_closed;
    call->write = write_next;
    g->write_tag.run = written;
    g->post.run = effects_posted;
    atomic_init(&g->posted, 0);
    atomic_fetch_add(&servicer->open_generates, 1);
    if (call->metadata && !rk_trace_read(call->metadata, g->trace_id))
        atomic_fetch_add(&servicer->bad_traces, 1);
    rk_status status;
    if (servicer->rooms.role == RK_ROLE_ENCODE) {
        rk_inputs_discard(call, bytes, size, false);
        (void)rk_status_set(
            &status, RK_FAILED_PRECONDITION,
            "this is an encode worker, which generates nothing; send it Encode, and Generate to a "
            "prefill or decode worker");
        set_end(g, &status, false);
        return;
    }
    rk_keeper keeper = rk_inputs_keeper(call);
    rk_code code =
        servicer->dialect->decode_generate(bytes, size, &servicer->limits, &keeper, &g->request, &status);
    if (code == RK_OK)
        code = rk_inputs_take(g->request, &status);
    else
        rk_inputs_discard(call, bytes, size, false);
    if (code != RK_OK) {
        set_end(g, &status, code == RK_RESOURCE_EXHAUSTED && g->request);
        return;
    }
    if (refuse_state(g))
        return;
    if (prepare(g) < 0) {
        (void)rk_status_set(&status, RK_RESOURCE_EXHAUSTED, "out of memory: try again later");
        set_end(g, &status, true);
        return;
    }
    arrive(g);
}
