"""``tailwatch run``: the command is left as it is, whatever it is, and however it ends."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tailwatch
from tailwatch._cold import ffi, lib
from tailwatch.cli.run import UnseenTraffic
from tailwatch.group import unseen

from ..support.process import Tailwatch
from ..support.waiting import until

pytestmark = pytest.mark.integration

DEADLINE_SECONDS = 60
TAILWATCH = [sys.executable, "-m", "tailwatch", "run"]
OLD_PYTHONS = sorted(Path.home().glob(".pyenv/versions/[23].*/bin/python"))


def environment(**variables: str) -> dict[str, str]:
    """Ours without what would open a door, and with these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TAILWATCH", "PYTHON"))}
    return {**kept, **variables}


def run(*arguments: str, given: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """tailwatch run with these arguments, to its end."""
    return subprocess.run(
        [*TAILWATCH, *arguments],
        env=environment(**variables),
        input=given,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )


def python(code: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """tailwatch run -- python -c code."""
    return run(*options, "--", sys.executable, "-c", code, **variables)


STREAMS = """
import tailwatch
tailwatch.install(role="engine", gc="observe")
start = 1_000_000_000
with tailwatch.stream(arrival=start) as stream:
    for number in range(200):
        stream.token(at=start + 20_000_000 * (number + 1) + (2_000_000_000 if number > 150 else 0))
    stream.close(at=start + 7_000_000_000)
"""


def test_the_last_line_has_the_longest_gap_and_pauses_that_hit_a_stream() -> None:
    """A gap of 2 s that no percentile shows; the process's own collections delayed no stream."""
    line = python(STREAMS).stderr.splitlines()[-1]
    assert "the longest gap took 2.02 s" in line and "longest TTFT 20 ms" in line
    assert line.endswith("no pause delayed a stream)")
    alone = python("import tailwatch; tailwatch.install(role='engine')").stderr.splitlines()[-1]
    assert "no stream was seen; paused: engine-0" in alone


# ---- what the command gets ----


def test_the_streams_are_the_callers() -> None:
    """What goes in comes out, and only one line of ours stands before it, on stderr."""
    done = run("--", "sh", "-c", "cat; echo err >&2", given="in\n")
    assert (done.returncode, done.stdout) == (0, "in\n")
    first, second = done.stderr.splitlines()
    assert first.startswith("tailwatch: ") and ": sh -c 'cat; echo err >&2' (TAILWATCH_DIR=/" in first
    assert second == "err"


def test_its_lines_need_no_reader(tmp_path: Path) -> None:
    """`tailwatch run … 2>&1 | head`: the pipe closes, and the command, its signals and its status are as ever."""
    code = "import signal, sys; signal.signal(15, lambda *_: sys.exit(7)); print('up', flush=True); signal.pause()"
    read, write = os.pipe()
    os.close(read)
    with Tailwatch("run", "--", sys.executable, "-c", code, env=environment(), stderr=write) as launcher:
        os.close(write)
        assert launcher.read_line() == "up"
        launcher.signal(signal.SIGTERM)
        launcher.finish()
        assert launcher.popen.returncode == 7


def test_no_look_for_connections_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that raised would leave its command alone."""
    traffic = UnseenTraffic(str(tmp_path))
    monkeypatch.setattr(unseen.Connections, "look", lambda *_: 1 / 0)
    traffic.begin(os.getpid())
    traffic.turn()
    assert not traffic.looks
    traffic.finish()


def test_a_minute_of_connections_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While the server runs on: no earlier, and once."""
    tmp_path.chmod(0o700)
    now = [100.0]
    monkeypatch.setattr(unseen.Connections, "look", lambda *_: {8080})
    monkeypatch.setattr("tailwatch.cli.run.time", SimpleNamespace(monotonic=lambda: now[0]))
    traffic = UnseenTraffic(str(tmp_path))
    traffic.begin(os.getpid())
    for now[0] in (100.0, 159.0):
        traffic.turn()
        assert traffic.looks and capsys.readouterr().err == ""
    now[0] = 160.0
    traffic.turn()
    assert "connections came to port 8080" in capsys.readouterr().err and not traffic.looks


def test_arguments_reach_the_command_untouched() -> None:
    """Spaces, quotes, a second --, and options that look like ours."""
    code = "import json, sys; print(json.dumps(sys.argv[1:]))"
    arguments = ["a b", "--", "--slo=x", "", "'\""]
    done = run("--", sys.executable, "-c", code, *arguments)
    assert json.loads(done.stdout) == arguments


def test_options_become_variables() -> None:
    """The command sees each one given, TAILWATCH=1, the group's directory, and no more of ours; the line has it."""
    code = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('TAILWATCH')}))"
    done = python(code, "--slow-gap-ms=5", "--slo", "e2e<=1s", "--routes=/a,/b")
    given = {"TAILWATCH_SLOW_GAP_MS": "5", "TAILWATCH_SLO": "e2e<=1s", "TAILWATCH_ROUTES": "/a,/b"}
    seen = json.loads(done.stdout)
    directory = seen.pop("TAILWATCH_DIR")
    assert seen == {**given, "TAILWATCH": "1", "TAILWATCH_METRICS_APPEND": "1"}
    assert "TAILWATCH_SLO=e2e<=1s" in done.stderr
    assert f"TAILWATCH_DIR={directory}" in done.stderr
    assert not os.path.exists(directory)


def test_options_may_be_written_as_install_calls_them() -> None:
    """With underscores, as the help and the README name them, as well as with hyphens."""
    code = "import os; print(os.environ['TAILWATCH_SLOW_GAP_MS'])"
    done = [python(code, option) for option in ("--slow_gap_ms=5", "--slow-gap-ms=5")]
    assert [(each.returncode, each.stdout) for each in done] == [(0, "5\n")] * 2


def test_a_directory_of_the_callers_stays(tmp_path: Path) -> None:
    """One that --dir names is the caller's: nothing of it is removed."""
    directory = tmp_path / "group"
    directory.mkdir(mode=0o700)
    done = python("import os; print(os.environ['TAILWATCH_DIR'])", f"--dir={directory}")
    assert (done.returncode, done.stdout.strip()) == (0, str(directory))
    assert directory.exists()


WRONG = ["--slo=fast", "--max-label-sets=0", "--role=api", "--sl=e2e<=1s", "--nonsense", "--page-token=without-page"]


@pytest.mark.parametrize("option", WRONG)
def test_a_wrong_call_runs_nothing(option: str) -> None:
    """Status 2 and a sentence, before the command has begun."""
    done = python("print('ran')", option)
    assert (done.returncode, done.stdout) == (2, "")
    assert option.lstrip("-").partition("=")[0].replace("-", "_") in done.stderr.replace("-", "_")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [(), ("--",), ("--slow-gap-ms=5", "--")])
def test_without_a_command_it_names_what_is_missing(arguments: tuple[str, ...]) -> None:
    """Status 2."""
    done = run(*arguments)
    assert done.returncode == 2 and "expected a command" in done.stderr


def test_a_bad_variable_of_the_environment_is_no_wrong_call() -> None:
    """It came from elsewhere: reported before the command starts, which runs without us."""
    done = python("print('ran')", TAILWATCH_SLO="fast")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "TAILWATCH_SLO" in done.stderr and "the command runs without tailwatch" in done.stderr


# ---- the directory of the group ----

MAIN = "import sys; from tailwatch.cli import main; sys.exit(main(sys.argv[1:]))"
FULL = """
import errno, os, tempfile
def mkdtemp(*args, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
tempfile.mkdtemp = mkdtemp
"""
ENDED_EARLY = """
import os, signal, tempfile
real = tempfile.mkdtemp
def mkdtemp(*args, **options):
    directory = real(*args, **options)
    print(directory, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    return directory
tempfile.mkdtemp = mkdtemp
"""
ENDED_LATE = """
import os, signal
from tailwatch import snapshots
real = snapshots.take_directory
def take_directory(directory):
    print(directory, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    return real(directory)
snapshots.take_directory = take_directory
"""


def launcher(before: str, *command: str) -> subprocess.CompletedProcess[str]:
    """tailwatch run -- command, in an interpreter that ran this code before."""
    return subprocess.run(
        [sys.executable, "-c", before + MAIN, "run", "--", *command],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )


def test_without_room_for_a_group_the_command_runs() -> None:
    """No directory can be made: reported, and each process serves its own numbers."""
    done = launcher(FULL, sys.executable, "-c", "import os; print(os.environ.get('TAILWATCH_DIR'))")
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr
    assert "No space left on device" in done.stderr and "each process" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_signal_before_the_command_begins_is_the_commands() -> None:
    """It comes as the directory is made: the command is ended by it, and the directory goes."""
    done = launcher(ENDED_EARLY, "sleep", str(DEADLINE_SECONDS * 2))
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert done.stdout.startswith("/") and not os.path.exists(done.stdout.strip())


def test_a_signal_after_the_command_has_ended_changes_nothing() -> None:
    """It comes with the summary: the status is the command's, and the directory goes."""
    done = launcher(ENDED_LATE, "sh", "-c", "exit 3")
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("/") and not os.path.exists(done.stdout.strip())


def owner(*, living: bool) -> str:
    """The name of a segment of this process, or of one that had its id before."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return f"{os.getpid()}-{fields[19] if living else 1}-7.seg"


DEAD, LIVING = owner(living=False), owner(living=True)


def header_of(name: str) -> bytes:
    """The beginning of the segment of that name, of this PID namespace; nothing for other files."""
    found = re.fullmatch(r"(\d+)-(\d+).*\.seg", name)
    if found is None:
        return b""
    header = ffi.new("tw_header *", {"magic": lib.TW_SEGMENT_MAGIC, "version": lib.TW_SEGMENT_VERSION})
    header.pid, header.start_time = int(found[1]), int(found[2])
    header.pid_namespace = os.stat("/proc/self/ns/pid").st_ino
    return bytes(ffi.buffer(header))


@pytest.fixture
def plant() -> Iterator[Callable[..., Path]]:
    """plant(*files, prefix=, mode=, age=): a directory that was left in /dev/shm, its age in seconds."""
    made: list[Path] = []

    def directory(*files: str, prefix: str = "tailwatch-run-", mode: int = 0o700, age: float = 0) -> Path:
        kept = Path(tempfile.mkdtemp(prefix="test-", dir="/dev/shm"))  # no launcher sees it half made
        for name in files:
            (kept / name).touch(mode=0o600)
            (kept / name).write_bytes(header_of(name))
        kept.chmod(mode)
        os.utime(kept, (time.time() - age, time.time() - age))
        made.append(kept.rename(kept.with_name(kept.name.replace("test-", prefix))))
        return made[-1]

    yield directory
    for each in made:
        shutil.rmtree(each, ignore_errors=True)


HOURS = 2 * 3600


def test_what_a_killed_launcher_left_is_removed(plant: Callable[..., Path]) -> None:
    """Directories of our own making in which no process lives any more: dead members only, or empty for an hour."""
    left = [plant(DEAD), plant(DEAD, "page", "launcher"), plant(age=HOURS), plant("page", "launcher", age=HOURS)]
    assert run("--", "true").returncode == 0
    assert [path for path in left if path.exists()] == []


def test_the_file_of_a_metrics_port_keeps_no_directory(plant: Callable[..., Path]) -> None:
    """It is the group's own, like the page."""
    left = plant(DEAD, "page", "port-9100")
    assert run("--", "true").returncode == 0
    assert not left.exists()


def test_a_killed_launcher_leaves_its_directory_to_the_next_one() -> None:
    """Killed while its command ran: the directory stays while a watched process lives, and goes with the next run."""
    code = "import os, tailwatch; tailwatch.install(); print(os.environ['TAILWATCH_DIR'], os.getpid(), flush=True)"
    with Tailwatch("run", "--", sys.executable, "-c", f"{code}; input()", env=environment()) as running:
        directory, pid = running.read_line().split()
        running.signal(signal.SIGKILL)
        running.popen.wait()
        assert run("--", "true").returncode == 0 and os.path.exists(directory)
        os.kill(int(pid), signal.SIGKILL)
        running.finish()  # the end of its output is the end of the process

    def removed() -> bool:
        assert run("--", "true").returncode == 0
        return not os.path.exists(directory)

    until(removed)


RESTARTS = """
import os, signal, sys
import tailwatch
child = os.fork()
if child == 0:
    watch = tailwatch.install(role="api")
    with tailwatch.stream(model="m") as stream:
        stream.token()
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
print(os.environ["TAILWATCH_DIR"], flush=True)
for line in sys.stdin:
    watch = tailwatch.install(role="api")
    with tailwatch.stream(model="m") as stream:
        stream.token()
    print(watch.membership.joined, tailwatch.snapshot().tokens, flush=True)
"""


def test_a_server_whose_launcher_was_killed_keeps_its_group() -> None:
    """Also while all its workers are dead: the next one finds what they counted, whatever else is started meanwhile."""
    variables = environment(TAILWATCH="0")
    with Tailwatch("run", "--", "env", "TAILWATCH=0", sys.executable, "-c", RESTARTS, env=variables) as running:
        directory = running.read_line()
        running.signal(signal.SIGKILL)
        running.popen.wait()
        for _ in range(2):
            assert run("--", "true").returncode == 0 and os.path.exists(directory)
        running.write("a worker")
        assert running.read_line() == "True 2"
        assert run("--", "true").returncode == 0 and os.path.exists(directory)
        running.finish()  # it ends

    def removed() -> bool:
        assert run("--", "true").returncode == 0
        return not os.path.exists(directory)

    until(removed)


def test_nothing_else_in_memory_is_removed(plant: Callable[..., Path], tmp_path: Path) -> None:
    """A living member, a living launcher, a young directory, one that others may enter, one that the caller named, one
    with other files, and whatever a link leads to."""
    kept = [
        plant(LIVING, DEAD, age=HOURS),
        plant(),
        plant(DEAD, mode=0o755, age=HOURS),
        plant(DEAD, prefix="tailwatch-", age=HOURS),
        plant(DEAD, "notes", age=HOURS),
        plant("unknown.seg", age=HOURS),
    ]
    if os.geteuid() == 0:
        kept.append(plant(DEAD, age=HOURS))
        os.chown(kept[-1], 1, -1)
    held = plant(LIVING, "launcher", age=HOURS)
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    (target / DEAD).touch()
    link = kept[0].with_name("tailwatch-run-" + secrets.token_hex(4))
    link.symlink_to(target)
    with (held / "launcher").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        (held / LIVING).rename(held / DEAD)
        try:
            assert run("--", "true").returncode == 0
            assert [path for path in [*kept, held, link, target / DEAD] if not path.exists()] == []
        finally:
            link.unlink()


def test_a_running_launcher_keeps_its_directory() -> None:
    """Members come and go while it runs: another launcher leaves the directory alone, however old it is."""
    code = "import os; print(os.environ['TAILWATCH_DIR'], flush=True); input()"
    with Tailwatch("run", "--", sys.executable, "-c", code, env=environment()) as running:
        directory = Path(running.read_line())
        (directory / DEAD).touch()
        os.utime(directory, (0, 0))
        assert run("--", "true").returncode == 0 and directory.exists()
        running.finish("\n")
    assert not directory.exists()


# ---- how it ends ----


@pytest.mark.parametrize("status", [0, 1, 3, 255])
def test_the_status_is_the_commands(status: int) -> None:
    """As the command exits, so do we."""
    assert python(f"raise SystemExit({status})").returncode == status


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_command_that_dies_of_a_signal(number: signal.Signals) -> None:
    """128 + n, as a shell returns it."""
    assert run("--", "sh", "-c", f"kill -{int(number)} $$").returncode == 128 + number


def test_a_command_that_is_not_there() -> None:
    """127, as in a shell, and a sentence."""
    done = run("--", "no-such-command-anywhere", "x")
    assert done.returncode == 127
    assert "no-such-command-anywhere: " in done.stderr and "command not found" in done.stderr


def test_a_command_that_is_not_there_beside_a_directory_that_cannot_be_searched(tmp_path: Path) -> None:
    """The same (root can search it)."""
    (tmp_path / "closed").mkdir(mode=0)
    done = run("--", "no-such-command-anywhere", PATH=f"{tmp_path / 'closed'}:{os.environ['PATH']}")
    assert done.returncode == 127


def test_a_command_that_cannot_be_run(tmp_path: Path) -> None:
    """126, as in a shell, and a sentence."""
    (tmp_path / "data").write_text("no program", encoding="utf-8")
    done = run("--", str(tmp_path / "data"))
    assert done.returncode == 126
    assert "cannot be run" in done.stderr


WAITING = """
import signal, sys
signals = {numbers}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
print("ready", flush=True)
print(int(signal.sigwait(signals)), flush=True)
import select, os
print(signal.sigtimedwait(signals, 0.2), flush=True)
"""
_SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2]


@pytest.mark.parametrize("number", _SIGNALS)
def test_signals_are_passed_on_once(number: signal.Signals) -> None:
    """Sent to us alone, the command gets it, once, and goes on as it sees fit."""
    code = WAITING.format(numbers={int(each) for each in _SIGNALS})
    with Tailwatch("run", "--", sys.executable, "-c", code, env=environment()) as running:
        assert running.read_line() == "ready"
        running.signal(number)
        assert running.finish()[0] == f"{int(number)}\nNone\n"
        assert running.popen.returncode == 0


LIBC_OWN = 1 << 31 | 1 << 32  # the signals 32 and 33: the C library's, which posix_spawn itself leaves ignored


def test_signal_handling_is_that_of_a_fresh_process() -> None:
    """No signal is blocked or ignored that was not, and SIGPIPE, which Python ignores, ends programs as ever."""
    status = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]
    plain = subprocess.run(status, env=environment(), capture_output=True, text=True, check=True).stdout.split()
    blocked, ignored = run("--", *status).stdout.split()[1::2]
    assert int(blocked, 16) == int(plain[1], 16)
    assert int(ignored, 16) & ~LIBC_OWN == int(plain[3], 16) & ~LIBC_OWN
    done = run("--", "bash", "-c", "yes | head -n 1; echo ${PIPESTATUS[0]}")
    assert done.stdout == "y\n141\n"


def test_file_descriptors_are_inherited(tmp_path: Path) -> None:
    """A socket or file that was handed to us reaches the command: socket activation works."""
    with (tmp_path / "handed").open("wb") as file:
        code = f"import os; os.write({file.fileno()}, b'through')"
        command = [*TAILWATCH, "--", sys.executable, "-c", code]
        subprocess.run(command, env=environment(), pass_fds=[file.fileno()], check=True, capture_output=True)
    assert (tmp_path / "handed").read_bytes() == b"through"


ORPHAN = """
import os, time
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    between = os.getpid()
    if os.fork() == 0:
        while os.getppid() == between:
            time.sleep(0.001)
        os.write(writing, b"%d %d" % (os.getpid(), os.getppid()))
    os._exit(0)
os.waitpid(child, 0)
orphan, parent = os.read(reading, 64).split()
assert int(parent) == os.getppid(), (parent, os.getppid())
deadline = time.monotonic() + 30
while os.path.exists("/proc/" + orphan.decode()):
    assert time.monotonic() < deadline, "it stays a zombie"
    time.sleep(0.001)
print("reaped")
"""


def test_orphans_are_reaped() -> None:
    """As the first process of a container, or another one that adopts, we leave no zombies."""
    become = "import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); os.execv(sys.executable, sys.argv[1:])"
    command = [sys.executable, "-c", become, *TAILWATCH, "--", sys.executable, "-c", ORPHAN]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert (done.returncode, done.stdout) == (0, "reaped\n"), done.stderr


TERMINAL = """
import os, select, signal, sys
got = []
waiting, wake = os.pipe()
os.set_blocking(wake, False)
signal.set_wakeup_fd(wake)  # a byte for each signal: one that comes before the read is not lost
signal.signal(signal.SIGINT, lambda number, frame: got.append(number))
print("tty", os.isatty(0), os.tcgetpgrp(0) == os.getpgrp(), flush=True)
os.read(waiting, 1)
select.select([waiting], [], [], 0.3)  # for one that must not come
print("got", len(got), flush=True)
"""


def test_ctrl_c_arrives_once() -> None:
    """The terminal stays with the command, in the foreground; what it sends reaches it without us."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [*TAILWATCH, "--", sys.executable, "-c", TERMINAL], environment())
    lines = terminal_lines(terminal)
    assert next(line for line in lines if line.startswith("tty")) == "tty True True"
    os.write(terminal, b"\x03")
    assert next(line for line in lines if "got" in line).endswith("got 1")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0


def terminal_lines(terminal: int) -> Iterator[str]:
    """Lines as they come, until the other side is gone."""
    rest = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:
            return
        *lines, rest = (rest + part).split(b"\r\n")
        yield from (line.decode() for line in lines)


# ---- the sitecustomize in the interpreters of the command ----

STATE = """
import json, os, subprocess, sys
def state():
    import sitecustomize
    return {
        "boot": "tailwatch_boot.autoinstall" in sys.modules, "path": [p for p in sys.path if "startup" in p],
        "site": sitecustomize.__file__, "mark": getattr(sys, "mark", None),
    }
if "child" in sys.argv:
    print(json.dumps(state()))
else:
    command = [sys.executable, "-c", sys.argv[1], sys.argv[1], "child"]
    child = subprocess.run(command, capture_output=True, text=True, check=True)
    print(json.dumps([state(), json.loads(child.stdout)]))
"""


def bare(directory: Path) -> str:
    """The interpreter of a virtual environment that has nothing."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    return str(directory / "bin/python")


def states(interpreter: str, **variables: str) -> list[dict[str, Any]]:
    """What STATE prints of a process and its child."""
    done = run("--", interpreter, "-c", STATE, STATE, **variables)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_it_installs_without_a_boot_file(tmp_path: Path) -> None:
    """In an interpreter that has no tailwatch, and in its child; sys.path is left as it was."""
    for state in states(bare(tmp_path / "bare")):
        assert state["boot"] and state["path"] == []


def test_the_order_of_the_path_is_kept(tmp_path: Path) -> None:
    """Where directories follow that which has tailwatch: a .pth file's, the system's after a virtual environment's."""
    interpreter, later = bare(tmp_path / "bare"), tmp_path / "later"
    later.mkdir()
    [site] = (tmp_path / "bare").glob("lib/python*/site-packages")
    (site / "more.pth").write_text(f"{Path(tailwatch.__file__).parents[1]}\n{later}\n", encoding="utf-8")
    code = "import json, sys; print(json.dumps(sys.path))"
    plain = subprocess.run([interpreter, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert json.loads(plain.stdout)[-1] == str(later)
    assert json.loads(run("--", interpreter, "-c", code).stdout) == json.loads(plain.stdout)


def test_the_shadowed_sitecustomize_runs(tmp_path: Path) -> None:
    """An import of it finds the real one, in the child too."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "sitecustomize.py").write_text("import sys; sys.mark = 'ran'", encoding="utf-8")
    for state in states(bare(tmp_path / "bare"), PYTHONPATH=str(tmp_path / "theirs")):
        assert state["boot"] and state["path"] == []
        assert state["mark"] == "ran" and state["site"].startswith(str(tmp_path / "theirs"))


@pytest.mark.parametrize("source", ["raise ValueError('theirs')", "import no_such_module_of_theirs"])
def test_a_shadowed_sitecustomize_fails_as_it_would(tmp_path: Path, source: str) -> None:
    """Python reports it in the same words, and goes on."""
    (tmp_path / "sitecustomize.py").write_text(source, encoding="utf-8")
    plain = subprocess.run(
        [sys.executable, "-c", "print(1)"], env=environment(PYTHONPATH=str(tmp_path)), capture_output=True, text=True
    )
    done = python("print(1)", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    assert plain.stderr.splitlines()[-1] in done.stderr and plain.stderr


def test_the_path_of_the_caller_is_kept(tmp_path: Path) -> None:
    """PYTHONPATH stays as it is, after ours, its empty parts too; run inside run adds nothing."""
    code = "import os; print(os.environ['PYTHONPATH'])"
    ours, *theirs = python(code, PYTHONPATH=f"/a{os.pathsep}{os.pathsep}/b").stdout.strip().split(os.pathsep)
    assert theirs == ["/a", "", "/b"] and ours.endswith("startup")
    assert python(code, PYTHONPATH="").stdout.strip() == ours
    nested = run("--", *TAILWATCH, "--", sys.executable, "-c", code, PYTHONPATH="/a")
    assert nested.stdout.strip().split(os.pathsep) == [ours, "/a"]


def test_an_empty_part_of_the_path_is_still_the_current_directory(tmp_path: Path) -> None:
    """A program elsewhere imports from where it was started, if PYTHONPATH has that."""
    (tmp_path / "tw_here.py").write_text("print('here')", encoding="utf-8")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "program.py"
    program.write_text("import tw_here", encoding="utf-8")
    command = [*TAILWATCH, "--", sys.executable, str(program)]
    variables = environment(PYTHONPATH=f"/nowhere{os.pathsep}")
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "here\n"), done.stderr


@pytest.mark.parametrize("option", ["-E", "-I", "-S", "-s"])
def test_interpreters_that_look_away_run_all_the_same(option: str, tmp_path: Path) -> None:
    """Without PYTHONPATH, without site: the program is not disturbed, only not watched."""
    done = run("--", bare(tmp_path / "bare"), option, "-c", "import sys; print('tailwatch_boot' in sys.modules)")
    assert (done.returncode, done.stdout) == (0, "True\n" if option == "-s" else "False\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("interpreter", OLD_PYTHONS, ids=lambda path: path.parts[-3])
def test_any_python_starts(interpreter: Path) -> None:
    """Versions that tailwatch does not support run as they do, without a word."""
    done = run("--", str(interpreter), "-c", "import sys; print(sys.version_info[0] + 0)")
    assert (done.returncode, done.stdout) == (0, f"{interpreter.parts[-3][0]}\n")
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("interpreter", [path for path in OLD_PYTHONS if "/3.8" in str(path) or "/3.9" in str(path)])
def test_under_an_old_python_one_sentence_gives_the_reason(interpreter: Path, tmp_path: Path) -> None:
    """A server under a Python that we do not support: one sentence, when its app is loaded."""
    (tmp_path / "uvicorn").mkdir()
    (tmp_path / "uvicorn" / "__init__.py").write_text("", encoding="utf-8")
    source = "class Config:\n    def load(self):\n        self.loaded_app = 'theirs'\n"
    (tmp_path / "uvicorn" / "config.py").write_text(source, encoding="utf-8")
    code = "from uvicorn.config import Config; c = Config(); c.load(); print(c.loaded_app)"
    done = run("--", str(interpreter), "-c", code, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "theirs\n"), done.stderr
    assert len(re.findall(r"CPython 3\.10 or later; .*\b3\.", done.stderr)) == 1


TAKEN = """
import os, signal, sys, threading
from tailwatch.cli import run
go = threading.Event()
def take():
    go.wait()
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
threading.Thread(target=take, daemon=True).start()
with run._signals_held() as mask:
    pid = run._spawn(sys.argv[1:], dict(os.environ), mask)
    if sys.argv[1] == "true":
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        signal.sigtimedwait({signal.SIGCHLD}, 0)    # unless the thread took it
    else:
        go.set()
    print(run._wait(pid, run._held(), None))
"""


@pytest.mark.parametrize(("command", "status"), [(["true"], 0), (["sleep", "1000"], 128 + signal.SIGTERM)])
def test_signals_that_another_thread_takes_are_not_lost(command: list[str], status: int) -> None:
    """A thread that a sitecustomize or a .pth file has started: the end of the command is seen, SIGTERM passed on."""
    done = subprocess.run(
        [sys.executable, "-c", TAKEN, *command], env=environment(), capture_output=True, text=True, timeout=30
    )
    assert done.stdout == f"{status}\n", done.stderr
