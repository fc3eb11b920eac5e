"""koordlet with the capabilities of `koordlet.system.capabilities` and no others, and without each of them.

The bounding set of the process is reduced before it starts; it runs as root. A function is called in a process of its
own, as koordlet calls it, with the whole set and with the set without one capability: only the latter is refused.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from koordlet.system.capabilities import CAPABILITIES
from koordlet.system.cgroup.naming import KubeQOS
from tests.ports import free_port

pytestmark = pytest.mark.kernel

ROOT = Path(__file__).resolve().parents[3]
ALL = tuple(each.name.lower() for each in CAPABILITIES)
NOBODY = 65534


def confined(capabilities: Iterable[str]) -> list[str]:
    """The beginning of a command that has no other capabilities."""
    bounds = ",".join(["-all", *(f"+{name}" for name in capabilities)])
    return ["setpriv", f"--bounding-set={bounds}", "--inh-caps=-all"]


def available(name: str) -> bool:
    """Whether this machine lets root have the capability; a container may lack SYS_RESOURCE."""
    numbers = {"dac_override": 1, "net_admin": 12, "sys_ptrace": 19, "sys_resource": 24}
    status = Path("/proc/self/status").read_text()
    return bool(int(status.split("CapBnd:")[1].split()[0], 16) >> numbers[name] & 1)


def without(name: str) -> list[str]:
    return [each for each in ALL if each != name]


def works(code: str, capabilities: Iterable[str], *before: str) -> bool:
    """Whether the code, which prints a JSON boolean, does what it should. PermissionError counts as no."""
    program = (
        "import json, os, sys\nfrom pathlib import Path\nfrom koordlet.system.roots import Roots\n"
        f"def attempt():\n{''.join(f'    {line}{os.linesep}' for line in code.splitlines())}"
        "try:\n    print(json.dumps(bool(attempt())))\n"
        "except Exception as error:\n    import errno\n"
        "    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error\n"
        "    if getattr(cause, 'errno', None) not in (errno.EPERM, errno.EACCES): raise\n    print('false')\n"
    )
    done = subprocess.run(
        [*before, *confined(capabilities), sys.executable, "-c", program],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return bool(json.loads(done.stdout))


@contextmanager
def running(*command: str) -> Iterator[int]:
    """The pid of a process that has printed a line."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        process.communicate()


@contextmanager
def sleeper(*before: str) -> Iterator[str]:
    with running(*before, "sh", "-c", "echo ready; exec sleep 600") as pid:
        yield str(pid)


@contextmanager
def listener() -> Iterator[str]:
    """A process with all capabilities that listens, like a kubelet."""
    port = free_port()
    code = f"import socket, time; s = socket.create_server(('', {port})); print(flush=True); time.sleep(600)"
    with running(sys.executable, "-S", "-c", code):
        yield str(port)


@contextmanager
def nothing() -> Iterator[str]:
    yield ""


SCORE = "from koordlet.system.write import write_value\nwrite_value('/proc/{}/oom_score_adj', '{}')\nreturn True"
LISTENER = "from koordlet.system.cgroup.naming import listening_pid\nreturn listening_pid(Roots.host(), {})"
TRAFFIC = (
    "from koordlet.system.network.netlink import Netlink\nfrom koordlet.system.network.tc import Traffic\n"
    "traffic = Traffic(Netlink())\ntraffic.make_root(traffic.index('lo'), 1)\nreturn traffic.root(traffic.index('lo'))"
)
SYMBOLS = (
    "from koordlet.system.proc.kallsyms import function_ranges\nreturn function_ranges(Path('/proc'), ['schedule'])"
)
FUNCTIONS: dict[str, tuple[Callable[[], Any], str, tuple[str, ...]]] = {
    "sys_resource": (sleeper, SCORE.format("{}", -500), ()),
    "dac_override": (
        lambda: sleeper("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
        SCORE.format("{}", 300),
        (),
    ),
    "sys_ptrace": (listener, LISTENER, ()),
    "net_admin": (nothing, TRAFFIC, ("unshare", "--net")),
}  # fmt: skip
"""Capability -> a target, code with the target filled in, and what runs before it."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_capability_is_needed(name: str) -> None:
    target, code, before = FUNCTIONS[name]
    with target() as value:
        assert works(code.format(value), ALL, *before) == available(name)
    with target() as value:
        assert not works(code.format(value), without(name), *before)


def test_addresses_of_functions_need_syslog_or_permissive_sysctls() -> None:
    hidden = any(
        int(Path("/proc/sys/kernel", name).read_text()) > limit
        for name, limit in (("kptr_restrict", 0), ("perf_event_paranoid", 1))
    )
    assert works(SYMBOLS, ALL)
    assert works(SYMBOLS, without("syslog")) == (not hidden)


class ConfinedView:
    """A view whose processes have these capabilities only."""

    def __init__(self, view: Any, capabilities: Iterable[str]) -> None:
        self._view, self._capabilities = view, list(capabilities)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    def enter(self, command: list[str], user: int | None = None) -> list[str]:
        entered: list[str] = self._view.enter([*confined(self._capabilities), *command], user)
        return entered


def probes(view: Any, koordlets: Any, capabilities: Iterable[str]) -> dict[str, str]:
    """The source of each probe of a koordlet with these capabilities."""
    koordlet = koordlets(ConfinedView(view, capabilities)).wait()
    sources = {probe["name"]: probe["source"] for probe in koordlet.top()["probes"]}
    assert koordlet.terminate() == 0
    return sources


def test_koordlet_has_all_probes_with_these_capabilities(trees: Any, views: Any, koordlets: Any) -> None:
    tree = trees()
    tree.pod(KubeQOS.BURSTABLE)
    view = views(tree)
    assert set(probes(view, koordlets, ALL).values()) == {"bpf"}
    some = probes(view, koordlets, without("sys_admin"))
    assert {some["sched_latency"], some["mem_stall"], some["block_io"]} == {"bpf"}, "BPF and PERFMON suffice for these"
    assert some["cgroup_stats"] == "files"
    for name in ("bpf", "perfmon"):
        left = probes(view, koordlets, [each for each in without(name) if each != "sys_admin"])
        assert "bpf" not in left.values()
