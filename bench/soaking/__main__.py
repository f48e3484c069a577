"""Three workers under mixed load and mischief: is anything left behind?

An aggregated stand-in worker and a linked pair, clients that cancel, abort, run into their deadlines and read slowly, clients that are
killed, a Python that is held up, links that are cut, and scrapes throughout. Ends with one JSON line; exit code 1 when something grew, was
left behind or ended as it may not. Run by ``bench/soak``.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc

from roomkeeper import wire
from roomkeeper.demo.children import Child, Children, folder_of_a_run
from roomkeeper.demo.plan import DemoError
from roomkeeper.demo.progress import Progress
from roomkeeper.standin import faults
from soaking.client import PACKAGE, VOCAB, WIRE
from soaking.picture import svg
from soaking.verdict import Account, complaints, of_ledger, thirds
from soaking.workers import READY_S, Look, Proxy, free_ports, start_workers

OUT = Path("build/bench")
LOOK_S = 2.0
#: Which clients there are: the mix, and how many requests at once. The last two are killed by and by.
STEADY = (("aggregated", 8), ("pair", 8), ("slow", 3), ("look", 1))
VICTIMS = (("all", 6), ("pair", 4))
#: Seconds from one mischief to the next, from and to.
KILL_S, HOG_S, CUT_S = (3.0, 9.0), (10.0, 25.0), (15.0, 40.0)
#: Python is held up for so many tenths of a second at most.
HOG_TENTHS = 12
#: Clients have so long to end what they have begun, and workers to let go of it.
STOP_S, SETTLE_S = 100.0, 45.0


@dataclasses.dataclass
class Client:
    """A client process, and the file that it writes."""

    mix: str
    at_once: int
    child: Child
    ends: Path


class Soak:
    """One run. Main thread."""

    def __init__(self, children: Children, folder: Path, seed: int, progress: Progress) -> None:
        self.account = Account()
        self.marks: list[tuple[float, str]] = []
        self._children = children
        self._folder = folder
        self._chance = random.Random(seed)
        self._progress = progress
        self._names = 0
        ports = free_ports()
        self._bootstrap = ports.bootstrap
        self._proxy = Proxy(ports.bootstrap + 2000)
        self.workers = start_workers(children, ports, self._proxy.port)
        self.looks: dict[str, list[Look]] = {worker.role: [] for worker in self.workers}
        self._steady: list[Client] = []
        self._victims: list[Client] = []
        self._began_s = 0.0

    def start(self) -> None:
        for worker in self.workers:
            self._children.wait_until(worker.child, worker.serves, READY_S, lambda: None)
        self._steady = [self._start_client(*one) for one in STEADY]
        self._victims = [self._start_client(*one) for one in VICTIMS]
        self._began_s = time.monotonic()

    @property
    def at_s(self) -> float:
        return time.monotonic() - self._began_s

    def run(self, seconds: float) -> None:
        """Until the time is up, or Ctrl-C."""
        doings = {
            self._look: (LOOK_S, LOOK_S),
            self._kill: KILL_S,
            self._hog: HOG_S,
            self._cut: CUT_S,
        }
        due = {doing: self.at_s + self._chance.uniform(*gap) for doing, gap in doings.items()}
        while self.at_s < seconds:
            for doing, gap in doings.items():
                if self.at_s >= due[doing]:
                    doing()
                    due[doing] = self.at_s + self._chance.uniform(*gap)
            self._children.check()
            self._show(seconds)
            time.sleep(0.05)

    def stop(self) -> dict[str, Look]:
        """Ends the clients and gives the workers time to let go; how they are then."""
        clients = [*self._steady, *self._victims]
        for client in clients:
            client.child.killed = True  # it may end from here on
            client.child.signal_group(signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        for client in clients:
            try:
                client.child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                client.child.kill()
            # What it still has open has taken longer than any request may.
            self._take(client, killed=False)
        deadline = time.monotonic() + SETTLE_S
        while True:
            left = {worker.role: worker.look(self.at_s) for worker in self.workers}
            busy = any(look.slots or look.legs or look.streams for look in left.values())
            if not busy or time.monotonic() > deadline:
                return left
            self._progress.update("soak: waiting until the workers have let go")
            time.sleep(0.2)

    def close(self) -> None:
        self._proxy.close()

    # -- clients --

    def _start_client(self, mix: str, at_once: int) -> Client:
        self._names += 1
        name = f"client-{self._names}"
        ends = self._folder / f"{name}.ends"
        addresses = [f"--{worker.role}={worker.address}" for worker in self.workers]
        command = [sys.executable, "-m", "soaking.client", *addresses]
        command += ["--bootstrap", str(self._bootstrap), "--mix", mix, "--ends", str(ends)]
        command += ["--at-once", str(at_once), "--seed", str(self._chance.randrange(2**31))]
        ends.touch()
        return Client(mix, at_once, self._children.start(name, command, {}), ends)

    def _take(self, client: Client, *, killed: bool) -> None:
        self.account.take(client.ends.read_text().splitlines(), killed=killed)
        client.ends.unlink()

    # -- what is done by and by --

    def _look(self) -> None:
        for worker in self.workers:
            self.looks[worker.role].append(worker.look(self.at_s))

    def _kill(self) -> None:
        self.marks.append((self.at_s, "kill"))
        client = self._victims.pop(0)
        client.child.kill()
        self._take(client, killed=True)
        self._victims.append(self._start_client(client.mix, client.at_once))

    def _hog(self) -> None:
        """A thread of a worker keeps the GIL, or its engine's loop is blocked; of both of a pair."""
        self.marks.append((self.at_s, "hog"))
        kind = self._chance.choice((faults.HOLD_GIL, faults.BLOCK_LOOP))
        request = WIRE.message(PACKAGE + "GenerateRequest")(request_id=f"hog-{self.at_s:.3f}")
        tenths = self._chance.randint(2, HOG_TENTHS)
        request.tokenized.input_ids.extend(faults.prompt(VOCAB, kind, tenths))
        request.sampling_params.max_new_tokens = 1
        pair = self._chance.random() < 0.5
        if pair:
            request.kv_bootstrap_info.bootstrap_host = "127.0.0.1"
            request.kv_bootstrap_info.bootstrap_port = self._bootstrap
            request.kv_bootstrap_info.bootstrap_room = self._chance.randrange(1, 2**62)
        workers = [worker for worker in self.workers if (worker.role == "aggregated") != pair]
        channels = [grpc.insecure_channel(worker.address) for worker in workers]
        calls = [WIRE.stub(one, wire.TOKENSPEED).Generate(request, timeout=5.0) for one in channels]
        for call in calls:
            self.account.take(["+ hog", f"- hog {_status_of(call)}"], killed=False)
        for channel in channels:
            channel.close()

    def _cut(self) -> None:
        self.marks.append((self.at_s, "cut"))
        self._proxy.cut()

    def _show(self, seconds: float) -> None:
        shown = [
            f"{worker.role} {series[-1].rss_mib:.0f} MiB, {series[-1].fds} fds, "
            f"{series[-1].threads} threads, {series[-1].slots} slots"
            for worker in self.workers
            if (series := self.looks[worker.role])
        ]
        self._progress.update(f"soak: {self.at_s:.0f} of {seconds:.0f} s; " + "; ".join(shown))


def _status_of(call: Any) -> str:
    """How it ends."""
    with contextlib.suppress(grpc.RpcError):
        for _ in call:
            pass
    return str(call.code().name)


def report(soak: Soak, left: dict[str, Look], seconds: float, interrupted: bool) -> bool:
    """Writes the picture and the JSON line; whether all is well."""
    flatness = {role: thirds(looks) for role, looks in soak.looks.items()}
    scrapes = {worker.role: worker.scrape() for worker in soak.workers}
    ledgers = {role: of_ledger(metrics) for role, metrics in scrapes.items()}
    wrong = complaints(soak.account, flatness, left, ledgers)
    OUT.mkdir(parents=True, exist_ok=True)
    picture = OUT / "soak.svg"
    verdict = "flat" if not wrong else "not flat"
    if not any(flatness.values()):
        verdict = "too short to tell" if not wrong else "failed"
    account = soak.account
    title = f"{seconds / 60:.1f} min, {sum(account.begun.values())} requests: {verdict}"
    picture.write_text(svg(soak.looks, soak.marks, title), encoding="utf-8")
    line = {
        "work": "soak",
        "verdict": verdict,
        "complaints": wrong,
        "seconds": round(seconds, 1),
        "interrupted": interrupted,
        "requests": dict(sorted(account.begun.items())),
        "statuses": dict(sorted(account.statuses.items())),
        "ended_with_a_killed_client": account.with_client,
        "lost": account.lost,
        "mischief": {
            what: sum(m == what for _, m in soak.marks) for what in ("kill", "hog", "cut")
        },
        "thirds": {
            role: {name: one.as_dict() for name, one in by_name.items()}
            for role, by_name in flatness.items()
        },
        "left": {
            role: {"slots": x.slots, "legs": x.legs, "streams": x.streams}
            for role, x in left.items()
        },
        "ledgers": ledgers,
        "links_lost": scrapes["decode"].total("roomkeeper_link_lost_total"),
        "picture": str(picture),
        "cores": os.cpu_count(),
    }
    print(json.dumps(line), flush=True)
    return not wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="(default %(default)g)")
    parser.add_argument("--seed", type=int, default=1, help="of the mischief (default %(default)s)")
    args = parser.parse_args()
    if not 0 < args.minutes <= 24 * 60:
        parser.error(f"--minutes is {args.minutes:g}; give more than 0 and at most 1440")
    progress = Progress()
    try:
        with folder_of_a_run("roomkeeper-soak-") as folder, Children(folder) as children:
            soak = Soak(children, folder, args.seed, progress)
            interrupted = False
            try:
                soak.start()
                soak.run(args.minutes * 60)
            except KeyboardInterrupt:
                interrupted = True
            seconds = soak.at_s
            left = soak.stop()
            progress.clear()
            well = report(soak, left, seconds, interrupted)
            soak.close()
            return 0 if well else 1
    except (DemoError, OSError) as error:
        progress.clear()
        print(f"soak: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
