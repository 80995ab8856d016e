"""The rate over time: straight pieces of requests per second, the arrivals they have let pass, and when.

Any gap law is laid onto any profile by drawing in units of expected arrivals and asking the profile when so many have
passed; the other way round (time rescaling) the gaps of a finished schedule are compared with the law they came from.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Piece:
    """seconds long, the rate going straight from `first` to `last` requests per second."""

    seconds: float
    first: float
    last: float

    @property
    def mass(self) -> float:
        """Arrivals expected in it."""
        return self.seconds * (self.first + self.last) / 2

    def mass_until(self, seconds: float) -> float:
        """Arrivals expected in its first seconds."""
        return seconds * (self.first + (self.last - self.first) * seconds / self.seconds / 2)

    def time_of(self, mass: float) -> float:
        """Seconds into the piece when so many have been expected; the form that keeps its digits for flat pieces."""
        slope = (self.last - self.first) / self.seconds
        root = math.sqrt(max(0.0, self.first * self.first + 2 * slope * mass))
        return min(self.seconds, 2 * mass / (self.first + root)) if mass > 0 else 0.0


class Profile:
    """Pieces one after the other, then nothing; or over again for ever."""

    def __init__(self, pieces: Sequence[Piece], *, again: bool = False) -> None:
        """Pieces longer than 0 s, rates of at least 0, something to expect in them together."""
        self.pieces, self.again = tuple(pieces), again
        self._times = tuple(accumulate((piece.seconds for piece in pieces), initial=0.0))
        rates = {rate for piece in pieces for rate in (piece.first, piece.last)}
        self._rate = rates.pop() if again and len(rates) == 1 else 0.0  # of a flat one: most are, and it is fast
        self._masses = tuple(accumulate((piece.mass for piece in pieces), initial=0.0))

    @classmethod
    def flat(cls, rate: float) -> Profile:
        """The same rate for ever."""
        return cls((Piece(1 / rate, rate, rate),), again=True)

    @property
    def mean(self) -> float:
        """Requests per second over one round of the pieces."""
        return self._masses[-1] / self._times[-1]

    @property
    def peak(self) -> float:
        """The highest rate, requests per second."""
        return max(max(piece.first, piece.last) for piece in self.pieces)

    def time_of(self, mass: float) -> float:
        """Seconds from the start when so many arrivals have been expected; infinite where they never are."""
        if self._rate:
            return mass / self._rate
        whole, rest = divmod(mass, self._masses[-1]) if self.again else (0.0, mass)
        if rest > self._masses[-1]:
            return math.inf
        i = min(bisect_right(self._masses, rest), len(self.pieces)) - 1
        return whole * self._times[-1] + self._times[i] + self.pieces[i].time_of(rest - self._masses[i])

    def mass_at(self, seconds: float) -> float:
        """Arrivals expected until then."""
        if self._rate:
            return seconds * self._rate
        whole, rest = divmod(seconds, self._times[-1]) if self.again else (0.0, min(seconds, self._times[-1]))
        i = min(bisect_right(self._times, rest), len(self.pieces)) - 1
        return whole * self._masses[-1] + self._masses[i] + self.pieces[i].mass_until(rest - self._times[i])
