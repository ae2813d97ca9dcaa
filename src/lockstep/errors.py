"""The errors of Lockstep, by who has to act on them."""

PROCESS_GONE = (
    "a process that this command started ended before it could answer; what it printed last says why. Where memory is "
    "limited (`ulimit -v`), allow more"
)
"""What to say where a pipe to a process is closed, and nothing else is known."""


class ShortTraceback(BaseException):
    """An error whose text says all: a notebook shows the reader's own lines and the message, and no more."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows in place of a traceback."""
        import traceback

        frames = traceback.extract_tb(self.__traceback__)
        own = [frame for frame in frames if not {"lockstep", "IPython"} & set(frame.filename.split("/"))]
        return ["".join([*traceback.format_list(own), f"{type(self).__name__}: {self}"])]


class LockstepError(ShortTraceback, Exception):
    """Any error that Lockstep raises on purpose; its text says what was found, what was expected, and what to do."""

    exit_code = 1
    raised_in: tuple[str, ...] = ()
    """Of one that came from another process: the modules of its traceback there, which does not come along."""

    def modules(self) -> list[str]:
        """Return the modules that it passed through, the one that raised it last."""
        traceback, modules = self.__traceback__, []
        while traceback is not None:
            modules.append(traceback.tb_frame.f_globals.get("__name__", ""))
            traceback = traceback.tb_next
        return [*modules, *self.raised_in]


class BadInput(LockstepError):
    """Invalid input: an option, a file, a shape, an environment variable."""

    exit_code = 2


class BadRecipe(BadInput):
    """The recipe cannot be loaded, whichever way it is to be trained."""


class RunFailed(LockstepError):
    """A run started and did not finish; the text names the rank, host, step and first traceback."""


class NotFinite(LockstepError):
    """A loss became infinite or not a number; the text names the step, the lane and the rank."""


class PeerLost(LockstepError, RuntimeError):
    """Another rank died or no longer answers; the text names it and the operation.

    It is a RuntimeError too, because that is what scripts catch around torch.distributed.
    """


class Mismatch(LockstepError, RuntimeError):
    """The ranks called different collectives; the text names the ranks and their calls."""


class Interrupted(ShortTraceback, KeyboardInterrupt):
    """Ctrl-C while a run was started or under way; the text says where it stopped and how to go on."""

    exit_code = 130


def printable(text: str, most: int = 200) -> str:
    """Return a name from a file as a line can show it: as it is, or with its odd characters written out."""
    return text if text.isprintable() and len(text) <= most else f"{text!r:.{most}}"


def nearest(name: str, known: list[str]) -> str:
    """Return `; did you mean X?` for a mistyped name, or else the list of known names."""
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; there are: {', '.join(known)}"
