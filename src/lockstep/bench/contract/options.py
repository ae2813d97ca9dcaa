"""The options of a benchmark: one description for the command line, the settings of a run and the quick form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from lockstep.errors import BadInput, nearest

Setting = int | tuple[int, ...] | tuple[str, ...]
"""What an option can hold. A tuple is typed with commas: `--workers 2,4`."""
T = TypeVar("T", bound=Setting)


@dataclass(frozen=True, kw_only=True)
class BenchOption(Generic[T]):
    """One option; `settings[option]` is its value, typed."""

    name: str
    """As in `--name`."""
    help: str
    """One line."""
    default: T
    """What a full run uses."""
    quick: T
    """What `--quick` uses."""
    minimum: int = 1
    """The least number that is allowed."""
    choices: tuple[str, ...] = ()
    """The words that are allowed, if the option holds words."""

    @property
    def flag(self) -> str:
        """As typed."""
        return f"--{self.name}"

    def read(self, text: str) -> T:
        """Return what was typed as a value, or refuse it."""
        if not isinstance(self.default, tuple):
            return cast("T", self._number(text))
        parts = [part.strip() for part in text.split(",")]
        return cast("T", tuple(map(self._word if self.choices else self._number, parts)))

    def write(self, value: Setting) -> str:
        """Return a value as it is typed."""
        return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)

    def _number(self, text: str) -> int:
        several = isinstance(self.default, tuple)
        form = f"numbers separated by commas, for example {self.write(self.default)}" if several else "a whole number"
        try:
            number = int(text)
        except ValueError:
            raise BadInput(f"{self.flag} {text or repr(text)}: expected {form}") from None
        if number < self.minimum:
            raise BadInput(f"{self.flag} {number}: expected at least {self.minimum}")
        return number

    def _word(self, text: str) -> str:
        if text not in self.choices:
            raise BadInput(f"{self.flag}: there is no {text!r}{nearest(text, list(self.choices))}")
        return text


@dataclass(frozen=True)
class BenchSettings:
    """The value of every option in one run."""

    quick: bool
    """Whether this is the quick form."""
    values: Mapping[str, Setting]
    """By the option's name."""

    def __getitem__(self, option: BenchOption[T]) -> T:
        return cast("T", self.values[option.name])


def settings(options: Sequence[BenchOption[Any]], given: Mapping[str, Setting | None], *, quick: bool) -> BenchSettings:
    """Return what was given, and for the rest the defaults or the quick values."""
    rest = {option.name: option.quick if quick else option.default for option in options}
    return BenchSettings(quick, rest | {name: value for name, value in given.items() if value is not None})
