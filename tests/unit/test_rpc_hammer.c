/* Many clients at once that do everything there is, in every order: for the sanitizers, and for what must
 * hold in the end. Which call meets which is chance; the seeds are fixed, the threads are not. */
#include "rpc_helpers.h"

enum { CLIENTS = 6, CALLS = 60 };

static worker w;

static void setup(void) {
    grpc_init();
}

static void teardown(void) {
    worker_end(&w);
    grpc_shutdown();
}

typedef struct client {
    pthread_t thread;
    unsigned number;
    unsigned seed;
    bool pairs; /* calls have rooms */
    bool stops; /* the worker stops on the way */
    int calls;
    int ok; /* ended OK */
    int ended;
} client;

static unsigned chance(client *me, unsigned below) {
    return (unsigned)rand_r(&me->seed) % below;
}

static bool is_expected(grpc_status_code code) {
    return code == GRPC_STATUS_OK || code == GRPC_STATUS_CANCELLED ||
           code == GRPC_STATUS_RESOURCE_EXHAUSTED || code == GRPC_STATUS_ALREADY_EXISTS ||
           code == GRPC_STATUS_UNAVAILABLE || code == GRPC_STATUS_ABORTED;
}

static void one_call(client *me, grpc_channel *channel, int number) {
    char id[32];
    rpc c;
    /* Some ids are shared with another client, so that they meet. */
    (void)snprintf(id, sizeof id, "r%u-%d", chance(me, 8) ? me->number : me->number / 2, number);
    ask a = {.id = id,
             .tokens = 1 + chance(me, 40),
             .n = me->pairs ? 1 : 1 + chance(me, 3),
             .whole = chance(me, 3) == 0,
             .logprobs = chance(me, 3) == 0};
    if (me->pairs)
        a.room = 1 + (int64_t)chance(me, 200);
    generate(&c, channel, a);
    unsigned what = chance(me, 6);
    if (what == 1)
        rpc_cancel(&c);
    if (what == 2) {
        response *r = rpc_read(&c);
        if (r)
            response_free(r);
        rpc_cancel(&c);
    }
    if (what == 3)
        ck_assert(abort_request(channel, id) >= 0 || me->stops);
    if (what == 4)
        ck_assert(unary(channel, SCHEDULER "GetLoads", "", 0, NULL, NULL) == GRPC_STATUS_OK || me->stops);
    grpc_status_code code = rpc_end(&c, NULL);
    ck_assert_msg(is_expected(code), "call %s ended with %d", id, (int)code);
    me->ok += code == GRPC_STATUS_OK;
    me->ended++;
}

static void *be_client(void *arg) {
    client *me = arg;
    grpc_channel *channel = channel_to(w.address);
    for (int i = 0; i < me->calls; i++)
        one_call(me, channel, i);
    grpc_channel_destroy(channel);
    return NULL;
}

static void hammer(plan p, bool pairs) {
    client clients[CLIENTS];
    int ok = 0;
    worker_start(&w, p);
    for (unsigned i = 0; i < CLIENTS; i++) {
        clients[i] = (client){.number = i, .seed = 77 + i, .pairs = pairs, .calls = CALLS};
        ck_assert_int_eq(pthread_create(&clients[i].thread, NULL, be_client, &clients[i]), 0);
    }
    for (unsigned i = 0; i < CLIENTS; i++) {
        (void)pthread_join(clients[i].thread, NULL);
        ck_assert_int_eq(clients[i].ended, CALLS);
        ok += clients[i].ok;
    }
    ck_assert_int_gt(ok, CLIENTS * CALLS / 4);
    UNTIL(is_idle(&w) && rk_standin_live(w.engine) == 0);
    ck_assert_uint_le(rk_standin_aborts(w.engine), rk_standin_submitted(w.engine));
}

static const char *const gated[] = {"gate_aggregated", "on", "waiting", "4", "handoff_seconds", "0.2", NULL};
static const char *const queued[] = {"waiting", "100", "handoff_seconds", "0.2", NULL};
static const char *const off[] = {"rooms", "off", NULL};

START_TEST(an_aggregated_worker_that_gates) {
    hammer((plan){.engine = {.step_us = 300}, .window = 4, .options = gated}, false);
}
END_TEST

START_TEST(a_decode_with_a_line) {
    hammer((plan){.engine = {.step_us = 300}, .role = RK_ROLE_DECODE, .window = 3, .options = queued}, true);
}
END_TEST

START_TEST(a_prefill) {
    /* An abort is only a mark to a prefill: it is the release agent that ends its rooms. */
    hammer((plan){.engine = {.step_us = 300},
                  .role = RK_ROLE_PREFILL,
                  .window = 3,
                  .ops = rk_standin_ops_releasing()},
           true);
}
END_TEST

START_TEST(a_worker_without_rooms_at_full_speed) {
    hammer((plan){.options = off}, false);
}
END_TEST

/* ---- and one that is stopped amid it ---- */

static void *watch_health(void *arg) {
    grpc_channel *channel = channel_to(w.address);
    int *rounds = arg;
    for (;; ++*rounds) {
        rpc watch;
        rpc_open(&watch, channel, HEALTH "Watch", "", 0);
        rpc_ask(&watch);
        (void)rpc_within(&watch, READ, 20);
        rpc_cancel(&watch);
        grpc_status_code code = rpc_end(&watch, NULL);
        if (code != GRPC_STATUS_CANCELLED) {
            ck_assert_int_eq(code, GRPC_STATUS_UNAVAILABLE);
            break;
        }
    }
    grpc_channel_destroy(channel);
    return NULL;
}

START_TEST(a_worker_that_is_drained_and_stopped_amid_it_all) {
    client clients[CLIENTS];
    pthread_t watcher;
    int rounds = 0;
    worker_start(&w, (plan){.engine = {.step_us = 300}, .window = 4, .options = gated});
    ck_assert_int_eq(pthread_create(&watcher, NULL, watch_health, &rounds), 0);
    for (unsigned i = 0; i < CLIENTS; i++) {
        clients[i] = (client){.number = i, .seed = 99 + i, .stops = true, .calls = 1 + CALLS / 2};
        ck_assert_int_eq(pthread_create(&clients[i].thread, NULL, be_client, &clients[i]), 0);
    }
    UNTIL(rk_standin_submitted(w.engine) > 20);
    rk_standin_stall(w.engine, true);
    (void)usleep(20000);
    rk_standin_stall(w.engine, false);
    rk_servicer_drain(w.servicer);
    (void)usleep(20000);
    rk_servicer_stop(w.servicer);
    (void)pthread_join(watcher, NULL);
    ck_assert_uint_eq(rk_servicer_open_calls(w.servicer), 0);
    for (unsigned i = 0; i < CLIENTS; i++)
        (void)pthread_join(clients[i].thread, NULL);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("rpc_hammer");
    TCase *tests = tcase_create("rpc_hammer");
    tcase_set_timeout(tests, 110);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, an_aggregated_worker_that_gates);
    tcase_add_test(tests, a_decode_with_a_line);
    tcase_add_test(tests, a_prefill);
    tcase_add_test(tests, a_worker_without_rooms_at_full_speed);
    tcase_add_test(tests, a_worker_that_is_drained_and_stopped_amid_it_all);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
