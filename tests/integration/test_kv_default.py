"""When a TokenSpeed worker publishes KV events that nobody asked for, and where."""

from __future__ import annotations

import json
import pathlib
import stat
import sys
import tempfile
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from roomkeeper.tokenspeed import kvdefault
from roomkeeper.tokenspeed.kvdefault import VARIABLE, NoPorts, publish_by_default

SPEC = "tokenspeed.runtime.layers.attention.kv_cache.recipes.spec"
MODEL = "tokenspeed.runtime.configs.model_config"


def arguments(ranks: int = 1, nodes: int = 1, **fields: Any) -> SimpleNamespace:
    mapping = SimpleNamespace(attn=SimpleNamespace(dp_size=ranks), nnodes=nodes)
    given: dict[str, Any] = {
        "kv_events_config": None,
        "disaggregation_mode": "null",
        "mapping": mapping,
        "model": "m",
        "trust_remote_code": False,
        "revision": None,
        "max_model_len": None,
        "hf_overrides": "{}",
        "dtype": "auto",
        "quantization": None,
    }
    return SimpleNamespace(**{**given, **fields})


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def engine_with(monkeypatch: pytest.MonkeyPatch, config: Any) -> None:
    """A TokenSpeed that knows layers with a state, and a model with this configuration."""
    spec, model = ModuleType(SPEC), ModuleType(MODEL)
    spec.STATE_LAYER_TYPES = frozenset({"linear_attention"})  # type: ignore[attr-defined]

    def model_config(*_args: Any, **_kwargs: Any) -> Any:
        if isinstance(config, Exception):
            raise config
        return SimpleNamespace(hf_config=config)

    model.ModelConfig = model_config  # type: ignore[attr-defined]
    for name in (SPEC, MODEL):
        parts = name.split(".")
        for end in range(1, len(parts)):
            parent = ".".join(parts[:end])
            monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    monkeypatch.setitem(sys.modules, SPEC, spec)
    monkeypatch.setitem(sys.modules, MODEL, model)


def test_one_rank_publishes_at_sockets_of_its_own_user() -> None:
    made = arguments()
    publish_by_default(made)
    config = json.loads(made.kv_events_config)
    assert (config["enable_kv_cache_events"], config["publisher"]) == (True, "zmq")
    events, replay = (
        pathlib.Path(config[key].removeprefix("ipc://")) for key in ("endpoint", "replay_endpoint")
    )
    assert events.parent == replay.parent
    assert stat.S_IMODE(events.parent.stat().st_mode) == 0o700


def test_a_folder_for_temporary_files_whose_name_is_too_long_for_sockets_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    made = arguments()
    publish_by_default(made)
    endpoint = json.loads(made.kv_events_config)["endpoint"].removeprefix("ipc://")
    assert len(endpoint) <= 107
    assert pathlib.Path(endpoint).parent.is_dir()
    assert not any(long.iterdir())


def test_ranks_get_free_ports_in_a_row_and_replays_on_loopback() -> None:
    made = arguments(ranks=3)
    publish_by_default(made)
    config = json.loads(made.kv_events_config)
    host, _, port = config["endpoint"].rpartition(":")
    assert host == "tcp://*"
    assert config["replay_endpoint"] == f"tcp://127.0.0.1:{int(port) + 3}"
    assert 10000 <= int(port) <= 32767 - 5


def test_no_ports_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvdefault, "is_free", lambda host, port: False)
    with pytest.raises(NoPorts, match=r"no 4 free ports in a row .* --kv-events-config") as raised:
        publish_by_default(arguments(ranks=2))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("given", ['{"enable_kv_cache_events": false}', "what the engine refuses"])
def test_what_an_operator_has_said_stays(given: str) -> None:
    made = arguments(kv_events_config=given)
    assert publish_by_default(made) == ""
    assert made.kv_events_config == given


@pytest.mark.parametrize("value", ["0", "off", " No ", "FALSE"])
def test_a_variable_leaves_them_off(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(VARIABLE, value)
    made = arguments()
    publish_by_default(made)
    assert made.kv_events_config is None


@pytest.mark.parametrize(
    ("config", "on"),
    [
        (SimpleNamespace(layer_types=["full_attention", "sliding_attention"]), True),
        (SimpleNamespace(), True),
        (SimpleNamespace(layer_types=["full_attention", "linear_attention"]), False),
        (
            SimpleNamespace(
                layer_types=None,
                text_config=SimpleNamespace(cache_layer_types=["linear_attention"]),
            ),
            False,
        ),
        (OSError("no such model"), False),
    ],
    ids=["attention", "not said", "a state", "a state in the text model", "cannot be read"],
)
def test_a_model_that_the_engine_cannot_tell_of_leaves_them_off_and_says_so(
    monkeypatch: pytest.MonkeyPatch, config: Any, on: bool
) -> None:
    engine_with(monkeypatch, config)
    made = arguments()
    said = publish_by_default(made)
    assert bool(made.kv_events_config) is on
    assert said.startswith("KV events are on" if on else "KV events are off")


def test_several_nodes_and_encode_workers_have_none() -> None:
    for made in (arguments(nodes=2), arguments(disaggregation_mode="encode")):
        publish_by_default(made)
        assert made.kv_events_config is None
