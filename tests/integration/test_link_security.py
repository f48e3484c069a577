"""Who is believed to be a peer: tokens, certificates, networks; and what cannot be, in one line."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from harness.client import GUARD_S, WIRE, message, until
from harness.process import Worker, free_port, standin
from link_support import (
    DECODE,
    LINK_OFFSET,
    Authority,
    HandLink,
    Identity,
    Pair,
    Side,
    bootstrap_port,
    frame,
    hello,
    needs_openssl,
    pair,
    role_flags,
    side,
)
from roomkeeper import wire
from standin_support import run_cli


@contextlib.contextmanager
def together(port: int, prefill: tuple[str, ...], decode: tuple[str, ...]) -> Iterator[Pair]:
    with pair(
        "--room-heartbeat-ms", "200", port=port, prefill_flags=prefill, decode_flags=decode
    ) as made:
        yield made


def unlinked(workers: Pair, why: str) -> None:
    """Rooms are served without the link, and both sides have said why there is none."""
    workers.serves("unlinked")
    until(lambda: workers.decode_side.peer()["state"] == "absent", "there is no link")
    assert why in workers.decode_side.peer()["why"], workers.decode_side.peer()["why"]
    assert workers.prefill_side.links["up"] == 0


def linked(workers: Pair) -> None:
    workers.serves("linked")
    workers.until_linked()


# -- tokens --


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files: "one" and "same" hold the same secret, "other" another."""
    folder = tmp_path_factory.mktemp("tokens")
    for name, secret in (("one", "s3cret" * 6), ("same", "s3cret" * 6 + "\n"), ("other", "o" * 32)):
        path = folder / name
        path.write_text(secret)
        path.chmod(0o600)
    return {name: str(folder / name) for name in ("one", "same", "other")}


def token(tokens: dict[str, str], name: str) -> tuple[str, ...]:
    return ("--room-link-token-file", tokens[name]) if name else ()


def test_both_know_the_token(tokens: dict[str, str]) -> None:
    port = bootstrap_port()
    with together(port, token(tokens, "one"), token(tokens, "same")) as workers:
        linked(workers)
        with HandLink(port + LINK_OFFSET) as stranger:
            stranger.send(hello(DECODE), frame(begin={}))
            assert stranger.end() == "PERMISSION_DENIED"
            assert stranger.details == "it does not know the token (link_token_file)"
        with HandLink(port + LINK_OFFSET) as guesser:
            guesser.send(hello(DECODE), frame(begin={"proof": b"x" * 32}))
            assert guesser.end() == "PERMISSION_DENIED"
        assert workers.prefill_side.links["streams_refused"] == 2
        assert len(workers.prefill_side.said("a room link is refused")) == 2
        assert workers.prefill_side.links["up"] == 1


@pytest.mark.parametrize(
    ("prefill", "decode", "why"),
    [
        ("one", "other", "it does not know the token"),
        ("one", "", "it does not know the token"),
        ("", "one", "it does not know the token"),
    ],
    ids=["another token", "none at the decode", "none at the prefill"],
)
def test_without_the_same_token_there_is_no_link(
    tokens: dict[str, str], prefill: str, decode: str, why: str
) -> None:
    with together(bootstrap_port(), token(tokens, prefill), token(tokens, decode)) as workers:
        unlinked(workers, why)


def test_a_listener_beyond_this_host_needs_a_token(tokens: dict[str, str]) -> None:
    """Without one it takes links on loopback only, and says so."""
    port = bootstrap_port()
    anywhere = ("--room-link-host", "0.0.0.0")
    with together(port, anywhere, ()) as workers:
        linked(workers)
        assert workers.prefill_side.links["listening"] == f"127.0.0.1:{port + LINK_OFFSET}"
        (line,) = workers.prefill_side.said("links are taken from this host only")
        assert "--room-link-token-file" in line and "warning" in line
    with side(*role_flags("prefill", port, *anywhere, *token(tokens, "one"))) as prefill:
        assert prefill.links["listening"] == f"0.0.0.0:{port + LINK_OFFSET}"
        assert prefill.said("links are taken from this host only") == []


# -- networks --


def test_a_decode_dials_allowed_networks_and_configured_peers_only() -> None:
    port = bootstrap_port()
    forbids = ("--room-peer-allow", "10.0.0.0/8")
    with together(port, (), forbids) as workers:
        unlinked(workers, "its address is in no network that may be dialled")
        assert len(workers.decode_side.said("in no network")) == 1
        configured = (*forbids, "--room-peer", f"127.0.0.1:{port}=127.0.0.1:{port + LINK_OFFSET}")
        with side(*role_flags("decode", port, *configured)) as other:
            other.until_links(1)


def test_a_prefill_is_dialled_from_allowed_networks_only() -> None:
    port = bootstrap_port()
    with together(port, ("--room-peer-allow", "10.0.0.0/8"), ()) as workers:
        unlinked(workers, "is in no network that may link here; see --room-peer-allow")
        assert workers.prefill_side.links["streams_refused"] >= 1


# -- TLS --


@dataclasses.dataclass(frozen=True)
class Keys:
    ca: str
    server: Identity
    client: Identity
    #: Of another CA.
    strange_ca: str
    stranger: Identity


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    folder = tmp_path_factory.mktemp("keys")
    ours, theirs = Authority(folder, "ours"), Authority(folder, "theirs")
    return Keys(
        ours.cert,
        ours.issue("prefill.test", "DNS:prefill.test,IP:127.0.0.1"),
        ours.issue("decode.test", "DNS:decode.test"),
        theirs.cert,
        theirs.issue("decode.test", "DNS:decode.test"),
    )


@contextlib.contextmanager
def secure_pair(
    keys: Keys, decode_flags: tuple[str, ...], *, mutual: bool = False
) -> Iterator[tuple[Worker, Side]]:
    """A prefill with TLS, which only its decode is asked about: this test's client has none."""
    port = bootstrap_port()
    tls = ("--room-tls-cert", keys.server.cert, "--room-tls-key", keys.server.key)
    if mutual:
        tls = (*tls, "--room-tls-client-ca", keys.ca)
    beat = ("--room-heartbeat-ms", "300")
    peer = ("--room-peer", f"127.0.0.1:{port}=127.0.0.1:{port + LINK_OFFSET}")
    with (
        standin(*role_flags("prefill", port, *tls, *beat), wait=False) as prefill,
        side(*role_flags("decode", port, *peer, *beat, *decode_flags)) as decode,
    ):
        prefill.wait_serving()
        yield prefill, decode


def trusting(ca: str, name: str = "prefill.test") -> tuple[str, ...]:
    return ("--room-link-tls-ca", ca, "--room-link-tls-name", name)


def as_client(identity: Identity) -> tuple[str, ...]:
    return ("--room-link-tls-cert", identity.cert, "--room-link-tls-key", identity.key)


def ask(worker: Worker, keys: Keys, client: Identity | None = None) -> str:
    """GetServerInfo over TLS: the role, or the code that it fails with."""
    read = [Path(p).read_bytes() for p in ((client.key, client.cert) if client else ())]
    credentials = grpc.ssl_channel_credentials(Path(keys.ca).read_bytes(), *read)
    options = [("grpc.ssl_target_name_override", "prefill.test"), ("grpc.enable_http_proxy", 0)]
    with grpc.secure_channel(worker.address, credentials, options=options) as channel:
        stub = WIRE.stub(channel, wire.TOKENSPEED)
        try:
            answer = stub.GetServerInfo(message("GetServerInfoRequest"), timeout=GUARD_S)
        except grpc.RpcError as error:
            return str(error.code().name)
        return str(answer.scheduler_info["roomkeeper"]["role"])


@needs_openssl
@pytest.mark.parametrize("name", ["prefill.test", ""], ids=["a name", "the address"])
def test_tls_on_the_server_and_on_the_link(keys: Keys, name: str) -> None:
    with secure_pair(keys, trusting(keys.ca, name)) as (prefill, decode):
        decode.until_links(1)
        assert ask(prefill, keys) == "prefill"
        with grpc.insecure_channel(prefill.address) as plain, pytest.raises(grpc.RpcError):
            WIRE.stub(plain, wire.TOKENSPEED).GetServerInfo(
                message("GetServerInfoRequest"), timeout=GUARD_S
            )


@needs_openssl
def test_mutual_tls_on_the_server_and_on_the_link(keys: Keys) -> None:
    flags = (*trusting(keys.ca), *as_client(keys.client))
    with secure_pair(keys, flags, mutual=True) as (prefill, decode):
        decode.until_links(1)
        assert ask(prefill, keys, keys.client) == "prefill"
        assert ask(prefill, keys) == "UNAVAILABLE"
        assert ask(prefill, keys, keys.stranger) == "UNAVAILABLE"


@needs_openssl
@pytest.mark.parametrize(
    ("flags", "mutual"),
    [
        (lambda keys: trusting(keys.strange_ca), False),
        (lambda keys: trusting(keys.ca, "other.test"), False),
        (lambda keys: (), False),
        (lambda keys: trusting(keys.ca), True),
        (lambda keys: (*trusting(keys.ca), *as_client(keys.stranger)), True),
    ],
    ids=["another CA", "another name", "no TLS", "no certificate", "a stranger's certificate"],
)
def test_without_the_right_certificates_there_is_no_link(
    keys: Keys, flags: object, mutual: bool
) -> None:
    assert callable(flags)
    with secure_pair(keys, flags(keys), mutual=mutual) as (_, decode):
        tried = decode.links["dials_failed"]  # perhaps before the prefill was there
        until(lambda: decode.links["dials_failed"] > tried, "it is dialled")
        assert decode.links["up"] == 0
        why = decode.peer()["why"]
        assert why.startswith(("UNAVAILABLE: ", "UNAUTHENTICATED: ", "it answers no hello")), why
        assert decode.said("a room link is up") == []


# -- what cannot be --


def refused(*flags: str) -> str:
    """The one line of a worker that does not start because of its flags."""
    done = run_cli("standin", "--port", str(free_port()), *flags)
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    lines = [line for line in done.stderr.splitlines() if " info " not in line]
    assert len(lines) == 1, lines
    assert "Traceback" not in done.stderr
    return lines[0]


@pytest.mark.parametrize(
    ("flag", "value", "line"),
    [
        ("link", "maybe", "on or off"),
        ("peer", "127.0.0.1:1", 'peer has "127.0.0.1:1", which is no pair of addresses'),
        ("peer", "a:1=b:99999", "BOOTSTRAP_HOST:PORT=HOST:PORT"),
        ("peer-port", "70000", "from -1 to 65535"),
        ("peer-port", "x", "not a whole number"),
        ("peer-allow", "10.0.0.0/33", 'peer_allow has "10.0.0.0/33", which is no network'),
        ("peer-allow", "example.org", "which is no network"),
        ("links", "0", "from 1 to 1000"),
        ("dials-per-second", "0", "from 1 to 1000"),
        ("heartbeat-ms", "10", "from 50 to 60000"),
        (
            "link-token-file",
            "/nowhere/token",
            "link_token_file is /nowhere/token, which cannot be opened",
        ),
        ("link-tls-ca", "/nowhere/ca", "link_tls_ca is /nowhere/ca, which cannot be opened"),
        (
            "link-tls-cert",
            "/nowhere/cert",
            "link_tls_cert is /nowhere/cert, which cannot be opened",
        ),
        ("link-tls-key", "/nowhere/key", "link_tls_key is /nowhere/key, which cannot be opened"),
        ("tls-cert", "/nowhere/cert", "tls_cert is set and tls_key is not"),
        ("tls-key", "/nowhere/key", "tls_key is set and tls_cert is not"),
        ("tls-client-ca", "/nowhere/ca", "tls_client_ca is set and tls_cert is not"),
    ],
)
def test_a_bad_value_is_one_line_and_exit_code_2(flag: str, value: str, line: str) -> None:
    said = refused("--role", "decode", f"--room-{flag}", value)
    assert line in said, said


def test_files_that_are_no_secrets_and_no_certificates_are_one_line(tmp_path: Path) -> None:
    empty, plain, public = tmp_path / "empty", tmp_path / "plain", tmp_path / "public"
    empty.write_text("\n")
    plain.write_text("no PEM")
    public.write_text("secret")
    empty.chmod(0o600)
    public.chmod(0o644)
    decode = ("--role", "decode")
    assert "which is empty" in refused(*decode, "--room-link-token-file", str(empty))
    assert "everybody can read" in refused(*decode, "--room-link-token-file", str(public))
    assert "no PEM file" in refused(*decode, "--room-link-tls-ca", str(plain))
    both = ("--room-tls-cert", str(plain), "--room-tls-key", str(plain))
    assert "no PEM file" in refused(*decode, *both)


@needs_openssl
def test_halves_and_pairs_that_do_not_belong_together_are_one_line(keys: Keys) -> None:
    decode = ("--role", "decode")
    half = ("--room-link-tls-ca", keys.ca, "--room-link-tls-cert", keys.client.cert)
    assert "link_tls_cert and link_tls_key go together" in refused(*decode, *half)
    untrusting = as_client(keys.client)
    assert "link_tls_ca is not" in refused(*decode, *untrusting)
    mixed = ("--room-tls-cert", keys.server.cert, "--room-tls-key", keys.client.key)
    assert "tls_cert and tls_key do not belong together" in refused(*decode, *mixed)
    mixed = (*trusting(keys.ca), "--room-link-tls-cert", keys.client.cert)
    mixed = (*mixed, "--room-link-tls-key", keys.server.key)
    assert "link_tls_cert and link_tls_key do not belong together" in refused(*decode, *mixed)


def test_a_port_that_is_taken_is_one_line() -> None:
    port = bootstrap_port()
    with socket.create_server(("127.0.0.1", port + LINK_OFFSET)):
        line = refused(*role_flags("prefill", port))
    assert f"cannot listen for room links on 127.0.0.1:{port + LINK_OFFSET}" in line
    assert "--room-peer-port" in line


def test_an_address_that_is_not_this_hosts_is_one_line() -> None:
    line = refused(*role_flags("prefill", bootstrap_port(), "--room-link-host", "host.invalid"))
    assert "host.invalid" in line
