/* What no single key can show: rules between keys. Also goes over every key's own limits, for a config that a
 * program has filled in by hand. Any thread that owns the config. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "config/internal.h"

#define SMALLEST_MESSAGE_LIMIT 1024

static int check_keys(const rk_config *config, char error[RK_CONFIG_ERROR_MAX]) {
    size_t count;
    const rk_key *keys = rk_config_keys(&count);
    for (size_t i = 0; i < count; i++) {
        rk_key_value value = {0};
        _cleanup_free_ char *text = rk_config_get(config, keys[i].name);
        if (!text) {
            rk_config_say(error, "configuration: memory is out");
            return -ENOMEM;
        }
        int rc = rk_key_parse(&keys[i], text, &value, "configuration", error);
        free(value.text);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int too_low(const rk_config *config, const char *low, const char *floor,
                   char error[RK_CONFIG_ERROR_MAX]) {
    _cleanup_free_ char *low_text = rk_config_get(config, low);
    _cleanup_free_ char *floor_text = rk_config_get(config, floor);
    rk_config_say(error, "configuration: %s is %s, below %s (%s); raise %s or lower %s", low,
                  low_text ? low_text : "?", floor, floor_text ? floor_text : "?", low, floor);
    return -EINVAL;
}

int rk_config_check(const rk_config *config, char error[RK_CONFIG_ERROR_MAX]) {
    error[0] = '\0';
    int rc = check_keys(config, error);
    if (rc < 0)
        return rc;
    if (config->dead_seconds < config->stall_seconds) /* an engine stalls before it is given up */
        return too_low(config, "dead_seconds", "stall_seconds", error);
    if (config->max_message_bytes >= 0 && config->max_message_bytes < SMALLEST_MESSAGE_LIMIT) {
        rk_config_say(error,
                      "configuration: max_message_bytes is %lld, too little for any request; give -1 or a "
                      "number from %d up",
                      (long long)config->max_message_bytes, SMALLEST_MESSAGE_LIMIT);
        return -EINVAL;
    }
    return 0;
}
