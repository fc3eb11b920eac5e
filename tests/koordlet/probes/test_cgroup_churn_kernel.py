"""The walk of all cgroups and the repeated walk of a tree with 1,000 cgroups, of which 50 per second come and go."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from koordlet.probes.cgroup_stats import CONTROLLERS, CgroupStats
from koordlet.system.cgroup.tree import RepeatedWalk, cgroup_id, walk_ids
from koordlet.system.cpu.possible import possible_cpus
from koordlet.system.host import Host

pytestmark = pytest.mark.kernel

GROUPS = 1000
PODS = 100
CHURN_PER_SECOND = 50
LIVED = 10
"""Groups that exist at a time of those that come and go."""
SEEN = 100
"""Of those, as many must be seen by each reader."""
PATIENCE_S = 120.0


@pytest.fixture
def roots(kernel_host: Host, cgroup_child: Callable[[str], Any]) -> Iterator[dict[str, Path]]:
    """Controller -> a directory of the test in its hierarchy, with `GROUPS` groups below `PODS`."""
    parent = cgroup_child("churn")
    mounts = kernel_host.facts.cgroup_mounts
    hierarchies = {name: mounts.hierarchy(name) for name in CONTROLLERS}
    roots = {name: root / parent.dir for name, root in hierarchies.items() if root is not None}
    directories: list[Path] = []
    try:
        for root in set(roots.values()):
            for number in range(PODS):
                pod = root / f"pod{number}"
                directories += [pod, *(pod / f"c{child}" for child in range(GROUPS // PODS - 1))]
        for path in directories:
            path.mkdir()
        yield roots
    finally:
        for path in reversed(directories):
            path.rmdir()


@contextmanager
def churn(roots: set[Path]) -> Iterator[None]:
    """Create and remove groups in each hierarchy until the context ends."""
    done = threading.Event()
    failures: list[OSError] = []

    def run() -> None:
        pods: list[list[Path]] = []
        try:
            for number in itertools.count():
                pods.append([root / f"pod{number % PODS}" / f"short{number}" for root in roots])
                for path in pods[-1]:
                    path.mkdir()
                if len(pods) > LIVED or done.is_set():
                    for path in pods.pop(0):
                        path.rmdir()
                if done.wait(1 / CHURN_PER_SECOND):
                    break
        except OSError as error:
            failures.append(error)
        finally:
            for path in itertools.chain(*pods):
                path.rmdir()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    assert not failures


def test_no_group_is_lost_while_others_come_and_go(kernel_host: Host, roots: dict[str, Path]) -> None:
    facts, distinct = kernel_host.facts, set(roots.values())
    repeated = {root: RepeatedWalk(root) for root in distinct}
    stay = {root: dict(walk_ids(root)) for root in distinct}
    assert {len(groups) for groups in stay.values()} == {GROUPS + 1}
    by_kernel: set[int] = set()
    by_walk: set[str] = set()
    stats = CgroupStats(
        roots, unified=facts.cgroup_version == 2, cpus=possible_cpus(kernel_host.roots), page_size=facts.page_size
    )
    try:
        with churn(distinct):
            deadline = time.monotonic() + PATIENCE_S
            while len(by_kernel) < SEEN * len(distinct) or len(by_walk) < SEEN:
                assert time.monotonic() < deadline, (len(by_kernel), len(by_walk))
                snapshot = stats.read()
                for root in distinct:
                    ids, groups = set(snapshot[str(root)].ids.tolist()), stay[root]
                    assert set(groups.values()) <= ids
                    by_kernel |= ids - set(groups.values())
                    walked = dict(repeated[root].walk_ids())
                    assert groups.items() <= walked.items()
                    by_walk |= walked.keys() - groups.keys()
        assert all(path.rpartition("/")[2].startswith("short") for path in by_walk)
        after = stats.read()
        for root in distinct:
            assert set(after[str(root)].ids.tolist()) == set(stay[root].values())
            assert dict(repeated[root].walk_ids()) == stay[root]
            assert cgroup_id(root) in stay[root].values()
    finally:
        stats.close()
