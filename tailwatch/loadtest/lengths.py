"""How long prompts and answers are: the grammar of ``--prompt-tokens`` and ``--output-tokens``.

128                  each of 128 tokens
64..1024             each length from 64 to 1024 equally often
lognormal:200,0.8    median 200, the logarithm with standard deviation 0.8
"""

from __future__ import annotations

import random
import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from tailwatch.errors import OptionError
from tailwatch.loadtest.schedule import MOST_TOKENS

WIDEST = 4.0  # standard deviation of the logarithm: a factor of 55 either way is one in three
_WHOLE = r"([0-9]{1,9})"
_GRAMMAR = "expected tokens like 128, a range like 64..1024, or lognormal:MEDIAN,SIGMA like lognormal:200,0.8"


@dataclass(frozen=True, slots=True)
class Lengths:
    """A law of token counts, read by `parse`. text gives an equal one."""

    text: str
    _draw: Callable[[random.Random], int] = field(repr=False, compare=False)
    _each: int = field(default=0, repr=False, compare=False)  # where all are the same

    @classmethod
    def parse(cls, text: str | int, *, option: str = "tokens") -> Lengths:
        """Of the grammar above. option: its name, for the error.

        Raises:
            OptionError: anything else, or counts outside of 1 to 10 million.
        """
        words = str(text).strip().lower()
        if match := re.fullmatch(_WHOLE, words):
            count = _checked(text, int(match[1]), option)
            return cls(str(count), lambda rng: count, count)
        if match := re.fullmatch(rf"{_WHOLE}\s*\.\.\s*{_WHOLE}", words):
            low, high = (_checked(text, int(end), option) for end in match.groups())
            if low > high:
                raise OptionError.of(option, text, "expected the smaller one first")
            return cls(f"{low}..{high}", lambda rng: low + int(rng.random() * (high - low + 1)))
        if match := re.fullmatch(rf"lognormal:\s*{_WHOLE}\s*,\s*([0-9]{{1,2}}(?:\.[0-9]{{1,6}})?)", words):
            return cls._lognormal(text, _checked(text, int(match[1]), option), float(match[2]), option)
        raise OptionError.of(option, text, _GRAMMAR)

    @classmethod
    def _lognormal(cls, text: object, median: int, sigma: float, option: str) -> Lengths:
        if not sigma <= WIDEST:
            raise OptionError.of(option, text, f"expected a standard deviation of the logarithm up to {WIDEST:g}")

        def draw(rng: random.Random) -> int:
            return min(MOST_TOKENS, max(1, round(median * rng.lognormvariate(0.0, sigma))))

        return cls(f"lognormal:{median},{sigma:g}", draw)

    def column(self, count: int, seed: str) -> array[int]:
        """array('I') of so many lengths; the same seed gives the same."""
        if self._each:
            return array("I", [self._each]) * count
        rng = random.Random(seed)
        return array("I", (self._draw(rng) for _ in range(count)))

    def __reduce__(self) -> tuple[Callable[[str], Lengths], tuple[str]]:
        return Lengths.parse, (self.text,)


def _checked(text: object, count: int, option: str) -> int:
    if not 1 <= count <= MOST_TOKENS:
        raise OptionError.of(option, text, f"expected 1 to {MOST_TOKENS} tokens")
    return count
