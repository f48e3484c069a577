/* The queue from any thread to one: order, coalesced wake-ups, nothing lost under contention. */
#include <check.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/queue.h"

typedef struct item {
    rk_qnode node; /* must stay first */
    unsigned producer;
    unsigned number;
} item;

START_TEST(an_empty_queue_gives_nothing) {
    rk_queue queue;
    rk_queue_init(&queue);
    ck_assert_ptr_null(rk_queue_take(&queue));
}
END_TEST

START_TEST(what_is_pushed_comes_back_oldest_first) {
    rk_queue queue;
    item items[100];
    rk_queue_init(&queue);
    for (unsigned i = 0; i < RK_COUNT(items); i++) {
        items[i].number = i;
        (void)rk_queue_push(&queue, &items[i].node);
    }
    const rk_qnode *node = rk_queue_take(&queue);
    for (unsigned i = 0; i < RK_COUNT(items); i++) {
        ck_assert_ptr_nonnull(node);
        ck_assert_uint_eq(((const item *)node)->number, i);
        node = node->next;
    }
    ck_assert_ptr_null(node);
    ck_assert_ptr_null(rk_queue_take(&queue));
}
END_TEST

START_TEST(only_the_push_that_finds_it_empty_wakes_the_consumer) {
    rk_queue queue;
    item items[3];
    rk_queue_init(&queue);
    ck_assert(rk_queue_push(&queue, &items[0].node));
    ck_assert(!rk_queue_push(&queue, &items[1].node));
    ck_assert_ptr_nonnull(rk_queue_take(&queue));
    ck_assert(rk_queue_push(&queue, &items[2].node));
    ck_assert_ptr_eq(rk_queue_take(&queue), &items[2].node);
}
END_TEST

START_TEST(a_taken_node_may_be_pushed_again_while_the_rest_is_walked) {
    rk_queue queue;
    item items[2];
    rk_queue_init(&queue);
    (void)rk_queue_push(&queue, &items[0].node);
    (void)rk_queue_push(&queue, &items[1].node);
    rk_qnode *first = rk_queue_take(&queue);
    rk_qnode *second = first->next;
    ck_assert(rk_queue_push(&queue, first));
    ck_assert_ptr_eq(second, &items[1].node);
    ck_assert_ptr_null(second->next);
    ck_assert_ptr_eq(rk_queue_take(&queue), &items[0].node);
}
END_TEST

#define PRODUCERS 4
#define EACH 20000

typedef struct producer {
    rk_queue *queue;
    item *items; /* EACH of them */
    _Atomic uint64_t *wakes;
} producer;

static void *produce(void *arg) {
    producer *p = arg;
    for (unsigned i = 0; i < EACH; i++)
        if (rk_queue_push(p->queue, &p->items[i].node))
            atomic_fetch_add(p->wakes, 1);
    return NULL;
}

START_TEST(many_producers_lose_nothing_and_each_keeps_its_order) {
    static item items[PRODUCERS][EACH];
    pthread_t threads[PRODUCERS];
    producer producers[PRODUCERS];
    unsigned next[PRODUCERS] = {0};
    rk_queue queue;
    _Atomic uint64_t wakes;
    uint64_t rounds = 0; /* takes that found something */
    unsigned seen = 0;
    atomic_init(&wakes, 0);
    rk_queue_init(&queue);
    for (unsigned p = 0; p < PRODUCERS; p++) {
        for (unsigned i = 0; i < EACH; i++)
            items[p][i] = (item){.producer = p, .number = i};
        producers[p] = (producer){&queue, items[p], &wakes};
        ck_assert_int_eq(pthread_create(&threads[p], NULL, produce, &producers[p]), 0);
    }
    while (seen < PRODUCERS * EACH) {
        const rk_qnode *node = rk_queue_take(&queue);
        rounds += node != NULL;
        for (; node; node = node->next) {
            const item *it = (const item *)node;
            ck_assert_uint_eq(it->number, next[it->producer]);
            next[it->producer]++;
            seen++;
        }
    }
    for (unsigned p = 0; p < PRODUCERS; p++)
        (void)pthread_join(threads[p], NULL);
    /* One wake-up for each time it went from empty to not empty: no take without one, none too many. */
    ck_assert_uint_eq(atomic_load(&wakes), rounds);
    ck_assert_ptr_null(rk_queue_take(&queue));
}
END_TEST

int main(void) {
    Suite *suite = suite_create("queue");
    TCase *tests = tcase_create("queue");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, an_empty_queue_gives_nothing);
    tcase_add_test(tests, what_is_pushed_comes_back_oldest_first);
    tcase_add_test(tests, only_the_push_that_finds_it_empty_wakes_the_consumer);
    tcase_add_test(tests, a_taken_node_may_be_pushed_again_while_the_rest_is_walked);
    tcase_add_test(tests, many_producers_lose_nothing_and_each_keeps_its_order);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
