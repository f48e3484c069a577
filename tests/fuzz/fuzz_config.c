/* Any bytes as a configuration file, and behind its first NUL byte as flags, "key=value" in lines: taken, or
 * refused in one line with the config as it was. What was taken can be written down as a file and reads the
 * same. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "config/internal.h"
#include "dialect_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_error(const char *error, int rc) {
    if (rc == 0) {
        ck_assert_str_eq(error, "");
        return;
    }
    size_t length = strnlen(error, RK_CONFIG_ERROR_MAX);
    ck_assert(length > 0 && length < RK_CONFIG_ERROR_MAX);
    ck_assert(rk_utf8_valid(error, length));
    for (size_t i = 0; i < length; i++)
        ck_assert((unsigned char)error[i] >= ' ' && error[i] != 0x7F);
}

static int load(rk_config *config, const uint8_t *bytes, size_t size) {
    static int fd = -1;
    char path[32], error[RK_CONFIG_ERROR_MAX];
    if (fd < 0)
        fd = memfd_create("config", MFD_CLOEXEC);
    ck_assert_int_eq(ftruncate(fd, 0), 0);
    ck_assert_int_eq(pwrite(fd, bytes, size, 0), (ssize_t)size);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    memset(error, 'x', sizeof error);
    int rc = rk_config_load(config, path, error);
    check_error(error, rc);
    return rc;
}

#define SAME_BOOL(one, other) ((one) == (other))
#define SAME_INT(one, other) ((one) == (other))
#define SAME_NUMBER(one, other) (!((one) < (other)) && !((one) > (other)))
#define SAME_CHOICE(one, other) (strcmp(one, other) == 0)
#define SAME_TEXT(one, other) (strcmp(one, other) == 0)
#define ASSERT_SAME(type, name, def, min, max, choices, unit, help)                                          \
    ck_assert(SAME_##type(one->name, other->name));

static void assert_same(const rk_config *one, const rk_config *other) {
    RK_CONFIG_KEYS(ASSERT_SAME)
}

/* A key whose value is not the default, as a line of a file. */
static void write_key(rk_buf *out, const rk_config *config, const char *name) {
    char *text = rk_config_get(config, name);
    ck_assert_ptr_nonnull(text);
    rk_buf_printf(out, "%s: \"", name);
    for (const char *at = text; *at; at++) {
        if (*at == '"' || *at == '\\')
            rk_buf_append(out, "\\", 1);
        rk_buf_append(out, at, 1);
    }
    rk_buf_append(out, "\"\n", 2);
    free(text);
}

#define WRITE_KEY(type, name, def, min, max, choices, unit, help)                                            \
    if (!SAME_##type(config->name, plain->name))                                                             \
        write_key(&out, config, #name);

static rk_buf file_of(const rk_config *config, const rk_config *plain) {
    rk_buf out = RK_BUF_INIT;
    RK_CONFIG_KEYS(WRITE_KEY)
    if (out.size == 0) /* a file that says nothing is refused */
        rk_buf_append(&out, "{}\n", 3);
    ck_assert(!out.failed);
    return out;
}

/* Flags: each is taken, or leaves the config alone. */
static void set_all(rk_config *config, char *lines) {
    char error[RK_CONFIG_ERROR_MAX], *rest = NULL;
    unsigned left = 16;
    for (char *line = strtok_r(lines, "\n", &rest); line && left--; line = strtok_r(NULL, "\n", &rest)) {
        rk_config before;
        char *value = strchr(line, '=');
        if (!value)
            continue;
        *value++ = '\0';
        char where[64];
        (void)snprintf(where, sizeof where, "--room-%.40s", line);
        ck_assert_int_eq(rk_config_copy(&before, config), 0);
        memset(error, 'x', sizeof error);
        int rc = rk_config_set(config, line, value, where, error);
        check_error(error, rc);
        if (rc < 0)
            assert_same(&before, config);
        rk_config_free(&before);
    }
}

/* As a file, and as a copy, it is the same; the check says yes, or no in one line. */
static void write_again(const rk_config *config, const rk_config *plain) {
    rk_config again, copy;
    char error[RK_CONFIG_ERROR_MAX];
    rk_buf text = file_of(config, plain);
    ck_assert_int_eq(rk_config_copy(&again, plain), 0);
    ck_assert_int_eq(load(&again, text.data, text.size), 0);
    assert_same(config, &again);
    ck_assert_int_eq(rk_config_copy(&copy, config), 0);
    assert_same(config, &copy);
    check_error(error, rk_config_check(config, error));
    rk_config_free(&again);
    rk_config_free(&copy);
    rk_buf_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static rk_config plain; /* the defaults */
    rk_config config;
    if (!plain.log_level)
        ck_assert_int_eq(rk_config_init(&plain), 0);
    ck_assert_int_eq(rk_config_copy(&config, &plain), 0);
    const uint8_t *nul = size ? memchr(data, '\0', size) : NULL;
    size_t bytes = nul ? (size_t)(nul - data) : size;
    /* A file with a NUL in it is looked at as a whole too. */
    if (load(&config, data, nul && data[size - 1] == 0 ? size : bytes) < 0)
        assert_same(&plain, &config);
    if (nul) {
        char *lines = strndup((const char *)nul + 1, size - bytes - 1);
        set_all(&config, lines);
        free(lines);
    }
    write_again(&config, &plain);
    rk_config_free(&config);
    return 0;
}
