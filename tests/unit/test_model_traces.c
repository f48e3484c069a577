/* Traces that the model of the room link (servicer/peer/model) has found, played on ledgers. */
#include "ledger_support.h"

static rk_verdict v;
static rk_effects fx;

static rk_ledger *linked_ledger(rk_role role) {
    rk_ledger_options o = options_of(role, 1, 2);
    o.linked = true;
    o.peers = 2;
    return rk_ledger_new(&o);
}

/* The decode was linked and ended while the link was lost; its prefill was never announced, has been stopped
 * and may still write. The link is back, and the decode says again that it has ended. */
START_TEST(a_decode_hears_of_the_quiet_of_a_prefill_that_was_never_announced) {
    rk_ledger *d = linked_ledger(RK_ROLE_DECODE);
    rk_ledger *p = linked_ledger(RK_ROLE_PREFILL);
    rk_room room = room_of(1);
    rk_effects_clear(&fx);
    rk_ledger_peer_up(d, T0, 1, &fx);
    rk_leg_spec spec = {.handle = rk_ledger_new_handle(d),
                        .request_id = "a",
                        .request_id_bytes = 1,
                        .room = &room,
                        .n = 1,
                        .rank = -1,
                        .linked = true,
                        .peer = 1};
    ck_assert_int_eq(rk_ledger_arrive(d, T0, &spec, &v, &fx), 0);
    submit(d, T0, spec.handle);
    uint64_t prefill = arrive_with(p, T0, (leg_args){.room = 1}, &v, &fx);
    rk_ledger_tick(p, T0 + 500, &fx); /* nobody speaks for it: served without a link */
    submit(p, T0 + 500, prefill);
    rk_ledger_cancel(p, T0 + 600, prefill, RK_CAUSE_CLIENT_CANCEL, &fx);
    rk_ledger_aborted(p, T0 + 601, prefill, RK_LEDGER_ALL, &fx);

    rk_ledger_peer_lost(d, T0 + 700, 1, &fx);
    rk_effects_clear(&fx);
    rk_ledger_peer_up(d, T0 + 800, 1, &fx);
    const rk_effect *told = effect_of(&fx, RK_FX_TELL_ENDED, spec.handle);
    ck_assert_ptr_nonnull(told);
    rk_ledger_peer_up(p, T0 + 800, 1, &fx);
    rk_effects_clear(&fx);
    ck_assert(rk_ledger_twin_ended(p, T0 + 801, 1, &room, RK_CAUSE_PEER_LOST, true, &fx));
    ck_assert_uint_eq(count_of(&fx, RK_FX_TELL_QUIESCED), 0); /* it may still write */
    rk_ledger_slot_released(p, T0 + 802, prefill, &fx);
    ck_assert_uint_eq(count_of(&fx, RK_FX_TELL_QUIESCED), 1);

    rk_effects_clear(&fx);
    ck_assert(rk_ledger_twin_quiesced(d, T0 + 803, 1, &room, &fx));
    ck_assert_uint_eq(count_of(&fx, RK_FX_RELEASE_ROOM), 1);
    rk_ledger_slot_released(d, T0 + 804, spec.handle, &fx);
    assert_empty(d, T0 + 804);
    assert_empty(p, T0 + 804);
    rk_ledger_free(d);
    rk_ledger_free(p);
}
END_TEST

int main(void) {
    const TTest *tests[] = {
        a_decode_hears_of_the_quiet_of_a_prefill_that_was_never_announced,
    };
    return RUN_SUITE("traces of the model", tests);
}
