"""deploy/runtimeproxy/node.sh on a fake node's file system, with a systemctl that keeps a log."""

from __future__ import annotations

import itertools
import os
import signal
import stat
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "deploy/runtimeproxy/node.sh"
OURS = "unix:///var/run/koord-runtimeproxy/runtimeproxy.sock"
KUBEADM = "/var/lib/kubelet/kubeadm-flags.env"
DEFAULTS = "/etc/default/kubelet"
CONFIG = "/var/lib/kubelet/config.yaml"
UNIT = "/etc/systemd/system/koord-runtime-proxy.service"
BINARY, LINK = "/opt/koord/bin/koord-runtime-proxy", "/usr/local/bin/koord-runtime-proxy"
RESTART_PROXY, RESTART_KUBELET = "restart koord-runtime-proxy.service", "restart kubelet.service"
SYSTEMCTL = """#!/bin/sh
echo "$*" >>"$NODE/log"
if [ "$*" = "$(cat "$NODE/fails" 2>/dev/null)" ]; then rm "$NODE/fails"; exit 1; fi
case $* in
  "restart koord-runtime-proxy.service")
    mkdir -p "$NODE/run/koord-runtimeproxy" && ln -f "$NODE/socket" "$NODE/run/koord-runtimeproxy/runtimeproxy.sock" ;;
  "is-active --quiet koord-runtime-proxy.service") [ -e "$NODE/run/koord-runtimeproxy/runtimeproxy.sock" ] ;;
  "disable --now koord-runtime-proxy.service") rm -f "$NODE/run/koord-runtimeproxy/runtimeproxy.sock" ;;
  "show "*) cat "$NODE/pid"; [ ! -e "$NODE/next-pid" ] || mv "$NODE/next-pid" "$NODE/pid" ;;
esac
"""


class Node:
    """A root directory, its kubelet as a process, and a log of systemctl's calls."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.put("/systemctl", SYSTEMCTL).chmod(0o755)
        self.put(BINARY, "#!/bin/sh\n").chmod(0o755)
        for socket in ("/run/containerd/containerd.sock", "/run/docker.sock", "/socket"):
            self.path(socket).parent.mkdir(parents=True, exist_ok=True)
            os.mknod(self.path(socket), stat.S_IFSOCK | 0o600)
        self.kubelets: list[subprocess.Popen[bytes]] = []
        self.kubelet()

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def put(self, name: str, text: str) -> Path:
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def text(self, name: str) -> str:
        return self.path(name).read_text()

    def kubelet(self, *flags: str, after_a_restart: bool = False) -> None:
        """A process with a kubelet's command line."""
        process = subprocess.Popen([" ".join(["kubelet", *flags]), "1000"], executable="/bin/sleep")
        self.kubelets.append(process)
        self.put("/next-pid" if after_a_restart else "/pid", f"{process.pid}\n")

    def close(self) -> None:
        for process in self.kubelets:
            process.kill()
            process.wait()

    @property
    def log(self) -> list[str]:
        return self.text("/log").splitlines() if self.path("/log").exists() else []

    def run(
        self, *arguments: str, environment: Mapping[str, str] = {}, new_session: bool = False
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ, "NODE": str(self.root), "SYSTEMCTL": str(self.path("/systemctl")),
            "START_SECONDS": "0", "SETTLE_SECONDS": "0", **environment,
        }  # fmt: skip
        command = [str(SCRIPT), *arguments, "--root", str(self.root)]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, start_new_session=new_session
        )

    def install(self, version: str = "1.28.3", *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("install", "--binary", BINARY, "--kubelet-version", version, *arguments)

    def snapshot(self) -> dict[str, str]:
        """Every file of the node, with its mode."""
        own = ("log", "systemctl", "pid", "next-pid", "fails", "socket", "steps", "synced")
        return {
            str(path.relative_to(self.root)): f"{path.stat().st_mode:o} {path.read_text()}"
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and path.name not in own
        }


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.close()


def kubeadm(flags: str) -> str:
    return f'KUBELET_KUBEADM_ARGS="{flags}"\n'


THEIRS = "unix:///run/containerd/containerd.sock"
KUBEADM_YAML = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
LINES = {
    # version, backend, files before, files after
    "dockershim": (
        "Kubernetes v1.22.17", "docker",
        {KUBEADM: kubeadm("--network-plugin=cni --pod-infra-container-image=pause:3.5")},
        {KUBEADM: kubeadm(f"--docker-endpoint={OURS} --network-plugin=cni --pod-infra-container-image=pause:3.5")},
    ),
    "dockershim with an endpoint of its own": (
        "1.20", "docker",
        {DEFAULTS: "KUBELET_EXTRA_ARGS=--docker-endpoint=unix:///var/run/docker.sock\n"},
        {DEFAULTS: f"KUBELET_EXTRA_ARGS=--docker-endpoint={OURS}\n"},
    ),
    "containerd before 1.24": (
        "v1.23.17", "containerd",
        {KUBEADM: kubeadm(f"--container-runtime=remote --container-runtime-endpoint={THEIRS} --node-ip=::1")},
        {KUBEADM: kubeadm(f"--container-runtime=remote --container-runtime-endpoint={OURS} --node-ip=::1")},
    ),
    "containerd 1.24": (
        "1.24.0", "containerd",
        {KUBEADM: kubeadm(f"--container-runtime-endpoint {THEIRS} --v=2"), DEFAULTS: "KUBELET_EXTRA_ARGS=\n"},
        {KUBEADM: kubeadm(f"--container-runtime-endpoint={OURS} --v=2"), DEFAULTS: "KUBELET_EXTRA_ARGS=\n"},
    ),
    "containerd 1.26, the runtime's default socket": (
        "1.26.1", "containerd",
        {DEFAULTS: "# nothing yet\nKUBELET_EXTRA_ARGS=\n", CONFIG: KUBEADM_YAML},
        {DEFAULTS: f"# nothing yet\nKUBELET_EXTRA_ARGS=--container-runtime-endpoint={OURS}\n", CONFIG: KUBEADM_YAML},
    ),
    "a flag wins over kubelet's configuration": (
        "1.30.2", "containerd",
        {KUBEADM: kubeadm(f"--container-runtime-endpoint={THEIRS}"), CONFIG: KUBEADM_YAML},
        {KUBEADM: kubeadm(f"--container-runtime-endpoint={OURS}"), CONFIG: KUBEADM_YAML},
    ),
    "the flag in two files": (
        "1.27.0", "containerd",
        {KUBEADM: kubeadm(f"--container-runtime-endpoint={THEIRS}"),
         DEFAULTS: f"KUBELET_EXTRA_ARGS='--a=b --container-runtime-endpoint={THEIRS}'\n"},
        {KUBEADM: kubeadm(f"--container-runtime-endpoint={OURS}"),
         DEFAULTS: f"KUBELET_EXTRA_ARGS='--a=b --container-runtime-endpoint={OURS}'\n"},
    ),
    "kubelet's configuration": (
        "1.34.1", "containerd",
        {KUBEADM: kubeadm(""), CONFIG: f'{KUBEADM_YAML}containerRuntimeEndpoint: "{THEIRS}"\n'},
        {KUBEADM: kubeadm(""), CONFIG: f"{KUBEADM_YAML}containerRuntimeEndpoint: {OURS}\n"},
    ),
    "kubelet's configuration without the field": (
        "1.27.4", "containerd",
        {CONFIG: KUBEADM_YAML},
        {CONFIG: f"{KUBEADM_YAML}containerRuntimeEndpoint: {OURS}\n"},
    ),
    "no configuration file": (
        "1.31.0", "containerd",
        {DEFAULTS: 'KUBELET_EXTRA_ARGS="--a=b"\n'},
        {DEFAULTS: f'KUBELET_EXTRA_ARGS="--container-runtime-endpoint={OURS} --a=b"\n'},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("version", "backend", "before", "after"), LINES.values(), ids=LINES)
def test_every_version_line_there_and_back(
    node: Node, version: str, backend: str, before: dict[str, str], after: dict[str, str]
) -> None:
    for name, text in before.items():
        node.put(name, text).chmod(0o640)
    untouched = node.snapshot()
    done = node.install(version, "--backend", backend)
    assert done.returncode == 0, done.stderr
    assert {name: node.text(name) for name in after} == after
    assert {stat.S_IMODE(node.path(name).stat().st_mode) for name in after} == {0o640}
    assert node.text(UNIT) == (SCRIPT.parent / backend / "koord-runtime-proxy.service").read_text()
    assert str(node.path("/usr/local/bin/koord-runtime-proxy").readlink()) == BINARY
    assert node.log.index(RESTART_PROXY) < node.log.index(RESTART_KUBELET), "the proxy listens first"

    back = node.run("rollback")
    assert back.returncode == 0, back.stderr
    assert node.snapshot() == untouched
    assert not node.path("/usr/local/bin/koord-runtime-proxy").is_symlink()
    restarted = [line for line in node.log if line in (RESTART_KUBELET, "disable --now koord-runtime-proxy.service")]
    assert restarted == [RESTART_KUBELET, RESTART_KUBELET, "disable --now koord-runtime-proxy.service"]


def test_a_drop_in_of_kubelets_unit(node: Node) -> None:
    name = "/etc/systemd/system/kubelet.service.d/20-extra.conf"
    text = '[Service]\nEnvironment="KUBELET_EXTRA_ARGS=--v=2"\n'
    node.put(name, text)
    assert node.install("1.26.0", "--kubelet-flags", name).returncode == 0
    changed = f'[Service]\nEnvironment="KUBELET_EXTRA_ARGS=--container-runtime-endpoint={OURS} --v=2"\n'
    assert node.text(name) == changed
    assert node.log[node.log.index(RESTART_KUBELET) - 1] == "daemon-reload"
    assert node.run("rollback").returncode == 0
    assert node.text(name) == text


def test_a_second_run_changes_nothing(node: Node) -> None:
    node.put(KUBEADM, kubeadm(f"--container-runtime-endpoint={THEIRS}"))
    assert node.install().returncode == 0
    before, log_length = node.snapshot(), len(node.log)
    assert node.install().returncode == 0
    assert node.snapshot() == before
    assert [line for line in node.log[log_length:] if "restart" in line] == []
    for _ in range(2):
        assert node.run("rollback").returncode == 0
    assert node.text(KUBEADM) == kubeadm(f"--container-runtime-endpoint={THEIRS}")


def test_a_file_that_kubeadm_rewrote_is_changed_again_and_its_new_content_recorded(node: Node) -> None:
    node.put(KUBEADM, kubeadm(f"--container-runtime-endpoint={THEIRS}"))
    assert node.install().returncode == 0
    assert "the kubelet uses it" in node.run("status").stdout
    renewed = kubeadm(f"--container-runtime-endpoint={THEIRS} --pod-infra-container-image=pause:3.10")
    node.put(KUBEADM, renewed)
    assert "does not name it any more" in node.run("status").stdout
    assert node.install("1.29.0").returncode == 0
    assert OURS in node.text(KUBEADM)
    assert node.run("rollback").returncode == 0
    assert node.text(KUBEADM) == renewed
    assert node.run("status").returncode == 3


CHANGED = {
    "flags": (
        KUBEADM,
        kubeadm(f"--container-runtime-endpoint={THEIRS}"),
        kubeadm(f"--container-runtime-endpoint={OURS} --v=5"),
        kubeadm(f"--container-runtime-endpoint={THEIRS} --v=5"),
    ),
    "flags that had none": (
        KUBEADM, kubeadm("--v=2"), kubeadm(f"--v=5 --container-runtime-endpoint={OURS}"), kubeadm("--v=5"),
    ),
    "configuration": (
        CONFIG,
        f"a: 1\ncontainerRuntimeEndpoint: {THEIRS}\n",
        f"a: 2\ncontainerRuntimeEndpoint: {OURS}\nb: 1\n",
        f"a: 2\nb: 1\ncontainerRuntimeEndpoint: {THEIRS}\n",
    ),
    "configuration that had none": (CONFIG, "a: 1\n", f"a: 2\ncontainerRuntimeEndpoint: {OURS}\n", "a: 2\n"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "before", "edited", "after"), CHANGED.values(), ids=CHANGED)
def test_what_was_changed_since_stays(node: Node, name: str, before: str, edited: str, after: str) -> None:
    node.put(name, before)
    assert node.install("1.30.0").returncode == 0
    node.put(name, edited)
    assert node.run("rollback").returncode == 0
    assert node.text(name) == after


REFUSED = {
    "the backend's socket": (["-containerd"], "1.28", [], "no socket /run/containerd/containerd.sock"),
    "docker's socket": (["-docker"], "1.22", ["--backend", "docker"], "no socket /run/docker.sock"),
    "kubelet's files": (["-flags"], "1.28", [], "no file with kubelet's flags (/var/lib/kubelet/kubeadm-flags.env"),
    "a file named by hand": ([], "1.28", ["--kubelet-flags", "/etc/none"], "no file with kubelet's flags (/etc/none)"),
    "a line to put it in": (["#flags"], "1.26", [], "no line with ...ARGS= in /var/lib/kubelet/kubeadm-flags.env"),
    "a binary": ([], "1.28", ["--binary", "/opt/none"], "/opt/none is not executable"),
    "a binary that the unit can see": ([], "1.28", ["--binary", "/root/venv/bin/x"], "does not see /home, /root"),
    "a version": ([], "latest", [], "cannot parse the kubelet's version 'latest'"),
    "a backend": ([], "1.28", ["--backend", "cri-o"], "--backend is containerd or docker, not 'cri-o'"),
    "an option": ([], "1.28", ["--force", "1"], "unknown option --force"),
    "dockershim where there is none": ([], "1.24", ["--backend", "docker"], f"--docker-endpoint={OURS} instead"),
    "containerd where dockershim runs": ([], "1.23", [], "kubelet 1.23 runs with dockershim"),
    "docker where containerd runs": (["+remote"], "1.23", ["--backend", "docker"], "not with Docker"),
    "a configuration in JSON": (["-flags", "+json"], "1.31", [], "is JSON: set containerRuntimeEndpoint"),
}


@pytest.mark.parametrize(("how", "version", "arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_nothing_is_touched_where_something_is_missing(
    node: Node, how: list[str], version: str, arguments: list[str], message: str
) -> None:
    texts = {"#flags": "# empty\n", "+remote": kubeadm("--container-runtime=remote")}
    node.put(KUBEADM, next((texts[option] for option in how if option in texts), kubeadm("--v=2")))
    if "-flags" in how:
        node.path(KUBEADM).unlink()
    if "+json" in how:
        node.put(CONFIG, '{"kind": "KubeletConfiguration"}\n')
    for name in ("containerd", "docker"):
        if f"-{name}" in how:
            node.path({"containerd": "/run/containerd/containerd.sock", "docker": "/run/docker.sock"}[name]).unlink()
    before = node.snapshot()
    done = node.install(version, *arguments)
    assert done.returncode == 1
    assert message in done.stderr
    assert (node.snapshot(), node.log) == (before, [])


FAULTS = ("daemon-reload", "enable koord-runtime-proxy.service", RESTART_PROXY, RESTART_KUBELET)


@pytest.mark.parametrize("fault", [*FAULTS, "no socket", "kubelet ends", "another file has the flag"])
def test_a_failed_installation_leaves_the_node_as_it_was(node: Node, fault: str) -> None:
    node.put(KUBEADM, kubeadm(f"--container-runtime-endpoint={THEIRS}"))
    before = node.snapshot()
    message = "failed; rolling back"
    if fault == "no socket":
        node.put("/systemctl", SYSTEMCTL.replace('ln -f "$NODE/socket"', "true"))
        message = "the proxy does not listen after 0 s"
    elif fault == "kubelet ends":
        node.kubelet(after_a_restart=True)
        message = "kubelet does not stay up"
    elif fault == "another file has the flag":
        node.kubelet(f"--container-runtime-endpoint={THEIRS}")
        message = f"kubelet still runs with --container-runtime-endpoint={THEIRS}: name the file"
    else:
        node.put("/fails", fault)
    done = node.install()
    assert done.returncode == 1
    assert message in done.stderr
    assert node.snapshot() == before
    assert node.install().returncode == (0 if fault in (*FAULTS, "kubelet ends") else 1), "and may be tried again"


def test_a_failed_roll_back_is_reported_and_can_be_run_again(node: Node) -> None:
    node.put(KUBEADM, kubeadm(f"--container-runtime-endpoint={THEIRS}"))
    before = node.snapshot()
    assert node.install().returncode == 0
    node.put("/fails", RESTART_KUBELET)
    done = node.run("rollback")
    assert (done.returncode, "roll-back stopped" in done.stderr) == (1, True)
    assert node.run("rollback").returncode == 0
    assert node.snapshot() == before


CUT = """#!/bin/sh
case $* in "$NODE"/fails | "$NODE"/pid) exec "/usr/bin/${0##*/}" "$@" ;; esac # systemctl's own
echo >>"$NODE/steps"
[ "$(wc -l <"$NODE/steps")" -lt "$CUT_AT" ] || kill -9 0
case $0 in */sync) exec stat -c %i "$@" >>"$NODE/synced" ;; esac
exec "/usr/bin/${0##*/}" "$@"
"""
"""Replaces every program with which node.sh writes, and the reader whose output it writes."""
WRITERS = ("cat", "cp", "ln", "mkdir", "mv", "rm", "sync", "touch")


def cut(node: Node, programs: Path, step: int, *arguments: str) -> bool:
    """Run node.sh until just before its `step`th write, when the power is cut: files that were not synced lose their
    content. False when it finished instead."""
    files = [path for name in ("/etc", "/var", "/usr") for path in node.path(name).rglob("*")]
    kept = {path.stat().st_ino for path in files if path.is_file()}
    path = f"{programs}:{os.environ['PATH']}"
    done = node.run(*arguments, environment={"PATH": path, "CUT_AT": str(step)}, new_session=True)
    if done.returncode == 0:
        return False
    assert done.returncode == -signal.SIGKILL, done.stderr
    node.path("/run/koord-runtimeproxy/runtimeproxy.sock").unlink(missing_ok=True)
    kept |= {int(inode) for inode in node.text("/synced").split()} if node.path("/synced").exists() else set()
    for path in [path for name in ("/etc", "/var") for path in node.path(name).rglob("*")]:  # type: ignore[assignment]
        if path.is_file() and path.stat().st_ino not in kept:  # type: ignore[attr-defined]
            path.write_text("")  # type: ignore[attr-defined]
    return True


@pytest.mark.parametrize("then", ["install", "rollback"])
@pytest.mark.parametrize("command", ["install", "rollback"])
def test_after_a_power_cut_at_any_moment_the_node_boots_and_can_be_mended(
    tmp_path: Path, command: str, then: str
) -> None:
    theirs, ours = (kubeadm(f"--container-runtime-endpoint={endpoint}") for endpoint in (THEIRS, OURS))
    unit = (SCRIPT.parent / "containerd/koord-runtime-proxy.service").read_text()
    arguments = {"install": ("install", "--binary", BINARY, "--kubelet-version", "1.28.3"), "rollback": ("rollback",)}
    for name in WRITERS:
        program = tmp_path / "cut" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(CUT)
        program.chmod(0o755)
    for step in itertools.count(1):
        node = Node(tmp_path / str(step))
        try:
            node.put(KUBEADM, theirs)
            before = node.snapshot()
            if command == "rollback":
                assert node.install().returncode == 0
            went = cut(node, tmp_path / "cut", step, *arguments[command])
            assert node.text(KUBEADM) in (theirs, ours), step
            if node.text(KUBEADM) == ours:
                assert (node.text(UNIT), str(node.path(LINK).readlink())) == (unit, BINARY), step
                assert "enable koord-runtime-proxy.service" in node.log, step
            done = node.run(*arguments[then])
            assert done.returncode == 0, (step, done.stderr)
            if then == "install":
                assert node.text(KUBEADM) == ours, step
                assert node.run("rollback").returncode == 0, step
            assert (node.snapshot(), os.path.lexists(node.path(LINK))) == (before, False), step
        finally:
            node.close()
        if not went:
            break
    assert step > len(WRITERS)


def test_an_image_is_prepared_without_a_systemctl(node: Node) -> None:
    node.put(KUBEADM, kubeadm("--v=2"))
    node.put("/usr/bin/kubelet", "#!/bin/sh\necho Kubernetes v1.29.1\n").chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "SYSTEMCTL"}
    command = [str(SCRIPT), "install", "--root", str(node.root), "--binary", BINARY]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "systemctl enable koord-runtime-proxy.service" in done.stdout
    assert OURS in node.text(KUBEADM)


def test_without_a_command_the_script_prints_its_commands(node: Node) -> None:
    done = subprocess.run([str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "node.sh install [--backend containerd|docker]" in done.stderr
