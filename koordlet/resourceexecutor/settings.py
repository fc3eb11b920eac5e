"""What can be set and what is wanted: data only.

A `Setting` names one value that the kernel keeps: a cgroup file of a directory, one device's line in a blkio file, a
file of the node, or an object that a store (`stores`) makes and removes. Values are in v1 terms whatever the cgroup
version (`system.cgroup.codecs`): integers with -1 for unlimited, CPU lists in canonical form, blkio lines without
their device.
"""

from __future__ import annotations

from dataclasses import dataclass

from koordlet.audit import About

Value = int | str

RANKS = {
    "resctrl.mount": 0, "resctrl.group": 1, "resctrl.L3": 2, "resctrl.MB": 2, "resctrl.tasks": 3,
    "tc.qdisc": 0, "tc.total": 1, "tc.class": 2, "tc.cgroup": 3, "tc.sources": 3, "ipset": 0, "iptables": 1,
    "terway.global": 0, "terway.pods": 0,
}  # fmt: skip
"""Of settings without a cgroup that build on each other: made in this order, removed in the opposite one."""


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """`cgroup_dir` is relative to a hierarchy's root, without slashes at its ends; None for a file of the node
    (`system.cgroup.registry.NODE_FILES`). `device` picks one line of a blkio file (`MAJ:MIN`), a feature of the
    scheduler, or a store's object (a resctrl group)."""

    resource: str
    cgroup_dir: str | None = None
    device: str = ""

    @property
    def depth(self) -> int:
        """Parents before children: 0 for the node and a hierarchy's root."""
        return self.cgroup_dir.count("/") + 1 if self.cgroup_dir else RANKS.get(self.resource, 0)

    @property
    def label(self) -> str:
        """For logs, audit and tables."""
        where = self.resource if self.cgroup_dir is None else f"{self.cgroup_dir or '/'}/{self.resource}"
        return f"{where}[{self.device}]" if self.device else where


@dataclass(frozen=True, slots=True)
class Update:
    """One wish of one owner."""

    setting: Setting
    value: Value
    reason: str = ""
    """For the audit log; the original's words where it has some (`suppressBECPU`, `CPUBurst` ...)."""
    neutral: Value | None = None
    """What the kubelet would have set, where the owner knows better than the file's first value: a container that a
    hook set up never had another one."""
    about: About | None = None
    """For the audit log; the cgroup or the node when None."""


@dataclass(frozen=True, slots=True)
class Action:
    """A write that is done once, now: it sets nothing, so there is nothing to give back (`memory.reclaim`)."""

    setting: Setting
    value: Value
    reason: str = ""
    about: About | None = None
