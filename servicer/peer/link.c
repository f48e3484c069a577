/* One stream of the room link: its hellos, and what each message means.
 *
 *   decode                          prefill
 *   hello(nonce)            ──▶
 *                           ◀──     hello(nonce, proof)
 *   begin(proof)            ──▶     up
 *   up                      ◀──     begin
 *   rooms, heartbeats       ◀─▶     rooms, heartbeats
 *
 * The decode begins only when the worker that answered is not linked already under another name, and is up
 * only when the prefill has taken its proof: legs that a link has, it loses when it breaks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "peer/table.h"

/* ---- streams ---- */

void rk_link_kick(rk_peers *peers, rk_link *link) {
    if (link->kicked)
        return;
    link->kicked = true;
    link->next = peers->kicks;
    peers->kicks = link;
}

void rk_link_drop_chunks(rk_link *link) {
    rk_list *node;
    while ((node = rk_list_pop_front(&link->chunks)) != NULL) {
        rk_chunk *chunk = RK_CONTAINER(node, rk_chunk, link);
        rk_buf_free(&chunk->entries);
        free(chunk);
    }
    link->chunk_count = 0;
}

void rk_link_end(rk_peers *peers, rk_link *link, rk_code code, const char *why) {
    if (link->phase == RK_LINK_OVER)
        return;
    link->phase = RK_LINK_OVER;
    (void)rk_status_set(&link->over, code, "%s", why);
    rk_link_drop_chunks(link);
    rk_link_kick(peers, link);
}

static bool open_stream(rk_peers *peers, uint64_t now, rk_link *link, void *stream, const char *remote) {
    memset(link, 0, sizeof *link);
    rk_list_init(&link->chunks);
    rk_list_init(&link->link);
    link->stream = stream;
    link->opened_ms = now;
    link->heard_ms = now;
    link->said_ms = now;
    (void)snprintf(link->remote, sizeof link->remote, "%s", remote);
    link->mine = (rk_hello){
        .protocol = RK_LINK_PROTOCOL,
        .role = peers->options.role,
        .window = peers->options.window,
        .engine = peers->ops->engine(peers->owner),
        .heartbeat_ms = peers->options.heartbeat_ms,
        .releases = peers->options.releases,
    };
    memcpy(link->mine.instance, peers->instance, sizeof link->mine.instance);
    (void)snprintf(link->mine.release, sizeof link->mine.release, "%s", RK_VERSION);
    return rk_random(link->mine.nonce, sizeof link->mine.nonce) == 0;
}

bool rk_link_open(rk_peers *peers, uint64_t now, rk_link *link, uint32_t number, void *stream,
                  const char *remote) {
    rk_peers_enter(peers);
    bool made = open_stream(peers, now, link, stream, remote);
    rk_peer *peer = number > 0 && number <= peers->options.links ? &peers->table[number] : NULL;
    bool wanted = made && !peers->stopped && peer && peer->used && !peer->link &&
                  peer->next_dial_ms == UINT64_MAX &&
                  (peer->phase == RK_PEER_IS_DIALLING || peer->phase == RK_PEER_IS_LOST);
    if (wanted) {
        link->dialled = true;
        link->peer = number;
        link->hello_due = true;
        peer->link = link;
        rk_list_push_back(&peers->links, &link->link);
        rk_link_kick(peers, link);
    }
    rk_peers_leave(peers, NULL);
    return wanted;
}

bool rk_link_accept(rk_peers *peers, uint64_t now, rk_link *link, void *stream, const char *remote) {
    rk_peers_enter(peers);
    bool made = open_stream(peers, now, link, stream, remote);
    uint32_t open = 0;
    for (const rk_list *node = peers->links.next; node != &peers->links; node = node->next)
        open++;
    if (peers->stopped)
        (void)rk_status_set(&link->over, RK_UNAVAILABLE, "this worker is shutting down");
    else if (peers->options.role != RK_LINK_ROLE_PREFILL)
        (void)rk_status_set(&link->over, RK_FAILED_PRECONDITION,
                            "this is no prefill worker; links are opened by decodes to prefills");
    else if (!made || open >= 2 * peers->options.links)
        (void)rk_status_set(&link->over, RK_RESOURCE_EXHAUSTED, "%u links are open here, the limit (links)",
                            open);
    else
        rk_list_push_back(&peers->links, &link->link);
    bool taken = rk_list_linked(&link->link);
    if (!taken)
        peers->counts.streams_refused++;
    rk_peers_leave(peers, NULL);
    return taken;
}

void rk_peers_refused(rk_peers *peers, const char *remote, const char *why) {
    rk_peers_enter(peers);
    peers->counts.streams_refused++;
    rk_log_event(peers->log, RK_LOG_WARNING, "a room link is refused", RK_FIELD_TEXT("remote", remote),
                 RK_FIELD_TEXT("why", why));
    rk_peers_leave(peers, NULL);
}

static rk_peer *peer_of(const rk_peers *peers, const rk_link *link) {
    rk_peer *peer = link->peer ? &peers->table[link->peer] : NULL;
    return peer && peer->link == link ? peer : NULL;
}

void rk_link_closed(rk_peers *peers, uint64_t now, rk_link *link, rk_code code, const char *why) {
    rk_effects fx;
    rk_effects_clear(&fx);
    rk_peers_enter(peers);
    rk_peer *peer = peer_of(peers, link);
    char text[160];
    (void)snprintf(text, sizeof text, "%s%s%s", rk_code_name(code), why && *why ? ": " : "", why ? why : "");
    /* Up until now, also if this worker has said goodbye: then its phase is over, but the peer still has it.
     */
    if (peer && peer->phase == RK_PEER_IS_UP)
        rk_peer_lose(peers, peer, now,
                     link->goodbye    ? "it shuts down"
                     : peers->stopped ? "this worker shuts down"
                                      : text,
                     link->goodbye || peers->stopped, &fx);
    else if (peer && link->dialled) {
        peer->link = NULL;
        rk_peer_dial_ended(peers, peer, now, RK_DIAL_FAILED,
                           code == RK_UNIMPLEMENTED ? "it does not speak the link" : text, &fx);
    }
    link->phase = RK_LINK_OVER;
    rk_link_drop_chunks(link);
    rk_list_remove(&link->link);
    rk_peers_leave(peers, &fx);
}

/* ---- hellos ---- */

/* Refuses the stream, or the peer that answered it. */
static void refuse(rk_peers *peers, uint64_t now, rk_link *link, rk_code code, const char *why,
                   rk_effects *fx) {
    rk_peer *peer = peer_of(peers, link);
    peers->counts.streams_refused++;
    rk_log_event(peers->log, RK_LOG_WARNING, "a room link is refused", RK_FIELD_TEXT("remote", link->remote),
                 RK_FIELD_TEXT("why", why));
    if (peer && link->phase == RK_LINK_UP)
        rk_peer_lose(peers, peer, now, why, false, fx);
    else if (peer) {
        peer->link = NULL;
        rk_peer_dial_ended(peers, peer, now, RK_DIAL_FAILED, why, fx);
    }
    rk_link_end(peers, link, code, why);
}

/* What both sides ask of a hello; NULL: nothing is wrong. */
static const char *fault_in(const rk_peers *peers, const rk_hello *theirs) {
    rk_link_role wanted =
        peers->options.role == RK_LINK_ROLE_DECODE ? RK_LINK_ROLE_PREFILL : RK_LINK_ROLE_DECODE;
    if (theirs->role != wanted)
        return wanted == RK_LINK_ROLE_PREFILL ? "the worker that answers is no prefill"
                                              : "the worker that dials is no decode";
    if (theirs->protocol < RK_LINK_PROTOCOL)
        return "it speaks protocol 0; this worker speaks 1";
    if (memcmp(theirs->instance, peers->instance, RK_INSTANCE_BYTES) == 0)
        return "a worker does not link to itself";
    return NULL;
}

static bool proof_holds(const rk_peers *peers, const rk_link *link, rk_link_role prover,
                        const uint8_t proof[RK_PROOF_BYTES], bool has_proof) {
    if (peers->options.token.size == 0)
        return true;
    const rk_hello *decode = link->dialled ? &link->mine : &link->theirs;
    const rk_hello *prefill = link->dialled ? &link->theirs : &link->mine;
    uint8_t wanted[RK_PROOF_BYTES];
    return has_proof && rk_proof_make(&peers->options.token, prover, decode, prefill, wanted) == 0 &&
           rk_proof_same(wanted, proof);
}

static void come_up(rk_peers *peers, rk_peer *peer, rk_link *link, uint64_t now, rk_effects *fx) {
    peer->link = link;
    peer->known = true;
    peer->failures = 0;
    peer->row.ups++;
    memcpy(peer->instance, link->theirs.instance, RK_INSTANCE_BYTES);
    memcpy(peer->row.release, link->theirs.release, sizeof peer->row.release);
    link->peer = rk_peer_number(peers, peer);
    link->phase = RK_LINK_UP;
    link->engine = link->theirs.engine;
    rk_peer_move(peer, RK_PEER_IS_UP, now);
    rk_log_event(peers->log, RK_LOG_INFO, "a room link is up", RK_FIELD_TEXT("peer", peer->row.name),
                 RK_FIELD_TEXT("address", peer->row.address), RK_FIELD_TEXT("release", peer->row.release),
                 RK_FIELD_INT("window", link->theirs.window));
    rk_ledger_peer_up(peers->ledger, now, link->peer, fx);
}

/* Decode: the peer that is this same worker by another name, linked or about to be; NULL: there is none. */
static rk_peer *same_worker(const rk_peers *peers, const rk_link *link) {
    for (const rk_list *node = peers->links.next; node != &peers->links; node = node->next) {
        const rk_link *other = RK_CONTAINER(node, rk_link, link);
        bool begun = other->phase == RK_LINK_BEGIN || other->phase == RK_LINK_UP;
        if (other != link && begun && peer_of(peers, other) &&
            memcmp(other->theirs.instance, link->theirs.instance, RK_INSTANCE_BYTES) == 0)
            return peer_of(peers, other);
    }
    return NULL;
}

/* Decode: the prefill has answered. */
static void answered(rk_peers *peers, rk_link *link, uint64_t now, rk_effects *fx) {
    const rk_hello *theirs = &link->theirs;
    rk_peer *peer = peer_of(peers, link);
    const char *fault = fault_in(peers, theirs);
    if (fault) {
        refuse(peers, now, link, RK_FAILED_PRECONDITION, fault, fx);
        return;
    }
    if (!proof_holds(peers, link, RK_LINK_ROLE_PREFILL, theirs->proof, theirs->has_proof)) {
        refuse(peers, now, link, RK_PERMISSION_DENIED, "it does not know the token (link_token_file)", fx);
        return;
    }
    if (!peer) {
        rk_link_end(peers, link, RK_CANCELLED, "nobody waits for this link");
        return;
    }
    rk_peer *same = same_worker(peers, link);
    if (same) {
        rk_ledger_peer_folded(peers->ledger, now, link->peer, rk_peer_number(peers, same), fx);
        rk_peer_fold(peers, peer, same);
        rk_link_end(peers, link, RK_CANCELLED, "this worker is linked already, by another name");
        return;
    }
    link->phase = RK_LINK_BEGIN;
    link->begin_due = true;
    rk_link_kick(peers, link);
}

/* Decode: the prefill has taken our Begin. If it is another process than before, the old one writes no more,
 * but this one may have been asked for the same rooms already: it hears which have ended, and says when it is
 * quiet. */
static void accepted(rk_peers *peers, rk_link *link, uint64_t now, rk_effects *fx) {
    rk_peer *peer = peer_of(peers, link);
    if (!peer) {
        rk_link_end(peers, link, RK_CANCELLED, "nobody waits for this link");
        return;
    }
    come_up(peers, peer, link, now, fx);
}

/* Prefill: somebody introduces himself; our hello is the answer. */
static void introduced(rk_peers *peers, rk_link *link, uint64_t now, rk_effects *fx) {
    const char *fault = fault_in(peers, &link->theirs);
    if (fault) {
        refuse(peers, now, link, RK_FAILED_PRECONDITION, fault, fx);
        return;
    }
    if (peers->options.token.size > 0) {
        link->mine.has_proof = rk_proof_make(&peers->options.token, RK_LINK_ROLE_PREFILL, &link->theirs,
                                             &link->mine, link->mine.proof) == 0;
    }
    link->phase = RK_LINK_BEGIN;
    link->hello_due = true;
    rk_link_kick(peers, link);
}

/* Prefill: the decode goes ahead. A second stream of the same worker replaces its first. */
static void begun(rk_peers *peers, rk_link *link, uint64_t now, const rk_frame *frame, rk_effects *fx) {
    if (!proof_holds(peers, link, RK_LINK_ROLE_DECODE, frame->proof, frame->has_proof)) {
        refuse(peers, now, link, RK_PERMISSION_DENIED, "it does not know the token (link_token_file)", fx);
        return;
    }
    rk_peer *peer = rk_peer_by_instance(peers, link->theirs.instance);
    if (peer && peer->link) {
        rk_link *older = peer->link;
        rk_peer_lose(peers, peer, now, "the worker has opened the link anew", true, fx);
        rk_link_end(peers, older, RK_ABORTED, "replaced by a newer link of the same worker");
    }
    if (!peer)
        peer = rk_peer_new(peers, now, fx);
    if (!peer) {
        refuse(peers, now, link, RK_RESOURCE_EXHAUSTED, "too many workers are linked here (links)", fx);
        return;
    }
    (void)snprintf(peer->row.name, sizeof peer->row.name, "%s", link->remote);
    (void)snprintf(peer->row.address, sizeof peer->row.address, "%s", link->remote);
    link->begin_due = true;
    come_up(peers, peer, link, now, fx);
    rk_link_kick(peers, link);
}

/* ---- rooms ---- */

/* Decode: of this peer are the rooms of the bootstrap servers that it is known by, and no others. */
static bool is_theirs(const rk_peers *peers, const rk_link *link, const rk_room *room) {
    if (room->room == 0)
        return false;
    if (!link->dialled)
        return true; /* the ledger knows who opened it */
    const rk_peer *peer = rk_peer_by_name(peers, room->host, room->port);
    return peer && rk_peer_number(peers, peer) == link->peer;
}

static bool take_room(rk_peers *peers, const rk_link *link, uint64_t now, const rk_room_news *news,
                      rk_effects *fx) {
    bool decode = peers->options.role == RK_LINK_ROLE_DECODE;
    rk_ledger *ledger = peers->ledger;
    if (!is_theirs(peers, link, &news->room))
        return false;
    switch (news->state) {
    case RK_ROOM_OPENED:
        return rk_ledger_twin_announced(ledger, now, link->peer, &news->room, fx);
    case RK_ROOM_SUBMITTED:
        return decode && rk_ledger_twin_announced(ledger, now, link->peer, &news->room, fx);
    case RK_ROOM_ADMITTED:
        return !decode && rk_ledger_twin_admitted(ledger, now, link->peer, &news->room, fx);
    case RK_ROOM_HANDED_OFF:
        return !decode && rk_ledger_twin_handed_off(ledger, now, link->peer, &news->room, fx);
    case RK_ROOM_ENDED:
        return rk_ledger_twin_ended(ledger, now, link->peer, &news->room, news->cause, news->ever_submitted,
                                    fx);
    case RK_ROOM_QUIESCED:
        return decode && rk_ledger_twin_quiesced(ledger, now, link->peer, &news->room, fx);
    case RK_ROOM_UNKNOWN:
    default:
        return true; /* of a later release */
    }
}

static void count_room(rk_peers *peers, rk_link *link, const rk_room_news *news, bool taken) {
    rk_peer *peer = peer_of(peers, link);
    if (!peer)
        return;
    if (taken) {
        peer->row.heard++;
        return;
    }
    peers->counts.rooms_refused++;
    if (peer->row.refused++ == 0) /* the first one; the rest is counted */
        rk_log_event(peers->log, RK_LOG_WARNING, "a peer speaks of a room that is not of its link",
                     RK_FIELD_TEXT("peer", peer->row.name), RK_FIELD_TEXT("host", news->room.host),
                     RK_FIELD_INT("room", news->room.room),
                     RK_FIELD_TEXT("state", rk_room_state_name(news->state)));
}

/* One at a time, each with its effects carried out before the next: a frame may hold thousands. */
static void take_rooms(rk_peers *peers, uint64_t now, rk_link *link, rk_wire rooms) {
    for (;;) {
        rk_room_news news;
        rk_status status;
        int rc = rk_rooms_next(&rooms, &news, &status);
        if (rc == 0)
            return;
        rk_effects fx;
        rk_effects_clear(&fx);
        rk_peers_enter(peers);
        bool up = link->phase == RK_LINK_UP;
        if (up && rc < 0)
            refuse(peers, now, link, status.code, status.text, &fx);
        else if (up)
            count_room(peers, link, &news, take_room(peers, link, now, &news, &fx));
        rk_peers_leave(peers, &fx);
        if (!up || rc < 0)
            return;
    }
}

static bool is_stalled(rk_link_engine engine) {
    return engine == RK_LINK_ENGINE_STALLED || engine == RK_LINK_ENGINE_DEAD;
}

/* A stalled engine is as good as a lost one to those who wait for it; its words count again when it is back.
 */
static void engine_heard(rk_peers *peers, rk_link *link, uint64_t now, rk_link_engine engine,
                         rk_effects *fx) {
    bool stalled = is_stalled(engine);
    rk_peer *peer = peer_of(peers, link);
    link->engine = engine;
    if (!peer || stalled == link->stalled)
        return;
    link->stalled = stalled;
    rk_log_event(peers->log, RK_LOG_WARNING,
                 stalled ? "the engine of a linked worker has stalled"
                         : "the engine of a linked worker is back",
                 RK_FIELD_TEXT("peer", peer->row.name), RK_FIELD_TEXT("engine", rk_link_engine_name(engine)));
    if (stalled)
        rk_ledger_peer_lost(peers->ledger, now, link->peer, fx);
    else
        rk_ledger_peer_up(peers->ledger, now, link->peer, fx);
}

/* ---- messages ---- */

static bool is_expected(const rk_link *link, rk_frame_kind kind) {
    switch (link->phase) {
    case RK_LINK_HELLO:
        return kind == RK_FRAME_HELLO;
    case RK_LINK_BEGIN:
        return kind == RK_FRAME_BEGIN;
    case RK_LINK_UP:
        return kind == RK_FRAME_ROOMS || kind == RK_FRAME_HEARTBEAT || kind == RK_FRAME_GOODBYE;
    case RK_LINK_OVER:
    default:
        return false;
    }
}

static void take_frame(rk_peers *peers, rk_link *link, uint64_t now, const rk_frame *frame, rk_effects *fx) {
    switch (frame->kind) {
    case RK_FRAME_HELLO:
        link->theirs = frame->hello;
        if (link->dialled)
            answered(peers, link, now, fx);
        else
            introduced(peers, link, now, fx);
        return;
    case RK_FRAME_BEGIN:
        if (link->dialled)
            accepted(peers, link, now, fx);
        else
            begun(peers, link, now, frame, fx);
        return;
    case RK_FRAME_HEARTBEAT:
        engine_heard(peers, link, now, frame->engine, fx);
        return;
    case RK_FRAME_GOODBYE:
        link->goodbye = true;
        return;
    default:
        return;
    }
}

void rk_link_received(rk_peers *peers, uint64_t now, rk_link *link, const uint8_t *bytes, size_t size) {
    rk_frame frame;
    rk_status status;
    rk_code code = rk_frame_read(bytes, size, &frame, &status);
    rk_effects fx;
    rk_effects_clear(&fx);
    rk_peers_enter(peers);
    link->heard_ms = now;
    /* What comes after the end is not read, nor what only a later release knows. */
    bool read = link->phase != RK_LINK_OVER && (code != RK_OK || frame.kind != RK_FRAME_NONE);
    bool rooms = false;
    if (read && code != RK_OK)
        refuse(peers, now, link, code, status.text, &fx);
    else if (read && !is_expected(link, frame.kind))
        refuse(peers, now, link, RK_FAILED_PRECONDITION, "its frames are out of order", &fx);
    else if (read && frame.kind == RK_FRAME_ROOMS)
        rooms = true;
    else if (read)
        take_frame(peers, link, now, &frame, &fx);
    rk_peers_leave(peers, &fx);
    if (rooms)
        take_rooms(peers, now, link, frame.rooms);
}

/* ---- what is said ---- */

bool rk_link_add_room(rk_link *link, const rk_room_news *news) {
    rk_chunk *last = rk_list_empty(&link->chunks) ? NULL : RK_CONTAINER(link->chunks.prev, rk_chunk, link);
    if (!last || last->entries.size >= RK_CHUNK_BYTES) {
        last = link->chunk_count < RK_CHUNKS_MAX ? calloc(1, sizeof *last) : NULL;
        if (!last)
            return false;
        rk_list_push_back(&link->chunks, &last->link);
        link->chunk_count++;
    }
    rk_rooms_add(&last->entries, news);
    return !last->entries.failed;
}

static void tell_one(rk_peers *peers, uint64_t now, const rk_effect *effect, rk_effects *fx) {
    rk_peer *peer = effect->peer <= peers->options.links ? &peers->table[effect->peer] : NULL;
    rk_link *link = peer ? peer->link : NULL;
    if (!link || link->phase != RK_LINK_UP)
        return; /* it hears how things stand when the link is up */
    rk_room_news news = {
        .room = effect->room,
        .state = rk_room_state_of(effect->kind),
        .cause = effect->cause,
        .ever_submitted = effect->ever_submitted,
    };
    if (rk_link_add_room(link, &news)) {
        peer->row.told++;
        rk_link_kick(peers, link);
        return;
    }
    rk_peer_lose(peers, peer, now, "it does not read what it is told", false, fx);
    rk_link_end(peers, link, RK_RESOURCE_EXHAUSTED, "too much is waiting to be read");
}

void rk_peers_tell(rk_peers *peers, uint64_t now) {
    rk_effects fx;
    rk_effects tells;
    rk_effects_clear(&fx);
    rk_peers_enter(peers);
    do {
        rk_effects_clear(&tells);
        rk_ledger_take_tells(peers->ledger, &tells);
        for (size_t i = 0; i < tells.count; i++)
            tell_one(peers, now, &tells.items[i], &fx);
    } while (tells.more);
    rk_peers_leave(peers, &fx);
}

/* Nothing that was said while the engine stalled has counted: what matters of it is said again, after the
 * word that it is back. */
static void say_again(rk_peers *peers, rk_link *link, uint64_t now, rk_effects *fx) {
    link->back_due = true;
    if (!link->stalled) /* else when theirs is back as well */
        rk_ledger_peer_up(peers->ledger, now, link->peer, fx);
}

void rk_peers_engine_changed(rk_peers *peers, uint64_t now) {
    rk_effects fx;
    rk_effects_clear(&fx);
    rk_peers_enter(peers);
    bool stalled = is_stalled(peers->ops->engine(peers->owner));
    bool back = peers->stalled && !stalled;
    peers->stalled = stalled;
    for (rk_list *node = peers->links.next; node != &peers->links; node = node->next) {
        rk_link *link = RK_CONTAINER(node, rk_link, link);
        if (link->phase != RK_LINK_UP)
            continue;
        link->beat_due = true;
        if (back)
            say_again(peers, link, now, &fx);
        rk_link_kick(peers, link);
    }
    rk_peers_leave(peers, &fx);
}

/* The decode gives its proof with it; the prefill's was in its hello. */
static void write_begin(rk_peers *peers, rk_link *link, rk_buf *out) {
    uint8_t proof[RK_PROOF_BYTES];
    bool proves =
        link->dialled && peers->options.token.size > 0 &&
        rk_proof_make(&peers->options.token, RK_LINK_ROLE_DECODE, &link->mine, &link->theirs, proof) == 0;
    rk_frame_begin(out, proves ? proof : NULL);
}

static bool write_next(rk_peers *peers, rk_link *link, rk_buf *out) {
    if (link->phase == RK_LINK_OVER)
        return false;
    if (link->hello_due) {
        link->hello_due = false;
        rk_frame_hello(out, &link->mine);
    } else if (link->begin_due) {
        link->begin_due = false;
        write_begin(peers, link, out);
    } else if (link->back_due) {
        link->back_due = false;
        link->beat_due = false;
        rk_frame_heartbeat(out, peers->ops->engine(peers->owner));
    } else if (!rk_list_empty(&link->chunks)) {
        rk_chunk *chunk = RK_CONTAINER(rk_list_pop_front(&link->chunks), rk_chunk, link);
        link->chunk_count--;
        rk_frame_rooms(out, &chunk->entries);
        rk_buf_free(&chunk->entries);
        free(chunk);
    } else if (link->goodbye_due) {
        rk_frame_goodbye(out);
        rk_link_end(peers, link, RK_UNAVAILABLE, "this worker is shutting down");
    } else if (link->beat_due) {
        link->beat_due = false;
        rk_frame_heartbeat(out, peers->ops->engine(peers->owner));
    } else {
        return false;
    }
    return true;
}

bool rk_link_next(rk_peers *peers, uint64_t now, rk_link *link, rk_buf *out) {
    rk_peers_enter(peers);
    bool some = write_next(peers, link, out);
    if (some)
        link->said_ms = now;
    rk_peers_leave(peers, NULL);
    return some;
}

bool rk_link_is_over(rk_peers *peers, rk_link *link, rk_status *status) {
    rk_peers_enter(peers);
    bool over = link->phase == RK_LINK_OVER;
    if (over)
        *status = link->over;
    rk_peers_leave(peers, NULL);
    return over;
}
