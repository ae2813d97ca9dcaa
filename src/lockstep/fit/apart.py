"""Measures a recipe in a process of its own: nothing is left behind, and if memory runs out only that process ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.errors import BadInput
from lockstep.fit.lane_facts import LaneFacts
from lockstep.train.out_of_memory import is_out_of_memory

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from lockstep.train.spec import RunSpec

SIGKILL = 9
NO_ROOM = "one lane of {} needs more memory than there is here: use more --lanes or a smaller --global-batch ({})"


def measured_apart(spec: RunSpec) -> LaneFacts:
    """Return the facts of a recipe; refuse a recipe that cannot be measured."""
    from lockstep.launch.spawn import context

    forks = context()
    reader, writer = forks.Pipe(duplex=False)
    process = forks.Process(target=_measure, args=(spec, writer), name="lockstep fit")
    process.start()
    writer.close()
    try:
        answer: LaneFacts | str = reader.recv()
    except EOFError:
        process.join()
        answer = _ended(spec, process.exitcode)
    except BaseException:
        process.kill()
        raise
    finally:
        reader.close()
        process.join()
        process.close()
    if isinstance(answer, str):
        raise BadInput(answer)
    return answer


def _ended(spec: RunSpec, code: int | None) -> str:
    if code == -SIGKILL:
        return NO_ROOM.format(spec.recipe, "the process that ran it was killed")
    return f"the recipe {spec.recipe} ended the process that measured it (exit code {code}): run it with Python alone"


def _measure(spec: RunSpec, writer: Connection) -> None:
    from lockstep.fit.measuring import measure_lane
    from lockstep.launch.parent_death import die_with_starter

    die_with_starter()
    try:
        writer.send(measure_lane(spec))
    except BadInput as error:
        writer.send(str(error))
    except Exception as error:
        name = type(error).__name__
        if is_out_of_memory(error):
            writer.send(NO_ROOM.format(spec.recipe, name))
        else:
            text = " ".join(str(error).split())
            writer.send(f"the recipe {spec.recipe} cannot be measured: one lane of it raised {name}: {text}")
