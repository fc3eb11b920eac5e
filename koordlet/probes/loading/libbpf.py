"""A thin binding of libbpf.so.1, and the few bpf(2) calls beside it.

It covers only what loading a prebuilt object needs: open it, write its read-only settings, size and pin its maps, load,
attach, and read run-time statistics. Tables are mapped into memory (`mapped`), so there is no access to single entries
here. libbpf 1.1 (Debian 12) is enough. The library's warnings during a call become a part of the error that is raised,
because the verifier's reason is reported nowhere else.

Not thread-safe: there is one buffer for the log of a call.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIBRARY = "libbpf.so.1"
LOG_LINES = 200
"""Lines kept per call; the verifier can write megabytes, with its reason at the end."""

_BTF_KIND_TYPEDEF = 8
_BTF_KIND_FUNC = 12
_BTF_KIND_VAR = 14
_BTF_KIND_DATASEC = 15
_DEBUG = 2


_OWN_ERRORS = 4000
"""libbpf's own error numbers begin here."""

_FRAMES = ("libbpf: failed to", "libbpf: prog", "-- ", "processed ")
"""Prefixes of the lines that libbpf prints around the verifier's reason."""


class BpfError(Exception):
    """A bpf operation failed. `errno` is the kernel's error number, `log` what libbpf logged meanwhile."""

    def __init__(self, operation: str, code: int, log: tuple[str, ...] = ()) -> None:
        self.operation = operation
        self.errno = code
        self.log = log
        reasons = [line for line in log if not line.startswith(_FRAMES)]
        detail = f": {reasons[-1]}" if reasons else ""
        meaning = os.strerror(code) if code < _OWN_ERRORS else "refused by libbpf"
        super().__init__(f"{operation}: {meaning}{detail}")


class LibbpfMissing(BpfError):
    """libbpf.so.1 is not installed."""


class _ProgInfo(ctypes.Structure):
    """struct bpf_prog_info of v5.12 on; an older kernel fills in its part."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("tag", ctypes.c_uint8 * 8),
        ("jited_prog_len", ctypes.c_uint32),
        ("xlated_prog_len", ctypes.c_uint32),
        ("jited_prog_insns", ctypes.c_uint64),
        ("xlated_prog_insns", ctypes.c_uint64),
        ("load_time", ctypes.c_uint64),
        ("created_by_uid", ctypes.c_uint32),
        ("nr_map_ids", ctypes.c_uint32),
        ("map_ids", ctypes.c_uint64),
        ("name", ctypes.c_char * 16),
        ("ifindex", ctypes.c_uint32),
        ("gpl_compatible", ctypes.c_uint32),
        ("netns_dev", ctypes.c_uint64),
        ("netns_ino", ctypes.c_uint64),
        ("nr_jited_ksyms", ctypes.c_uint32),
        ("nr_jited_func_lens", ctypes.c_uint32),
        ("jited_ksyms", ctypes.c_uint64),
        ("jited_func_lens", ctypes.c_uint64),
        ("btf_id", ctypes.c_uint32),
        ("func_info_rec_size", ctypes.c_uint32),
        ("func_info", ctypes.c_uint64),
        ("nr_func_info", ctypes.c_uint32),
        ("nr_line_info", ctypes.c_uint32),
        ("line_info", ctypes.c_uint64),
        ("jited_line_info", ctypes.c_uint64),
        ("nr_jited_line_info", ctypes.c_uint32),
        ("line_info_rec_size", ctypes.c_uint32),
        ("jited_line_info_rec_size", ctypes.c_uint32),
        ("nr_prog_tags", ctypes.c_uint32),
        ("prog_tags", ctypes.c_uint64),
        ("run_time_ns", ctypes.c_uint64),
        ("run_cnt", ctypes.c_uint64),
        ("recursion_misses", ctypes.c_uint64),
    )


class _MapInfo(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("key_size", ctypes.c_uint32),
        ("value_size", ctypes.c_uint32),
        ("max_entries", ctypes.c_uint32),
        ("map_flags", ctypes.c_uint32),
        ("name", ctypes.c_char * 16),
    )


class _LinkInfo(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("prog_id", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
        ("rest", ctypes.c_uint8 * 64),
    )


class _BtfType(ctypes.Structure):
    """struct btf_type"""

    _fields_ = (("name_off", ctypes.c_uint32), ("info", ctypes.c_uint32), ("type", ctypes.c_uint32))


class _BtfVariable(ctypes.Structure):
    """struct btf_var_secinfo"""

    _fields_ = (("type", ctypes.c_uint32), ("offset", ctypes.c_uint32), ("size", ctypes.c_uint32))


class _IterOptions(ctypes.Structure):
    """struct bpf_iter_attach_opts"""

    _fields_ = (("size", ctypes.c_size_t), ("link_info", ctypes.c_void_p), ("link_info_len", ctypes.c_uint32))


@dataclass(frozen=True, slots=True)
class MapInfo:
    """The shape of a map."""

    id: int
    key_size: int
    value_size: int
    max_entries: int


@dataclass(frozen=True, slots=True)
class ProgramStats:
    """Cumulative since load; both zero unless statistics were on while it ran (kernel.bpf_stats_enabled)."""

    name: str
    run_ns: int
    runs: int
    missed: int
    """Runs that the kernel skipped because the program was already running on that CPU."""


_log: deque[str] = deque(maxlen=LOG_LINES)
_PRINT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_libc = ctypes.CDLL(None)
_lib: ctypes.CDLL | None = None


@_PRINT  # type: ignore[untyped-decorator]
def _print(level: int, fmt: bytes, args: int) -> int:
    """libbpf's log callback. ``args`` is a va_list, which every supported ABI passes as a pointer."""
    if level < _DEBUG:
        buffer = ctypes.create_string_buffer(1 << 20)  # the verifier's whole log can be one message
        _libc.vsnprintf(buffer, len(buffer), fmt, ctypes.c_void_p(args))
        _log.extend(line for line in buffer.value.decode(errors="replace").splitlines() if line.strip())
    return 0


_POINTER_RESULTS = {
    "bpf_object__open_file": (ctypes.c_char_p, ctypes.c_void_p),
    "bpf_object__find_map_by_name": (ctypes.c_void_p, ctypes.c_char_p),
    "bpf_object__find_program_by_name": (ctypes.c_void_p, ctypes.c_char_p),
    "bpf_map__initial_value": (ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)),
    "bpf_program__attach": (ctypes.c_void_p,),
    "bpf_program__attach_iter": (ctypes.c_void_p, ctypes.c_void_p),
    "btf__load_vmlinux_btf": (),
    "btf__type_by_id": (ctypes.c_void_p, ctypes.c_uint32),
}
_INT_RESULTS = {
    "bpf_object__load": (ctypes.c_void_p,),
    "bpf_map__fd": (ctypes.c_void_p,),
    "bpf_map__set_max_entries": (ctypes.c_void_p, ctypes.c_uint32),
    "bpf_map__set_pin_path": (ctypes.c_void_p, ctypes.c_char_p),
    "bpf_program__set_autoload": (ctypes.c_void_p, ctypes.c_bool),
    "bpf_program__fd": (ctypes.c_void_p,),
    "bpf_link__fd": (ctypes.c_void_p,),
    "bpf_iter_create": (ctypes.c_int,),
    "bpf_link__destroy": (ctypes.c_void_p,),
    "bpf_obj_get": (ctypes.c_char_p,),
    "bpf_obj_pin": (ctypes.c_int, ctypes.c_char_p),
    "bpf_prog_get_fd_by_id": (ctypes.c_uint32,),
    "bpf_obj_get_info_by_fd": (ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint32)),
    "bpf_enable_stats": (ctypes.c_int,),
    "btf__find_by_name_kind": (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32),
}


def _library() -> ctypes.CDLL:
    global _lib
    if _lib is None:
        try:
            lib = ctypes.CDLL(LIBRARY, use_errno=True)
        except OSError as error:
            raise LibbpfMissing(f"{LIBRARY} (Debian: libbpf1)", errno.ENOENT, (str(error),)) from error
        for names, result in ((_POINTER_RESULTS, ctypes.c_void_p), (_INT_RESULTS, ctypes.c_int)):
            for name, arguments in names.items():
                function = getattr(lib, name)
                function.argtypes, function.restype = arguments, result
        for name in ("bpf_object__close", "btf__free"):
            function = getattr(lib, name)
            function.argtypes, function.restype = (ctypes.c_void_p,), None
        lib.libbpf_set_print.argtypes, lib.libbpf_set_print.restype = (_PRINT,), ctypes.c_void_p
        lib.libbpf_set_print(_print)
        _lib = lib
    return _lib


def _call(operation: str, name: str, *args: Any) -> int:
    """Call the library function `name`; NULL or a negative result becomes a `BpfError` with the library's log."""
    function = getattr(_library(), name)
    _log.clear()
    ctypes.set_errno(0)
    result = function(*args)
    if name in _POINTER_RESULTS:
        if not result:
            raise BpfError(operation, ctypes.get_errno() or errno.EINVAL, tuple(_log))
    elif result < 0:
        # Low-level calls return -1 or -errno, depending on the library's version; errno is set in both cases.
        raise BpfError(operation, ctypes.get_errno() or -result, tuple(_log))
    return int(result)


class BpfObject:
    """One ELF object from open to close. Closing it detaches nothing that is pinned."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._links: list[int] = []
        self._object = _call(f"open {path}", "bpf_object__open_file", os.fsencode(path), None)

    def __enter__(self) -> BpfObject:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _map(self, name: str) -> int:
        return _call(f"{self.path}: map {name}", "bpf_object__find_map_by_name", self._object, name.encode())

    def _program(self, name: str) -> int:
        return _call(f"{self.path}: program {name}", "bpf_object__find_program_by_name", self._object, name.encode())

    def set_rodata(self, section: str, content: bytes) -> None:
        """Write `content` over the start of a ``.rodata.*`` section; before `load`."""
        size = ctypes.c_size_t()
        address = _call(f"{self.path}: {section}", "bpf_map__initial_value", self._map(section), ctypes.byref(size))
        if len(content) > size.value:
            raise ValueError(f"{self.path}: {section} holds {size.value} bytes, not {len(content)}")
        ctypes.memmove(address, content, len(content))

    def set_map_size(self, name: str, entries: int) -> None:
        """Before `load`."""
        _call(f"{self.path}: size {name}", "bpf_map__set_max_entries", self._map(name), entries)

    def pin_map(self, name: str, path: Path) -> None:
        """At `load`, use the map pinned at `path` if there is one of the same shape, else pin the new one there."""
        _call(f"{self.path}: pin {name}", "bpf_map__set_pin_path", self._map(name), os.fsencode(path))

    def skip_program(self, name: str) -> None:
        """Do not load this program."""
        _call(f"{self.path}: skip {name}", "bpf_program__set_autoload", self._program(name), False)

    def load(self) -> None:
        """Raises `BpfError`; its `log` ends with the reason of the verifier or of libbpf."""
        _call(f"load {self.path.name}", "bpf_object__load", self._object)

    def map_fd(self, name: str) -> int:
        """The map's descriptor, owned by the object."""
        return _call(f"{self.path}: map {name}", "bpf_map__fd", self._map(name))

    def attach(self, program: str, iterate: bytes | None = None) -> int:
        """Attach by the program's section name; an iterator walks what `iterate` selects (``union
        bpf_iter_link_info``). Returns the link's descriptor, owned by the object."""
        if iterate is None:
            link = _call(f"attach {program}", "bpf_program__attach", self._program(program))
        else:
            info = ctypes.create_string_buffer(iterate, len(iterate))
            options = _IterOptions(ctypes.sizeof(_IterOptions), ctypes.addressof(info), len(iterate))
            operation = f"attach {program}"
            link = _call(operation, "bpf_program__attach_iter", self._program(program), ctypes.byref(options))
        self._links.append(link)
        return _call(f"attach {program}", "bpf_link__fd", link)

    def close(self) -> None:
        """Destroy links that are not pinned, and the object."""
        links, self._links = self._links, []
        for link in links:
            _library().bpf_link__destroy(link)
        if self._object:
            _library().bpf_object__close(self._object)
            self._object = 0


def pin(fd: int, path: Path) -> None:
    """Pin a map, program or link in a bpf file system."""
    _call(f"pin {path}", "bpf_obj_pin", fd, os.fsencode(path))


def open_pinned(path: Path) -> int:
    """A new descriptor of the object pinned at `path`; the caller closes it."""
    return _call(f"open {path}", "bpf_obj_get", os.fsencode(path))


ITER_DESCENDANTS_PRE = 2


def cgroup_iter(order: int, cgroup_fd: int = 0) -> bytes:
    """``union bpf_iter_link_info`` of an ``iter/cgroup`` program; no descriptor means the root of v2."""
    return struct.pack("=IIQ", order, cgroup_fd, 0)


def iterator(link_fd: int) -> int:
    """Start a run of an iterator's link: read the descriptor to its end and close it."""
    return _call("start an iterator", "bpf_iter_create", link_fd)


def _info(fd: int, info: ctypes.Structure, operation: str) -> None:
    size = ctypes.c_uint32(ctypes.sizeof(info))
    _call(operation, "bpf_obj_get_info_by_fd", fd, ctypes.byref(info), ctypes.byref(size))


def map_info(fd: int) -> MapInfo:
    """The shape of the map behind a descriptor."""
    info = _MapInfo()
    _info(fd, info, "map info")
    return MapInfo(info.id, info.key_size, info.value_size, info.max_entries)


def link_stats(fd: int) -> ProgramStats:
    """Statistics of the program behind a link."""
    link = _LinkInfo()
    _info(fd, link, "link info")
    program = _call("program of a link", "bpf_prog_get_fd_by_id", link.prog_id)
    try:
        info = _ProgInfo()
        _info(program, info, "program info")
    finally:
        os.close(program)
    return ProgramStats(info.name.decode(), info.run_time_ns, info.run_cnt, info.recursion_misses)


def kernel_has_function(name: str) -> bool:
    """Whether the running kernel's BTF has this function. Raises `BpfError` where there is no BTF."""
    return _kernel_has(name, _BTF_KIND_FUNC)


def kernel_has_tracepoint(name: str) -> bool:
    """As `kernel_has_function`, for tracepoints that ``tp_btf`` can attach to."""
    return _kernel_has(f"btf_trace_{name}", _BTF_KIND_TYPEDEF)


def tracepoint_arguments(name: str) -> int:
    """The number of arguments of a tracepoint of the running kernel, 0 when there is no such tracepoint."""
    btf = _call("read the kernel's BTF", "btf__load_vmlinux_btf")
    try:
        number = _library().btf__find_by_name_kind(btf, f"btf_trace_{name}".encode(), _BTF_KIND_TYPEDEF)
        if number <= 0:
            return 0
        for _ in range(2):  # typedef -> pointer -> prototype
            number = ctypes.cast(_library().btf__type_by_id(btf, number), ctypes.POINTER(_BtfType)).contents.type
        prototype = ctypes.cast(_library().btf__type_by_id(btf, number), ctypes.POINTER(_BtfType)).contents
        return int(prototype.info & 0xFFFF) - 1  # without the argument of the tracing machinery
    finally:
        _library().btf__free(btf)


def per_cpu_offsets(names: Collection[str]) -> dict[str, int]:
    """Offsets of the kernel's per-CPU variables in each CPU's area, in bytes; unknown variables are left out."""
    library, btf = _library(), _call("read the kernel's BTF", "btf__load_vmlinux_btf")
    try:
        kinds = {name: library.btf__find_by_name_kind(btf, name.encode(), _BTF_KIND_VAR) for name in names}
        name_of_type = {number: name for name, number in kinds.items() if number > 0}
        section = library.btf__find_by_name_kind(btf, b".data..percpu", _BTF_KIND_DATASEC)
        if section <= 0:
            return {}
        address = library.btf__type_by_id(btf, section)
        count = ctypes.cast(address, ctypes.POINTER(_BtfType)).contents.info & 0xFFFF
        rows = (_BtfVariable * count).from_address(address + ctypes.sizeof(_BtfType))
        return {name_of_type[row.type]: row.offset for row in rows if row.type in name_of_type}
    finally:
        library.btf__free(btf)


def _kernel_has(name: str, kind: int) -> bool:
    btf = _call("read the kernel's BTF", "btf__load_vmlinux_btf")
    try:
        return bool(_library().btf__find_by_name_kind(btf, name.encode(), kind) > 0)
    finally:
        _library().btf__free(btf)
