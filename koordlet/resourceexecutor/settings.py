"""Settings and desired values: data only.

A `Setting` identifies one value that the kernel keeps: a cgroup file of a directory, one device's line in a blkio file,
a file of the node, or an object that a store (`stores`) creates and removes. Values are in v1 units on every cgroup
version (`system.cgroup.codecs`): integers with -1 for unlimited, CPU lists in canonical form, blkio lines without their
device.
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
"""Order of settings without a cgroup that depend on each other: created in this order, removed in the opposite
order."""


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """`cgroup_dir` is relative to a hierarchy's root, without slashes at its ends; None for a file of the node
    (`system.cgroup.registry.NODE_FILES`). `device` selects one line of a blkio file (`MAJ:MIN`), a feature of the
    scheduler, or an object of a store (a resctrl group)."""

    resource: str
    cgroup_dir: str | None = None
    device: str = ""

    @property
    def depth(self) -> int:
        """Level in the tree, for writing parents before children: 0 for the node and a hierarchy's root."""
        return self.cgroup_dir.count("/") + 1 if self.cgroup_dir else RANKS.get(self.resource, 0)

    @property
    def label(self) -> str:
        """For logs, audit and tables."""
        where = self.resource if self.cgroup_dir is None else f"{self.cgroup_dir or '/'}/{self.resource}"
        return f"{where}[{self.device}]" if self.device else where


@dataclass(frozen=True, slots=True)
class DesiredSetting:
    """The value that one owner wants a setting to have."""

    setting: Setting
    value: Value
    reason: str = ""
    """For the audit log; Koordinator's word where it has one (`suppressBECPU`, `CPUBurst` ...)."""
    neutral: Value | None = None
    """The kubelet's value, to restore later, where the owner knows it better than the file's first value shows: in a
    container that a hook set up the file never had another value."""
    about: About | None = None
    """For the audit log; the cgroup or the node when None."""


@dataclass(frozen=True, slots=True)
class Action:
    """A write that is done once, now. It sets nothing, so there is nothing to restore (`memory.reclaim`)."""

    setting: Setting
    value: Value
    reason: str = ""
    about: About | None = None
