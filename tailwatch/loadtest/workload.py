"""What to send, when and where, of the command line's words or of a program's: arrivals, lengths, prompts, endpoint.

A workload makes schedules (as many as a search asks for) and the bytes of each planned request. It is the one thing
that the runs, the searches and the comparisons are given.
"""

from __future__ import annotations

import argparse
import math
import os
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

from tailwatch.errors import OptionError
from tailwatch.loadtest import conversation, prompts, traces
from tailwatch.loadtest.arrivals import Arrivals, checked_duration, checked_rate, checked_requests
from tailwatch.loadtest.bodies import LIMIT_NAMES, RequestEncoder, extra_of, read_bytes
from tailwatch.loadtest.endpoint import APIS, Endpoint, endpoint
from tailwatch.loadtest.lengths import Lengths
from tailwatch.loadtest.options import LENGTHS, SCHEDULES, given, refuse
from tailwatch.loadtest.schedule import LONGEST, Law, Schedule
from tailwatch.options.slo import duration, parse_duration, real

DEFAULT_DURATION = 60.0  # seconds, where neither an end nor a trace is given
DEFAULT_TOKENS = "128"  # of prompts and of answers
BUILTIN = "builtin:conversation"
BUILTIN_SECONDS = 3600.0
FASTEST_CLOSED = 10_000  # requests per second that a closed loop is given material for
MOST_CLOSED = 2_000_000


@dataclass(frozen=True)
class Workload:
    """Everything about what is sent. Times are seconds, rates requests per second.

    arrivals: None with a trace replays its times. rate: None where the arrivals name their own, or a trace has its.
    duration, requests: where a schedule ends, whichever comes first. scale, spread: of the trace, see `Trace.replay`.
    prompt_tokens, output_tokens: laws of lengths; None takes the trace's, or the prompts' own. texts: the prompts of a
    file, in turn; empty: synthetic ones. fixed: a schedule that was saved, sent as it is. settings: what was asked
    for, without secrets, for the result. notes: what the user should see.
    """

    endpoint: Endpoint
    model: str | None = None
    arrivals: Arrivals | None = None
    rate: float | None = None
    duration: float | None = None
    requests: int | None = None
    seed: int = 0
    trace: traces.Trace | None = None
    scale: float | None = None
    spread: float | None = None
    prompt_tokens: Lengths | None = None
    output_tokens: Lengths | None = None
    texts: Sequence[prompts.Prompt] = field(default=(), repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)
    stream: bool = True
    fixed: Schedule | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def schedule(
        self,
        *,
        rate: float | None = None,
        duration: float | None = None,
        requests: int | None = None,
        seed: int | None = None,
    ) -> Schedule:
        """A schedule; arguments stand for the workload's own. An end that is given stands for both of its own. A rate
        replays a trace at the scale that gives it. Each seed gives another one, the same seed the same.

        Raises:
            OptionError: no rate, or one where the arrivals name their own; a value out of its range.
        """
        if self.fixed is not None:
            if (rate, duration, requests, seed) != (None, None, None, None):
                raise OptionError(
                    "schedule: a saved schedule is sent unchanged; leave out rate, duration, requests and seed"
                )
            return self.fixed
        if duration is None and requests is None:
            duration, requests = self.duration, self.requests
        number = self.seed if seed is None else seed
        if self.arrivals is None and self.trace is not None:
            return self._with_lengths(self._replayed(self.trace, rate, duration, requests, number), number)
        law = self.arrivals if self.arrivals is not None else Arrivals.parse("poisson")
        pace = rate if rate is not None else self.rate
        until = duration if duration is not None or requests is not None else DEFAULT_DURATION
        times, seconds, found = law.draw(pace, duration=until, requests=requests, seed=number)
        return self._filled(times, seconds, found, number)

    def closed(
        self, *, requests: int | None = None, duration: float | None = None, seed: int | None = None
    ) -> Schedule:
        """What a closed loop sends one after the other: no times, all at 0. duration: 0 where only `requests` ends it.

        Raises:
            OptionError: a value out of its range.
        """
        if self.fixed is not None:
            raise OptionError("schedule: a saved schedule has send times, a closed loop has none")
        if duration is None and requests is None:
            duration, requests = self.duration, self.requests
            duration = DEFAULT_DURATION if duration is None and requests is None else duration
        seconds = 0.0 if duration is None else checked_duration(duration)
        most = min(MOST_CLOSED, math.ceil(seconds * FASTEST_CLOSED))
        count = most if requests is None else checked_requests(requests)
        times = array("q", bytes(8 * count))
        law = Law("closed loop", count, seconds, 0.0, None, None)  # its times have none
        return self._filled(times, seconds, law, self.seed if seed is None else seed)

    @property
    def empty(self) -> bool:
        """Whether answers need no content: their limit of tokens is 0."""
        return any(self.extra.get(name) == 0 for name in LIMIT_NAMES)

    def make(self, tag: str = "tailwatch") -> RequestEncoder:
        """What makes the bytes of planned requests. tag: the beginning of their x-request-id."""
        return RequestEncoder(
            self.endpoint,
            model=self.model,
            prompts=self.texts or None,
            extra=self.extra,
            body=self.body,
            stream=self.stream,
            tag=tag,
        )

    def _replayed(
        self, trace: traces.Trace, rate: float | None, duration: float | None, requests: int | None, seed: int
    ) -> Schedule:
        pace = rate if rate is not None else self.rate
        scale = self.scale if self.scale is not None else 1.0
        if pace is not None:
            if self.scale is not None and rate is None:
                raise OptionError("rate: expected --rate or --scale, not both: --rate scales the trace")
            scale = trace.scale_for(checked_rate(pace), duration=duration, requests=requests)
        return trace.replay(scale=scale, spread=self.spread, duration=duration, requests=requests, seed=seed)

    def _with_lengths(self, schedule: Schedule, seed: int) -> Schedule:
        """Of a replay, with lengths that stand for the trace's own."""
        if self.prompt_tokens is None and self.output_tokens is None and not self.texts:
            return schedule
        prompt, output = self._columns(len(schedule), seed, schedule.prompt_tokens, schedule.output_tokens)
        law, times = schedule.law, schedule.times_ns
        return Schedule(times, prompt, output, duration=schedule.duration, law=law, seed=seed)

    def _filled(self, times: array[int], seconds: float, law: Law, seed: int) -> Schedule:
        """Times with their lengths: the trace's in turn, where there is one."""
        n = len(times)
        own: list[array[int] | None] = [None, None]
        if self.trace is not None and len(self.trace):
            columns = (self.trace.prompt_tokens, self.trace.output_tokens)
            own = [array("I", islice(cycle(column), n)) for column in columns]
        prompt, output = self._columns(n, seed, *own)
        return Schedule(times, prompt, output, duration=seconds, law=law, seed=seed)

    def _columns(
        self, n: int, seed: int, prompt: array[int] | None, output: array[int] | None
    ) -> tuple[array[int], array[int]]:
        """Lengths: as asked for, else as the trace or the file of prompts has them, else the default. An endpoint that
        without tokens has none."""
        if self.endpoint.api == "http":
            return array("I", bytes(4 * n)), array("I", bytes(4 * n))
        if self.texts:
            prompt = array("I", islice(cycle(text.prompt_tokens for text in self.texts), n))
            if output is None and any(text.output_tokens for text in self.texts):
                output = array("I", islice(cycle(text.output_tokens for text in self.texts), n))
        if prompt is None or (self.prompt_tokens is not None and not self.texts):
            prompt = (self.prompt_tokens or Lengths.parse(DEFAULT_TOKENS)).column(n, f"prompt tokens {seed}")
        if output is None or self.output_tokens is not None:
            output = (self.output_tokens or Lengths.parse(DEFAULT_TOKENS)).column(n, f"output tokens {seed}")
        return prompt, output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench`, `compare` and the like that set what is sent, and when."""
    _add_load(parser.add_argument_group("load: when requests are sent"))
    _add_requests(parser.add_argument_group("requests: what is sent, and where"))


def _add_load(group: Any) -> None:
    group.add_argument("--rate", type=float, metavar="R", help="requests per second")
    group.add_argument(
        "--arrivals", metavar="LAW",
        help="arrival law: poisson (default), constant, gamma:CV, bursts:N, bursts:ON/OFF, ramp:FROM..TO, "
        "steps:RATE,RATE,…; for example gamma:2, bursts:20, bursts:2s/8s, ramp:10..100",
    )  # fmt: skip
    group.add_argument(
        "--duration", metavar="90s", help=f"length of the schedule: 500ms, 90s, 2m, 1h (default {DEFAULT_DURATION:g}s)"
    )
    group.add_argument("--requests", type=int, metavar="N", help="end the schedule after N requests")
    group.add_argument("--seed", type=int, metavar="N", help="seed of arrivals, lengths and prompts (default 0)")
    group.add_argument(
        "--trace-replay", metavar="FILE",
        help=f"replay recorded traffic: {', '.join(traces.FORMATS)}; or {BUILTIN}, generated with the laws of a "
        "recorded service. --rate scales the trace to that rate; with --arrivals only its lengths are used. The trace "
        "repeats if --duration or --requests exceeds it",
    )  # fmt: skip
    group.add_argument(
        "--trace-replay-format",
        choices=traces.FORMATS,
        metavar="FORMAT",
        help=f"format of the trace, if its first line does not show it: {', '.join(traces.FORMATS)}",
    )
    group.add_argument(
        "--scale", type=float, metavar="X", help="multiply the times of the trace; a smaller X means more load"
    )
    group.add_argument(
        "--jitter-rounded", type=duration, metavar="1s",
        help="spread trace times that were rounded down to multiples of this time, evenly and seeded; 0: off (default: "
        "the usual distance between distinct times, if most rows share a time)",
    )  # fmt: skip
    group.add_argument("--schedule", metavar="FILE", help="send a saved schedule unchanged")
    group.add_argument("--save-schedule", metavar="FILE", help="write the schedule to FILE before sending it")


def _add_requests(group: Any) -> None:
    group.add_argument("--model", metavar="M", help="model name in the requests")
    group.add_argument(
        "--api",
        choices=APIS,
        help="API of the server (default: from the path; else completions with --model, http without)",
    )
    group.add_argument("--endpoint", metavar="PATH", help="request path, if not the usual one of the API")
    group.add_argument(
        "--prompt-tokens",
        metavar="LENGTHS",
        help=f"prompt lengths: 128, 64..1024, lognormal:200,0.8 (default {DEFAULT_TOKENS})",
    )
    group.add_argument(
        "--output-tokens", metavar="LENGTHS", help=f"output lengths, in the same form (default {DEFAULT_TOKENS})"
    )
    group.add_argument(
        "--prompts",
        metavar="FILE",
        help="prompts to send: JSONL with prompt, messages or conversations, or ShareGPT JSON",
    )
    group.add_argument(
        "--extra-body", metavar="JSON",
        help='override fields of each request, null removes a field: \'{"ignore_eos": true}\'; or @FILE',
    )  # fmt: skip
    group.add_argument("--no-stream", action="store_true", help="request complete responses instead of streams")
    group.add_argument(
        "--header", metavar="'NAME: VALUE'", action="append", default=[], help="HTTP header to send; repeatable"
    )
    group.add_argument(
        "--api-key", metavar="KEY",
        help="key, sent in the header of the API, never printed (default: OPENAI_API_KEY to https://api.openai.com, "
        "ANTHROPIC_API_KEY to https://api.anthropic.com, none to others)",
    )  # fmt: skip
    group.add_argument("--api-key-env", metavar="NAME", help="environment variable with the key, sent to any server")
    group.add_argument("--method", metavar="METHOD", help="method of http requests (default GET, with --body POST)")
    group.add_argument("--body", metavar="FILE", help="file with the body of http requests")


def from_arguments(
    arguments: argparse.Namespace, url: str | None = None, environment: Mapping[str, str] = os.environ
) -> Workload:
    """Of the options above. url: where it is not `arguments.url`.

    Raises:
        OptionError: a value is wrong, or two do not go together.
        TailwatchError: a file cannot be read.
    """
    _check_together(arguments)
    body = read_bytes(arguments.body) if arguments.body is not None else b""
    where = endpoint(
        url if url is not None else arguments.url,
        api=arguments.api if body == b"" else arguments.api or "http",
        path=arguments.endpoint,
        method=arguments.method or ("POST" if body else None),
        model=arguments.model,
        headers=arguments.header,
        api_key=arguments.api_key,
        api_key_env=arguments.api_key_env,
        environment=environment,
    )
    if where.api == "http":
        refuse(arguments, (*LENGTHS, "prompts", "no_stream"), "api=http: requests have no tokens")
    trace, seed = _trace(arguments), arguments.seed or 0
    workload = Workload(
        endpoint=where,
        model=arguments.model,
        arrivals=Arrivals.parse(arguments.arrivals) if arguments.arrivals is not None else None,
        rate=checked_rate(arguments.rate) if arguments.rate is not None else None,
        duration=seconds_of(arguments.duration),
        requests=checked_requests(arguments.requests) if arguments.requests is not None else None,
        seed=seed,
        trace=trace,
        scale=traces.checked_scale(arguments.scale) if arguments.scale is not None else None,
        spread=arguments.jitter_rounded,
        prompt_tokens=_lengths(arguments.prompt_tokens, "prompt_tokens"),
        output_tokens=_lengths(arguments.output_tokens, "output_tokens"),
        texts=prompts.read(arguments.prompts) if arguments.prompts is not None else (),
        extra=extra_of(arguments.extra_body),
        body=body,
        stream=not arguments.no_stream,
        fixed=Schedule.load(arguments.schedule) if arguments.schedule is not None else None,
        settings=_settings(arguments, where) | {"seed": seed},
        notes=where.notes + (tuple(trace.notes(arguments.jitter_rounded)) if trace is not None else ()),
    )
    workload.make()  # what does not go together is refused before anything is sent
    return workload


def _check_together(arguments: argparse.Namespace) -> None:
    if arguments.model is not None and not arguments.model.isprintable():
        raise OptionError.of("model", arguments.model, "expected printable characters")
    if arguments.schedule is not None:
        refuse(arguments, (*SCHEDULES, *LENGTHS), "schedule: a saved schedule is sent unchanged")
    if arguments.trace_replay is None and (
        alone := given(arguments, ("scale", "jitter_rounded", "trace_replay_format"))
    ):
        raise OptionError(f"{alone[0].removeprefix('--')}: requires --trace-replay FILE")
    if arguments.trace_replay == BUILTIN:
        refuse(arguments, ("trace_replay_format",), f"trace-replay={BUILTIN}: the built-in trace is not a file")
    if arguments.arrivals is not None:
        refuse(arguments, ("scale", "jitter_rounded"), "arrivals: with --arrivals only the lengths of a trace are used")
    if arguments.scale is not None and arguments.rate is not None:
        raise OptionError("rate: expected --rate or --scale, not both: --rate scales the trace")
    if arguments.prompts is not None and arguments.prompt_tokens is not None:
        raise OptionError(
            "prompt_tokens: the prompts of a file set the lengths; leave out --prompt-tokens or --prompts"
        )


def _trace(arguments: argparse.Namespace) -> traces.Trace | None:
    if arguments.trace_replay is None:
        return None
    if arguments.trace_replay == BUILTIN:
        return conversation.generate(BUILTIN_SECONDS, seed=arguments.seed or 0)
    return traces.read(arguments.trace_replay, format=arguments.trace_replay_format)


def _lengths(text: str | None, option: str) -> Lengths | None:
    return Lengths.parse(text, option=option) if text is not None else None


def seconds_of(text: str | float | None, option: str = "duration", *, least: float = 1e-3) -> float | None:
    """Seconds of 90, "90", "90s", "2m", "1h", "500ms"; None for None. option: its name, for the error.

    Raises:
        OptionError: anything else.
    """
    if isinstance(text, str):
        if math.isnan(parsed := parse_duration(text)):
            raise OptionError.of(option, text, "expected a time like 90s, 2m, 1h or 500ms")
        text = parsed
    if text is not None and not least <= (text := real(text)) <= LONGEST:
        raise OptionError.of(option, text, f"expected seconds, {least:g} to {LONGEST:.0f} (a week)")
    return text


def _settings(arguments: argparse.Namespace, where: Endpoint) -> dict[str, Any]:
    """What was asked for, as the result keeps it: no key, no value of a header, no secret of the URL."""
    names = (*SCHEDULES, *LENGTHS, "trace_replay_format", "schedule", "model", "prompts", "body", "no_stream")
    found = {name: getattr(arguments, name) for name in names}
    found |= {"url": where.url, "api": where.api, "method": where.method}
    found |= {"headers": sorted(line.partition(":")[0].strip().lower() for line in arguments.header)}
    found |= {"extra_body": extra_of(arguments.extra_body)}
    return {name: value for name, value in found.items() if value is not False and value not in (None, [], {})}
