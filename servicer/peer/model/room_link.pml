/* The legs of a pair and the room link between their workers, as a model for spin.
 *
 * One prefill worker, one decode worker, ROOMS rooms, WINDOW slots on the decode. README.md says what is modelled,
 * what is left out, and what the properties mean; scripts/model runs it. Functions bear the names of those in
 * servicer/rooms and servicer/peer that they stand for: d_… on the decode, p_… on the prefill.
 *
 * Every event is one d_step, as every operation of a ledger runs under its lock; what is told goes into the stream in
 * the same step. So a state is nothing but the variables below.
 *
 * Left out: ranks, several choices, tokens and ids (RK_CAUSE_BAD_RANK, RK_CAUSE_NEVER_FITS, RK_CAUSE_DUPLICATE_ID,
 * RK_CAUSE_DUPLICATE_ROOM, RK_CAUSE_SUPERSEDED, RK_FX_END_CHOICE); other refusals and ends that are told like those
 * that are here (RK_CAUSE_HELD_FULL, RK_CAUSE_DRAIN, RK_CAUSE_NO_MEMORY, RK_CAUSE_SLOW_READER, RK_DIAL_FORBIDDEN,
 * rk_ledger_engine_silent); two names of one worker (rk_ledger_peer_folded); whether a prefill holds at all
 * (rk_ledger_set_linked, rk_ledger_link_seen); RK_LEG_ARRIVED, in which no leg is left; and what only makes, reads or
 * pumps a ledger (rk_ledger_new, rk_ledger_free, rk_ledger_new_handle, rk_ledger_next_deadline, rk_ledger_pump,
 * rk_ledger_read, rk_ledger_read_ranks).
 */

#ifndef ROOMS
#define ROOMS 1
#endif
#ifndef WINDOW
#define WINDOW 1
#endif
/* How often each may happen. */
#ifndef BREAKS
#define BREAKS 1
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef STALLS
#define STALLS 0
#endif
#ifndef DEATHS
#define DEATHS 0 /* the prefill's engine is held to be dead, its schedulers run on */
#endif
#ifndef CANCELS
#define CANCELS 2
#endif
#ifndef ERRORS
#define ERRORS 1 /* by an engine, or a refusal */
#endif
#ifndef TIMERS
#define TIMERS 9 /* deadlines that pass before the end begins */
#endif
#ifndef DIALS
#define DIALS 1 /* 0: the link is up from the start and a dial does not fail */
#endif
#ifndef SILENCE
#define SILENCE 1 /* ends with one worker silent are looked at too */
#endif
#define QUEUE 10 /* room states under way, of one room in one direction; more are an error of the model */
#ifndef EARLY
#define EARLY 0 /* 1: the engine's own deadline and the end of notes at any time, not only when nothing else is left */
#endif
#ifndef SKIP
#define SKIP 0 /* properties not checked: bits 1 << number */
#endif
#ifndef MUTANT
#define MUTANT 0
#endif

/* Mutants: mistakes that the properties must find. */
#define RELEASES_WITHOUT_QUIESCED 1
#define ENDS_A_HANDED_OFF_DECODE 2
#define DOES_NOT_RESTATE 3
#define TAKES_A_NEW_INSTANCE_FOR_PROOF 4
#define OVERTAKES_THE_LINE 5
#define FREES_THE_SLOT_WITH_THE_LEG 6
#define TAKES_A_REFUSAL_FOR_PROOF_AT_ONCE 7
#define BURIES_NOBODY 8
#define TAKES_AN_ABORT_FOR_QUIET 9
#define ANSWERS_NO_QUIESCED 10
#define SAYS_NEVER_SUBMITTED 11
#define KEEPS_LEGS_OF_A_LOST_LINK 12
#define LOSES_A_WAITING_LEGS_TIMER 13
#define FORGETS_THE_LINE 14
#define FORGETS_AN_UNLINKED_PREFILL 15
#define TELLS_NO_QUIET_OF_AN_UNLINKED_PREFILL 16
#define COUNTS_A_REFUSAL_FROM_THE_LOSS 17
#define SAYS_NOTHING_AFTER_A_STALL 18

/* Properties, by number: what `check` names when one does not hold. */
#define settles 1
#define window 2
#define order 3
#define early_release 4
#define handed_off_stays 5
#define left_alone 6
#define deadlines 7
#define check(number, condition)                                                                                       \
    if                                                                                                                 \
    :: ((SKIP >> number) & 1) || (condition) -> skip                                                                   \
    :: else -> assert(number == 0)                                                                                     \
    fi

/* Causes. What the twin and the properties distinguish are three classes: a leg keeps CLASS(cause). */
#define RK_CAUSE_NONE 0
#define RK_CAUSE_COMPLETED 1
#define RK_CAUSE_TWIN_ENDED 2
#define FAILED 3
#define RK_CAUSE_FULL 4 /* stands for all refusals at arrival */
#define RK_CAUSE_WAIT_TIMEOUT 5
#define RK_CAUSE_HELD_TIMEOUT 6
#define RK_CAUSE_TWIN_MISSING 7
#define RK_CAUSE_CLIENT_CANCEL 8 /* and RK_CAUSE_ABORT_RPC */
#define RK_CAUSE_ENGINE_ERROR 9
#define RK_CAUSE_ENGINE_DEAD 10
#define RK_CAUSE_PEER_LOST 11
#define CLASS(why) (why <= RK_CAUSE_TWIN_ENDED -> why : FAILED)

#define NOT_YET 0
mtype = { RK_LEG_WAITING, RK_LEG_HELD, RK_LEG_ADMITTED, RK_LEG_SUBMITTED, RK_LEG_HANDED_OFF, RK_LEG_ENDED, GONE };
mtype = { ROOM_STATE_OPENED, ROOM_STATE_ADMITTED, ROOM_STATE_SUBMITTED, ROOM_STATE_HANDED_OFF, ROOM_STATE_ENDED,
          ROOM_STATE_QUIESCED };
mtype = { RK_PEER_IS_ABSENT, RK_PEER_IS_DIALLING, RK_PEER_IS_UP, RK_PEER_IS_LOST };
mtype = { RK_PEER_ABSENT, RK_PEER_EXPECTED, RK_PEER_UP };
mtype = { RK_TIMER_WAIT, RK_TIMER_ANNOUNCE, RK_TIMER_HELD, RK_TIMER_TWIN, RK_TIMER_HANDOFF, RK_TIMER_RELEASE };
mtype = { RK_STOP_ABORT, RK_STOP_LATER, RK_STOP_NONE };
mtype = { RK_PROOF, RK_NO_PROOF };
mtype = { ALIVE, DYING, DEAD };
mtype = { WAITS_FOR_KV, HAS_KV };
mtype = { MAY_WRITE, HAS_SENT };
mtype = { OWN, TWINS };
mtype = { BREAK, SCHEDULERS_END, RESTART, D_NOTICE, P_NOTICE_0, P_NOTICE_1, DIAL, BEGIN, ACCEPT, REFUSE, GONE_THERE, FAIL, D_UNSTALL,
          P_UNSTALL, P_TAKE, D_TAKE, D_ABORT, P_ABORT, D_ACKNOWLEDGE, P_ACKNOWLEDGE, D_SUBMIT, P_SUBMIT, TRANSFER,
          P_FINISH, D_VANISH, D_OUTPUT, D_FINISH, D_FAIL, P_FIRE, D_FIRE, D_DEADLINE, P_DEADLINE };
#define NONE 0

/* rk_leg. `abort_due`: RK_FX_ABORT_ENGINE is on its way; `agent_due`: RK_FX_RELEASE_ROOM is. */
typedef Leg {
    mtype state;
    mtype timer;
    byte cause;
    bit linked;
    bit twin_seen;
    bit twin_over;
    bit twin_handed_off;
    bit bound;
    bit peer;
    bit submitted; /* ever_submitted */
    bit running;   /* RK_CHOICE_RUNNING */
    bit aborted;   /* RK_CHOICE_ABORTED */
    bit handed_off;
    bit release_asked;
    bit claimed; /* RK_SLOT_HELD; once the leg has ended RK_SLOT_RELEASING; not any more RK_SLOT_FREE, before
                    RK_SLOT_NONE */
    bit abort_due;
    byte ahead;  /* for `order`: rooms that were in line before it */
}

/* ---- the decode's worker ---- */
Leg d[ROOMS];
chan line = [ROOMS] of { byte };
byte slots;                   /* claimed */
bit d_note[ROOMS];            /* announced, no leg yet */
bit d_stone[ROOMS];           /* tombstone */
bit d_agent_due[ROOMS];
mtype d_engine[ROOMS];
bit d_shown[ROOMS];           /* the prefill's schedulers know its pages */
bit d_released[ROOMS];        /* its pages were given back on the twin's word, not by the engine itself */
mtype d_phase = RK_PEER_IS_ABSENT;
mtype d_peer = RK_PEER_ABSENT; /* the ledger's view of the prefill */
bit d_known;                  /* has been linked, to the prefill of that instance */
bit d_known_instance;
bit d_instance;
bit d_lost_before;            /* the link was lost before the prefill crashed */

/* ---- the prefill's worker ---- */
Leg p[ROOMS];
bit p_note[ROOMS];
bit p_note_admitted[ROOMS];
bit p_note_peer[ROOMS];
mtype p_stone[ROOMS];
bit p_stone_peer[ROOMS];
bit p_agent_due[ROOMS];
mtype p_engine[ROOMS];
mtype p_peer[2] = RK_PEER_ABSENT; /* of both instances that the decode can have */
bit p_up[2];                  /* a stream that this side holds to be up */
bit p_instance;
mtype p_life = ALIVE;

/* ---- the stream ---- */
chan to_p[ROOMS] = [QUEUE] of { mtype, byte, bit };
chan to_d[ROOMS] = [QUEUE] of { mtype, byte, bit };
bit opening;                  /* the prefill's Begin is under way */
bit broken = 1;               /* nothing that is sent arrives */
bit d_stalled;                /* the decode has heard that the prefill's engine stalls */
bit p_stalled;
byte breaks;
byte crashes;
byte stalls;
byte deaths;
byte cancels;
byte errors;
byte timers;
bit over;                     /* an end was looked at */

/* Of the end only: see settle. */
byte how;
mtype due;
byte at;
byte steps;

hidden byte i;
hidden byte j;
hidden byte k;
hidden byte s;
hidden byte x;
hidden byte held;
hidden mtype m_state;
hidden byte m_cause;
hidden byte m_ever;
hidden byte was;

#define UP (d_phase == RK_PEER_IS_UP && !broken && p_up[d_instance])
#define writes(r) (p_engine[r] == MAY_WRITE && d_shown[r])

/* RK_FX_TELL_OPENED, RK_FX_TELL_ADMITTED, RK_FX_TELL_SUBMITTED, RK_FX_TELL_HANDED_OFF, RK_FX_TELL_ENDED,
 * RK_FX_TELL_QUIESCED, taken at once (rk_ledger_take_tells) and said if the stream is up. */
inline d_say(r, what, why, ever) {
    if
    :: d_phase == RK_PEER_IS_UP && !broken -> assert(len(to_p[r]) < QUEUE); to_p[r]!what, why, ever
    :: else -> skip
    fi
}

inline p_say(r, whom, what, why, ever) {
    if
    :: p_up[whom] && whom == d_instance && !broken -> assert(len(to_d[r]) < QUEUE); to_d[r]!what, why, ever
    :: else -> skip
    fi
}

inline empty_streams() {
    for (x : 0 .. ROOMS - 1) {
        do
        :: (len(to_p[x]) > 0) -> to_p[x]?m_state, m_cause, m_ever
        :: (len(to_d[x]) > 0) -> to_d[x]?m_state, m_cause, m_ever
        :: else -> break
        od
    }
    m_state = 0; m_cause = 0; m_ever = 0
}

/* ---- leg.c and running.c, on the decode ---- */

/* All but the state, which the caller sets. */
inline forget(l) {
    l.timer = NONE; l.cause = 0; l.linked = 0; l.twin_seen = 0; l.twin_over = 0; l.twin_handed_off = 0;
    l.bound = 0; l.peer = 0; l.submitted = 0; l.running = 0; l.aborted = 0; l.handed_off = 0;
    l.release_asked = 0; l.claimed = 0; l.abort_due = 0; l.ahead = 0
}

inline leave_line(r) {
    if
    :: d[r].state == RK_LEG_WAITING ->
        line??eval(r);
        d[r].ahead = 0;
        for (k : 0 .. ROOMS - 1) {
            d[k].ahead = d[k].ahead & (255 - (1 << r))
        }
    :: else -> skip
    fi
}

inline d_admit(r) {
    for (k : 0 .. ROOMS - 1) {
        check(order, !((d[r].ahead >> k) & 1));
        d[k].ahead = d[k].ahead & (255 - (1 << r))
    }
    d[r].ahead = 0;
    d[r].claimed = 1;
    slots++;
    check(window, slots <= WINDOW);
    d[r].state = RK_LEG_ADMITTED;
    d[r].timer = NONE;
    if
    :: d[r].linked ->
        d_say(r, ROOM_STATE_ADMITTED, 0, 0);
        d[r].timer = (d[r].twin_seen -> NONE : RK_TIMER_TWIN)
    :: else -> skip
    fi
}

inline d_admit_line() {
    do
    :: MUTANT != FORGETS_THE_LINE && (len(line) > 0) && slots < WINDOW ->
        line?j;
        if
        :: MUTANT == OVERTAKES_THE_LINE && (len(line) > 0) -> line!j; line?j
        :: else -> skip
        fi;
        d_admit(j)
    :: else -> break
    od;
    j = 0
}

inline unclaim(r) {
    if
    :: d[r].claimed -> d[r].claimed = 0; slots--
    :: else -> skip
    fi
}

/* rk_free_all, rk_free_choice: the engine has let go. */
inline d_free(r) {
    d[r].running = 0;
    unclaim(r);
    if
    :: d[r].state == RK_LEG_ENDED -> forget(d[r]); d[r].state = GONE
    :: else -> skip
    fi;
    d_admit_line()
}

inline d_abort(r) {
    if
    :: d[r].running && !d[r].aborted -> d[r].aborted = 1; d[r].abort_due = 1
    :: else -> skip
    fi
}

inline d_release_room(r) {
    if
    :: !d[r].release_asked && !d[r].handed_off ->
        d[r].release_asked = 1;
        d_abort(r);
        d_agent_due[r] = 1; /* RK_FX_RELEASE_ROOM */
        d[r].timer = RK_TIMER_RELEASE;
        check(early_release, !writes(r))
    :: else -> skip
    fi
}

/* RK_FX_END where the ledger ends it on the wire. */
inline d_end(r, why, stop) {
    check(handed_off_stays, d[r].state != RK_LEG_HANDED_OFF || why == RK_CAUSE_COMPLETED ||
          why == RK_CAUSE_CLIENT_CANCEL || why == RK_CAUSE_ENGINE_ERROR);
    leave_line(r);
    d[r].cause = CLASS(why);
    d[r].timer = NONE;
    d[r].state = RK_LEG_ENDED;
    if
    :: d[r].linked && (!d[r].twin_over || why == RK_CAUSE_TWIN_ENDED) ->
        d_say(r, ROOM_STATE_ENDED, CLASS(why), d[r].submitted)
    :: else -> skip
    fi;
    if
    :: d[r].submitted ->
        if
        :: stop == RK_STOP_ABORT -> d_abort(r)
        :: else -> skip
        fi;
        d[r].timer = ((stop == RK_STOP_LATER && !(d[r].linked && d[r].twin_seen)) -> RK_TIMER_HANDOFF
                                                                                 : RK_TIMER_RELEASE);
        if
        :: MUTANT == RELEASES_WITHOUT_QUIESCED && stop == RK_STOP_LATER -> d_release_room(r)
        :: MUTANT == FREES_THE_SLOT_WITH_THE_LEG -> unclaim(r)
        :: else -> skip
        fi
    :: else ->
        unclaim(r);
        forget(d[r]);
        d[r].state = GONE
    fi;
    d_admit_line()
}

inline hand_off(r) {
    d[r].handed_off = 1;
    if
    :: d[r].state == RK_LEG_SUBMITTED -> d[r].timer = NONE; d[r].state = RK_LEG_HANDED_OFF
    :: d[r].state == RK_LEG_ENDED && d[r].aborted -> d_engine[r] = NONE; d_free(r)
    :: d[r].state == RK_LEG_ENDED && !d[r].aborted -> d_abort(r); d[r].timer = RK_TIMER_RELEASE
    :: else -> skip
    fi
}

/* rk_tell_state */
inline d_tell_state(r) {
    if
    :: d[r].state == RK_LEG_ENDED -> d_say(r, ROOM_STATE_ENDED, d[r].cause, d[r].submitted)
    :: d[r].state == RK_LEG_WAITING -> d_say(r, ROOM_STATE_OPENED, 0, 0)
    :: d[r].state == RK_LEG_HANDED_OFF ->
        d_say(r, ROOM_STATE_OPENED, 0, 0); d_say(r, ROOM_STATE_ADMITTED, 0, 0); d_say(r, ROOM_STATE_HANDED_OFF, 0, 0)
    :: d[r].state == RK_LEG_ADMITTED || d[r].state == RK_LEG_SUBMITTED ->
        d_say(r, ROOM_STATE_OPENED, 0, 0); d_say(r, ROOM_STATE_ADMITTED, 0, 0)
    :: else -> skip
    fi
}

#define D_LEG(r) (d[r].state != NOT_YET && d[r].state != GONE)
#define D_LIVE(r) (D_LEG(r) && d[r].state != RK_LEG_ENDED)
#define P_LEG(r) (p[r].state != NOT_YET && p[r].state != GONE)
#define P_LIVE(r) (P_LEG(r) && p[r].state != RK_LEG_ENDED)
#define D_CANCEL(r) d_end(r, RK_CAUSE_CLIENT_CANCEL, (d[r].handed_off -> RK_STOP_ABORT : RK_STOP_LATER))

/* ---- leg.c and running.c, on the prefill ---- */

inline p_free(r, proof) {
    p[r].running = 0;
    if
    :: proof == RK_PROOF && p[r].state == RK_LEG_ENDED && p[r].submitted && p[r].cause != RK_CAUSE_COMPLETED &&
       p[r].linked -> p_say(r, p[r].peer, ROOM_STATE_QUIESCED, 0, 0)
    :: else -> skip
    fi;
    if
    :: p[r].state == RK_LEG_ENDED -> forget(p[r]); p[r].state = GONE
    :: else -> skip
    fi
}

inline p_end(r, why, stop) {
    p[r].cause = CLASS(why);
    p[r].timer = NONE;
    p[r].state = RK_LEG_ENDED;
    if
    :: p[r].linked && (!p[r].twin_over || why == RK_CAUSE_TWIN_ENDED) ->
        p_say(r, p[r].peer, ROOM_STATE_ENDED, CLASS(why), (MUTANT == SAYS_NEVER_SUBMITTED -> 0 : p[r].submitted))
    :: else -> skip
    fi;
    if
    :: why != RK_CAUSE_COMPLETED ->
        p_agent_due[r] = 1; /* RK_FX_RELEASE_ROOM */
        if
        :: !p[r].twin_seen -> p_stone[r] = OWN /* rk_remember_end */
        :: else -> skip
        fi
    :: else -> skip
    fi;
    if
    :: p[r].submitted ->
        p[r].timer = RK_TIMER_RELEASE;
        if
        :: stop == RK_STOP_ABORT && p[r].running && !p[r].aborted -> p[r].aborted = 1; p[r].abort_due = 1
        :: else -> skip
        fi
    :: else ->
        forget(p[r]);
        p[r].state = GONE
    fi
}

inline p_tell_state(r) {
    if
    :: p[r].state == RK_LEG_ENDED -> p_say(r, p[r].peer, ROOM_STATE_ENDED, p[r].cause, p[r].submitted)
    :: p[r].state != RK_LEG_ENDED ->
        p_say(r, p[r].peer, ROOM_STATE_OPENED, 0, 0);
        if
        :: p[r].submitted -> p_say(r, p[r].peer, ROOM_STATE_SUBMITTED, 0, 0)
        :: else -> skip
        fi
    fi
}

/* ---- twins.c, on the decode ---- */

/* meet, on the decode */
inline d_meet(r) {
    if
    :: !d[r].twin_seen ->
        d[r].twin_seen = 1;
        if
        :: !d[r].linked -> d[r].linked = 1; d[r].bound = 1; d_tell_state(r)
        :: else -> skip
        fi;
        if
        :: d[r].state == RK_LEG_ADMITTED || d[r].state == RK_LEG_SUBMITTED -> d[r].timer = NONE
        :: else -> skip
        fi
    :: else -> skip
    fi
}

inline d_twin_ended(r, why, ever) {
    if
    :: d[r].handed_off && MUTANT != ENDS_A_HANDED_OFF_DECODE -> skip
    :: else ->
        d[r].twin_seen = 1;
        d[r].twin_over = 1;
        was = d[r].submitted;
        if
        :: why == RK_CAUSE_COMPLETED && was -> hand_off(r)
        :: why != RK_CAUSE_COMPLETED ->
            if
            :: d[r].state != RK_LEG_ENDED -> d_end(r, RK_CAUSE_TWIN_ENDED, RK_STOP_LATER)
            :: else -> skip
            fi;
            if
            :: was && !ever -> d_release_room(r)
            :: else -> skip
            fi
        :: else -> skip
        fi;
        was = 0
    fi
}

/* take_room, on the decode: rk_ledger_twin_announced, rk_ledger_twin_ended, rk_ledger_twin_quiesced */
inline d_take(r) {
    to_d[r]?m_state, m_cause, m_ever;
    if
    :: d_peer != RK_PEER_UP -> skip
    :: d_peer == RK_PEER_UP && (m_state == ROOM_STATE_OPENED || m_state == ROOM_STATE_SUBMITTED) ->
        if
        :: D_LEG(r) -> d_meet(r); d_stone[r] = 0
        :: else -> d_stone[r] = 0; d_note[r] = 1
        fi
    :: d_peer == RK_PEER_UP && m_state == ROOM_STATE_ENDED ->
        if
        :: D_LEG(r) -> d_twin_ended(r, m_cause, m_ever)
        :: else ->
            d_note[r] = 0;
            if
            :: m_cause == RK_CAUSE_TWIN_ENDED -> d_stone[r] = 0
            :: m_cause == FAILED -> d_stone[r] = (MUTANT != BURIES_NOBODY)
            :: else -> skip
            fi
        fi
    :: d_peer == RK_PEER_UP && m_state == ROOM_STATE_QUIESCED ->
        if
        :: d[r].state == RK_LEG_ENDED -> d_release_room(r)
        :: else -> skip
        fi
    fi;
    m_state = 0; m_cause = 0; m_ever = 0
}

/* ---- twins.c, on the prefill ---- */

inline p_admit(r) {
    p[r].state = RK_LEG_ADMITTED; /* RK_FX_ADMIT */
    p[r].timer = NONE
}

inline p_meet(r, who) {
    if
    :: !p[r].twin_seen ->
        p[r].twin_seen = 1;
        if
        :: !p[r].linked -> p[r].linked = 1; p[r].bound = 1; p[r].peer = who; p_tell_state(r)
        :: else -> skip
        fi;
        if
        :: p[r].state == RK_LEG_HELD -> p[r].timer = RK_TIMER_HELD
        :: p[r].state == RK_LEG_ADMITTED || p[r].state == RK_LEG_SUBMITTED -> p[r].timer = NONE
        :: else -> skip
        fi
    :: else -> skip
    fi
}

inline p_forget_note(r) {
    p_note[r] = 0; p_note_admitted[r] = 0; p_note_peer[r] = 0
}

inline p_forget_stone(r) {
    p_stone[r] = NONE; p_stone_peer[r] = 0
}

/* note_announced */
inline p_note_announced(r, who, admitted) {
    if
    :: p_stone[r] == TWINS && p_stone_peer[r] != who -> skip
    :: p_stone[r] == OWN ->
        p_forget_stone(r);
        p_say(r, who, ROOM_STATE_ENDED, FAILED, 0)
    :: else ->
        p_forget_stone(r);
        if
        :: p_note[r] && p_note_peer[r] != who -> skip
        :: else ->
            p_note[r] = 1;
            p_note_peer[r] = who;
            p_note_admitted[r] = p_note_admitted[r] | admitted
        fi
    fi
}

inline p_twin_is_there(r, who, admitted) {
    if
    :: !P_LEG(r) -> p_note_announced(r, who, admitted)
    :: P_LEG(r) && p[r].linked && p[r].peer != who -> skip
    :: else ->
        p_meet(r, who);
        p_forget_stone(r);
        if
        :: admitted && p[r].state == RK_LEG_HELD -> p_admit(r)
        :: else -> skip
        fi
    fi
}

inline p_legless_twin_ended(r, who, why) {
    if
    :: p_note[r] && p_note_peer[r] != who -> skip
    :: else ->
        p_forget_note(r);
        if
        :: why == RK_CAUSE_COMPLETED -> skip
        :: else ->
            if
            :: why == RK_CAUSE_TWIN_ENDED || p_stone[r] == OWN -> p_forget_stone(r)
            :: else ->
                if
                :: p_stone[r] == NONE && MUTANT != BURIES_NOBODY -> p_stone[r] = TWINS; p_stone_peer[r] = who
                :: else -> skip
                fi
            fi;
            if
            :: MUTANT != ANSWERS_NO_QUIESCED -> p_say(r, who, ROOM_STATE_QUIESCED, 0, 0)
            :: else -> skip
            fi
        fi
    fi
}

inline p_twin_ended(r, who, why) {
    p[r].twin_over = 1;
    p_forget_stone(r);
    if
    :: p[r].state == RK_LEG_ENDED ->
        if
        :: !p[r].linked && MUTANT != TELLS_NO_QUIET_OF_AN_UNLINKED_PREFILL -> p[r].linked = 1; p[r].peer = who
        :: else -> skip
        fi
    :: p[r].state != RK_LEG_ENDED && (why == RK_CAUSE_COMPLETED || p[r].twin_handed_off) -> skip
    :: else ->
        p[r].twin_seen = 1;
        p[r].linked = 1;
        p[r].peer = who;
        p_end(r, RK_CAUSE_TWIN_ENDED, RK_STOP_ABORT)
    fi
}

/* take_room, on the prefill: rk_ledger_twin_announced, rk_ledger_twin_admitted, rk_ledger_twin_handed_off,
 * rk_ledger_twin_ended */
inline p_take(r, who) {
    to_p[r]?m_state, m_cause, m_ever;
    if
    :: p_peer[who] != RK_PEER_UP -> skip
    :: p_peer[who] == RK_PEER_UP && m_state == ROOM_STATE_OPENED -> p_twin_is_there(r, who, 0)
    :: p_peer[who] == RK_PEER_UP && m_state == ROOM_STATE_ADMITTED -> p_twin_is_there(r, who, 1)
    :: p_peer[who] == RK_PEER_UP && m_state == ROOM_STATE_HANDED_OFF ->
        if
        :: P_LEG(r) && !(p[r].linked && p[r].peer != who) -> p_meet(r, who); p[r].twin_handed_off = p[r].submitted
        :: else -> skip
        fi
    :: p_peer[who] == RK_PEER_UP && m_state == ROOM_STATE_ENDED ->
        if
        :: !P_LEG(r) -> p_legless_twin_ended(r, who, m_cause)
        :: P_LEG(r) && p[r].linked && p[r].peer != who -> skip
        :: else -> p_twin_ended(r, who, m_cause)
        fi
    fi;
    m_state = 0; m_cause = 0; m_ever = 0
}

/* ---- peers.c of rooms ---- */

/* rk_ledger_peer_up */
inline d_come_up() {
    d_peer = RK_PEER_UP;
    for (i : 0 .. ROOMS - 1) {
        if
        :: D_LEG(i) && d[i].linked ->
            d[i].bound = 1;
            if
            :: d[i].handed_off || d[i].release_asked || MUTANT == DOES_NOT_RESTATE -> skip
            :: else -> d_tell_state(i)
            fi
        :: else -> skip
        fi
    }
    i = 0
}

inline p_come_up(who) {
    p_peer[who] = RK_PEER_UP;
    for (i : 0 .. ROOMS - 1) {
        if
        :: P_LEG(i) && p[i].linked && p[i].peer == who && !p[i].handed_off && MUTANT != DOES_NOT_RESTATE ->
            p[i].bound = 1;
            p_tell_state(i)
        :: else -> skip
        fi
    }
    i = 0
}

/* rk_ledger_peer_lost */
inline d_lose() {
    if
    :: d_peer == RK_PEER_UP ->
        d_peer = RK_PEER_EXPECTED;
        for (i : 0 .. ROOMS - 1) {
            if
            :: d_note[i] -> d_note[i] = 0; d_stone[i] = 1
            :: else -> skip
            fi;
            if
            :: d[i].linked && D_LIVE(i) && MUTANT != KEEPS_LEGS_OF_A_LOST_LINK &&
               (d[i].state != RK_LEG_HANDED_OFF || MUTANT == ENDS_A_HANDED_OFF_DECODE) ->
                d_end(i, RK_CAUSE_PEER_LOST, RK_STOP_LATER)
            :: else -> skip
            fi
        }
        i = 0
    :: else -> d_peer = RK_PEER_EXPECTED
    fi
}

inline p_lose(who) {
    if
    :: p_peer[who] == RK_PEER_UP ->
        for (i : 0 .. ROOMS - 1) {
            if
            :: p_note[i] && p_note_peer[i] == who ->
                p_forget_note(i);
                if
                :: p_stone[i] == NONE -> p_stone[i] = TWINS; p_stone_peer[i] = who
                :: else -> skip
                fi
            :: else -> skip
            fi;
            if
            :: p[i].linked && p[i].peer == who && P_LIVE(i) && !p[i].twin_handed_off &&
               MUTANT != KEEPS_LEGS_OF_A_LOST_LINK -> p_end(i, RK_CAUSE_PEER_LOST, RK_STOP_ABORT)
            :: else -> skip
            fi
        }
        i = 0
    :: else -> skip
    fi;
    p_peer[who] = RK_PEER_EXPECTED
}

/* rk_ledger_peer_absent */
inline d_absent() {
    d_phase = RK_PEER_IS_ABSENT;
    d_peer = RK_PEER_ABSENT;
    for (i : 0 .. ROOMS - 1) {
        if
        :: D_LEG(i) && d[i].linked && !d[i].bound ->
            d[i].linked = 0;
            if
            :: d[i].state == RK_LEG_ADMITTED || d[i].state == RK_LEG_SUBMITTED -> d[i].timer = NONE
            :: else -> skip
            fi
        :: else -> skip
        fi
    }
    i = 0
}

/* rk_ledger_writers_gone */
inline d_writers_gone() {
    for (i : 0 .. ROOMS - 1) {
        if
        :: d[i].linked && d[i].bound && d[i].state == RK_LEG_ENDED && d[i].submitted ->
            d_release_room(i)
        :: else -> skip
        fi
    }
    i = 0
}

/* ---- link.c and peers.c of peer: events of the link ---- */

/* order_dial: rk_ledger_peer_expected */
inline dial() {
    d_phase = RK_PEER_IS_DIALLING;
    d_peer = RK_PEER_EXPECTED
}
#define CAN_REDIAL (d_phase == RK_PEER_IS_ABSENT && d_known)

/* Hellos and the decode's Begin are through: begun, and the prefill's Begin is on its way. */
#define CAN_BEGIN ((d_phase == RK_PEER_IS_DIALLING || d_phase == RK_PEER_IS_LOST) && !opening && p_life == ALIVE)
inline begun() {
    empty_streams();
    if
    :: p_up[d_instance] -> broken = 1; p_lose(d_instance)
    :: else -> skip
    fi;
    broken = 0;
    opening = 1;
    p_stalled = 0;
    p_up[d_instance] = 1;
    p_come_up(d_instance)
}

#define CAN_ACCEPT (opening && !broken)
inline accepted() {
    opening = 0;
    d_stalled = 0;
    if
    :: MUTANT == TAKES_A_NEW_INSTANCE_FOR_PROOF && d_known && d_known_instance != p_instance -> d_writers_gone()
    :: else -> skip
    fi;
    d_known = 1;
    d_known_instance = p_instance;
    d_phase = RK_PEER_IS_UP;
    d_come_up()
}

inline break_stream() {
    broken = 1;
    empty_streams()
}

/* rk_link_closed, give_up_silent: each side by itself, sooner or later */
#define D_CAN_NOTICE (broken && (d_phase == RK_PEER_IS_UP || opening))
inline d_notices() {
    if
    :: opening ->
        opening = 0;
        if
        :: d_phase == RK_PEER_IS_DIALLING -> d_absent()
        :: else -> skip
        fi
    :: else ->
        d_stalled = 0;
        d_phase = RK_PEER_IS_LOST;
        d_lose()
    fi
}

#define P_CAN_NOTICE(who) (p_up[who] && (broken || who != d_instance))
inline p_notices(who) {
    p_up[who] = 0;
    p_stalled = 0;
    p_lose(who)
}

/* rk_peer_dial_ended: RK_DIAL_REFUSED is proof once it has been so for RK_GONE_MS: by then the schedulers are dead too */
#define CAN_BE_REFUSED (!opening && p_life != ALIVE && (d_phase == RK_PEER_IS_DIALLING ||                              \
                        (d_phase == RK_PEER_IS_LOST && (p_life == DEAD || MUTANT == TAKES_A_REFUSAL_FOR_PROOF_AT_ONCE ||             \
                         (MUTANT == COUNTS_A_REFUSAL_FROM_THE_LOSS && d_lost_before)))))
inline dial_refused() {
    if
    :: d_phase == RK_PEER_IS_LOST -> d_writers_gone()
    :: else -> skip
    fi;
    d_absent()
}

/* RK_DIAL_GONE, rk_ledger_nobody_there: a worker was linked there, and no prefill runs there any more */
#define CAN_BE_GONE(r) (!opening && p_life == DEAD && d_known && (d_phase == RK_PEER_IS_DIALLING ||                    \
                        (d_phase == RK_PEER_IS_LOST && d[r].linked && d[r].state == RK_LEG_ENDED &&                    \
                         d[r].submitted && !d[r].handed_off && !d[r].release_asked)))
inline dial_gone() {
    d_phase = RK_PEER_IS_LOST;
    d_peer = RK_PEER_EXPECTED;
    for (i : 0 .. ROOMS - 1) {
        if
        :: d[i].linked && d[i].state == RK_LEG_ENDED && d[i].submitted -> d_release_room(i)
        :: else -> skip
        fi
    }
    i = 0
}

/* RK_DIAL_FAILED: no answer, for RK_LOST_MOST_MS if it was lost */
inline dial_failed() {
    d_absent()
}
#define CAN_FAIL (!opening && p_life == ALIVE && (d_phase == RK_PEER_IS_DIALLING || d_phase == RK_PEER_IS_LOST))

/* rk_peers_engine_changed, engine_heard: what was said while the engine stalled has not counted. Both say again how
 * things stand. */
inline d_engine_is_back() {
    for (x : 0 .. ROOMS - 1) {
        do
        :: len(to_p[x]) > 0 -> to_p[x]?m_state, m_cause, m_ever
        :: else -> break
        od
    }
    x = 0; m_state = 0; m_cause = 0; m_ever = 0;
    p_stalled = 0;
    p_come_up(d_instance);
    if
    :: !d_stalled && MUTANT != SAYS_NOTHING_AFTER_A_STALL -> d_come_up()
    :: else -> skip
    fi
}

inline p_engine_is_back() {
    for (x : 0 .. ROOMS - 1) {
        do
        :: len(to_d[x]) > 0 -> to_d[x]?m_state, m_cause, m_ever
        :: else -> break
        od
    }
    x = 0; m_state = 0; m_cause = 0; m_ever = 0;
    d_stalled = 0;
    d_come_up();
    if
    :: !p_stalled && MUTANT != SAYS_NOTHING_AFTER_A_STALL -> p_come_up(d_instance)
    :: else -> skip
    fi
}

/* ---- workers ---- */

inline d_crashes() {
    break_stream();
    opening = 0;
    for (i : 0 .. ROOMS - 1) {
        if
        :: D_LEG(i) -> d[i].state = GONE
        :: else -> skip
        fi;
        forget(d[i]);
        d_note[i] = 0; d_stone[i] = 0; d_agent_due[i] = 0; d_engine[i] = NONE; d_released[i] = 0; d_shown[i] = 0;
        do
        :: (len(line) > 0) -> line?x
        :: else -> break
        od
    }
    i = 0; x = 0;
    slots = 0;
    d_phase = RK_PEER_IS_ABSENT;
    d_peer = RK_PEER_ABSENT;
    d_known = 0;
    d_known_instance = 0;
    d_lost_before = 0;
    d_stalled = 0;
    d_instance = 1
}

inline p_crashes() {
    break_stream();
    for (i : 0 .. ROOMS - 1) {
        if
        :: P_LEG(i) -> p[i].state = GONE
        :: else -> skip
        fi;
        forget(p[i]);
        p_forget_note(i); p_forget_stone(i); p_agent_due[i] = 0
    }
    i = 0;
    p_up[0] = 0; p_up[1] = 0;
    p_peer[0] = RK_PEER_ABSENT; p_peer[1] = RK_PEER_ABSENT;
    p_stalled = 0;
    d_lost_before = (d_phase == RK_PEER_IS_LOST);
    p_life = DYING
}

inline p_schedulers_end() {
    p_life = DEAD;
    d_lost_before = 0;
    for (i : 0 .. ROOMS - 1) {
        p_engine[i] = NONE;
        d_shown[i] = 0;
        d_released[i] = 0 /* who comes after them knows nothing of those pages */
    }
    i = 0
}

#define CAN_RESTART (p_life == DEAD)
inline p_restarts() {
    p_life = ALIVE;
    p_instance = 1
}

/* rk_ledger_end_all with RK_CAUSE_ENGINE_DEAD: its engine is gone or deaf, its schedulers are not known to be. */
inline p_engine_dies() {
    for (i : 0 .. ROOMS - 1) {
        was = P_LEG(i) && p[i].submitted;
        if
        :: P_LIVE(i) -> p_end(i, RK_CAUSE_ENGINE_DEAD, RK_STOP_NONE)
        :: else -> skip
        fi;
        if
        :: was -> p_free(i, RK_NO_PROOF)
        :: else -> skip
        fi
    }
    i = 0; was = 0
}

/* ---- arrivals: rk_ledger_arrive ---- */

inline d_arrives(r) {
    d[r].linked = (d_peer != RK_PEER_ABSENT);
    d[r].bound = (d_peer == RK_PEER_UP);
    if
    :: d_stone[r] -> d_stone[r] = 0; forget(d[r]); d[r].state = GONE
    :: else ->
        if
        :: d_note[r] -> d_note[r] = 0; d[r].linked = 1; d[r].twin_seen = 1; d[r].bound = 1
        :: else -> skip
        fi;
        if
        :: d[r].linked -> d_say(r, ROOM_STATE_OPENED, 0, 0)
        :: else -> skip
        fi;
        if
        :: (len(line) == 0) && slots < WINDOW -> d_admit(r)
        :: else ->
            d[r].state = RK_LEG_WAITING;
            for (k : 0 .. ROOMS - 1) {
                if
                :: k != r && d[k].state == RK_LEG_WAITING -> d[r].ahead = d[r].ahead | (1 << k)
                :: else -> skip
                fi
            }
            k = 0;
            line!r;
            d[r].timer = (MUTANT == LOSES_A_WAITING_LEGS_TIMER -> NONE : RK_TIMER_WAIT)
        fi
    fi
}

/* rk_tell_refusal; also rk_ledger_turned_away and rk_ledger_drain */
inline d_is_refused(r) {
    if
    :: d_peer != RK_PEER_ABSENT || d_note[r] -> d_say(r, ROOM_STATE_ENDED, CLASS(RK_CAUSE_FULL), 0)
    :: else -> skip
    fi;
    d_note[r] = 0;
    d[r].state = GONE
}

inline p_arrives(r) {
    if
    :: p_stone[r] == NONE ->
        p[r].state = RK_LEG_HELD; /* RK_FX_OPEN */
        p[r].timer = RK_TIMER_ANNOUNCE;
        if
        :: p_note[r] ->
            p[r].linked = 1; p[r].twin_seen = 1; p[r].bound = 1; p[r].peer = p_note_peer[r];
            p[r].timer = RK_TIMER_HELD;
            p_say(r, p[r].peer, ROOM_STATE_OPENED, 0, 0);
            if
            :: p_note_admitted[r] -> p_admit(r)
            :: else -> skip
            fi;
            p_forget_note(r)
        :: else -> skip
        fi
    :: else -> p_forget_stone(r); p[r].state = GONE
    fi
}

inline p_is_refused(r) {
    if
    :: p_note[r] ->
        p_say(r, p_note_peer[r], ROOM_STATE_ENDED, CLASS(RK_CAUSE_FULL), 0);
        p_forget_note(r)
    :: else -> p_stone[r] = OWN
    fi;
    p_agent_due[r] = 1; /* RK_FX_RELEASE_ROOM */
    p[r].state = GONE
}

/* ---- engines ---- */

/* rk_ledger_begin_submit, and the engine has it */
inline p_submits(r) {
    check(early_release, !d_released[r]);
    p[r].submitted = 1;
    p[r].running = 1;
    p[r].state = RK_LEG_SUBMITTED;
    p_engine[r] = MAY_WRITE;
    if
    :: p[r].linked -> p_say(r, p[r].peer, ROOM_STATE_SUBMITTED, 0, 0)
    :: else -> skip
    fi
}

/* rk_ledger_submit_failed */
inline p_submit_fails(r) {
    if
    :: p[r].linked -> p_say(r, p[r].peer, ROOM_STATE_SUBMITTED, 0, 0)
    :: else -> skip
    fi;
    p_end(r, RK_CAUSE_ENGINE_DEAD, RK_STOP_NONE)
}

#define CAN_TRANSFER(r) (p_engine[r] == MAY_WRITE && d_engine[r] == WAITS_FOR_KV && d_shown[r])
inline transfer(r) {
    p_engine[r] = HAS_SENT;
    d_engine[r] = HAS_KV
}

/* rk_ledger_first_output */
#define D_CAN_OUTPUT(r) (d_engine[r] == HAS_KV && D_LEG(r) && d[r].submitted && !d[r].handed_off)
inline d_first_output(r) {
    if
    :: d[r].state == RK_LEG_SUBMITTED && d[r].linked -> d_say(r, ROOM_STATE_HANDED_OFF, 0, 0)
    :: else -> skip
    fi;
    hand_off(r)
}

/* rk_ledger_finished */
#define D_CAN_FINISH(r) (d_engine[r] == HAS_KV && d[r].handed_off)
inline d_finishes(r, why) {
    d_engine[r] = NONE;
    d_shown[r] = d_shown[r] && p_life == ALIVE;
    if
    :: D_LIVE(r) -> d_end(r, why, RK_STOP_NONE)
    :: else -> skip
    fi;
    if
    :: D_LEG(r) -> d_free(r)
    :: else -> skip
    fi
}

/* A decode's engine that cannot reach the prefill's fails the request. */
inline d_submits(r) {
    d[r].submitted = 1;
    d[r].running = 1;
    d[r].state = RK_LEG_SUBMITTED;
    d_engine[r] = WAITS_FOR_KV;
    d_shown[r] = (p_life == ALIVE);
    if
    :: p_life != ALIVE -> d_finishes(r, RK_CAUSE_ENGINE_ERROR)
    :: else -> skip
    fi
}

/* Nobody knows its pages any more: the engine finds out, and fails a request that is not over. */
#define D_CAN_FAIL(r) (d_engine[r] == WAITS_FOR_KV && !d_shown[r] && D_LIVE(r))

/* A prefill's one output is its last. */
inline p_finishes(r, why) {
    p_engine[r] = NONE;
    if
    :: P_LIVE(r) -> p_end(r, why, RK_STOP_NONE)
    :: else -> skip
    fi;
    if
    :: P_LEG(r) && p[r].submitted -> p_free(r, RK_PROOF)
    :: else -> skip
    fi
}

/* rk_ledger_aborted: the engine has taken it. One that waits for KV is only marked. */
inline d_takes_abort(r) {
    d[r].abort_due = 0;
    if
    :: d_engine[r] == HAS_KV -> d_engine[r] = NONE
    :: else -> skip
    fi;
    if
    :: d[r].handed_off && d[r].running -> d_free(r)
    :: else -> skip
    fi
}

/* A marked one ends when its KV comes, and nobody hears of it. */
#define D_CAN_VANISH(r) (d_engine[r] == HAS_KV && d[r].aborted && !d[r].abort_due && !d[r].handed_off)

inline p_takes_abort(r) {
    p[r].abort_due = 0;
    if
    :: p[r].running && MUTANT == TAKES_AN_ABORT_FOR_QUIET -> p_free(r, RK_PROOF)
    :: p[r].running && MUTANT == FORGETS_AN_UNLINKED_PREFILL && !p[r].linked -> p_free(r, RK_NO_PROOF)
    :: else -> skip
    fi
}

/* rk_ledger_slot_released: the release agent has acknowledged */
inline d_acknowledges(r) {
    d_agent_due[r] = 0;
    d_engine[r] = NONE;
    d_released[r] = d_shown[r];
    if
    :: d[r].state == RK_LEG_ENDED -> d_free(r)
    :: else -> skip
    fi
}

inline p_acknowledges(r) {
    p_agent_due[r] = 0;
    p_engine[r] = NONE;
    if
    :: p[r].state == RK_LEG_ENDED -> p_free(r, RK_PROOF)
    :: else -> skip
    fi
}

/* ---- timers.c: rk_ledger_tick. Not RK_TIMER_RELEASE, which is last_resort. ---- */

#define D_TIMER(r) (d[r].timer != NONE && d[r].timer != RK_TIMER_RELEASE)
inline d_fires(r) {
    if
    :: d[r].timer == RK_TIMER_WAIT -> d_end(r, RK_CAUSE_WAIT_TIMEOUT, RK_STOP_NONE)
    :: d[r].timer == RK_TIMER_TWIN -> d_end(r, RK_CAUSE_TWIN_MISSING, RK_STOP_LATER)
    :: d[r].timer == RK_TIMER_HANDOFF -> d_abort(r); d[r].timer = RK_TIMER_RELEASE
    fi
}

#define P_TIMER(r) (p[r].timer == RK_TIMER_ANNOUNCE || p[r].timer == RK_TIMER_HELD)
inline p_fires(r) {
    if
    :: p[r].timer == RK_TIMER_ANNOUNCE -> p_admit(r)
    :: p[r].timer == RK_TIMER_HELD -> p_end(r, RK_CAUSE_HELD_TIMEOUT, RK_STOP_NONE)
    fi
}

/* The engine's own transfer deadline. */
#define D_LAST(r) (d[r].submitted && !d[r].handed_off)
inline d_last_resort(r) {
    if
    :: d[r].state == RK_LEG_ENDED -> d_engine[r] = NONE; d_free(r)
    :: else -> d_finishes(r, RK_CAUSE_ENGINE_ERROR)
    fi
}

#define P_LAST(r) (p[r].submitted)
inline p_last_resort(r) {
    if
    :: p[r].state == RK_LEG_ENDED -> p_engine[r] = NONE; p_free(r, RK_NO_PROOF)
    :: else -> p_finishes(r, RK_CAUSE_ENGINE_ERROR)
    fi
}

/* ---- what must hold of every state ---- */

/* check.c: what is in nobody's hands has a deadline */
inline check_deadlines() {
    for (x : 0 .. ROOMS - 1) {
        check(deadlines, !(d[x].state == RK_LEG_WAITING || d[x].state == RK_LEG_ENDED) || d[x].timer != NONE);
        check(deadlines, !(p[x].state == RK_LEG_HELD || p[x].state == RK_LEG_ENDED) || p[x].timer != NONE);
        check(window, d[x].state != RK_LEG_WAITING || slots == WINDOW || (len(line) > 0))
    }
    x = 0;
    check(settles, (len(line) == 0) || slots == WINDOW); /* nobody waits who could go */
    /* The engine counts for itself: what it holds and the ledger has forgotten is over the window. */
    for (x : 0 .. ROOMS - 1) {
        held = held + (d_engine[x] != NONE)
    }
    check(window, held <= WINDOW);
    x = 0; held = 0
}

/* ---- the end: nothing new happens, and what is due happens until nothing is ---- */

#define BOTH 0
#define PREFILL_SILENT 1 /* frozen, or cut off: its schedulers run on */
#define DECODE_SILENT 2
#define PREFILL_BACK 3   /* a crashed prefill has been started again */

/* The first event that is due, by rank: `due`, in room `at`. */
#define RANK(what, guard)                                                                                              \
    if                                                                                                                 \
    :: due == NONE && (guard) -> due = what; at = s                                                                    \
    :: else -> skip                                                                                                    \
    fi
#define RANK_ROOMS(what, guard)                                                                                        \
    for (s : 0 .. ROOMS - 1) {                                                                                         \
        RANK(what, guard)                                                                                              \
    }                                                                                                                  \
    s = 0
#define WITH_D (how != DECODE_SILENT)
#define WITH_P (how != PREFILL_SILENT)
#define WITH_BOTH (WITH_D && WITH_P)

inline pick() {
    due = NONE; at = 0; s = 0;
    RANK(BREAK, !WITH_BOTH && !broken);
    RANK(SCHEDULERS_END, p_life == DYING);
    RANK(RESTART, CAN_RESTART && how == PREFILL_BACK);
    RANK(D_NOTICE, WITH_D && D_CAN_NOTICE);
    RANK(P_NOTICE_0, WITH_P && P_CAN_NOTICE(0));
    RANK(P_NOTICE_1, WITH_P && P_CAN_NOTICE(1));
    RANK(DIAL, WITH_BOTH && CAN_REDIAL);
    RANK(BEGIN, WITH_BOTH && CAN_BEGIN);
    RANK(ACCEPT, WITH_BOTH && CAN_ACCEPT);
    RANK_ROOMS(GONE_THERE, WITH_D && CAN_BE_GONE(s));
    RANK(REFUSE, WITH_D && CAN_BE_REFUSED && d_phase == RK_PEER_IS_DIALLING);
    RANK(FAIL, how == PREFILL_SILENT && CAN_FAIL);
    RANK(D_UNSTALL, WITH_BOTH && UP && d_stalled);
    RANK(P_UNSTALL, WITH_BOTH && UP && p_stalled);
    RANK_ROOMS(P_TAKE, WITH_P && len(to_p[s]) > 0 && p_up[d_instance]);
    RANK_ROOMS(D_TAKE, WITH_D && len(to_d[s]) > 0 && d_phase == RK_PEER_IS_UP);
    RANK_ROOMS(D_ABORT, WITH_D && d[s].abort_due);
    RANK_ROOMS(P_ABORT, WITH_P && p[s].abort_due);
    RANK_ROOMS(D_ACKNOWLEDGE, WITH_D && d_agent_due[s]);
    RANK_ROOMS(P_ACKNOWLEDGE, WITH_P && p_agent_due[s]);
    RANK_ROOMS(D_SUBMIT, WITH_D && d[s].state == RK_LEG_ADMITTED);
    RANK_ROOMS(P_SUBMIT, WITH_P && p[s].state == RK_LEG_ADMITTED);
    RANK_ROOMS(TRANSFER, CAN_TRANSFER(s));
    RANK_ROOMS(P_FINISH, WITH_P && p_engine[s] == HAS_SENT);
    RANK_ROOMS(D_VANISH, WITH_D && D_CAN_VANISH(s));
    RANK_ROOMS(D_OUTPUT, WITH_D && D_CAN_OUTPUT(s));
    RANK_ROOMS(D_FINISH, WITH_D && D_CAN_FINISH(s));
    RANK_ROOMS(D_FAIL, WITH_D && D_CAN_FAIL(s));
    RANK_ROOMS(P_FIRE, WITH_P && P_TIMER(s));
    RANK_ROOMS(D_FIRE, WITH_D && D_TIMER(s));
    RANK_ROOMS(D_DEADLINE, WITH_D && D_LAST(s));
    RANK_ROOMS(P_DEADLINE, WITH_P && P_LAST(s))
}

/* A leg that knows its twin is not left to the engine's deadline while both workers live and are linked. */
inline check_left_alone() {
    check(left_alone, due != D_DEADLINE || !(WITH_BOTH && d[at].linked && d[at].bound));
    check(left_alone, due != P_DEADLINE || !(WITH_BOTH && p[at].linked && p[at].twin_seen))
}

inline check_settled() {
    check(settles, steps < 250);
    for (x : 0 .. ROOMS - 1) {
        check(settles, !WITH_D || !D_LEG(x));
        check(settles, !WITH_P || !P_LEG(x))
    }
    x = 0;
    check(settles, !WITH_D || (slots == 0 && len(line) == 0))
}

/* All ends are one. */
inline finish() {
    break_stream();
    for (i : 0 .. ROOMS - 1) {
        forget(d[i]); forget(p[i]);
        d[i].state = NOT_YET; p[i].state = NOT_YET;
        d_note[i] = 0; d_stone[i] = 0; d_agent_due[i] = 0; d_engine[i] = NONE; d_released[i] = 0; d_shown[i] = 0;
        p_forget_note(i); p_forget_stone(i); p_agent_due[i] = 0; p_engine[i] = NONE;
        do
        :: (len(line) > 0) -> line?x
        :: else -> break
        od
    }
    i = 0; x = 0; j = 0; k = 0;
    slots = 0;
    d_phase = RK_PEER_IS_ABSENT; d_peer = RK_PEER_ABSENT; d_known = 0; d_known_instance = 0; d_instance = 0;
    d_lost_before = 0;
    p_peer[0] = RK_PEER_ABSENT; p_peer[1] = RK_PEER_ABSENT; p_up[0] = 0; p_up[1] = 0; p_instance = 0; p_life = ALIVE;
    opening = 0; d_stalled = 0; p_stalled = 0; how = 0; due = NONE; at = 0; steps = 0;
    breaks = 0; crashes = 0; stalls = 0; deaths = 0; cancels = 0; errors = 0; timers = 0;
    over = 1
}

/* ---- everything that can happen ---- */

/* Rooms are alike: they begin in their order. */
#define MAY_BEGIN(r) (r == 0 || d[r - 1].state != NOT_YET || p[r - 1].state != NOT_YET)
#define ROOM(guard, ...) d_step { !over && (guard) -> EVENT(r, __VA_ARGS__); __VA_ARGS__; check_deadlines() }
#define LINK(guard, ...) d_step { !over && (guard) -> EVENT(0, __VA_ARGS__); __VA_ARGS__; check_deadlines() }
#define END(what, ...) due == what -> d_step { EVENT(at, __VA_ARGS__); __VA_ARGS__ }
/* For whoever reads a counterexample; costs a search nothing. */
#define EVENT(r, ...) printf("room %d: ", r); printf(#__VA_ARGS__); printf("\n")

inline count_timer() {
    timers = timers + (TIMERS < 9)
}

proctype room(byte r) {
end:
    do
    /* clients */
    :: ROOM(d[r].state == NOT_YET && MAY_BEGIN(r), d_arrives(r))
    :: ROOM(d[r].state == NOT_YET && MAY_BEGIN(r) && d_phase == RK_PEER_IS_ABSENT, dial(); d_arrives(r))
    :: ROOM(d[r].state == NOT_YET && MAY_BEGIN(r) && errors < ERRORS && !d_stone[r], errors++; d_is_refused(r))
    :: ROOM(p[r].state == NOT_YET && MAY_BEGIN(r) && p_life == ALIVE, p_arrives(r))
    :: ROOM(p[r].state == NOT_YET && MAY_BEGIN(r) && p_life == ALIVE && errors < ERRORS && p_stone[r] == NONE, errors++; p_is_refused(r))
    :: ROOM(D_LIVE(r) && cancels < CANCELS, cancels++; D_CANCEL(r)) /* rk_ledger_cancel, rk_ledger_abort */
    :: ROOM(P_LIVE(r) && cancels < CANCELS, cancels++; p_end(r, RK_CAUSE_CLIENT_CANCEL, RK_STOP_ABORT))
    /* engines */
    :: ROOM(d[r].state == RK_LEG_ADMITTED, d_submits(r))
    :: ROOM(d[r].state == RK_LEG_ADMITTED && errors < ERRORS, errors++; d_end(r, RK_CAUSE_ENGINE_DEAD, RK_STOP_NONE))
    :: ROOM(p[r].state == RK_LEG_ADMITTED, p_submits(r))
    :: ROOM(p[r].state == RK_LEG_ADMITTED && errors < ERRORS, errors++; p_submit_fails(r))
    :: ROOM(CAN_BE_GONE(r), dial_gone())
    :: ROOM(CAN_TRANSFER(r), transfer(r))
    :: ROOM(D_CAN_OUTPUT(r), d_first_output(r))
    :: ROOM(D_CAN_VANISH(r), d_engine[r] = NONE)
    :: ROOM(D_CAN_FINISH(r), d_finishes(r, RK_CAUSE_COMPLETED))
    :: ROOM(p_engine[r] == HAS_SENT && p_life == ALIVE, p_finishes(r, RK_CAUSE_COMPLETED))
    :: ROOM(d_engine[r] != NONE && errors < ERRORS, errors++; d_finishes(r, RK_CAUSE_ENGINE_ERROR))
    :: ROOM(p_engine[r] != NONE && p_life == ALIVE && errors < ERRORS, errors++; p_finishes(r, RK_CAUSE_ENGINE_ERROR))
    :: ROOM(d[r].abort_due, d_takes_abort(r))
    :: ROOM(p[r].abort_due, p_takes_abort(r))
    :: ROOM(d_agent_due[r], d_acknowledges(r))
    :: ROOM(p_agent_due[r], p_acknowledges(r))
    /* the clock */
    :: ROOM(D_TIMER(r) && timers < TIMERS, count_timer(); d_fires(r))
    :: ROOM(P_TIMER(r) && timers < TIMERS, count_timer(); p_fires(r))
    :: ROOM(EARLY && D_LAST(r), d_last_resort(r))
    :: ROOM(EARLY && P_LAST(r), p_last_resort(r))
    :: ROOM(EARLY && p_note[r], p_forget_note(r))
    :: ROOM(EARLY && d_note[r], d_note[r] = 0)
    /* the stream */
    :: ROOM((len(to_p[r]) > 0) && p_up[d_instance], p_take(r, d_instance))
    :: ROOM((len(to_d[r]) > 0) && d_phase == RK_PEER_IS_UP, d_take(r))
    od
}

proctype link() {
end:
    do
    :: LINK(CAN_REDIAL, dial())
    :: LINK(CAN_BEGIN, begun())
    :: LINK(CAN_ACCEPT, accepted())
    :: LINK(CAN_BE_REFUSED, dial_refused())
    :: LINK(DIALS && CAN_FAIL && (d_phase == RK_PEER_IS_DIALLING || breaks + crashes > 0), dial_failed())
    :: LINK(!broken && breaks < BREAKS, breaks++; break_stream())
    :: LINK(D_CAN_NOTICE, d_notices())
    :: LINK(P_CAN_NOTICE(0), p_notices(0))
    :: LINK(P_CAN_NOTICE(1), p_notices(1))
    /* engine_heard */
    :: LINK(UP && !d_stalled && stalls < STALLS, stalls++; d_stalled = 1; d_lose())
    :: LINK(UP && d_stalled, p_engine_is_back())
    :: LINK(UP && !p_stalled && stalls < STALLS, stalls++; p_stalled = 1; p_lose(d_instance))
    :: LINK(UP && p_stalled, d_engine_is_back())
    /* workers */
    :: LINK(crashes < CRASHES && d_instance == 0, crashes++; d_crashes())
    :: LINK(crashes < CRASHES && p_instance == 0 && p_life == ALIVE, crashes++; p_crashes())
    :: LINK(p_life == DYING, p_schedulers_end())
    :: LINK(CAN_RESTART, p_restarts())
    :: LINK(deaths < DEATHS && p_life == ALIVE, deaths++; p_engine_dies())
    od
}

/* From any state: nothing new happens, and what is due happens until nothing is. */
proctype ending() {
end:
    do
    :: atomic {
        !over ->
        if
        :: how = BOTH
        :: SILENCE -> how = PREFILL_SILENT
        :: SILENCE -> how = DECODE_SILENT
        :: p_life != ALIVE -> how = PREFILL_BACK
        fi;
        do
        :: d_step { pick(); check_left_alone(); steps++ };
           if
           :: END(BREAK, break_stream())
           :: END(SCHEDULERS_END, p_schedulers_end())
           :: END(RESTART, p_restarts())
           :: END(D_NOTICE, d_notices())
           :: END(P_NOTICE_0, p_notices(0))
           :: END(P_NOTICE_1, p_notices(1))
           :: END(DIAL, dial())
           :: END(BEGIN, begun())
           :: END(ACCEPT, accepted())
           :: END(GONE_THERE, dial_gone())
           :: END(REFUSE, dial_refused())
           :: END(FAIL, dial_failed())
           :: END(D_UNSTALL, p_engine_is_back())
           :: END(P_UNSTALL, d_engine_is_back())
           :: END(P_TAKE, p_take(at, d_instance))
           :: END(D_TAKE, d_take(at))
           :: END(D_ABORT, d_takes_abort(at))
           :: END(P_ABORT, p_takes_abort(at))
           :: END(D_ACKNOWLEDGE, d_acknowledges(at))
           :: END(P_ACKNOWLEDGE, p_acknowledges(at))
           :: END(D_SUBMIT, d_submits(at))
           :: END(P_SUBMIT, p_submits(at))
           :: END(TRANSFER, transfer(at))
           :: END(P_FINISH, p_finishes(at, RK_CAUSE_COMPLETED))
           :: END(D_VANISH, d_engine[at] = NONE)
           :: END(D_OUTPUT, d_first_output(at))
           :: END(D_FINISH, d_finishes(at, RK_CAUSE_COMPLETED))
           :: END(D_FAIL, d_finishes(at, RK_CAUSE_ENGINE_ERROR))
           :: END(P_FIRE, p_fires(at))
           :: END(D_FIRE, d_fires(at))
           :: END(D_DEADLINE, d_last_resort(at))
           :: END(P_DEADLINE, p_last_resort(at))
           :: due == NONE || steps > 250 -> break
           fi
        od;
        d_step { check_settled(); finish() }
       }
    od
}

init {
    atomic {
        for (i : 0 .. ROOMS - 1) {
            run room(i)
        }
        i = 0;
        if
        :: !DIALS -> d_step { dial(); begun(); accepted() }
        :: DIALS -> skip
        fi;
        run link();
        run ending()
    }
}
