/* The life of a servicer, its control plane, and what it does when the engine stalls or goes. */
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "rpc_helpers.h"

static worker w;
static grpc_channel *channel;

static void setup(void) {
    grpc_init();
}

static void begin(plan p) {
    worker_start(&w, p);
    channel = channel_to(w.address);
}

static void teardown(void) {
    if (channel)
        grpc_channel_destroy(channel);
    channel = NULL;
    if (w.servicer)
        worker_end(&w);
    grpc_shutdown();
}

START_TEST(it_can_be_made_and_freed_without_ever_listening_or_starting) {
    char error[RK_ERROR_MAX];
    rk_config config = make_config(NULL);
    rk_worker_info info = {.ranks = 1};
    for (int i = 0; i < 10; i++) {
        rk_servicer *servicer = rk_servicer_new(&config, &info, rk_standin_ops(), NULL, error);
        ck_assert_ptr_nonnull(servicer);
        if (i % 3 > 0)
            ck_assert_int_gt(rk_servicer_listen(servicer, "127.0.0.1:0", error), 0);
        if (i % 3 > 1)
            rk_servicer_stop(servicer);
        rk_servicer_free(servicer);
    }
    rk_config_free(&config);
}
END_TEST

START_TEST(it_can_be_started_and_stopped_many_times_with_a_stream_open) {
    for (int i = 0; i < 20; i++) {
        rpc c;
        begin((plan){.engine = {.step_us = 1000}});
        generate(&c, channel, (ask){.id = "r", .tokens = 100000});
        response_free(rpc_read(&c));
        if (i % 2)
            rk_servicer_drain(w.servicer);
        rk_servicer_stop(w.servicer);
        rk_servicer_stop(w.servicer);
        ck_assert_int_eq(rpc_end(&c, NULL), GRPC_STATUS_UNAVAILABLE);
        grpc_channel_destroy(channel);
        channel = NULL;
        worker_end(&w);
    }
}
END_TEST

static void *stop_it(void *arg) {
    rk_servicer_stop(arg);
    return NULL;
}

START_TEST(two_threads_may_stop_it_amid_many_streams) {
    enum { STREAMS = 100 };
    static rpc calls[STREAMS];
    char id[16];
    begin((plan){.engine = {.step_us = 200}});
    for (int i = 0; i < STREAMS; i++) {
        (void)snprintf(id, sizeof id, "r%d", i);
        generate(&calls[i], channel, (ask){.id = id, .tokens = 1000000});
    }
    for (int i = 0; i < STREAMS; i++)
        response_free(rpc_read(&calls[i]));
    pthread_t stoppers[2];
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&stoppers[i], NULL, stop_it, w.servicer), 0);
    for (int i = 0; i < STREAMS; i++)
        ck_assert_int_eq(rpc_end(&calls[i], NULL), GRPC_STATUS_UNAVAILABLE);
    for (int i = 0; i < 2; i++)
        (void)pthread_join(stoppers[i], NULL);
    ck_assert_uint_eq(rk_servicer_open_calls(w.servicer), 0);
}
END_TEST

START_TEST(a_drain_refuses_the_new_and_the_waiting_and_lets_the_old_finish) {
    rpc old, waiting, new_one;
    char text[512];
    begin((plan){.engine = {.step_us = 2000}, .role = RK_ROLE_DECODE, .window = 1});
    generate(&old, channel, (ask){.id = "old", .tokens = 200, .room = 1});
    rpc_wait(&old, HEADERS);
    generate(&waiting, channel, (ask){.id = "waiting", .room = 2});
    UNTIL(rank_of(&w).waiting == 1);
    rk_servicer_drain(w.servicer);
    ck_assert_int_eq(health(channel), 2);
    ck_assert_int_eq(rpc_end(&waiting, text), GRPC_STATUS_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(text, "shutting down"));
    generate(&new_one, channel, (ask){.id = "new", .room = 3});
    ck_assert_int_eq(rpc_end(&new_one, NULL), GRPC_STATUS_UNAVAILABLE);
    ck_assert_int_eq(rk_servicer_wait_idle(w.servicer, 1), -ETIMEDOUT);
    ck_assert_int_eq(rpc_end(&old, NULL), GRPC_STATUS_OK);
    ck_assert_int_eq(rk_servicer_wait_idle(w.servicer, GUARD_MS), 0);
}
END_TEST

/* The next status of a Watch. */
static int watched(rpc *c) {
    size_t size = 0;
    rpc_ask(c);
    _cleanup_free_ uint8_t *bytes = rpc_take(c, &size);
    return bytes && size == 2 && bytes[0] == 0x08 ? bytes[1] : -1;
}

START_TEST(a_stalled_engine_is_noticed_and_its_return_too) {
    static const char *const quick[] = {"stall_seconds", "0.5", NULL};
    rpc watch, c;
    begin((plan){.engine = {.beat_ms = 50}, .options = quick});
    rpc_open(&watch, channel, HEALTH "Watch", "", 0);
    ck_assert_int_eq(watched(&watch), 1);
    rk_standin_stall(w.engine, true);
    ck_assert_int_eq(watched(&watch), 2);
    generate(&c, channel, (ask){.id = "r"});
    ck_assert_int_eq(rpc_end(&c, NULL), GRPC_STATUS_UNAVAILABLE);
    ck_assert_int_eq(unary(channel, SCHEDULER "GetLoads", "", 0, NULL, NULL), GRPC_STATUS_OK);
    rk_standin_stall(w.engine, false);
    ck_assert_int_eq(watched(&watch), 1);
    generate(&c, channel, (ask){.id = "r"});
    ck_assert_int_eq(rpc_end(&c, NULL), GRPC_STATUS_OK);
    rk_servicer_stop(w.servicer);
    ck_assert_int_eq(watched(&watch), 2);
    ck_assert_int_eq(rpc_end(&watch, NULL), GRPC_STATUS_UNAVAILABLE);
}
END_TEST

START_TEST(streams_of_an_engine_that_stays_silent_end_and_it_keeps_their_slots_until_it_is_back) {
    static const char *const quick[] = {"stall_seconds", "0.2", "dead_seconds", "0.5", NULL};
    rpc running, waiting;
    begin((plan){
        .engine = {.beat_ms = 50, .step_us = 1000}, .role = RK_ROLE_DECODE, .window = 1, .options = quick});
    generate(&running, channel, (ask){.id = "r", .tokens = 100000, .room = 1});
    response_free(rpc_read(&running));
    generate(&waiting, channel, (ask){.id = "w", .room = 2});
    UNTIL(rank_of(&w).waiting == 1);
    rk_standin_stall(w.engine, true);
    ck_assert_int_eq(rpc_end(&running, NULL), GRPC_STATUS_UNAVAILABLE);
    ck_assert_int_eq(rpc_end(&waiting, NULL), GRPC_STATUS_UNAVAILABLE);
    ck_assert_uint_eq(rank_of(&w).releasing, 1); /* it may come back with all that it had */
    rk_standin_stall(w.engine, false);
    UNTIL(is_idle(&w));
    UNTIL(health(channel) == 1);
}
END_TEST

START_TEST(an_engine_that_is_gone_ends_everything_for_good) {
    rpc c;
    begin((plan){.engine = {.step_us = 1000}});
    generate(&c, channel, (ask){.id = "r", .tokens = 100000});
    response_free(rpc_read(&c));
    rk_sink_state(w.servicer, RK_ENGINE_DEAD, "killed by a test");
    ck_assert_int_eq(rpc_end(&c, NULL), GRPC_STATUS_UNAVAILABLE);
    rk_sink_state(w.servicer, RK_ENGINE_READY, NULL);
    ck_assert_int_eq(health(channel), 2);
}
END_TEST

START_TEST(a_probe_has_an_answer_either_way) {
    static const char *const old[] = {"stall_seconds", "3600", "dead_seconds", "7200", NULL};
    begin((plan){.engine = {.beat_ms = 60000}, .options = old});
    ck_assert_int_eq(unary(channel, SCHEDULER "HealthCheck", "", 0, NULL, NULL), GRPC_STATUS_OK);
    rk_standin_silence(w.engine, true);
    /* Nobody answers: the stop must not wait for it. */
    rpc info;
    rpc_open(&info, channel, SCHEDULER "GetServerInfo", "", 0);
    (void)usleep(50000);
    rk_servicer_stop(w.servicer);
    (void)rpc_end(&info, NULL);
}
END_TEST

START_TEST(a_unix_socket_is_served_and_a_left_over_file_taken) {
    char folder[] = "/tmp/rk-test-XXXXXX";
    char address[80];
    char error[RK_ERROR_MAX];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(address, sizeof address, "unix:%s/sock", folder);
    rk_config config = make_config(NULL);
    rk_worker_info info = {.ranks = 1, .skip_warmup = true};
    struct sockaddr_un left = {.sun_family = AF_UNIX};
    (void)snprintf(left.sun_path, sizeof left.sun_path, "%s", address + 5);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&left, sizeof left), 0);
    (void)close(fd);
    rk_servicer *servicer = rk_servicer_new(&config, &info, rk_standin_ops(), NULL, error);
    ck_assert_ptr_nonnull(servicer);
    ck_assert_msg(rk_servicer_listen(servicer, address, error) == 0, "%s", error);
    ck_assert_int_eq(rk_servicer_start(servicer, error), 0);
    rk_sink_state(servicer, RK_ENGINE_READY, NULL);
    rk_servicer *late = rk_servicer_new(&config, &info, rk_standin_ops(), NULL, error);
    ck_assert_ptr_nonnull(late);
    ck_assert_int_eq(rk_servicer_listen(late, address, error), -EADDRINUSE);
    ck_assert_ptr_nonnull(strstr(error, "another process serves there"));
    rk_servicer_free(late);
    channel = channel_to(address);
    ck_assert_int_eq(health(channel), 1);
    rk_servicer_free(servicer);
    ck_assert_int_eq(access(address + 5, F_OK), -1);
    ck_assert_int_eq(rmdir(folder), 0);
    rk_config_free(&config);
}
END_TEST

START_TEST(a_port_in_use_is_refused_in_one_line) {
    char error[RK_ERROR_MAX];
    begin((plan){0});
    rk_config config = make_config(NULL);
    rk_worker_info info = {.ranks = 1};
    rk_servicer *late = rk_servicer_new(&config, &info, rk_standin_ops(), NULL, error);
    ck_assert_ptr_nonnull(late);
    ck_assert_int_eq(rk_servicer_listen(late, w.address, error), -EADDRINUSE);
    ck_assert_ptr_nonnull(strstr(error, w.address));
    ck_assert_ptr_null(strchr(error, '\n'));
    rk_servicer_free(late);
    rk_config_free(&config);
}
END_TEST

START_TEST(two_servicers_in_one_process_do_not_know_each_other) {
    worker other;
    rpc one, two;
    begin((plan){.engine = {.step_us = 1000}});
    worker_start(&other, (plan){.engine = {.step_us = 1000}});
    grpc_channel *apart = channel_to(other.address);
    generate(&one, channel, (ask){.id = "same", .tokens = 100});
    generate(&two, apart, (ask){.id = "same", .tokens = 100000});
    response_free(rpc_read(&two));
    worker_end(&other);
    ck_assert_int_eq(rpc_end(&two, NULL), GRPC_STATUS_UNAVAILABLE);
    ck_assert_int_eq(rpc_end(&one, NULL), GRPC_STATUS_OK);
    grpc_channel_destroy(apart);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("rpc_life");
    TCase *tests = tcase_create("rpc_life");
    tcase_set_timeout(tests, 100);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, it_can_be_made_and_freed_without_ever_listening_or_starting);
    tcase_add_test(tests, it_can_be_started_and_stopped_many_times_with_a_stream_open);
    tcase_add_test(tests, two_threads_may_stop_it_amid_many_streams);
    tcase_add_test(tests, a_drain_refuses_the_new_and_the_waiting_and_lets_the_old_finish);
    tcase_add_test(tests, a_stalled_engine_is_noticed_and_its_return_too);
    tcase_add_test(tests,
                   streams_of_an_engine_that_stays_silent_end_and_it_keeps_their_slots_until_it_is_back);
    tcase_add_test(tests, an_engine_that_is_gone_ends_everything_for_good);
    tcase_add_test(tests, a_probe_has_an_answer_either_way);
    tcase_add_test(tests, a_unix_socket_is_served_and_a_left_over_file_taken);
    tcase_add_test(tests, a_port_in_use_is_refused_in_one_line);
    tcase_add_test(tests, two_servicers_in_one_process_do_not_know_each_other);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
