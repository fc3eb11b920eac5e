"""Removes what killed nodes have left on this machine, identified by the marks on their cgroups.

`down` of such a node would do the same, but its state directory may be unknown or removed. Removed are the marked
kubepods cgroups with the processes in them, container shims and BPF pins; files stay. A node is dead when neither its
kubelet nor another of its parts runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from control.ctl.node import preflight, processes
from control.ctl.node.containers import is_part
from control.ctl.node.down import clean
from control.ctl.node.state import Lock
from control.standalone.kubelet.cgroups.directories import CgroupError, CgroupTree
from control.standalone.kubelet.cgroups.ownermark import CgroupMark


def is_alive(owner: CgroupMark, tree: CgroupTree, root: str) -> bool:
    """Whether a part of the node that owns the kubepods `root` runs. Containers do not count, as they outlive it."""
    return owner.lives(tree, root) or any(
        process.argv[1:2] == ("-m",) or is_part(process.argv)  # a part; a container's shim matches neither
        for process in processes.marked(Path(owner.state_dir))
    )


def reclaim(own: Path, mount: Path = preflight.CGROUP_MOUNT) -> Iterator[str]:
    """Clean up after dead nodes; yields a line for each. Raises CtlError when removal fails."""
    try:
        tree = CgroupTree.discover(mount)
    except CgroupError:
        return  # preflight reports it
    for root, owner in preflight.other_nodes(tree, own).items():
        if is_alive(owner, tree, root):
            continue
        state_dir = Path(owner.state_dir)
        if state_dir.is_dir():
            with Lock(state_dir):  # another koordctl may be starting it
                done = clean(state_dir, [root], owner.pin_dir)
        else:
            done = clean(state_dir, [root], owner.pin_dir)
        yield f"cleaned up after the node of {state_dir}, which was killed: {done}"
