"""What a killed run leaves goes before the next one; what a living run has stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from koordlet.system.host import Host

RUN = """
import os, subprocess, sys
group = f"{sys.argv[1]}/koord-test-{os.getpid()}-7"
os.makedirs(f"{group}/below")
for name in ("cpuset.cpus", "cpuset.mems"):
    for path in (group, f"{group}/below"):
        if os.path.exists(f"{path}/{name}"):
            open(f"{path}/{name}", "w").write(open(f"{os.path.dirname(path)}/{name}").read())
left = subprocess.Popen(["sh", "-c", 'echo $$ > "$0/below/cgroup.procs"; echo $$; exec sleep 600', group], stdout=1)
subprocess.run(["ip", "netns", "add", f"koord-test-{os.getpid()}-7"], check=True)
print("up", flush=True)
left.wait()
"""


@pytest.fixture
def killed(kernel_host: Host) -> Iterator[tuple[subprocess.Popen[str], int, Path, Path]]:
    """A stand-in for a run: its process, one that it started, their group and network namespace."""
    mounts = kernel_host.facts.cgroup_mounts
    root = mounts.hierarchy("cpu")
    assert root is not None
    process = subprocess.Popen([sys.executable, "-c", RUN, str(root)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = {process.stdout.readline().strip(), process.stdout.readline().strip()}
    child = int((lines - {"up"}).pop())
    name = f"koord-test-{process.pid}-7"
    yield process, child, root / name, Path("/run/netns") / name
    process.kill()
    process.communicate()


@pytest.mark.kernel
def test_leftovers_of_the_dead_go(
    killed: tuple[subprocess.Popen[str], int, Path, Path], kernel_host: Host, cgroup_child: Callable[..., Any],
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    process, child, group, netns = killed
    clean = conftest(request).clean_up_after_the_dead
    ours = cgroup_child("ours").path("cpu")
    clean([group.parent])
    assert group.is_dir() and netns.exists() and ours.is_dir(), "all three have a living owner"
    process.send_signal(signal.SIGKILL)
    process.wait()
    clean([group.parent])
    assert not group.exists() and not netns.exists() and ours.is_dir()
    assert not Path(f"/proc/{child}/root").exists(), "it would go on loading the machine"


@pytest.mark.kernel
def test_our_own_pids_earlier_groups_go(
    cgroup_child: Callable[..., Any], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = conftest(request)
    group = cgroup_child("old").path("cpu")
    assert group.name.startswith(f"koord-test-{os.getpid()}-")
    monkeypatch.setattr(groups, "BEGAN", group.stat().st_ctime + 1)
    assert groups._of_the_dead(group)


def conftest(request: pytest.FixtureRequest) -> Any:
    """The plugin that is tests/conftest.py, whatever name pytest has given it."""
    path = str(Path(__file__).with_name("conftest.py"))
    return next(
        plugin for plugin in request.config.pluginmanager.get_plugins() if getattr(plugin, "__file__", "") == path
    )
