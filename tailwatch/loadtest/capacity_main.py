"""``tailwatch capacity``: computes replicas for an expected load, and the tail of a request of many parts."""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tailwatch.errors import OptionError, TailwatchError
from tailwatch.loadtest.capacity import Fleet, all_good, fleet, part_quantile
from tailwatch.loadtest.options import write_json
from tailwatch.loadtest.saturation_point import Knee

ABOUT = "compute the replicas that an expected load needs, and the tail latency of a request of many parts"
EXAMPLE = "tailwatch capacity --knee knee.json --expect 400"
EXITS = {1: "with --trace-replay: as of `bench --find`"}
SHARES = (0.5, 0.9, 0.99)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("url", nargs="?", metavar="URL", help="URL of one replica, with --trace-replay")
    parser.add_argument(
        "--trace-replay", metavar="FILE",
        help="find the knee of the replica at URL on this recorded traffic, and the replicas that its rate needs",
    )  # fmt: skip
    parser.add_argument("--slo", metavar="BOUNDS", help="with --trace-replay: bounds of a good request")
    parser.add_argument("--model", metavar="M", help="with --trace-replay: model name in the requests")
    parser.add_argument("--budget", metavar="20m", help="with --trace-replay: time limit of the search (default 20m)")
    parser.add_argument("--html", metavar="FILE", help="with --trace-replay: write the search as a page")
    parser.add_argument("--allow-remote", action="store_true", help="required for a server on another machine")
    parser.add_argument(
        "--knee", metavar="RATE|FILE",
        help="requests/s at which one replica holds its SLO, or a file of `tailwatch bench --find goodput --json` "
        "(the lower end of its interval is used)",
    )  # fmt: skip
    parser.add_argument("--capacity", type=float, metavar="RATE", help="largest requests/s that one replica completes")
    parser.add_argument("--expect", type=float, metavar="RATE", help="expected requests/s of all replicas together")
    parser.add_argument("--fanout", type=int, metavar="N", help="compute the tail of a request that waits for N parts")
    parser.add_argument(
        "--attainment", type=float, default=99.0, metavar="PERCENT",
        help="with --fanout: share of the parts that hold their SLO (default 99)",
    )  # fmt: skip
    parser.add_argument(
        "--result", type=Path, metavar="FILE",
        help="with --fanout: a file of `tailwatch bench --json` for one part; gives the tail of the whole in ms",
    )  # fmt: skip
    parser.add_argument(
        "--metric",
        choices=("e2e", "ttft", "tpot", "largest_gap"),
        default="e2e",
        help="metric of that file (default e2e)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result as JSON")


def main(parsed: argparse.Namespace) -> int:
    """Prints the answers; exit status 0, of a search as of `bench --find`."""
    if parsed.trace_replay is not None or parsed.url is not None:
        return _replayed(parsed)
    if parsed.expect is None and parsed.fanout is None:
        raise TailwatchError("capacity: expected --knee and --expect, or --fanout, or all three")
    if parsed.expect is not None and parsed.knee is None:
        raise TailwatchError(
            "capacity: --expect requires the --knee of one replica; measure it with `tailwatch bench --find goodput`"
        )
    lines, data = [], dict[str, Any]()
    if parsed.expect is not None:
        found, sentences = _sized(_knee(parsed.knee), parsed.expect, parsed.capacity)
        lines += sentences
        data["fleet"] = {name: getattr(found, name) for name in Fleet.__slots__}
        data["fleet"]["one_down"] = found.one_down if found.replicas > 1 else None
    if parsed.fanout is not None:
        lines += fanout_lines(parsed.fanout, parsed.attainment)
        data["fanout"] = fanout_data(parsed.fanout, parsed.attainment)
        if parsed.result is not None:
            times = fanout_times(parsed.result, parsed.metric, parsed.fanout)
            lines += time_lines(times, parsed.metric, parsed.fanout)
            data["fanout"][parsed.metric] = [asdict(time) for time in times]
    elif parsed.result is not None:
        raise TailwatchError("capacity: --result requires --fanout, the number of parts")
    print(*lines, sep="\n")
    if parsed.json is not None:
        write_json(parsed.json, data, indent=2)
    return 0


def _sized(knee: float | Knee, expect: float, capacity: float | None) -> tuple[Fleet, list[str]]:
    """The replicas, of a search those that its lower end asks for, and the answer in words."""
    if not isinstance(knee, Knee):
        found = fleet(expect, knee, capacity)
        return found, fleet_lines(found)
    low = knee.low or 0.0
    found = fleet(expect, low, max(knee.ceiling, low) if capacity is None else capacity)
    fewest, most = replica_range(knee, expect)
    between = [f"the ends of the knee's interval ask for {fewest} to {most}"] if fewest not in (None, most) else []
    return found, [*fleet_lines(found), *between, *_caveat(knee)]


def _caveat(knee: Knee) -> list[str]:
    """What an unresolved search leaves open."""
    if knee.resolved:
        return []
    return [f"the search is unresolved: {knee.reason}; the number is of its lower bound: fewer replicas may do"]


def _replayed(parsed: argparse.Namespace) -> int:
    """Searches the knee as `bench --find goodput` does, and sizes the trace's own rate (or --expect) with it."""
    from tailwatch.loadtest import main as bench

    if None in (parsed.trace_replay, parsed.url, parsed.slo):
        raise TailwatchError("capacity: --trace-replay FILE requires --slo BOUNDS and the URL of one replica")
    if parsed.knee is not None or parsed.fanout is not None:
        raise TailwatchError("capacity: --trace-replay measures the knee itself; leave out --knee, --fanout")
    expect = parsed.expect if parsed.expect is not None else _rate_of(parsed.trace_replay)
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "knee.json"
        words = [parsed.url, "--find", "goodput", "--slo", parsed.slo, "--trace-replay", parsed.trace_replay]
        words += ["--json", str(file)] + (["--allow-remote"] if parsed.allow_remote else [])
        for name in ("model", "budget", "html"):
            words += [f"--{name}", getattr(parsed, name)] if getattr(parsed, name) is not None else []
        command = argparse.ArgumentParser()
        bench.add_arguments(command)
        status = bench.main(command.parse_args(words))
        if not file.exists():
            return status
        knee = read_knee(file)
    print(*replica_lines(knee, expect), sep="\n")
    if parsed.json is not None:
        write_json(parsed.json, {"expect": expect, "replicas": replica_range(knee, expect), "knee": knee.as_dict()})
    return status


def _rate_of(trace: str) -> float:
    """Requests per second of a trace as it was recorded."""
    from tailwatch.loadtest import conversation, traces
    from tailwatch.loadtest.workload import BUILTIN, BUILTIN_SECONDS

    found = conversation.generate(BUILTIN_SECONDS) if trace == BUILTIN else traces.read(trace)
    return found.rate


def replica_range(knee: Knee, expect: float) -> tuple[int | None, int | None]:
    """The fewest and the most replicas that the ends of the knee's interval ask for."""
    ends = (knee.high, knee.low)
    fewest, most = (fleet(expect, end).replicas if end else None for end in ends)
    return fewest, most


def replica_lines(knee: Knee, expect: float) -> list[str]:
    """The same in words."""
    fewest, most = replica_range(knee, expect)
    if most is None or knee.low is None:
        least = f"at least {_replicas(fewest)} for" if fewest is not None else "unknown:"
        return [f"{least} {expect:.4g}/s; the search proved no rate that holds, so no number is enough for sure"]
    between = f"{fewest} to {most}" if fewest not in (None, most) else f"{most}"
    return [
        f"{between} replicas for {expect:.4g}/s: the ends of the knee's interval; plan with {most}",
        *fleet_lines(fleet(expect, knee.low, max(knee.ceiling, knee.low)))[1:],
        *_caveat(knee),
    ]


def fleet_lines(found: Fleet) -> list[str]:
    """The answer in words, one fact a line."""
    lines = [
        f"{_replicas(found.replicas)}: {found.expect:g}/s at the knee of {found.knee:g}/s is "
        f"{found.each:.4g}/s on each",
    ]
    if found.cliff is not None and found.cliff < found.replicas:
        lines.append(
            f"{_replicas(found.cliff)} = {found.expect:g}/{found.capacity:g} would be at the throughput limit: "
            f"{found.at_cliff:.4g}/s on each is past the knee; every request would finish, but hardly any in time"
        )
    elif found.capacity is None:
        lines.append("without --capacity the throughput limit is not computed")
    if found.replicas > 1:
        lines.append(
            f"with one replica down each gets {found.one_down:.4g}/s, past the knee; {found.spare} tolerate that"
        )
    else:
        lines.append("with it down no request is served; 2 tolerate that")
    return lines


def _replicas(count: int) -> str:
    return f"{count} replica" + ("s" if count != 1 else "")


def fanout_data(parts: int, attainment: float) -> dict[str, Any]:
    """Per share of the whole the quantile of a part, and the share of wholes that keep what each part keeps."""
    return {
        "parts": parts,
        "attainment": attainment / 100,
        "whole": all_good(_share(attainment), parts),
        "part_quantiles": {f"{share:g}": part_quantile(share, parts) for share in SHARES},
        "part_attainment_for": {f"{share:g}": part_quantile(share, parts) for share in (0.95, 0.99)},
    }


def fanout_lines(parts: int, attainment: float) -> list[str]:
    """The same in words."""
    data = fanout_data(parts, attainment)
    tail = ", ".join(
        f"p{float(share) * 100:g} is a part's p{_percent(q)}" for share, q in data["part_quantiles"].items()
    )
    needed = _percent(data["part_attainment_for"]["0.99"])
    return [
        f"a request that waits for {parts} of these: {tail}",
        f"if {attainment:g}% of the parts are in time, {data['whole'] * 100:.3g}% of such requests are; for 99% of the "
        f"requests, {needed}% of the parts must be",
        "this assumes independent parts; a stall of several parts at once makes fewer requests late, but by more",
    ]


@dataclass(frozen=True, slots=True)
class Time:
    """A quantile of the whole. share: of the requests that wait for all parts (0.99: their p99). seconds: it is at
    most this, in the buckets of the run (1.1 % off at most). reached: enough parts are measured; else it
    is at least this."""

    share: float
    seconds: float
    reached: bool


def fanout_times(path: Path, metric: str, parts: int) -> list[Time]:
    """From the runs in a file of `tailwatch bench --json`, all together. TailwatchError where they have no sample."""
    from tailwatch.loadtest import results
    from tailwatch.loadtest.latencies import Latencies

    runs = results.load(path)
    whole = Latencies()
    for run in runs:
        whole.add(run.latencies)
    samples = getattr(whole, metric)
    if not samples.count:
        raise TailwatchError(f"{path}: its runs have no samples of {metric}")
    quantiles = [(share, part_quantile(share, parts)) for share in SHARES]
    return [Time(share, samples.p(q * 100), q <= 1 - 1 / samples.count) for share, q in quantiles]


def time_lines(times: list[Time], metric: str, parts: int) -> list[str]:
    """The same in words."""
    quantiles = ", ".join(
        f"p{time.share * 100:g} {'' if time.reached else 'at least '}{time.seconds * 1e3:.4g} ms" for time in times
    )
    lines = [f"{metric} of a request that waits for {parts} of these: {quantiles}"]
    if not all(time.reached for time in times):
        lines.append("at least: too few parts were measured for the exact value; run longer")
    return lines


def _percent(quantile: float) -> str:
    """A quantile near 1 with the digits that distinguish it from 1."""
    digits = 2
    while digits < 12 and round(quantile * 100, digits) >= 100 > quantile * 100:
        digits += 1
    return f"{quantile * 100:.{digits + 1}f}".rstrip("0").rstrip(".")


def _share(percent: float) -> float:
    if not 0 < percent <= 100:
        raise OptionError.of("attainment", percent, "expected a share above 0% and up to 100%")
    return percent / 100


def _knee(text: str) -> float | Knee:
    """A number, or what the file of a search holds: at least a rate that holds."""
    try:
        return float(text)
    except ValueError:
        pass
    knee = read_knee(Path(text))
    if knee.objective != "goodput":
        raise TailwatchError(
            f"--knee {text}: a result of `--find {knee.objective}` counts late requests too; replicas are sized by "
            "requests in time: pass a result of `--find goodput`, and this rate as --capacity"
        )
    if not knee.low:
        raise TailwatchError(f"--knee {text}: its search found no knee: {knee.reason}")
    return knee


def read_knee(path: Path) -> Knee:
    """The knee in what `tailwatch bench --find … --json` wrote. TailwatchError where there is none."""
    try:
        data = json.loads(path.read_bytes())
        return Knee.from_dict(data["knee"])
    except OSError as error:
        raise TailwatchError(f"{path}: {error.strerror}; expected requests per second, or a file") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TailwatchError(f"{path}: not a result of `tailwatch bench --find --json`") from error
