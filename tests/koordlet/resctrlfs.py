"""A resctrl file system for machines without RDT, mounted through /dev/fuse: python resctrlfs.py MOUNTPOINT [FACT=N …].

It refuses what the kernel refuses (Documentation/filesystems/resctrl.rst, fs/resctrl): groups are made only in the root
or in mon_groups, and only as many as there are classes of service, files never; a schemata line needs its newline,
known ids, masks within cbm_mask that are wide enough and without holes, bandwidth in range; tasks take ids of living
tasks, one a write for those who want to know which was refused; info is read only; refusals are explained in
info/last_cmd_status. A task is in one group; a removed group's tasks fall to the root group; tasks that ended are in
none. Sizes are 0, as in kernfs, and counters end with a newline. Two cache domains, `closids` classes of service (4).

Facts: `closids`, `min_bits` of a mask, `sparse` 1 where masks may have holes (Arm, newer Intel), `amd` 1 for bandwidth
in eighths of GB/s up to 2048 instead of percent.

Standard input takes a JSON list a line and answers `ok`: ["set", PATH, TEXT] makes a file say TEXT, ["fail", PATH,
ERRNO] makes reading it fail, ["drop", PATH] removes a directory as an offline CPU does to its domain. It prints
`mounted` first and ends when standard input does.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import stat
import struct
import sys
from collections.abc import Callable

CBM, MIN_BANDWIDTH, STEP, AMD_UNLIMITED = 0x7FF, 10, 10, 2048
FACTS = {"closids": 4, "min_bits": 1, "sparse": 0, "amd": 0}
DOMAINS = (0, 1)
COUNTERS = ("llc_occupancy", "mbm_local_bytes", "mbm_total_bytes")
NOATIME_NODEV_NOSUID = 1024 | 4 | 2
DETACH = 2
libc = ctypes.CDLL(None, use_errno=True)


class Refused(OSError):
    """What the kernel would answer; `why` goes to last_cmd_status."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(code, why)
        self.why = why


class Node:
    """A directory (`children`) or a file (`text`, perhaps `store` for writing, `error` for a read that fails)."""

    _serial = 1

    def __init__(
        self, parent: Node | None, text: str | None = None, store: Callable[[str], None] | None = None
    ) -> None:
        self.id, Node._serial = Node._serial, Node._serial + 1
        self.parent, self.text, self.store, self.error = parent, text, store, 0
        self.render: Callable[[], str] | None = None
        """Makes the text at each reading."""
        self.children: dict[str, Node] = {}
        self.is_group = False

    def dir(self, name: str) -> Node:
        self.children[name] = made = Node(self)
        return made

    def file(self, name: str, text: str, store: Callable[[str], None] | None = None) -> Node:
        self.children[name] = made = Node(self, text, store)
        return made


class Tree:
    """The content; knows no FUSE."""

    def __init__(self, facts: dict[str, int]) -> None:
        self.facts = {**FACTS, **facts}
        self.root = Node(None)
        self.moved: dict[int, Node] = {}
        """Task -> group, for tasks that are not in the root group."""
        closids, amd = self.facts["closids"], self.facts["amd"]
        info = self.root.dir("info")
        self.status = info.file("last_cmd_status", "ok\n")
        for name, facts in {
            "L3": {
                "cbm_mask": f"{CBM:x}",
                "min_cbm_bits": self.facts["min_bits"],
                "num_closids": closids,
                "shareable_bits": "600",
                "sparse_masks": self.facts["sparse"],
            },
            "MB": {
                "bandwidth_gran": 1 if amd else STEP,
                "delay_linear": 1,
                "min_bandwidth": 1 if amd else MIN_BANDWIDTH,
                "num_closids": closids,
            },
            "L3_MON": {"mon_features": "\n".join(COUNTERS), "num_rmids": 8, "max_threshold_occupancy": 65536},
        }.items():
            directory = info.dir(name)
            for file, value in facts.items():
                directory.file(file, f"{value}\n")
        self._fill(self.root)

    def _fill(self, group: Node) -> None:
        masks, shares = dict.fromkeys(DOMAINS, CBM), dict.fromkeys(DOMAINS, AMD_UNLIMITED if self.facts["amd"] else 100)

        def show() -> str:
            bandwidth = ";".join(f"{domain}={share:3d}" for domain, share in shares.items())
            return f"    MB:{bandwidth}\n    L3:{';'.join(f'{domain}={mask:x}' for domain, mask in masks.items())}\n"

        def store(text: str) -> None:
            if not text.endswith("\n"):
                raise Refused(errno.EINVAL, "")
            new_masks, new_shares = dict(masks), dict(shares)  # a line is taken whole or not at all
            for line in text.splitlines():
                name, colon, rest = line.strip().partition(":")
                if not colon:
                    raise Refused(errno.EINVAL, "Missing ':'\n")
                if name not in ("L3", "MB"):
                    raise Refused(errno.EINVAL, f"Unknown or unsupported resource name '{name}'\n")
                for pair in filter(None, rest.split(";")):
                    domain, equals, value = pair.partition("=")
                    if not equals or not domain.strip().isdigit() or int(domain) not in DOMAINS:
                        raise Refused(errno.EINVAL, "Missing '=' or non-numeric domain\n")
                    if name == "L3":
                        new_masks[int(domain)] = self._mask(value.strip())
                    else:
                        new_shares[int(domain)] = self._bandwidth(value.strip())
            masks.update(new_masks)
            shares.update(new_shares)
            schemata.text = show()

        schemata = group.file("schemata", show(), store)
        group.file("tasks", "", lambda text: self._move(group, text)).render = lambda: self._tasks(group)
        for name, text in (("cpus", "0\n"), ("cpus_list", "\n"), ("mode", "shareable\n"), ("size", "")):
            group.file(name, text)
        group.dir("mon_groups")
        self._monitor(group)
        group.is_group = True

    @staticmethod
    def _monitor(group: Node) -> None:
        data = group.dir("mon_data")
        for domain in DOMAINS:
            directory = data.dir(f"mon_L3_{domain:02d}")
            for counter in COUNTERS:
                directory.file(counter, "0\n")

    def _move(self, group: Node, text: str) -> None:
        for word in text.strip().split(","):
            if not word.lstrip("-").isdigit() or int(word) < 0:
                raise Refused(errno.EINVAL, f"Task list parsing error pid {word}\n")
            if not os.path.exists(f"/proc/{word}"):  # noqa: PTH110
                raise Refused(errno.ESRCH, f"No task {word}\n")
            self.moved[int(word)] = group

    def _tasks(self, group: Node) -> str:
        """Of the root group nothing is told: it has everybody else."""
        for task in [task for task in self.moved if not os.path.exists(f"/proc/{task}")]:  # noqa: PTH110
            del self.moved[task]
        return "".join(f"{task}\n" for task in sorted(self.moved) if self.moved[task] is group)

    def _mask(self, text: str) -> int:
        try:
            mask = int(text, 16)
        except ValueError:
            raise Refused(errno.EINVAL, f"Non-hex character in the mask {text}\n") from None
        if mask == 0 or mask > CBM:
            raise Refused(errno.EINVAL, "Mask out of range\n")
        low = mask & -mask
        if (mask // low) & (mask // low + 1) and not self.facts["sparse"]:
            raise Refused(errno.EINVAL, f"The mask {mask:x} has non-consecutive 1-bits\n")
        if mask.bit_count() < self.facts["min_bits"]:
            raise Refused(errno.EINVAL, f"Need at least {self.facts['min_bits']} bits in the mask\n")
        return mask

    def _bandwidth(self, text: str) -> int:
        least, most, step = (1, AMD_UNLIMITED, 1) if self.facts["amd"] else (MIN_BANDWIDTH, 100, STEP)
        if not text.isdigit():
            raise Refused(errno.EINVAL, f"Invalid MB value {text}\n")
        if not least <= int(text) <= most:
            raise Refused(errno.EINVAL, f"MB value {text} out of range [{least},{most}]\n")
        return -(-int(text) // step) * step

    def mkdir(self, parent: Node, name: str) -> Node:
        if parent is self.root:
            if name in parent.children:
                raise Refused(errno.EEXIST, "")
            if "\n" in name:
                raise Refused(errno.EINVAL, "")
            if sum(node.is_group for node in parent.children.values()) >= self.facts["closids"] - 1:
                raise Refused(errno.ENOSPC, "Out of CLOSIDs\n")
            self._fill(parent.dir(name))
        elif parent.parent is not None and parent.parent.children.get("mon_groups") is parent:
            made = parent.dir(name)
            self._monitor(made)
            made.file("tasks", "")
            made.is_group = True
        else:
            raise Refused(errno.EPERM, "")
        return parent.children[name]

    def rmdir(self, parent: Node, name: str) -> None:
        if name not in parent.children:
            raise Refused(errno.ENOENT, "")
        if not parent.children[name].is_group:
            raise Refused(errno.EPERM, "")
        gone = parent.children.pop(name)
        self.moved = {task: group for task, group in self.moved.items() if group is not gone}

    def find(self, path: str) -> Node:
        node = self.root
        for name in filter(None, path.split("/")):
            node = node.children[name]
        return node

    def command(self, verb: str, path: str, value: str | int = "") -> None:
        node = self.find(path)
        if verb == "set":
            node.text, node.error, node.render = str(value), 0, None
        elif verb == "fail":
            node.error = int(value)
        else:
            assert node.parent is not None
            del node.parent.children[path.rstrip("/").rpartition("/")[2]]


class Server:
    """The FUSE protocol (linux/fuse.h), version 7.31, one request at a time."""

    def __init__(self, tree: Tree, point: str) -> None:
        self.tree, self.point = tree, point
        self.fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self.fd},rootmode=40755,user_id=0,group_id=0,allow_other".encode()
        if libc.mount(b"resctrl", point.encode(), b"fuse.resctrl", NOATIME_NODEV_NOSUID, options) != 0:
            raise OSError(ctypes.get_errno(), f"mount on {point}: {os.strerror(ctypes.get_errno())}")
        self.nodes = {1: tree.root}
        self.answers: dict[int, Callable[[Node, bytes], bytes]] = {
            1: self.lookup, 3: lambda node, _: struct.pack("=QII", 0, 0, 0) + attr(node), 4: self.setattr,
            9: self.mkdir, 11: self.rmdir, 14: self.open, 15: self.read, 16: self.write, 18: lambda *_: b"",
            17: lambda *_: struct.pack("=QQQQQIIII24x", 0, 0, 0, 0, 0, 4096, 255, 0, 0), 25: lambda *_: b"",
            26: self.init, 27: lambda *_: struct.pack("=QII", 0, 0, 0), 28: self.readdir, 29: lambda *_: b"",
        }  # fmt: skip

    def serve(self) -> None:
        """One request. Anything without an answer is not permitted, as in kernfs."""
        request = os.read(self.fd, 1 << 20)
        _, opcode, unique, nodeid = struct.unpack_from("=IIQQ", request)
        if opcode in (2, 42, 36):  # forget, interrupt: no reply
            return
        answer = self.answers.get(opcode)
        node = self.nodes.get(nodeid, self.tree.root)
        code, body = 0, b""
        try:
            if answer is None:
                raise Refused(errno.ENOSYS if opcode in (20, 22, 23, 30, 34) else errno.EPERM, "")
            body = answer(node, request[40:])
            if opcode in (9, 11, 16):
                self.tree.status.text = "ok\n"
        except Refused as error:
            code = error.errno or errno.EIO
            if opcode in (9, 11, 16):
                self.tree.status.text = error.why or "ok\n"
            body = b""
        os.write(self.fd, struct.pack("=IiQ", 16 + len(body), -code, unique) + body)

    def close(self) -> None:
        libc.umount2(self.point.encode(), DETACH)
        os.close(self.fd)

    def init(self, _: Node, __: bytes) -> bytes:
        return struct.pack("=IIIIHHIIHHI28x", 7, 31, 65536, 0, 12, 9, 65536, 1, 0, 0, 0)

    def _entry(self, node: Node) -> bytes:
        self.nodes[node.id] = node
        return struct.pack("=QQQQII", node.id, 0, 0, 0, 0, 0) + attr(node)

    def lookup(self, node: Node, body: bytes) -> bytes:
        found = node.children.get(os.fsdecode(body.rstrip(b"\0")))
        if found is None:
            raise Refused(errno.ENOENT, "")
        return self._entry(found)

    def setattr(self, node: Node, _: bytes) -> bytes:
        return struct.pack("=QII", 0, 0, 0) + attr(node)  # O_TRUNC: nothing happens

    def mkdir(self, node: Node, body: bytes) -> bytes:
        return self._entry(self.tree.mkdir(node, os.fsdecode(body[8:].rstrip(b"\0"))))

    def rmdir(self, node: Node, body: bytes) -> bytes:
        self.tree.rmdir(node, os.fsdecode(body.rstrip(b"\0")))
        return b""

    def open(self, node: Node, body: bytes) -> bytes:
        (flags,) = struct.unpack_from("=I", body)
        if flags & os.O_ACCMODE != os.O_RDONLY and node.store is None:
            raise Refused(errno.EACCES, "")
        return struct.pack("=QII", 0, 1, 0)  # direct: no cache, and reading past size 0

    def read(self, node: Node, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("=QQI", body)
        if node.error:
            raise Refused(node.error, "")
        text = node.text or "" if node.render is None else node.render()
        return text.encode()[offset : offset + size]

    def write(self, node: Node, body: bytes) -> bytes:
        size = struct.unpack_from("=QQI", body)[2]
        assert node.store is not None
        node.store(body[40 : 40 + size].decode())
        return struct.pack("=II", size, 0)

    def readdir(self, node: Node, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("=QQI", body)
        names = [(".", node), ("..", node.parent or node), *node.children.items()]
        out = b""
        for number, (name, child) in enumerate(names[offset:], offset + 1):
            raw = os.fsencode(name)
            entry = (
                struct.pack(
                    "=QQII", child.id, number, len(raw), (stat.S_IFDIR if child.text is None else stat.S_IFREG) >> 12
                )
                + raw
            )
            entry += b"\0" * (-len(entry) % 8)
            if len(out) + len(entry) > size:
                break
            out += entry
        return out


def attr(node: Node) -> bytes:
    mode = stat.S_IFDIR | 0o755 if node.text is None else stat.S_IFREG | (0o644 if node.store else 0o444)
    return struct.pack("=QQQQQQIIIIIIIIII", node.id, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def main(point: str, *facts: str) -> None:
    given = dict(fact.split("=") for fact in facts)
    server = Server(Tree({name: int(value) for name, value in given.items()}), point)
    print("mounted", flush=True)
    try:
        while True:
            ready, _, _ = select.select([server.fd, sys.stdin], [], [])
            if server.fd in ready:
                server.serve()
            elif line := sys.stdin.readline():
                server.tree.command(*json.loads(line))
                print("ok", flush=True)
            else:
                return
    finally:
        server.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
