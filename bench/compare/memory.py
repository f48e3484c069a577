"""What a server's memory does: per open idle stream, and over many short calls."""

from __future__ import annotations

from pathlib import Path

from compare.servers import Running, loadgen


def rss_kib(pid: int) -> int:
    """Resident memory of a process, KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError(f"process {pid} has no VmRSS")


def per_idle_stream_kib(server: Running, streams: int) -> float:
    """Growth per stream while `streams` calls wait for their first token, KiB. The server's step must be long."""
    import grpc
    from smg_grpc_proto.generated import tokenspeed_scheduler_pb2 as pb2
    from smg_grpc_proto.generated import tokenspeed_scheduler_pb2_grpc as pb2_grpc

    channel = grpc.insecure_channel(server.address)
    stub = pb2_grpc.TokenSpeedSchedulerStub(channel)

    def request(number: int) -> object:
        return pb2.GenerateRequest(
            request_id=f"idle-{number}",
            stream=True,
            tokenized=pb2.TokenizedInput(input_ids=list(range(3, 131))),
            sampling_params=pb2.SamplingParams(max_new_tokens=1000),
        )

    import time

    before_calls = [stub.Generate(request(n)) for n in range(100)]
    time.sleep(2)
    before = rss_kib(server.pid)
    calls = [stub.Generate(request(100 + n)) for n in range(streams)]
    time.sleep(3)
    after = rss_kib(server.pid)
    for call in [*before_calls, *calls]:
        call.cancel()
    channel.close()
    return (after - before) / streams


def short_calls_growth_kib(server: Running, client_cpu: int, requests: int) -> float:
    """Growth over `requests` one-token calls, after a tenth as many to warm up, KiB."""
    options = ("--streams", "32", "--tokens", "1", "--prompt-tokens", "16")
    loadgen("generate", server, client_cpu, *options, "--requests", str(requests // 10))
    before = rss_kib(server.pid)
    loadgen("generate", server, client_cpu, *options, "--requests", str(requests))
    return float(rss_kib(server.pid) - before)
