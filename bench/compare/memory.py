"""What a server's memory does: per open idle stream, and over many short calls."""

from __future__ import annotations

import time
from pathlib import Path

from compare.servers import Running, loadgen, must_succeed


def rss_kib(pid: int) -> int:
    """Resident memory of a process, KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError(f"process {pid} has no VmRSS")


def per_idle_stream_kib(server: Running, streams: int) -> float:
    """Growth per open stream that is nearly silent, KiB: the server's step must be a second or more."""
    import grpc
    from smg_grpc_proto.generated import tokenspeed_scheduler_pb2 as pb2
    from smg_grpc_proto.generated import tokenspeed_scheduler_pb2_grpc as pb2_grpc

    channel = grpc.insecure_channel(server.address)
    stub = pb2_grpc.TokenSpeedSchedulerStub(channel)

    def opened(number: int) -> grpc.Call:
        request = pb2.GenerateRequest(
            request_id=f"idle-{number}",
            stream=True,
            tokenized=pb2.TokenizedInput(input_ids=list(range(3, 131))),
            sampling_params=pb2.SamplingParams(max_new_tokens=1000),
        )
        return stub.Generate(request)

    warm = [opened(number) for number in range(100)]
    time.sleep(2)
    before = rss_kib(server.pid)
    calls = [opened(100 + number) for number in range(streams)]
    time.sleep(3)
    after = rss_kib(server.pid)
    over = [call for call in [*warm, *calls] if not call.is_active()]
    if over:
        raise RuntimeError(f"{server.kind.name}: {len(over)} idle streams ended: {over[0].code()}")
    for call in [*warm, *calls]:
        call.cancel()
    channel.close()
    return (after - before) / streams


def short_calls_growth_kib(server: Running, client_cpu: int, requests: int) -> float:
    """Growth over `requests` one-token calls, after a tenth as many to warm up, KiB."""
    options = ("--streams", "32", "--tokens", "1", "--prompt-tokens", "16")
    for count in (requests // 10, requests):
        before = rss_kib(server.pid)
        report = loadgen("generate", server, client_cpu, *options, "--requests", str(count))
        must_succeed(server, "short-calls", report)
    return float(rss_kib(server.pid) - before)
