/* Rooms that have no leg here: those a twin has announced, and tombstones of those whose twin has ended.
 *
 * Bounded in number and time; each kind is kept equally long, so the oldest is always first. */
#include <errno.h>
#include <stdlib.h>

#include "rooms/ledger.h"

size_t rk_room_key(const rk_room *room, uint8_t key[RK_ROOM_KEY_MAX]) {
    memcpy(key, &room->room, sizeof room->room);
    return sizeof room->room;
}

int rk_notes_init(rk_notes *notes, uint32_t max, uint64_t keep_ms, uint32_t peers, uint32_t peer_max) {
    rk_list_init(&notes->list);
    notes->max = max;
    notes->keep_ms = keep_ms;
    notes->count = 0;
    notes->dropped = 0;
    notes->peers = peers;
    notes->peer_max = peer_max;
    notes->of_peer = calloc(peers, sizeof *notes->of_peer);
    notes->by_room = rk_bmap_new();
    return notes->by_room && notes->of_peer ? 0 : -ENOMEM;
}

void rk_notes_free(rk_notes *notes) {
    while (notes->by_room && !rk_list_empty(&notes->list))
        rk_notes_remove(notes, RK_CONTAINER(notes->list.next, rk_note, link));
    rk_bmap_free(notes->by_room);
    free(notes->of_peer);
}

rk_note *rk_notes_find(const rk_notes *notes, const rk_room *room) {
    uint8_t key[RK_ROOM_KEY_MAX];
    return rk_bmap_get(notes->by_room, key, rk_room_key(room, key));
}

void rk_notes_remove(rk_notes *notes, rk_note *note) {
    uint8_t key[RK_ROOM_KEY_MAX];
    (void)rk_bmap_remove(notes->by_room, key, rk_room_key(&note->room, key));
    rk_list_remove(&note->link);
    notes->count--;
    notes->of_peer[note->peer]--;
    free(note);
}

rk_note *rk_notes_add(rk_notes *notes, uint32_t peer, const rk_room *room, uint64_t now) {
    rk_note *note = rk_notes_find(notes, room);
    if (note || notes->max == 0)
        return note;
    if (peer != 0 && notes->peer_max > 0 && notes->of_peer[peer] >= notes->peer_max)
        return NULL;
    note = calloc(1, sizeof *note);
    if (!note)
        return NULL;
    note->room = *room;
    note->peer = peer;
    note->due = now + notes->keep_ms;
    uint8_t key[RK_ROOM_KEY_MAX];
    if (rk_bmap_put(notes->by_room, key, rk_room_key(room, key), note) < 0) {
        free(note);
        return NULL;
    }
    rk_list_push_back(&notes->list, &note->link);
    notes->of_peer[peer]++;
    if (++notes->count > notes->max) {
        rk_notes_remove(notes, RK_CONTAINER(notes->list.next, rk_note, link));
        notes->dropped++;
    }
    return note;
}

void rk_notes_expire(rk_notes *notes, uint64_t now) {
    while (!rk_list_empty(&notes->list)) {
        rk_note *note = RK_CONTAINER(notes->list.next, rk_note, link);
        if (note->due > now)
            return;
        rk_notes_remove(notes, note);
    }
}
