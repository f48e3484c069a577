/* The servicer: a gRPC server in this process that keeps the engine's rooms.
 *
 * Life: rk_servicer_new → rk_servicer_listen (once or more), rk_servicer_listen_link → rk_servicer_start → …
 * → rk_servicer_drain → rk_servicer_stop → rk_servicer_free. Several servicers in one process are fine. In a
 * forked child every function refuses (-EPERM) or does nothing.
 */
#ifndef ROOMKEEPER_SERVICER_H
#define ROOMKEEPER_SERVICER_H

#include "roomkeeper/config.h"
#include "roomkeeper/engine.h"
#include "roomkeeper/export.h"
#include "roomkeeper/rooms.h"

/* What the worker is; given once, copied. Strings may be NULL for "not known". */
typedef struct rk_worker_info {
    rk_role role;
    uint32_t ranks;       /* attention DP ranks, >= 1 */
    uint32_t window;      /* configured slots of all ranks together; 0: unknown */
    uint64_t kv_tokens;   /* max_total_num_tokens of one rank; 0: unknown */
    uint32_t page_tokens; /* KV page size; 0: unknown */
    uint32_t vocab_size;  /* 0: ids are not checked */
    uint32_t max_context; /* prompt length must be below; 0: not checked */
    bool skip_warmup;     /* READY means SERVING */
    /* GetModelInfo */
    const char *model_path;
    const char *tokenizer_path;
    const char *served_model_name; /* NULL or "": model_path is reported */
    const char *model_type;
    const char *const *architectures;
    size_t architecture_count;
    uint32_t max_req_input_len;
    const int32_t *eos_token_ids;
    size_t eos_token_id_count;
    int32_t pad_token_id;
    int32_t bos_token_id;
    const char *weight_version;
    const char *default_sampling_params_json;
    bool supports_vision;
    const int32_t *modalities; /* smg.grpc.common.Modality */
    size_t modality_count;
    const char *model_dtype;
    const char *multimodal_encoder_dtype;
    /* GetServerInfo */
    const char *engine_version;
    const char *constrained_decoding;
    /* The engine's publisher of KV events; kv_endpoint NULL or "": there is none */
    const char *kv_endpoint;        /* rank 0's, by ZeroMQ; the other ranks' ports follow */
    const char *kv_replay_endpoint; /* NULL or "": it answers no replays */
    const char *kv_topic;
    uint32_t kv_replay_batches;     /* that it keeps for replays; 0: not known */
    const rk_value *server_args;    /* map, JSON-safe, secrets already redacted; may be NULL */
    const rk_value *scheduler_info; /* map; may be NULL */
} rk_worker_info;

#define RK_ERROR_MAX 512

/* NULL with one line in `error` when it cannot be made. `ops` and `engine` must outlive the servicer. */
RK_API rk_servicer *rk_servicer_new(const rk_config *config, const rk_worker_info *info,
                                    const rk_engine_ops *ops, void *engine, char error[RK_ERROR_MAX]);
/* "host:port", "[v6]:port", "unix:/path". Port 0: any free one. Returns the port (0 for unix:) or -errno with
 * one line in `error`. Before start only. */
RK_API int rk_servicer_listen(rk_servicer *servicer, const char *address, char error[RK_ERROR_MAX]);
/* Where a prefill takes room links: a listener of their own. As rk_servicer_listen, TCP only. Without a token
 * or mutual TLS an address that others can reach becomes 127.0.0.1, with a warning. -EINVAL where the link is
 * off. */
RK_API int rk_servicer_listen_link(rk_servicer *servicer, const char *address, char error[RK_ERROR_MAX]);
RK_API int rk_servicer_start(rk_servicer *servicer, char error[RK_ERROR_MAX]);
/* Live: reported by GetModelInfo from now on. Any thread. */
RK_API void rk_servicer_set_weight_version(rk_servicer *servicer, const char *version);
/* NOT_SERVING, new calls UNAVAILABLE, who waits is refused, who runs may finish. Any thread, returns at once.
 */
RK_API void rk_servicer_drain(rk_servicer *servicer);
/* Waits until no call is open, `timeout_ms` at most (by drain_seconds: the rest is then ended with a status).
 * 0, or -ETIMEDOUT with calls still open. Not from an engine callback. */
RK_API int rk_servicer_wait_idle(rk_servicer *servicer, uint64_t timeout_ms);
/* Ends what is open with UNAVAILABLE, stops all threads, closes all listeners. Bounded; twice is fine. */
RK_API void rk_servicer_stop(rk_servicer *servicer);
RK_API void rk_servicer_free(rk_servicer *servicer); /* stops first; NULL is fine */

/* Open streams, for tests and launchers. */
RK_API uint64_t rk_servicer_open_calls(rk_servicer *servicer);
RK_API rk_ledger *rk_servicer_ledger(rk_servicer *servicer); /* the live ledger; read it, do not free it */
RK_API const char *rk_version(void);

#endif
