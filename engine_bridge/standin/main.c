/* rk-standin: the C stand-in engine behind the servicer, as a program of its own, until SIGTERM.
 *
 * For benchmarks that ask what the servicer costs when the engine costs next to nothing. SIGTERM or SIGINT
 * drains (drain_seconds), a second one ends it now; exit code 0. A wrong option is one line and exit code 2.
 * The main thread waits for signals, everything else runs in threads that have them blocked. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "config/internal.h"
#include "roomkeeper/servicer.h"
#include "standin/standin.h"

#define LISTEN_MAX 8
#define EXIT_USAGE 2

typedef struct program {
    rk_config config;
    rk_standin_options engine;
    rk_role role;
    const char *listen[LISTEN_MAX];
    size_t listen_count;
    char error[RK_CONFIG_ERROR_MAX];
} program;

/* Our own options, read as configuration keys are. */
enum {
    OPT_LISTEN,
    OPT_ROLE,
    OPT_STEP_US,
    OPT_WINDOW,
    OPT_TOKENS,
    OPT_STEP_TOKENS,
    OPT_VOCAB,
    OPT_CUMULATIVE
};
static const rk_key options[] = {
    [OPT_LISTEN] = {"--listen", RK_KEY_TEXT, "127.0.0.1:0", 0, 0, "", "",
                    "host:port or unix:/path; may be given several times"},
    [OPT_ROLE] = {"--role", RK_KEY_CHOICE, "null", 0, 0, "null|prefill|decode", "",
                  "null, prefill or decode: what the worker is"},
    [OPT_STEP_US] = {"--step-us", RK_KEY_INT, "0", 0, 60000000, "", "us", "from step to step; 0: at once"},
    [OPT_WINDOW] = {"--window", RK_KEY_INT, "0", 0, 1000000, "", "slots",
                    "choices that run at a time; 0: all, and no window is reported"},
    [OPT_TOKENS] = {"--tokens", RK_KEY_INT, "64", 1, 1048576, "", "tokens",
                    "of a request without max_new_tokens"},
    [OPT_STEP_TOKENS] = {"--step-tokens", RK_KEY_INT, "1", 1, 65536, "", "tokens", "per choice and step"},
    [OPT_VOCAB] = {"--vocab-size", RK_KEY_INT, "32000", 1, 2147483647, "", "tokens", "token ids are below"},
    [OPT_CUMULATIVE] = {"--cumulative", RK_KEY_BOOL, "off", 0, 1, "", "",
                        "outputs carry all ids so far, not only the new ones"},
};
#define OPTIONS (sizeof options / sizeof options[0])

static void usage(void) {
    printf("rk-standin: a made-up engine behind the roomkeeper servicer\n\n");
    for (size_t i = 0; i < OPTIONS; i++)
        printf("  %-14s %s (%s)\n", options[i].name, options[i].help, options[i].default_text);
    printf("  %-14s %s\n", "--room-...", "any key of the configuration, as in docs/configuration.md");
}

static int add_listen(program *p, const char *address) {
    if (p->listen_count == LISTEN_MAX) {
        rk_config_say(p->error, "--listen: it is given more than %d times, the limit; leave some out",
                      LISTEN_MAX);
        return -EINVAL;
    }
    p->listen[p->listen_count++] = address;
    return 0;
}

static int set_own(program *p, size_t option, const char *text) {
    rk_key_value value = {0};
    int rc = rk_key_parse(&options[option], text, &value, options[option].name, p->error);
    free(value.text); /* `text` itself lives as long as the program */
    if (rc < 0)
        return rc;
    switch (option) {
    case OPT_LISTEN:
        return add_listen(p, text);
    case OPT_ROLE:
        p->role = *text == 'p' ? RK_ROLE_PREFILL : *text == 'd' ? RK_ROLE_DECODE : RK_ROLE_NULL;
        break;
    case OPT_STEP_US:
        p->engine.step_us = (uint64_t)value.integer;
        break;
    case OPT_WINDOW:
        p->engine.window = (uint32_t)value.integer;
        break;
    case OPT_TOKENS:
        p->engine.tokens = (uint32_t)value.integer;
        break;
    case OPT_STEP_TOKENS:
        p->engine.step_tokens = (uint32_t)value.integer;
        break;
    case OPT_VOCAB:
        p->engine.vocab_size = (uint32_t)value.integer;
        break;
    default:
        p->engine.cumulative = value.boolean;
        break;
    }
    return 0;
}

/* "--room-wait-seconds" sets wait_seconds, "--rooms" sets rooms. */
static int set_room(program *p, const char *flag, const char *value) {
    char key[RK_SHOWN_MAX];
    const char *name = strncmp(flag, "--room-", 7) == 0 ? flag + 7 : flag + 2;
    (void)rk_shown(key, name);
    for (char *at = key; *at; at++)
        *at = *at == '-' ? '_' : *at;
    return rk_config_set(&p->config, key, value, flag, p->error);
}

static int take_option(program *p, const char *flag, const char *value) {
    size_t option = 0;
    while (option < OPTIONS && strcmp(options[option].name, flag) != 0)
        option++;
    bool room = strncmp(flag, "--room", 6) == 0;
    if (option == OPTIONS && !room) {
        rk_config_say(p->error, "%s: there is no such option; see --help", flag);
        return -EINVAL;
    }
    if (!value) {
        rk_config_say(p->error, "%s: it has no value; see --help", flag);
        return -EINVAL;
    }
    return room ? set_room(p, flag, value) : set_own(p, option, value);
}

static int read_arguments(program *p, int argc, char **argv) {
    for (int i = 1; i < argc; i += 2) {
        int rc = take_option(p, argv[i], i + 1 < argc ? argv[i + 1] : NULL);
        if (rc < 0)
            return rc;
    }
    if (p->listen_count == 0)
        p->listen[p->listen_count++] = options[OPT_LISTEN].default_text;
    return rk_config_check(&p->config, p->error);
}

static rk_value *server_args(const program *p) {
    static const char *const modes[] = {"null", "prefill", "decode"};
    const char *mode = modes[p->role];
    rk_value *args = rk_value_map();
    if (!args || rk_value_set(args, "model_path", rk_value_string("standin", 7)) < 0 ||
        rk_value_set(args, "disaggregation_mode", rk_value_string(mode, strlen(mode))) < 0 ||
        (p->engine.window > 0 && rk_value_set(args, "max_num_seqs", rk_value_number(p->engine.window)) < 0)) {
        rk_value_free(args);
        return NULL;
    }
    return args;
}

static rk_servicer *make_servicer(program *p, rk_standin *standin) {
    rk_value *args = server_args(p);
    rk_worker_info info = {
        .role = p->role,
        .ranks = 1,
        .window = p->engine.window,
        .vocab_size = p->engine.vocab_size,
        .skip_warmup = true,
        .model_path = "standin",
        .served_model_name = "standin",
        .engine_version = rk_version(),
        .server_args = args,
    };
    rk_servicer *servicer = rk_servicer_new(&p->config, &info, rk_standin_ops(), standin, p->error);
    rk_value_free(args);
    return servicer;
}

static int listen_all(program *p, rk_servicer *servicer) {
    for (size_t i = 0; i < p->listen_count; i++) {
        int port = rk_servicer_listen(servicer, p->listen[i], p->error);
        if (port < 0)
            return port;
        if (port > 0)
            printf("rk-standin: listening on %s, port %d\n", p->listen[i], port);
        else
            printf("rk-standin: listening on %s\n", p->listen[i]);
    }
    return 0;
}

/* Until nothing is open, drain_seconds have passed, or somebody is in a hurry. */
static void drain(const program *p, rk_servicer *servicer, const sigset_t *signals) {
    const struct timespec at_once = {0};
    uint64_t end_ms = rk_now_ms() + (uint64_t)(p->config.drain_seconds * 1000);
    rk_servicer_drain(servicer);
    while (rk_now_ms() < end_ms && rk_servicer_wait_idle(servicer, 20) != 0) {
        if (sigtimedwait(signals, NULL, &at_once) > 0)
            return;
    }
}

static int serve(program *p, const sigset_t *signals) {
    int signal_number = 0;
    rk_standin *standin = rk_standin_new(&p->engine);
    rk_servicer *servicer = standin ? make_servicer(p, standin) : NULL;
    if (!standin)
        rk_config_say(p->error, "memory or descriptors are out");
    int rc = servicer ? listen_all(p, servicer) : -1;
    if (rc == 0) {
        rk_standin_attach(standin, servicer);
        rc = rk_servicer_start(servicer, p->error);
    }
    if (rc == 0 && (rc = rk_standin_start(standin)) < 0)
        rk_config_say(p->error, "the engine's thread cannot start: out of threads");
    if (rc == 0) {
        printf("rk-standin: serving\n");
        (void)fflush(stdout);
        (void)sigwait(signals, &signal_number);
        drain(p, servicer, signals);
    }
    if (servicer)
        rk_servicer_stop(servicer); /* from here on nobody calls the engine */
    if (standin)
        rk_standin_stop(standin); /* and from here on it does not speak */
    rk_servicer_free(servicer);
    rk_standin_free(standin);
    return rc;
}

int main(int argc, char **argv) {
    program p = {.role = RK_ROLE_NULL};
    sigset_t signals;
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        usage();
        return EXIT_SUCCESS;
    }
    if (rk_config_init(&p.config) < 0)
        return EXIT_FAILURE;
    p.engine.vocab_size = 32000;
    int rc = read_arguments(&p, argc, argv);
    int code = rc < 0 ? EXIT_USAGE : EXIT_FAILURE;
    if (rc == 0) {
        (void)sigemptyset(&signals);
        (void)sigaddset(&signals, SIGTERM);
        (void)sigaddset(&signals, SIGINT);
        (void)pthread_sigmask(SIG_BLOCK, &signals, NULL);
        (void)signal(SIGPIPE, SIG_IGN);
        rc = serve(&p, &signals);
    }
    if (rc < 0)
        (void)fprintf(stderr, "rk-standin: %s\n", p.error);
    rk_config_free(&p.config);
    return rc < 0 ? code : EXIT_SUCCESS;
}
