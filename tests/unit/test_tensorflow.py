"""What is decided for TensorFlow without it: TF_CONFIG, roles, conflicts, the environment, and Keras' fit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep.errors import BadInput
from lockstep.registry import PEERS
from lockstep.tensorflow import environment
from lockstep.tensorflow.cluster import check_roles, config_for, conflict, disagreement, given_config, own_port
from lockstep.tensorflow.keras_fit import fit_lines, warning_for
from lockstep.world.place import Place

ADDRESSES = ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4"]


def test_config_of_workers() -> None:
    assert config_for(ADDRESSES[:2], 1) == {
        "cluster": {"worker": ADDRESSES[:2]},
        "task": {"type": "worker", "index": 1},
    }


def test_config_with_parameter_servers() -> None:
    tasks = [config_for(ADDRESSES, rank, 1)["task"] for rank in range(4)]
    assert [(task["type"], task["index"]) for task in tasks] == [("chief", 0), ("ps", 0), ("worker", 0), ("worker", 1)]
    cluster = {"chief": ADDRESSES[:1], "ps": ADDRESSES[1:2], "worker": ADDRESSES[2:]}
    assert config_for(ADDRESSES, 0, 1)["cluster"] == cluster


@pytest.mark.parametrize(("size", "servers"), [(2, 1), (3, 2), (1, 1), (4, -1)])
def test_roles_that_cannot_be(size: int, servers: int) -> None:
    with pytest.raises(BadInput, match="rank 0 is the chief and at least one rank must be a worker"):
        check_roles(size, servers)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"cluster": {}}', '{"cluster": {"worker": []}, "task": {"type": "worker"}}']
)
def test_a_config_that_cannot_be_read(text: str) -> None:
    with pytest.raises(BadInput, match=r"TF_CONFIG=.* cannot be read .*: unset TF_CONFIG"):
        given_config({"TF_CONFIG": text})


def test_a_task_that_is_not_in_the_cluster() -> None:
    text = json.dumps(config_for(ADDRESSES[:2], 1)).replace('"index": 1', '"index": 2')
    with pytest.raises(BadInput, match="has a task that is not in its cluster"):
        given_config({"TF_CONFIG": text})


def place(rank: int, size: int) -> Place:
    return Place(launcher="srun", rank=rank, size=size, local_rank=rank, local_size=size)


@pytest.mark.parametrize(
    ("rank", "size", "servers", "found"),
    [
        (1, 2, 0, True),
        (0, 2, 0, False),
        (1, 3, 0, False),
        (1, 2, 1, False),
    ],
)
def test_a_config_that_was_set_must_say_what_the_launcher_says(rank: int, size: int, servers: int, found: bool) -> None:
    given = given_config({"TF_CONFIG": json.dumps(config_for(ADDRESSES[:2], 1))})
    assert given is not None
    why = conflict(given, place(rank, size), servers)
    assert (why is None) == found
    if why is not None:
        assert f"says worker 1 of 2 tasks; but srun started this process as rank {rank} of {size}" in why
        assert "unset TF_CONFIG" in why
    assert own_port(given) == 2


def test_a_chief_is_the_first_worker() -> None:
    given: dict[str, Any] = {"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0}}
    assert conflict(given, place(1, 2)) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"tensorflow": "2.20.0"}, 'tensorflow "2.21.0" on rank 0 (host a); tensorflow "2.20.0" on rank 1 (host b)'),
        ({"parameter_servers": 1}, "with the same parameter_servers"),
        ({"cluster": {"worker": ["a:1"]}}, "TF_CONFIG must name the same cluster"),
        ({"refusal": "port 7 is in use"}, "port 7 is in use"),
    ],
)
def test_ranks_that_differ(changes: dict[str, Any], words: str | None) -> None:
    same = {"tensorflow": "2.21.0", "parameter_servers": 0, "cluster": None}
    why = disagreement([{**same, "host": "a"}, {**same, "host": "b", **changes}])
    assert why is None if words is None else words in (why or "")


FIT = """
import tensorflow as tf
from tensorflow import keras
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(x, y)
"""


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        (FIT, [8]),
        (FIT.replace("model.fit(x, y)", "train(model)"), []),
        (FIT.replace("MultiWorkerMirroredStrategy", "MirroredStrategy"), []),
        (FIT.replace("from tensorflow import keras", "import tf_keras as keras"), []),
        ("import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\n" + FIT, []),
        ("from sklearn import svm\nsvm.SVC().fit(x, y)\n", []),
        ("def broken(:\n", []),
    ],
)
def test_fit_is_seen(source: str, lines: list[int]) -> None:
    assert fit_lines(source) == lines


def test_what_is_said_of_fit(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(FIT)
    said = warning_for(script, "3.15.1", {})
    assert said is not None
    assert "line 8, calls .fit(): that of Keras 3.15.1 does not work" in said
    assert "keras#20585" in said
    assert warning_for(script, "2.15.0", {}) is None
    assert warning_for(script, None, {}) is None
    assert warning_for(script, "3.15.1", {"TF_USE_LEGACY_KERAS": "1"}) is None
    assert warning_for(tmp_path / "missing.py", "3.15.1", {}) is None


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("/nowhere/python", "/nowhere/python, cannot be started"),
        ("/bin/true", "/bin/true, is of no use here"),
        (sys.executable, f"TensorFlow is not installed for {sys.executable}"),
    ],
)
def test_an_environment_without_tensorflow(python: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.VARIABLE, python)
    why = environment.why_not()
    assert why is not None
    assert words in why
    assert "make tensorflow" in why
    assert "pip install 'lockstep-train[tensorflow]'" in why


def test_no_environment_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environment.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "a" / "b" / "c" / "environment.py"))
    assert (environment.why_not() or "").startswith("TensorFlow is not installed: run `make tensorflow`")


def test_the_peer_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.VARIABLE, "/nowhere/python")
    why = PEERS.get("tensorflow").unavailable()
    assert why is not None
    assert why.startswith("strategy tensorflow: ")
    assert "make tensorflow" in why


def test_join_without_tensorflow() -> None:
    code = "import lockstep.tensorflow; lockstep.tensorflow.join()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "BadInput: TensorFlow is not installed for" in done.stderr
