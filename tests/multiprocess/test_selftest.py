"""The promises as a user tries them: on the CPU, and with `make test-pretend` on devices that are none."""

from __future__ import annotations

import json

from tests.commands import CommandLine
from tests.devices import ON_CPU


def test_selftest(cli: CommandLine) -> None:
    done = cli("selftest", "--json")
    assert done.code == 0, done.text
    told = json.loads(done.out)
    held = {row["what"]: row["holds"] for row in told["checks"] if row["promise"].startswith("the same bits")}
    assert set(held.values()) == {True}
    assert {"dp, 2 workers", "ddp, 2 workers", "pipeline, 2 workers", "sharded, 2 workers"} <= set(held)
    assert ("none but the CPU" if ON_CPU else "pretend:0 pretend device") in told["about"]["devices"]
