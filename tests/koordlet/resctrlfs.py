"""An emulation of the resctrl file system for machines without it, mounted through /dev/fuse.

    python resctrlfs.py MOUNTPOINT VENDOR [FACT=N …]

VENDOR is `intel` or `amd` (`VENDORS`): the files of `info`, the form of masks and the units of memory bandwidth differ.
Facts replace a field of the vendor: `closids` (classes of service, here 4), `min_cbm_bits`, `sparse_masks`.

It refuses what the kernel refuses (Documentation/filesystems/resctrl.rst, fs/resctrl, arch/x86/kernel/cpu/resctrl):
- Groups are made only in the root or in `mon_groups`, and at most one per class of service. Files are never made.
- A schemata line needs its newline, known resources and domains, masks within `cbm_mask` and bandwidth within range.
- `tasks` takes ids of living tasks. A task is in one group; the tasks of a removed group return to the root group.
- `info` is read only. `info/last_cmd_status` explains the last refusal.
Files have size 0, as in kernfs. There are two cache domains. Numbers are padded as by kernels before 6.16.

Standard input takes one JSON list per line and answers `ok`: ["set", PATH, TEXT] replaces a file's content,
["fail", PATH, ERRNO] makes reading it fail, ["drop", PATH] removes a directory as an offline CPU removes its domain.
The program prints `mounted` first and ends at the end of standard input.
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
from dataclasses import dataclass, replace

DOMAINS = (0, 1)
COUNTERS = ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes")
NOATIME_NODEV_NOSUID = 1024 | 4 | 2
DETACH = 2
libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Vendor:
    """What the kernel accepts and shows on the CPUs of one vendor."""

    cache_ways: int
    shareable_bits: int
    min_cbm_bits: int
    """Shortest run of ones in a mask; 0 allows an empty mask."""
    sparse_masks: int
    """1: masks may have holes."""
    bandwidth_resources: tuple[str, ...]
    """Names of the schemata lines, in the order of the file."""
    min_bandwidth: int
    max_bandwidth: int
    bandwidth_gran: int
    """Values are rounded up to a multiple."""
    bandwidth_digits: int
    bandwidth_info: tuple[tuple[str, str], ...]
    """Files of `info/MB` that only this vendor has, or whose values are fixed per vendor."""
    mon_info: tuple[tuple[str, str], ...]
    closids: int = 4

    @property
    def cbm_mask(self) -> int:
        return (1 << self.cache_ways) - 1


VENDORS = {
    # Percent of the bandwidth. __get_mem_config_intel: minimum and granularity are both 100 - max_delay.
    "intel": Vendor(
        cache_ways=11, shareable_bits=0x600, min_cbm_bits=1, sparse_masks=0, bandwidth_resources=("MB",),
        min_bandwidth=10, max_bandwidth=100, bandwidth_gran=10, bandwidth_digits=3,
        bandwidth_info=(("delay_linear", "1"), ("thread_throttle_mode", "max")),
        mon_info=(("mon_features", "\n".join(COUNTERS)),),
    ),
    # Units of 1/8 GB/s, 2048 is unlimited. __rdt_get_mem_config_amd; SMBA and configurable events since Zen 4.
    "amd": Vendor(
        cache_ways=16, shareable_bits=0, min_cbm_bits=0, sparse_masks=1, bandwidth_resources=("SMBA", "MB"),
        min_bandwidth=0, max_bandwidth=2048, bandwidth_gran=1, bandwidth_digits=4,
        bandwidth_info=(("delay_linear", "0"),),
        mon_info=(
            ("mon_features", "llc_occupancy\nmbm_total_bytes\nmbm_total_bytes_config\n"
                             "mbm_local_bytes\nmbm_local_bytes_config"),
            ("mbm_total_bytes_config", "0=0x7f;1=0x7f"),
            ("mbm_local_bytes_config", "0=0x15;1=0x15"),
        ),
    ),
}  # fmt: skip


class Refused(OSError):
    """The kernel's refusal; `reason` goes to last_cmd_status."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.reason = reason


class Node:
    """A directory (`children`) or a file (`text`, `store` if it is writable, `error` if reading it fails)."""

    _serial = 1

    def __init__(
        self, parent: Node | None, text: str | None = None, store: Callable[[str], None] | None = None
    ) -> None:
        self.id = Node._serial
        Node._serial += 1
        self.parent = parent
        self.text = text
        self.store = store
        self.error = 0
        self.render: Callable[[], str] | None = None
        """Produces the text at each read."""
        self.children: dict[str, Node] = {}
        self.is_group = False

    def dir(self, name: str) -> Node:
        self.children[name] = directory = Node(self)
        return directory

    def file(self, name: str, text: str, store: Callable[[str], None] | None = None) -> Node:
        self.children[name] = file = Node(self, text, store)
        return file


class Tree:
    """The content; independent of FUSE."""

    def __init__(self, vendor: Vendor) -> None:
        self.vendor = vendor
        self.root = Node(None)
        self.moved: dict[int, Node] = {}
        """Task -> group, for tasks that are not in the root group."""
        info = self.root.dir("info")
        self.status = info.file("last_cmd_status", "ok\n")
        bandwidth = {
            "bandwidth_gran": vendor.bandwidth_gran,
            "min_bandwidth": vendor.min_bandwidth,
            "num_closids": vendor.closids,
            **dict(vendor.bandwidth_info),
        }
        directories: dict[str, dict[str, object]] = {
            "L3": {
                "cbm_mask": f"{vendor.cbm_mask:x}",
                "min_cbm_bits": vendor.min_cbm_bits,
                "num_closids": vendor.closids,
                "shareable_bits": f"{vendor.shareable_bits:x}",
                "sparse_masks": vendor.sparse_masks,
            },
            **dict.fromkeys(vendor.bandwidth_resources, bandwidth),
            "L3_MON": {"num_rmids": 8, "max_threshold_occupancy": 65536, **dict(vendor.mon_info)},
        }
        for name, files in directories.items():
            directory = info.dir(name)
            for file, value in files.items():
                directory.file(file, f"{value}\n")
        self._fill(self.root)

    def _fill(self, group: Node) -> None:
        vendor = self.vendor
        values = {name: dict.fromkeys(DOMAINS, vendor.max_bandwidth) for name in vendor.bandwidth_resources}
        values["L3"] = dict.fromkeys(DOMAINS, vendor.cbm_mask)
        hex_digits = -(-vendor.cache_ways // 4)

        def show() -> str:
            lines = []
            for name, domains in values.items():
                form = f"0{hex_digits}x" if name == "L3" else f"{vendor.bandwidth_digits}d"
                lines.append(f"{name:>6}:" + ";".join(f"{domain}={value:{form}}" for domain, value in domains.items()))
            return "\n".join(lines) + "\n"

        def store(text: str) -> None:
            if not text.endswith("\n"):
                raise Refused(errno.EINVAL, "")
            changed = {name: dict(domains) for name, domains in values.items()}  # all lines are accepted, or none
            for line in text.splitlines():
                name, colon, rest = line.strip().partition(":")
                if not colon:
                    raise Refused(errno.EINVAL, "Missing ':'\n")
                if name not in values:
                    raise Refused(errno.EINVAL, f"Unknown or unsupported resource name '{name}'\n")
                for pair in filter(None, rest.split(";")):
                    domain, equals, value = pair.partition("=")
                    if not equals or not domain.strip().isdigit() or int(domain) not in DOMAINS:
                        raise Refused(errno.EINVAL, "Missing '=' or non-numeric domain\n")
                    parse = self._mask if name == "L3" else self._bandwidth
                    changed[name][int(domain)] = parse(value.strip())
            values.update(changed)
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
        """Living tasks that were moved into the group; empty for the root group, which holds all others."""
        for task in [task for task in self.moved if not os.path.exists(f"/proc/{task}")]:  # noqa: PTH110
            del self.moved[task]
        return "".join(f"{task}\n" for task in sorted(self.moved) if self.moved[task] is group)

    def _mask(self, text: str) -> int:
        """cbm_validate of fs/resctrl/ctrlmondata.c."""
        try:
            mask = int(text, 16)
        except ValueError:
            raise Refused(errno.EINVAL, f"Non-hex character in the mask {text}\n") from None
        least = self.vendor.min_cbm_bits
        if (least > 0 and mask == 0) or not 0 <= mask <= self.vendor.cbm_mask:
            raise Refused(errno.EINVAL, "Mask out of range\n")
        shifted = mask // (mask & -mask) if mask else 0
        if shifted & (shifted + 1) and not self.vendor.sparse_masks:
            raise Refused(errno.EINVAL, f"The mask {mask:x} has non-consecutive 1-bits\n")
        first_run = (~shifted & (shifted + 1)).bit_length() - 1
        if first_run < least:
            raise Refused(errno.EINVAL, f"Need at least {least} bits in the mask\n")
        return mask

    def _bandwidth(self, text: str) -> int:
        """bw_validate of fs/resctrl/ctrlmondata.c."""
        low, high, step = self.vendor.min_bandwidth, self.vendor.max_bandwidth, self.vendor.bandwidth_gran
        if not text.isdigit():
            raise Refused(errno.EINVAL, f"Invalid MB value {text}\n")
        if not low <= int(text) <= high:
            raise Refused(errno.EINVAL, f"MB value {text} out of range [{low},{high}]\n")
        return -(-int(text) // step) * step

    def mkdir(self, parent: Node, name: str) -> Node:
        if parent is self.root:
            if name in parent.children:
                raise Refused(errno.EEXIST, "")
            if "\n" in name:
                raise Refused(errno.EINVAL, "")
            if sum(node.is_group for node in parent.children.values()) >= self.vendor.closids - 1:
                raise Refused(errno.ENOSPC, "Out of CLOSIDs\n")
            self._fill(parent.dir(name))
        elif parent.parent is not None and parent.parent.children.get("mon_groups") is parent:
            group = parent.dir(name)
            self._monitor(group)
            group.file("tasks", "")
            group.is_group = True
        else:
            raise Refused(errno.EPERM, "")
        return parent.children[name]

    def rmdir(self, parent: Node, name: str) -> None:
        if name not in parent.children:
            raise Refused(errno.ENOENT, "")
        if not parent.children[name].is_group:
            raise Refused(errno.EPERM, "")
        removed = parent.children.pop(name)
        self.moved = {task: group for task, group in self.moved.items() if group is not removed}

    def find(self, path: str) -> Node:
        node = self.root
        for name in filter(None, path.split("/")):
            node = node.children[name]
        return node

    def command(self, verb: str, path: str, value: str | int = "") -> None:
        node = self.find(path)
        if verb == "set":
            node.text = str(value)
            node.error = 0
            node.render = None
        elif verb == "fail":
            node.error = int(value)
        else:
            assert node.parent is not None
            del node.parent.children[path.rstrip("/").rpartition("/")[2]]


class Server:
    """The FUSE protocol (linux/fuse.h), version 7.31, one request at a time."""

    def __init__(self, tree: Tree, point: str) -> None:
        self.tree = tree
        self.point = point
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
        """Answers one request. Operations without a handler are not permitted, as in kernfs."""
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
                self.tree.status.text = error.reason or "ok\n"
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
        child = node.children.get(os.fsdecode(body.rstrip(b"\0")))
        if child is None:
            raise Refused(errno.ENOENT, "")
        return self._entry(child)

    def setattr(self, node: Node, _: bytes) -> bytes:
        return struct.pack("=QII", 0, 0, 0) + attr(node)  # O_TRUNC has no effect

    def mkdir(self, node: Node, body: bytes) -> bytes:
        return self._entry(self.tree.mkdir(node, os.fsdecode(body[8:].rstrip(b"\0"))))

    def rmdir(self, node: Node, body: bytes) -> bytes:
        self.tree.rmdir(node, os.fsdecode(body.rstrip(b"\0")))
        return b""

    def open(self, node: Node, body: bytes) -> bytes:
        (flags,) = struct.unpack_from("=I", body)
        if flags & os.O_ACCMODE != os.O_RDONLY and node.store is None:
            raise Refused(errno.EACCES, "")
        return struct.pack("=QII", 0, 1, 0)  # FOPEN_DIRECT_IO: no cache, and reads beyond size 0

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


def main(point: str, vendor: str, *facts: str) -> None:
    replaced = {name: int(value) for name, _, value in (fact.partition("=") for fact in facts)}
    server = Server(Tree(replace(VENDORS[vendor], **replaced)), point)  # type: ignore[arg-type]
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
