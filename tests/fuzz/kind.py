"""What a kind of input is: made good once, then changed and read, once for each seed."""

from __future__ import annotations

import random
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from lockstep.errors import BadInput
from tests.fuzz.mutators import replace_file, restore


class Fuzzed(ABC):
    """One kind of input."""

    name: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def read(self, chance: random.Random) -> None:
        """Change the good input and read it; BadInput is a refusal."""

    def case(self, seed: int) -> str:
        """Run one case; return how it was refused, or nothing."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.read(random.Random(f"{self.name} {seed}"))
        except BadInput as error:
            text = str(error)
            assert len(text.splitlines()) == 1, f"not one line: {text!r}"
            return text
        return ""


class OneFile(Fuzzed):
    """A kind whose input is a file among others: it is changed, read, and put back."""

    def change(
        self, path: Path, chance: random.Random, change: Callable[[bytes], bytes], use: Callable[[], None]
    ) -> None:
        """Use a file that was changed, and put it back."""
        whole = path.read_bytes()
        try:
            if chance.random() < 0.04:
                replace_file(path, chance)
            else:
                path.write_bytes(change(whole))
            use()
        finally:
            restore(path, whole)
