"""Writes golden.h: messages as google.protobuf serialises them, for test_dialect_golden.c.

    python tests/unit/data/make_golden.py build/dev/proto/descriptors.bin > tests/unit/data/golden.h

Run it again only when the wire changes; the test says what each message means.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

SCHEDULER = "tokenspeed.grpc.scheduler."

#: Name in C, message, and its content as protobuf's JSON.
GOLDEN: list[tuple[str, str, dict[str, Any]]] = [
    (
        "request",
        SCHEDULER + "GenerateRequest",
        {
            "request_id": "gen-ü",
            "tokenized": {"input_ids": [0, 1, 127, 128, 300, 16384, 151935], "original_text": "hé"},
            "sampling_params": {
                "temperature": 0,
                "top_p": 0.5,
                "top_k": -1,
                "min_p": 0.125,
                "frequency_penalty": -2,
                "presence_penalty": 2,
                "repetition_penalty": 1.25,
                "max_new_tokens": 4000000000,
                "min_new_tokens": 3,
                "stop": ["a", "", "€"],
                "stop_token_ids": [2, 151645],
                "ignore_eos": True,
                "skip_special_tokens": True,
                "n": 1,
                "logit_bias": {"15": -100, "151935": 0.5},
                "json_schema": '{"type":"object"}',
                "custom_params": {
                    "list": [1, None, "x", {"deep": True}],
                    "number": -1.5,
                },
                "no_stop_trim": True,
                "sampling_seed": "9223372036854775807",
            },
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": 20,
            "token_ids_logprob": [5, 70000],
            "stream": True,
            "kv_bootstrap_info": {
                "bootstrap_host": "fd00::1",
                "bootstrap_port": 65535,
                "bootstrap_room": "9223372036854775807",
            },
            "data_parallel_rank": 0,
        },
    ),
    (
        "chunk",
        SCHEDULER + "GenerateResponse",
        {
            "request_id": "gen-ü",
            "chunk": {
                "token_ids": [300, 0, 151935],
                "prompt_tokens": 7,
                "completion_tokens": 3,
                "cached_tokens": 128,
                "output_logprobs": {
                    "token_logprobs": [-0.5, 0, -12.25],
                    "token_ids": [300, 0, 151935],
                    "top_logprobs": [
                        {"values": [-0.5, -1], "token_ids": [300, 7]},
                        {},
                        {"values": [-12.25], "token_ids": [151935]},
                    ],
                },
                "index": 2,
                "weight_version": "",
            },
        },
    ),
    (
        "complete_token",
        SCHEDULER + "GenerateResponse",
        {
            "request_id": "r",
            "complete": {
                "output_ids": [1, 2],
                "finish_reason": "stop",
                "prompt_tokens": 7,
                "completion_tokens": 3,
                "matched_token_id": 0,
                "spec_accepted_tokens": 5,
                "spec_draft_tokens": 9,
                "weight_version": "v1",
            },
        },
    ),
    (
        "complete_string",
        SCHEDULER + "GenerateResponse",
        {"request_id": "r", "complete": {"finish_reason": "abort", "matched_stop_str": "END"}},
    ),
    (
        "model_info",
        SCHEDULER + "GetModelInfoResponse",
        {
            "model_path": "/m",
            "tokenizer_path": "/t",
            "served_model_name": "one",
            "model_type": "llama",
            "architectures": ["A", "B"],
            "max_context_length": 32768,
            "max_req_input_len": 32000,
            "vocab_size": 152064,
            "eos_token_ids": [2, -1],
            "pad_token_id": -1,
            "bos_token_id": 1,
            "weight_version": "v1",
            "default_sampling_params_json": "{}",
            "supports_vision": True,
            "supports_multimodal": True,
            "supported_modalities": ["IMAGE", "VIDEO"],
            "model_dtype": "bfloat16",
            "multimodal_encoder_dtype": "float16",
        },
    ),
    (
        "server_info",
        SCHEDULER + "GetServerInfoResponse",
        {
            "server_args": {"max_num_seqs": 4, "nested": {"list": [0, False, None, ""]}},
            "scheduler_info": {},
            "active_requests": 2,
            "uptime_seconds": 1.5,
            "max_total_num_tokens": 65536,
            "tokenspeed_version": "0.1.1",
            "start_time": "2026-09-21T14:13:20Z",
            "constrained_decoding": "requested",
        },
    ),
    (
        "loads",
        SCHEDULER + "GetLoadsResponse",
        {
            "timestamp": "2026-01-02T03:04:05Z",
            "version": "tokenspeed",
            "dp_rank_count": 2,
            "loads": [
                {"max_running_requests": 4, "utilization": 0},
                {
                    "dp_rank": 1,
                    "num_running_reqs": 2,
                    "num_waiting_reqs": 300,
                    "num_total_reqs": 302,
                    "num_used_tokens": 1600,
                    "max_total_num_tokens": 64000,
                    "max_running_requests": 4,
                    "token_usage": 0.25,
                    "gen_throughput": 10,
                    "cache_hit_rate": 0.5,
                    "utilization": 0.5,
                    "active_token_usage": 0,
                },
            ],
            "aggregate": {
                "total_running_reqs": 2,
                "total_waiting_reqs": 300,
                "total_reqs": 302,
                "avg_token_usage": 0.25,
                "avg_throughput": 10,
                "avg_utilization": 0.25,
            },
        },
    ),
    (
        "health_list",
        "grpc.health.v1.HealthListResponse",
        {"statuses": {"": {"status": "NOT_SERVING"}, "a.B": {"status": "NOT_SERVING"}}},
    ),
]


def classes(descriptors: bytes) -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def c_array(name: str, data: bytes) -> str:
    rows = [", ".join(f"0x{b:02X}" for b in data[i : i + 16]) for i in range(0, len(data), 16)]
    return f"static const uint8_t golden_{name}[] = {{\n    " + ",\n    ".join(rows) + ",\n};"


def main() -> None:
    pool = classes(Path(sys.argv[1]).read_bytes())
    print("/* Made by make_golden.py: messages as google.protobuf serialises them. */")
    print("/* clang-format off */")
    print("#ifndef RK_TEST_GOLDEN_H\n#define RK_TEST_GOLDEN_H\n\n#include <stdint.h>")
    for name, kind, content in GOLDEN:
        message = message_factory.GetMessageClass(pool.FindMessageTypeByName(kind))()
        json_format.ParseDict(content, message, descriptor_pool=pool)
        print("\n" + c_array(name, message.SerializeToString(deterministic=True)))
    print("\n#endif\n/* clang-format on */")


if __name__ == "__main__":
    main()
