"""What nodes that were killed whole have left on this machine: found by the marks on their cgroups, and removed.

`down` of such a node would do the same, but nobody may be left who knows its state directory, or it is gone. Removed
are the kubepods cgroups that the mark is on with the processes in them, its container shims and its BPF pins; files
stay. A node is dead when neither its kubelet nor another part of it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from control.ctl.node import preflight, processes
from control.ctl.node.containers import is_part
from control.ctl.node.down import clean
from control.ctl.node.state import Lock
from control.standalone.kubelet.cgroups.directories import CgroupError, CgroupTree
from control.standalone.kubelet.cgroups.ownermark import CgroupOwner


def lives(owner: CgroupOwner) -> bool:
    """Does anything of its node run, containers not counted? They outlive it."""
    return owner.may_live() or any(
        one.argv[1:2] == ("-m",) or is_part(one.argv)  # a part; a container's shim is neither
        for one in processes.marked(Path(owner.state_dir))
    )


def reclaim(own: Path, mount: Path = preflight.CGROUP_MOUNT) -> Iterator[str]:
    """Clean up after dead nodes; a line for each. Raises CtlError when what is left can't be removed."""
    try:
        tree = CgroupTree.discover(mount)
    except CgroupError:
        return  # preflight says so
    for root, owner in preflight.other_nodes(tree, own).items():
        if lives(owner):
            continue
        state_dir = Path(owner.state_dir)
        if state_dir.is_dir():
            with Lock(state_dir):  # somebody may be about to bring it up again
                done = clean(state_dir, [root], owner.pin_dir)
        else:
            done = clean(state_dir, [root], owner.pin_dir)
        yield f"cleaned up after the node of {state_dir}, which was killed: {done}"
