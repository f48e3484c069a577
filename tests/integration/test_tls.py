"""Certificates that change while a worker runs, and the least version of TLS."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import socket
import ssl
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from harness.client import GUARD_S, WIRE, message, until
from harness.process import Program, Worker, free_port, standin
from link_support import (
    LINK_OFFSET,
    Authority,
    Identity,
    Side,
    bootstrap_port,
    needs_openssl,
    role_flags,
    side,
)
from roomkeeper import wire

pytestmark = needs_openssl
NAME = "prefill.test"
TAKEN, KEPT = "roomkeeper_tls_reloads_total", "roomkeeper_tls_reload_failures_total"


@dataclasses.dataclass(frozen=True)
class Keys:
    ca: str
    other_ca: str
    #: Two of our CA for the same server, one of another CA, and a client's.
    first: Identity
    second: Identity
    foreign: Identity
    client: Identity
    foreign_client: Identity


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    folder = tmp_path_factory.mktemp("keys")
    ours, theirs = Authority(folder, "ours"), Authority(folder, "theirs")
    names = f"DNS:{NAME},IP:127.0.0.1"
    return Keys(
        ours.cert,
        theirs.cert,
        ours.issue("first.test", names),
        ours.issue("second.test", names),
        theirs.issue("third.test", names),
        ours.issue("decode.test", "DNS:decode.test"),
        theirs.issue("decode.test", "DNS:decode.test"),
    )


class Folder:
    """Where a worker's files lie; they are changed as deployments change them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cert, self.key, self.ca = (str(path / f) for f in ("tls.crt", "tls.key", "ca.crt"))

    def put(self, **sources: str) -> None:
        """Each written beside and renamed over."""
        for name, source in sources.items():
            beside = self.path / ".beside"
            shutil.copyfile(source, beside)
            os.replace(beside, getattr(self, name))

    def pair(self, identity: Identity) -> None:
        self.put(cert=identity.cert, key=identity.key)

    def server_flags(self) -> tuple[str, ...]:
        return ("--room-tls-cert", self.cert, "--room-tls-key", self.key)


@pytest.fixture
def folder(tmp_path: Path, keys: Keys) -> Folder:
    made = Folder(tmp_path)
    made.put(cert=keys.first.cert, key=keys.first.key, ca=keys.ca)
    return made


def handshake(
    port: int,
    keys: Keys,
    *,
    least: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2,
    most: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    ciphers: str = "",
) -> tuple[str, str]:
    """The common name of the certificate that is shown, and the version that was agreed on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(keys.ca)
    context.load_verify_locations(keys.other_ca)
    if ciphers:
        context.set_ciphers(ciphers)
    context.minimum_version, context.maximum_version = least, most
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), GUARD_S) as plain,
        context.wrap_socket(plain, server_hostname=NAME) as secure,
    ):
        certificate = secure.getpeercert() or {}
        subject = dict(pair for row in certificate["subject"] for pair in row)
        return str(subject["commonName"]), str(secure.version())


def shown(port: int, keys: Keys) -> str:
    return handshake(port, keys)[0]


@dataclasses.dataclass
class Secure:
    """A worker with TLS, and its metrics, which have none."""

    worker: Worker
    metrics_port: int

    @property
    def port(self) -> int:
        return int(self.worker.address.rsplit(":", 1)[1])

    @property
    def program(self) -> Program:
        return self.worker.program

    def count(self, name: str, files: str = "server") -> float:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=GUARD_S
        ) as answer:
            text = answer.read().decode()
        prefix = f'{name}{{files="{files}"}} '
        (value,) = [line.removeprefix(prefix) for line in text.splitlines() if prefix in line]
        return float(value)

    def until_count(self, name: str, value: float, files: str = "server") -> None:
        until(lambda: self.count(name, files) == value, f"{name} of {files} is {value}")

    def said(self, pattern: str) -> list[str]:
        return [line for line in self.program.output().splitlines() if pattern in line]


@contextlib.contextmanager
def secure(*flags: str) -> Iterator[Secure]:
    metrics = free_port()
    with standin(*flags, "--room-metrics-port", str(metrics), wait=False) as worker:
        made = Secure(worker, metrics)

        def answers() -> bool:
            with contextlib.suppress(OSError):
                return made.count(TAKEN) == 0
            return False

        until(answers, "the worker serves its metrics")
        yield made


# -- files that change --


def test_a_new_certificate_is_shown_to_new_connections_and_open_ones_go_on(
    keys: Keys, folder: Folder
) -> None:
    with secure(*folder.server_flags()) as worker:
        credentials = grpc.ssl_channel_credentials(Path(keys.ca).read_bytes())
        options = [("grpc.ssl_target_name_override", NAME), ("grpc.enable_http_proxy", 0)]
        with grpc.secure_channel(worker.worker.address, credentials, options=options) as channel:
            stub = WIRE.stub(channel, wire.TOKENSPEED)
            stub.GetServerInfo(message("GetServerInfoRequest"), timeout=GUARD_S)
            assert shown(worker.port, keys) == "first.test"
            expiry = worker.count("roomkeeper_tls_certificate_expiry_time_seconds")
            assert expiry > 0
            folder.pair(keys.second)
            worker.until_count(TAKEN, 1)
            assert shown(worker.port, keys) == "second.test"
            stub.GetServerInfo(message("GetServerInfoRequest"), timeout=GUARD_S)
        assert worker.count(KEPT) == 0
        (line,) = worker.said("changed TLS files are in use for new connections")
        assert "files=server" in line


def test_the_links_of_a_mounted_secret_are_followed(keys: Keys, tmp_path: Path) -> None:
    """Files are links into ..data, which is itself a link that is turned to a new folder."""
    for name, identity in (("..1", keys.first), ("..2", keys.second)):
        (tmp_path / name).mkdir()
        shutil.copyfile(identity.cert, tmp_path / name / "tls.crt")
        shutil.copyfile(identity.key, tmp_path / name / "tls.key")
    (tmp_path / "..data").symlink_to("..1")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    with secure(*Folder(tmp_path).server_flags()) as worker:
        assert shown(worker.port, keys) == "first.test"
        (tmp_path / "..next").symlink_to("..2")
        os.replace(tmp_path / "..next", tmp_path / "..data")
        worker.until_count(TAKEN, 1)
        assert shown(worker.port, keys) == "second.test"


def _half(keys: Keys, folder: Folder) -> None:
    folder.put(cert=keys.second.cert)


def _rubbish(_keys: Keys, folder: Folder) -> None:
    Path(folder.cert).write_text("no PEM")


def _cut(_keys: Keys, folder: Folder) -> None:
    text = Path(folder.cert).read_text()
    Path(folder.cert).write_text(text + text[: len(text) // 2])


def _gone(_keys: Keys, folder: Folder) -> None:
    os.unlink(folder.key)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_half, "tls_cert and tls_key do not belong together"),
        (_rubbish, "no PEM file"),
        (_cut, "tls_cert and tls_key do not belong together, or one of them is damaged"),
        (_gone, "cannot be opened"),
    ],
    ids=["a new certificate and the old key", "no PEM", "cut short", "gone"],
)
def test_files_that_cannot_be_used_leave_the_old_ones_are_counted_and_said_once(
    keys: Keys, folder: Folder, spoil: Callable[[Keys, Folder], None], why: str
) -> None:
    with secure(*folder.server_flags()) as worker:
        spoil(keys, folder)
        worker.until_count(KEPT, 1)
        assert shown(worker.port, keys) == "first.test"
        folder.pair(keys.second)  # what heals it is taken, and the fault was told once until then
        worker.until_count(TAKEN, 1)
        assert shown(worker.port, keys) == "second.test"
        assert worker.count(KEPT) == 1
        (line,) = worker.said("changed TLS files cannot be used, the last good ones stay in use")
        assert why in line and "warning" in line


def test_another_client_ca_is_taken(keys: Keys, folder: Folder) -> None:
    def let_in(client: Identity) -> bool:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(keys.ca)
        context.load_cert_chain(client.cert, client.key)
        context.set_alpn_protocols(["h2"])
        context.maximum_version = ssl.TLSVersion.TLSv1_2  # which says no within the handshake
        try:
            with (
                socket.create_connection(("127.0.0.1", worker.port), GUARD_S) as plain,
                context.wrap_socket(plain, server_hostname=NAME),
            ):
                return True
        except (ssl.SSLError, ConnectionError):
            return False

    flags = (*folder.server_flags(), "--room-tls-client-ca", folder.ca)
    with secure(*flags) as worker:
        assert (let_in(keys.client), let_in(keys.foreign_client)) == (True, False)
        folder.put(ca=keys.other_ca)
        worker.until_count(TAKEN, 1)
        assert (let_in(keys.client), let_in(keys.foreign_client)) == (False, True)


# -- links --


@contextlib.contextmanager
def secure_link(
    folder: Folder, ca: str, *decode_flags: str, prefill_flags: tuple[str, ...] = ()
) -> Iterator[tuple[int, Callable[[], contextlib.AbstractContextManager[Side]]]]:
    """A prefill with TLS; its link port, and what makes a decode that links to it."""
    port = bootstrap_port()
    beat = ("--room-heartbeat-ms", "200")
    peer = ("--room-peer", f"127.0.0.1:{port}=127.0.0.1:{port + LINK_OFFSET}")
    trust = ("--room-link-tls-ca", ca, "--room-link-tls-name", NAME)
    flags = role_flags("prefill", port, *folder.server_flags(), *beat, *prefill_flags)
    with standin(*flags, wait=False) as prefill:
        prefill.wait_serving()
        yield (
            port + LINK_OFFSET,
            lambda: side(*role_flags("decode", port, *peer, *beat, *trust, *decode_flags)),
        )


def test_the_link_shows_and_trusts_changed_files(keys: Keys, folder: Folder) -> None:
    """The prefill's link listener has the new certificate; a decode's next dial the new CA."""
    trust = Folder(folder.path / "decode")
    trust.path.mkdir()
    trust.put(ca=keys.other_ca)
    with secure_link(folder, trust.ca) as (link_port, decode_made):
        assert shown(link_port, keys) == "first.test"
        with decode_made() as decode:
            tried = decode.links["dials_failed"]
            until(lambda: decode.links["dials_failed"] > tried, "the certificate is not trusted")
            assert decode.links["up"] == 0
            trust.put(ca=keys.ca)
            decode.until_links(1)
            assert decode.said("changed TLS files are in use.*files=link")
            folder.pair(keys.second)
            until(lambda: shown(link_port, keys) == "second.test", "the link's listener has it")
            assert decode.links["up"] == 1


# -- versions --

OLD = "ALL:@SECLEVEL=0"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_tls_1_1_is_refused(keys: Keys, folder: Folder) -> None:
    with secure(*folder.server_flags()) as worker:
        assert handshake(worker.port, keys, most=ssl.TLSVersion.TLSv1_2)[1] == "TLSv1.2"
        assert handshake(worker.port, keys)[1] == "TLSv1.3"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            handshake(
                worker.port,
                keys,
                least=ssl.TLSVersion.TLSv1,
                most=ssl.TLSVersion.TLSv1_1,
                ciphers=OLD,
            )


def test_1_3_can_be_demanded_also_of_changed_certificates(keys: Keys, folder: Folder) -> None:
    def old() -> None:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            handshake(worker.port, keys, most=ssl.TLSVersion.TLSv1_2)

    with secure(*folder.server_flags(), "--room-tls-min-version", "1.3") as worker:
        old()
        assert handshake(worker.port, keys) == ("first.test", "TLSv1.3")
        folder.pair(keys.second)
        worker.until_count(TAKEN, 1)
        assert handshake(worker.port, keys) == ("second.test", "TLSv1.3")
        old()


def test_a_link_demands_1_3_at_both_ends(keys: Keys, folder: Folder) -> None:
    demand = ("--room-tls-min-version", "1.3")
    with secure_link(folder, keys.ca, *demand, prefill_flags=demand) as (link_port, decode_made):
        with decode_made() as decode:
            decode.until_links(1)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            handshake(link_port, keys, most=ssl.TLSVersion.TLSv1_2)


@contextlib.contextmanager
def old_listener(identity: Identity) -> Iterator[tuple[int, list[str]]]:
    """Takes TLS 1.2 at most; what came of each handshake."""
    import threading

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.cert, identity.key)
    context.set_alpn_protocols(["h2"])
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    seen: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            plain.settimeout(GUARD_S)
            try:
                with context.wrap_socket(plain, server_side=True) as agreed:
                    seen.append(str(agreed.version()))
            except (ssl.SSLEOFError, ConnectionError):  # only asked whether somebody listens
                plain.close()
            except ssl.SSLError as error:
                seen.append(str(error.reason))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1]), seen
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(GUARD_S)


@pytest.mark.parametrize(
    ("least", "outcome"), [("1.2", "TLSv1.2"), ("1.3", "UNSUPPORTED_PROTOCOL")]
)
def test_a_dialled_link_demands_its_version(keys: Keys, least: str, outcome: str) -> None:
    port = bootstrap_port()
    with old_listener(keys.first) as (listener, seen):
        peer = ("--room-peer", f"127.0.0.1:{port}=127.0.0.1:{listener}")
        trust = ("--room-link-tls-ca", keys.ca, "--room-link-tls-name", NAME)
        flags = ("--room-heartbeat-ms", "200", "--room-tls-min-version", least)
        with side(*role_flags("decode", port, *peer, *trust, *flags)):
            until(lambda: seen, "a handshake was tried")
            assert set(seen) == {outcome}
