"""When requests arrive: the grammar of ``--arrivals``, and the times it gives.

constant             one every 1/rate seconds
poisson              independent users: exponential gaps
gamma:2              gaps of that coefficient of variation (1 is Poisson, more comes in clusters)
bursts:20            20 at once, every 20/rate seconds
bursts:2s/8s         Poisson for 2 s, nothing for 8 s, and so on; the rate is that of the whole
ramp:10..100         Poisson, the rate rising from 10 to 100 per second over the duration
steps:10,20,40       Poisson at each rate for an equal share of the duration
"""

from __future__ import annotations

import math
import random
import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tailwatch.errors import OptionError
from tailwatch.loadtest import interarrival
from tailwatch.loadtest.profile import Piece, Profile
from tailwatch.loadtest.schedule import LONGEST, MOST, Law
from tailwatch.options.slo import real

LEAST_RATE, MOST_RATE = 1e-4, 1e6  # requests per second
LARGEST_BURST = 100_000
_NS = 1e-9  # seconds: what times are rounded to
_NUMBER = r"([0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})"
_UNIT_S = {"ms": 1e-3, "s": 1.0, "m": 60.0}
_KINDS = ("constant", "poisson", "gamma", "bursts", "ramp", "steps")
_GRAMMAR = (
    "expected constant, poisson, gamma:CV like gamma:2, bursts:N like bursts:20, bursts:ON/OFF like bursts:2s/8s, "
    "ramp:FROM..TO like ramp:10..100, or steps:RATE,RATE,... like steps:10,20,40"
)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """A law of arrivals, read by `parse`. text: what gives an equal one. own_rate: it names its rates itself (ramp,
    steps), and needs a duration."""

    text: str
    law: interarrival.Gaps
    shape: Callable[[float, float], Profile]
    own_rate: bool = False

    @classmethod
    def parse(cls, text: str) -> Arrivals:
        """Of the grammar above.

        Raises:
            OptionError: anything else.
        """
        words = text.strip().lower() if isinstance(text, str) else ""
        kind, colon, rest = (part.strip() for part in words.partition(":"))
        if kind not in _KINDS:
            raise OptionError.of("arrivals", text, _GRAMMAR, choices=_KINDS)
        if kind in ("constant", "poisson"):
            if colon:
                raise OptionError.of("arrivals", text, f"expected {kind} alone: it takes no number")
            return cls(kind, interarrival.even() if kind == "constant" else interarrival.poisson(), _flat)
        return _READ[kind](text, rest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Arrivals) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def profile(self, rate: float | None, duration: float | None) -> Profile:
        """Requests per second over time.

        Raises:
            OptionError: no rate where one is needed, or one too many; no duration where one is needed.
        """
        if self.own_rate:
            if rate is not None:
                raise OptionError.of("rate", rate, f"expected none: {self.text} names its own rates")
            if duration is None:
                raise OptionError.of("duration", duration, f"expected seconds: {self.text} is spread over them")
            return self.shape(0.0, checked_duration(duration))
        return self.shape(checked_rate(rate), 0.0)

    def words(self, rate: float | None) -> str:
        """The law asked for, as a person reads it."""
        return self.text if self.own_rate else f"{self.text} at {rate:g}/s"

    def draw(
        self, rate: float | None, *, duration: float | None = None, requests: int | None = None, seed: int = 0
    ) -> tuple[array[int], float, Law]:
        """Nanoseconds from the start (sorted), the seconds they are planned over, and their law.

        Ends with the duration or with so many requests, whichever comes first. Ended by their number the plan lasts
        until the next one would have come, which leaves the realised rate without bias.

        Raises:
            OptionError: neither end is given, or a value is none.
        """
        profile = self.profile(rate, duration)
        until, most = _ends(duration, requests, profile)
        places = self.law.places(random.Random(f"arrivals {seed}"))
        times, seconds = _times(map(profile.time_of, places), until, most)
        return times, seconds, self._measure(times, seconds, profile, rate)

    def _measure(self, times: array[int], seconds: float, profile: Profile, rate: float | None) -> Law:
        cdf = self.law.cdf
        if cdf is None or len(times) < 3:
            return Law.of(times, seconds, self.words(rate))
        ends = ((times[i] / 1e9, times[i + 1] / 1e9) for i in interarrival.tested(range(len(times) - 1)))
        sample = [profile.mass_at(later) - profile.mass_at(earlier) for earlier, later in ends]
        far = interarrival.distance(sample, cdf, blur=profile.peak * _NS)
        return Law.of(times, seconds, self.words(rate), ks=far, p=interarrival.probability(far, len(sample)))

    def __reduce__(self) -> tuple[Callable[[str], Arrivals], tuple[str]]:
        return Arrivals.parse, (self.text,)


def _times(drawn: Iterator[float], until: float, most: int) -> tuple[array[int], float]:
    found: array[int] = array("q")
    for at in drawn:
        if at > until - _NS / 2:
            return found, until
        if len(found) == most:
            return found, at
        found.append(round(at * 1e9))
    raise AssertionError("arrivals are endless")


def checked_rate(rate: object) -> float:
    """Requests per second; OptionError for what is none."""
    found = real(rate)
    if not LEAST_RATE <= found <= MOST_RATE:
        raise OptionError.of("rate", rate, f"expected requests per second, {LEAST_RATE:g} to {MOST_RATE:g}")
    return found


def checked_duration(duration: object) -> float:
    """Seconds; OptionError for what is none."""
    found = real(duration)
    if not 1e-3 <= found <= LONGEST:
        raise OptionError.of("duration", duration, f"expected seconds, 0.001 to {LONGEST:.0f} (a week)")
    return found


def checked_requests(requests: object) -> int:
    """A number of requests; OptionError for what is none."""
    found = real(requests)
    if not (1 <= found <= MOST and found == int(found)):
        raise OptionError.of("requests", requests, f"expected a number of requests, 1 to {MOST}")
    return int(found)


def _ends(duration: float | None, requests: int | None, profile: Profile) -> tuple[float, int]:
    if duration is None and requests is None:
        raise OptionError("a schedule needs an end: --duration SECONDS, --requests N, or both")
    until = math.inf if duration is None else checked_duration(duration)
    most = MOST if requests is None else checked_requests(requests)
    expected = profile.mass_at(until) if until < math.inf else float(most)
    if requests is None and expected > MOST * 0.9:
        raise OptionError.of("duration", duration, f"expected at most {MOST} requests, these are about {expected:.0f}")
    if duration is None and most / profile.mean > LONGEST / 2:
        raise OptionError.of("requests", requests, "expected a schedule of at most half a week at this rate")
    return until, most


def _flat(rate: float, _: float) -> Profile:
    return Profile.flat(rate)


def _number(text: object, found: str, least: float, most: float, what: str) -> float:
    value = float(found) if re.fullmatch(_NUMBER, found) else math.nan
    if not least <= value <= most:
        raise OptionError.of("arrivals", text, f"expected {what}, {least:g} to {most:g}; found {found!r}")
    return value


def _plain(value: float) -> str:
    """A number as the grammar has it: without an exponent."""
    return f"{value:.9f}".rstrip("0").rstrip(".")


def _gamma(text: str, rest: str) -> Arrivals:
    what = "gamma:CV with a coefficient of variation of the gaps"
    cv = _number(text, rest.removeprefix("cv="), interarrival.FEWEST_CV, interarrival.MOST_CV, what)
    return Arrivals(f"gamma:{_plain(cv)}", interarrival.gamma(cv), _flat)


def _bursts(text: str, rest: str) -> Arrivals:
    if "/" not in rest:
        size = _number(
            text, rest, 2, LARGEST_BURST, "bursts:N with so many at once, or bursts:ON/OFF like bursts:2s/8s"
        )
        if size != int(size):
            raise OptionError.of("arrivals", text, "expected a whole number of requests in a burst")
        return Arrivals(f"bursts:{int(size)}", interarrival.together(int(size)), _flat)
    on, off = (_seconds(text, part.strip()) for part in rest.split("/", 1))

    def shape(rate: float, _: float) -> Profile:
        inside = rate * (on + off) / on
        return Profile((Piece(on, inside, inside), Piece(off, 0.0, 0.0)), again=True)

    return Arrivals(f"bursts:{_plain(on)}s/{_plain(off)}s", interarrival.poisson(), shape)


def _seconds(text: str, found: str) -> float:
    match = re.fullmatch(rf"{_NUMBER}\s*(ms|s|m)", found)
    value = float(match[1]) * _UNIT_S[match[2]] if match else math.nan
    if not 1e-3 <= value <= 86400:
        raise OptionError.of("arrivals", text, f"expected times like 2s, 500ms or 1m in bursts:ON/OFF; found {found!r}")
    return value


def _ramp(text: str, rest: str) -> Arrivals:
    if rest.count("..") != 1:
        raise OptionError.of("arrivals", text, "expected ramp:FROM..TO in requests per second, like ramp:10..100")
    ends = [_number(text, part.strip(), 0, MOST_RATE, "rates in ramp:FROM..TO") for part in rest.split("..")]
    if max(ends) < LEAST_RATE:
        raise OptionError.of("arrivals", text, "expected a ramp from or to more than nothing")

    def shape(_: float, duration: float) -> Profile:
        return Profile((Piece(duration, ends[0], ends[1]),))

    return Arrivals(f"ramp:{_plain(ends[0])}..{_plain(ends[1])}", interarrival.poisson(), shape, own_rate=True)


def _steps(text: str, rest: str) -> Arrivals:
    parts = [part.strip() for part in rest.split(",")]
    rates = [_number(text, part, 0, MOST_RATE, "rates in steps:RATE,RATE,...") for part in parts]
    if not 1 <= len(rates) <= 1000 or max(rates) < LEAST_RATE:
        raise OptionError.of("arrivals", text, "expected up to 1000 steps, and one of more than nothing")

    def shape(_: float, duration: float) -> Profile:
        return Profile([Piece(duration / len(rates), rate, rate) for rate in rates])

    return Arrivals("steps:" + ",".join(map(_plain, rates)), interarrival.poisson(), shape, own_rate=True)


_READ: dict[str, Callable[[str, str], Arrivals]] = {
    "gamma": _gamma,
    "bursts": _bursts,
    "ramp": _ramp,
    "steps": _steps,
}
