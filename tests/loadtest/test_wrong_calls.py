"""What cannot work, or would be ignored, is refused in a sentence before anything is sent: exit status 2."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailwatch import cli
from tailwatch.errors import OptionError, TailwatchError
from tailwatch.loadtest import options
from tailwatch.loadtest.bench import Conditions
from tailwatch.loadtest.workload import seconds_of

pytest.importorskip("httptools", reason="the load tester's client: pip install '.[load]'")

pytestmark = pytest.mark.integration

WRONG_CALL = 2


@pytest.fixture
def deaf() -> Iterator[str]:
    """An address that accepts connections and where nothing may be asked."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.settimeout(0)
        with pytest.raises(BlockingIOError):
            listening.accept()


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The sentence of a call that is wrong."""
    try:
        status = cli.main(words)
    except SystemExit as error:
        status = int(str(error.code))
    out, err = capsys.readouterr()
    assert (status, out) == (WRONG_CALL, ""), (words, err)
    return err


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ("--closed --rate 5", "--rate"),
        ("--closed --arrivals poisson", "--arrivals"),
        ("--closed --trace-replay TRACE --scale 2", "--scale"),
        ("--closed --trace-replay TRACE --jitter-rounded 0", "--jitter-rounded"),
        ("--closed --save-schedule s.json", "--save-schedule"),
        ("--closed --max-in-flight 5", "--max-in-flight"),
        ("--workers 3 --rate 5", "--closed"),
        ("--scale 2 --rate 5", "--trace-replay"),
        ("--trace-replay TRACE --scale 2 --rate 5", "--scale"),
        ("--trace-replay TRACE --arrivals poisson --rate 5 --jitter-rounded 0", "--jitter-rounded"),
        ("--trace-replay builtin:conversation --trace-replay-format azure", "--trace-replay-format"),
        ("--schedule s.json --seed 0", "--seed"),
        ("--rate 5 --runs 2 --save-schedule s.json", "--save-schedule"),
        ("--rate 5 --budget 30s", "--find"),
        ("--rate 5 --resolution 3", "--find"),
        ("--rate 5 --probe-seconds 3", "--find"),
        ("--rate 5 --insecure", "insecure"),
        ("--find throughput --rate 5", "--rate"),
        ("--find throughput --duration 5", "--duration"),
        ("--find throughput --requests 5", "--requests"),
        ("--find throughput --trace-replay TRACE --scale 2", "--scale"),
        ("--find throughput --save-schedule s.json", "--save-schedule"),
        ("--find throughput --schedule s.json", "--schedule"),
        ("--find throughput --arrivals ramp:1..9", "ramp:1..9"),
        ("--find throughput --closed", "--closed"),
        ("--find throughput --runs 2", "--runs"),
        ("--find goodput", "--slo"),
        ("--rate 5 --api-key x --header x-api-key:y", "x-api-key"),
    ],
)
def test_what_does_not_go_together(
    words: str, refusal: str, deaf: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Refused with the name of the one that nothing would look at."""
    trace = tmp_path / "t.csv"
    trace.write_text("timestamp,prompt_tokens,output_tokens\n0,1,1\n1,1,1\n", encoding="utf-8")
    given = [str(trace) if word == "TRACE" else word for word in words.split()]
    assert refusal in refused(capsys, "bench", deaf, "--model", "m", *given)


@pytest.mark.parametrize("option", ["--prompt-tokens 5", "--output-tokens 5", "--no-stream", "--prompts FILE"])
def test_what_an_endpoint_without_tokens_ignores(option: str, deaf: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A plain GET has none of it."""
    assert option.split()[0] in refused(capsys, "bench", deaf, "--rate", "5", *option.split())


@pytest.mark.parametrize(
    "words",
    [
        ("--rate", "nan"), ("--rate", "inf"), ("--rate", "-1"), ("--rate", "0"), ("--duration", "nan"),
        ("--duration", "-1"), ("--duration", "0"), ("--requests", "0"), ("--requests", "nan"), ("--timeout", "0"),
        ("--timeout", "nan"), ("--drain", "-1"), ("--drain", "inf"), ("--slo", "ttft<=nan"), ("--slo", "ttft<=-1ms"),
        ("--slo", "ttft<=1s@nan%"), ("--warmup", "-1"), ("--processes", "0"), ("--processes", "-2"),
        ("--max-in-flight", "0"), ("--max-in-flight", "-1"), ("--runs", "0"), ("--runs", "-1"), ("--name", "\udcff"),
        ("--model", "\udcff"),
    ],
)  # fmt: skip
def test_numbers_that_are_none(words: tuple[str, str], deaf: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Named by their own option."""
    model = () if words[0] == "--model" else ("--model", "m")
    rate = () if words[0] == "--rate" else ("--rate", "5")
    printed = refused(capsys, "bench", deaf, *model, *rate, *words)
    assert words[0].removeprefix("--").replace("-", "_") in printed.replace("-", "_"), printed


@pytest.mark.parametrize("words", ["--resolution nan", "--resolution 0", "--probe-seconds nan", "--probe-seconds 0",
                                   "--budget nan", "--budget 0"])  # fmt: skip
def test_numbers_of_a_search_that_are_none(words: str, deaf: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same."""
    name = words.split()[0].removeprefix("--").replace("-", "_")
    assert name in refused(capsys, "bench", deaf, "--model", "m", "--find", "throughput", *words.split())


@pytest.mark.parametrize("closed", [("--rate", "5"), ("--closed", "--workers", "-1"), ("--closed", "--workers", "0")])
def test_no_workers(closed: tuple[str, ...], deaf: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A closed loop needs one at least; an open one has none."""
    extra = () if "--workers" in closed else ("--workers", "1")
    assert "workers" in refused(capsys, "bench", deaf, "--model", "m", *closed, *extra)


def test_no_time_for_the_last_ones_is_a_time() -> None:
    """--drain 0 ends what is in flight with the plan."""
    assert seconds_of("0", "drain", least=0.0) == 0.0
    assert Conditions(drain=0.0).drain == 0.0
    with pytest.raises(OptionError, match="drain"):
        Conditions(drain=math.nan)


@pytest.mark.parametrize("option", ["--prompts", "--trace-replay", "--schedule", "--extra-body"])
def test_files_that_are_no_text(option: str, deaf: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Bytes that are no UTF-8 are no trace, prompts, schedule or JSON; nothing is decoded half."""
    path = tmp_path / "bytes"
    path.write_bytes(b"\xff\xfe\x00{")
    load = () if option == "--schedule" else ("--rate", "5")
    value = f"@{path}" if option == "--extra-body" else str(path)
    assert refused(capsys, "bench", deaf, "--model", "m", *load, option, value)


@pytest.mark.parametrize("url", ["http://a..b", f"http://{'a' * 64}.example", "http://\udcff/"])
def test_a_name_that_is_none(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A host that cannot be encoded is a wrong address."""
    assert "a" in refused(capsys, "bench", url, "--rate", "5", "--allow-remote")


# Output


@pytest.mark.parametrize("option", ["--json", "--csv", "--html", "--save-schedule"])
def test_where_results_go_is_known_before(
    option: str, deaf: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A directory, or a file in one that is not there: reported at once, and not after the run."""
    for path in (tmp_path, tmp_path / "none" / "file"):
        assert option in refused(capsys, "bench", deaf, "--model", "m", "--rate", "5", option, str(path))


def test_two_outputs_are_two_files(deaf: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The later one would end the earlier one."""
    path = str(tmp_path / "x")
    assert "same file" in refused(capsys, "bench", deaf, "--model", "m", "--rate", "5", "--json", path, "--html", path)


def test_looking_changes_nothing(tmp_path: Path) -> None:
    """What is there keeps its content; what is not there is not left behind; a device is taken as it is."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("content", encoding="utf-8")
    options.check_files({"json": old, "html": new, "csv": None, "save_schedule": "/dev/null"})
    assert old.read_text(encoding="utf-8") == "content" and not new.exists()
    with pytest.raises(TailwatchError, match="-o"):
        options.check_directory("-o", old / "below")


@pytest.mark.parametrize("option", ["--json", "--html", "-o"])
def test_an_ablation_finds_it_before_too(option: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """No server is started for nothing."""
    (tmp_path / "v").write_text("a:\nb:\n", encoding="utf-8")
    command = f"touch '{tmp_path / 'started'}' {{port}}"
    words = ("--server", command, "--variants", str(tmp_path / "v"), "--model", "m", "--rate", "5")
    assert option in refused(capsys, "ablate", *words, option, str(tmp_path / "v" / "below"))
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ("--workers 4 --rate 5", "--rate"),
        ("--workers 4 --arrivals poisson", "--arrivals"),
        ("--workers nan", "workers"),
        ("--rates nan,5", "rates"),
        ("--rates 5,9 --arrivals ramp:1..9", "ramp:1..9"),
        ("--rates 5,9 --schedule s.json", "--schedule"),
        ("--rate 5 --startup-timeout nan", "startup-timeout"),
        ("--rate 5 --timeout -1", "timeout"),
        ("--rate 5 --warmup -1", "warmup"),
        ("--rate 5 --slo ttft<=nan", "slo"),
    ],
)
def test_what_an_ablation_refuses(words: str, refusal: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Before a server is started."""
    (tmp_path / "v").write_text("a:\nb:\n", encoding="utf-8")
    command = f"touch '{tmp_path / 'started'}' {{port}}"
    given = ("--server", command, "--variants", str(tmp_path / "v"), "--model", "m")
    assert refusal in refused(capsys, "ablate", *given, *words.split())
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("port", ["-1", "0", "65536"])
def test_a_port_that_is_none(port: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A server's own port is one of TCP."""
    (tmp_path / "v").write_text("a:\nb:\n", encoding="utf-8")
    words = ("--server", "serve", "--variants", str(tmp_path / "v"), "--model", "m", "--rate", "5", "--port", port)
    assert "port" in refused(capsys, "ablate", *words)


def test_merging_compares_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """What sets how to compare has no meaning there."""
    for words in (("--metrics", "ttft"), ("--percentiles", "50"), ("--json", "x"), ("--baseline-repeat", "x")):
        assert words[0] in refused(capsys, "compare", "a.json", "b.json", "--merge", "out.json", *words)
