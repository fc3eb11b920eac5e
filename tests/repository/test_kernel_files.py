"""Only `koordlet.system` and `koordlet.resourceexecutor` open kernel files.

Checked by the calls that open, list or test files: a module of koordlet outside these two packages makes such calls
only if `OWN_FILES` says which files of koordlet or of other programs they are.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repository.sources import product_modules, tree

KERNEL_PACKAGES = ("koordlet.system", "koordlet.resourceexecutor")
OWN_FILES = {
    "koordlet/api/encoding/crdgen.py": "CustomResourceDefinitions in deploy/, at development time",
    "koordlet/app/atomicfile.py": "koordlet's state on disk",
    "koordlet/app/flags.py": "the configuration file",
    "koordlet/app/heap.py": "the process's own mappings, for every binary; app imports no package of koordlet",
    "koordlet/app/http2/server.py": "the server's own socket",
    "koordlet/app/servertls.py": "a self-signed certificate in memory",
    "koordlet/app/statelock.py": "the lock of the state directory",
    "koordlet/app/version.py": "the commit, in the package or the checkout",
    "koordlet/audit/logfile.py": "the audit log",
    "koordlet/audit/reverse.py": "the audit log",
    "koordlet/metricsadvisor/external/config.py": "the file of --external-advisors",
    "koordlet/kube/config.py": "kubeconfig and service account",
    "koordlet/kube/credentials.py": "the service account's token",
    "koordlet/metriccache/snapshot.py": "the snapshot of the metric cache",
    "koordlet/metricsadvisor/facts/xpu.py": "descriptions of accelerators, written by device daemons",
    "koordlet/prediction/checkpoints.py": "checkpoints of predictions",
    "koordlet/probes/loading/bcc.py": "sources and objects of BPF programs",
    "koordlet/probes/loading/bpffs.py": "pins of koordlet's own BPF objects, made and removed here",
    "koordlet/probes/loading/frame.py": "objects of BPF programs, and their pins",
    "koordlet/qosmanager/engine/containerstop.py": "the runtime's socket",
    "koordlet/runtimehooks/protocols/mountsources.py": "directories that hooks mount into containers",
    "koordlet/runtimehooks/protocols/nri.py": "the runtime's socket",
    "koordlet/runtimehooks/protocols/registration.py": "the registration for the runtime proxy",
    "koordlet/statesinformer/devices/slicereporter.py": "whether ResourceSlices were published",
    "koordlet/statesinformer/nrt/kubelet.py": "the kubelet's configuration and state",
    "koordlet/statesinformer/pods/kubelettls.py": "certificates of the kubelet",
    "koordlet/statesinformer/podresources/proxy.py": "the kubelet's sockets",
    "koordlet/wiring/hooks.py": "the directory of the runtime proxy's registrations",
}
"""Module -> which files it opens. No entry is a kernel file but those of bpffs and the process's own mappings."""

FUNCTIONS = frozenset({"open", "stat", "lstat", "listdir", "scandir", "walk", "readlink", "access", "statvfs"})
"""Of the module `os`; `open` is also a builtin."""
METHODS = frozenset(
    {
        "exists", "glob", "is_dir", "is_file", "is_mount", "is_socket", "iterdir", "lstat", "read_bytes", "read_text",
        "readlink", "rglob", "samefile", "stat", "write_bytes", "write_text",
    }
)  # fmt: skip
"""Of `pathlib.Path`."""


def file_access(module: ast.Module) -> Iterator[int]:
    """Lines of calls that open, list or test files."""
    for node in ast.walk(module):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id="open") | ast.Attribute(value=ast.Name(id="os"), attr="open"):
                yield node.lineno
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in FUNCTIONS:
                yield node.lineno
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="os"), attr="path")):
                if node.func.attr in ("exists", "getmtime", "getsize", "isdir", "isfile", "ismount", "realpath"):
                    yield node.lineno
            case ast.Attribute(attr=name) if name in METHODS:
                yield node.lineno
            case ast.Attribute(attr="open") if node.args or node.keywords:
                yield node.lineno


def modules_outside() -> list[Path]:
    inside = tuple(f"{package.replace('.', '/')}/" for package in KERNEL_PACKAGES)
    return [path for path in product_modules() if path.parts[0] == "koordlet" and not str(path).startswith(inside)]


def test_no_other_package_opens_kernel_files() -> None:
    places = {str(path): lines for path in modules_outside() if (lines := list(file_access(tree(path))))}
    assert {path: lines for path, lines in places.items() if path not in OWN_FILES} == {}
    assert sorted(OWN_FILES) == sorted(path for path in places if path in OWN_FILES), "an entry is not needed any more"


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("open('/proc/stat')", 1),
        ("os.open(path, os.O_RDONLY)", 1),
        ("os.scandir(path)", 1),
        ("os.path.exists(path)", 1),
        ("(roots.proc / 'stat').read_text()", 1),
        ("path.open('rb')", 1),
        ("readers.open()", 0),
        ("os.path.join(a, b); os.close(fd); figures.read_bytes", 0),
    ],
)
def test_calls_that_access_files_are_recognized(source: str, count: int) -> None:
    assert len(list(file_access(ast.parse(source)))) == count
