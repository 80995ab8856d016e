"""The manifests of examples/kubernetes: restricted as they should be, and enough for tailwatch.

No cluster is here. Namespaces of Linux give what a pod has: one for mounts and one for IPC of both containers, one for
processes of each, a read-only root, memory of the size that the volumes have, and a user without any rights. A filter
of system calls (ours, stricter than a container's; and Docker's own default profile, where it can be had) and, where
they can be made, cgroups of the manifest's limits are there too.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from ..support.cgroups import ENTER, Limits, limited
from ..support.docker_seccomp import default_profile, library
from ..support.process import Serving, clean_environment
from ..support.prometheus import Release
from ..support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "kubernetes"
OBJECTS = {
    each["kind"]: each
    for name in ("server.yaml", "monitoring.yaml")
    for each in yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8"))
}
POD = OBJECTS["Deployment"]["spec"]["template"]
SERVER, SIDECAR = POD["spec"]["containers"]
(INIT,) = POD["spec"]["initContainers"]
VOLUMES = {each["name"]: each["emptyDir"] for each in POD["spec"]["volumes"]}
USER = POD["spec"]["securityContext"]["runAsUser"]
TAILWATCH = (sys.executable, "-m", "tailwatch")


def env_of(container: dict[str, Any]) -> dict[str, str]:
    """Its variables."""
    return {each["name"]: each["value"] for each in container["env"]}


def test_both_containers_have_the_restricted_profile() -> None:
    """Of the Pod Security Standards, and a read-only root."""
    pod = POD["spec"]["securityContext"]

    assert pod["runAsNonRoot"] is True and pod["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (INIT, SERVER, SIDECAR):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip


def test_the_sidecar_sees_the_server() -> None:
    """The same image, user, group directory and memory."""
    assert all(INIT[key] == SERVER[key] == SIDECAR[key] for key in ("image", "securityContext", "volumeMounts"))
    assert env_of(SERVER)["TAILWATCH_DIR"] == env_of(SIDECAR)["TAILWATCH_DIR"]
    assert VOLUMES["shm"] == {"medium": "Memory", "sizeLimit": "64Mi"}


def test_the_selectors_find_the_pod() -> None:
    """Of the deployment, the service and the monitor; the port has the name that they use."""
    labels, port = POD["metadata"]["labels"], SERVER["ports"][0]["name"]
    monitor = OBJECTS["PodMonitor"]["spec"]

    assert OBJECTS["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert OBJECTS["Service"]["spec"]["selector"] == monitor["selector"]["matchLabels"] == labels
    assert monitor["podMetricsEndpoints"][0]["port"] == OBJECTS["Service"]["spec"]["ports"][0]["targetPort"] == port
    assert f"USER {USER}\n" in (ROOT / "examples" / "Dockerfile").read_text(encoding="utf-8")


def test_promtool_accepts_the_rules(release: Release, tmp_path: Path) -> None:
    """Those of the fleet, and those in the manifest."""
    inside = tmp_path / "rules.yml"
    inside.write_text(yaml.safe_dump(OBJECTS["PrometheusRule"]["spec"]))
    command = [release.program("promtool"), "check", "rules", str(FOLDER / "fleet.rules.yml"), str(inside)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.count("SUCCESS") == 2, done.stdout + done.stderr


RULES = "".join((FOLDER / name).read_text(encoding="utf-8") for name in ("fleet.rules.yml", "monitoring.yaml"))
READ = set(re.findall(r"(?<!:)\b(tailwatch_[a-z_]+)(?=[\[{])", RULES))


def test_the_rules_use_metrics_that_exist() -> None:
    """As the guide lists them."""
    guide = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    used = {re.sub(r"_(total|bucket)$", "", name) for name in READ}

    assert len(used) > 4
    assert [name for name in used if f"`{name}`" not in guide] == []


def test_what_the_guide_keeps_suffices_for_the_rules() -> None:
    """Its relabelling drops nothing that a rule or an alert of the fleet reads."""
    guide = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(metricRelabelings:.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    (kept,) = yaml.safe_load(block)["metricRelabelings"]

    assert kept["action"] == "keep"
    assert [name for name in READ if not re.fullmatch(kept["regex"], name)] == []


# ---- under the restrictions ----

# What the image has, wherever it is here: a volume may lie over it.
IMAGE = {str(ROOT), sys.prefix, sys.base_prefix}


def mounts(volume: str, at: str) -> str:
    """Commands that mount a volume. Its folder has the mode that the kubelet gives it with fsGroup: for all users, and
    not sticky."""
    size = VOLUMES[volume]["sizeLimit"].removesuffix("i")
    covered = [(each, f"/mnt{each.removeprefix(at)}") for each in sorted(IMAGE) if each.startswith(at + "/")]
    bound = [f"mkdir -p {to}; mount --bind {each} {to}" for each, to in covered]
    return "; ".join([f"mount -t tmpfs -o mode=2777,size={size} tmpfs /mnt", *bound, f"mount --rbind /mnt {at}"])


MOUNTS = "; ".join(mounts(each["name"], each["mountPath"]) for each in SERVER["volumeMounts"])
WITHOUT_RIGHTS = (
    "unshare", "--pid", "--fork", "--mount-proc", "--kill-child",
    "unshare", "--user", f"--map-user={USER}", f"--map-group={USER}", "setpriv", "--no-new-privs",
)  # fmt: skip
OUR_FILTER = (sys.executable, str(ROOT / "tests" / "support" / "seccomp.py"))
CPUS = 0.4  # less than the scene's server needs


def in_pod(container: tuple[str, ...]) -> tuple[str, ...]:
    """Starts a command with the mounts of the pod, once the init container has run."""
    as_pod = f'set -e; {MOUNTS}; mount -o remount,bind,ro /; {shlex.join([*container, *INIT["command"]])}; exec "$@"'
    return ("unshare", "--mount", "--ipc", "sh", "-c", as_pod, "pod")


_tried = (
    subprocess.run([*in_pod(WITHOUT_RIGHTS), *WITHOUT_RIGHTS, *OUR_FILTER, "true"], capture_output=True, text=True)
    if shutil.which("unshare") and shutil.which("setpriv")
    else None
)
in_namespaces = pytest.mark.skipif(
    _tried is None or _tried.returncode != 0,
    reason=f"no such namespaces can be made here: {_tried.stderr.strip() if _tried else 'unshare is not installed'}",
)


@dataclass
class Pod:
    """A server, and the limits of its container."""

    server: Serving
    limits: Limits
    container: tuple[str, ...]

    def exec_in_sidecar(self, *command: str) -> subprocess.CompletedProcess[str]:
        """As `kubectl exec -c tailwatch`. To its end."""
        enter = ("nsenter", "--target", str(self.server.pid), "--mount", "--ipc")
        with limited("sidecar", SIDECAR["resources"]["limits"]["memory"], 1) as limits:
            variables = {**env_of(SIDECAR), **limits.variable, "COLUMNS": "200", "PYTHONDONTWRITEBYTECODE": "1"}
            start = [*ENTER, *enter, *self.container, *command]
            return subprocess.run(start, env=clean_environment(**variables), capture_output=True, text=True, timeout=50)


def stream(server: Serving) -> None:
    """A request, to its end."""
    asked = urllib.request.Request(f"http://127.0.0.1:{server.port}/v1/completions", method="POST")
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert b"[DONE]\n\n" in answer.read()


def docker_filter() -> tuple[str, ...]:
    """Starts a command under Docker's own default profile."""
    try:
        library()
    except OSError as error:
        pytest.skip(f"libseccomp is not installed: {error}")
    found = default_profile()
    if isinstance(found, str):
        pytest.skip(found)
    return (sys.executable, str(ROOT / "tests" / "support" / "docker_seccomp.py"), str(found))


@pytest.fixture(params=["ours", "docker"])
def pod(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pod]:
    """The server of the guides' scene, as the manifest restricts it, under a filter of system calls; a thread has kept
    its interpreter lock while it streamed, and a sort its event loop."""
    server = (sys.executable, ROOT / "docs" / "scene.py", "0")
    container = (*WITHOUT_RIGHTS, *(OUR_FILTER if request.param == "ours" else docker_filter()))
    with limited("server", SERVER["resources"]["limits"]["memory"], CPUS) as limits:
        variables = {**env_of(SERVER), **limits.variable, "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/tmp"}
        start = (*ENTER, *in_pod(container), *container, *server)
        with Serving(*start, log=tmp_path / "log", env=clean_environment(**variables), cwd=ROOT) as serving:
            for _ in range(2):
                stream(serving)
            yield Pod(serving, limits, container)


@in_namespaces
@pytest.mark.integration
def test_the_server_and_the_sidecar_work_so_restricted(pod: Pod) -> None:
    """Metrics are served, nothing fails inside, and the commands of the manifest's first lines see the server live."""
    with urllib.request.urlopen(f"http://127.0.0.1:{pod.server.port}/metrics", timeout=30) as answer:
        metrics = answer.read().decode()
    assert 'tailwatch_output_tokens_total{model_name="toy",route="/v1/completions"} 200' in metrics
    assert re.findall(r"^tailwatch_internal_errors_total\{.*\} (?!0)", metrics, re.MULTILINE) == []

    probe = "id -u; grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status; touch /written || echo read-only; "
    probe += "unshare --user true || echo no namespaces"
    rights = pod.exec_in_sidecar("sh", "-c", probe)
    expected = [str(USER), "CapEff:", "0" * 16, "NoNewPrivs:", "1", "Seccomp:", "2", "read-only", "no", "namespaces"]
    assert rights.stdout.split() == expected, rights

    top = pod.exec_in_sidecar(*TAILWATCH, "top", "--once")
    assert top.returncode == 0 and re.search(r"^ *api-0 .*running", top.stdout, re.MULTILINE), top.stdout + top.stderr
    text = (FOLDER / "server.yaml").read_text(encoding="utf-8")
    (why,) = re.findall(r"kubectl exec .* -- tailwatch (why .*)$", text, re.MULTILINE)

    def named() -> str:
        """What `why` prints, once stacks were read, with no call that the filter answers by a kill. A busy machine can
        take the CPU for longer than what is planted."""
        printed = pod.exec_in_sidecar(*TAILWATCH, *shlex.split(why)).stdout
        if "held by match" in printed and "rank" in printed:
            return printed
        stream(pod.server)
        return ""

    printed = until(named, "both planted causes are named")
    assert pod.exec_in_sidecar(*TAILWATCH, "doctor").returncode in (0, 1)
    assert pod.server.running
    if pod.limits.throttled():
        assert re.search(r'delay_seconds_total\{cause="(?:throttled|cpu)".* [\d.]*[1-9]', metrics), printed
