"""Batch work: programs of Debian with a figure of their own, and classes of it by the resource that they need.

A job runs for a fixed time in a directory of its own and leaves its figure in a file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_port
from tests.scale.colocation_real import outputs

RESULT = "result"
"""Name of the file with a job's figure."""
FILE_MIB = 1024
"""Size of the file that disk and page-cache jobs use; `node.py` writes one for each pod."""
FUNCTIONS = 40
"""Of the program that the compiler job compiles: about a third of a second of CPU time."""
NODE_MIB = 448
"""Memory of all pods together where memory is short: the services' data fit, the batch jobs' file does not."""
INTERRUPTED = 124
"""Exit status of `timeout`."""


@dataclass(frozen=True)
class Job:
    """`command` gets the job's directory, its input file and the seconds to run."""

    program: str
    unit: str
    command: Callable[[Path, Path, float], list[str]]
    rate: Callable[[str, float], float]
    """From the text of the result file and the seconds."""


def _stress(*stressor: str) -> Job:
    def command(place: Path, _: Path, seconds: float) -> list[str]:
        common = ("--timeout", f"{round(seconds)}s", "--temp-path", str(place), "--yaml", str(place / RESULT))
        return ["stress-ng", *stressor, *common, "--metrics-brief"]

    return Job(f"stress-ng {stressor[0]}", "bogo ops/s", command, lambda text, _: outputs.stress_rate(text))


def _fio(name: str, *options: str) -> Job:
    def command(place: Path, file: Path, seconds: float) -> list[str]:
        length = (f"--size={FILE_MIB}m", "--time_based", f"--runtime={round(seconds)}")
        result = ("--output-format=json", f"--output={place / RESULT}")
        return ["fio", f"--name={name}", f"--filename={file}", *options, *length, *result]

    return Job(f"fio {name}", "MiB/s", command, lambda text, _: outputs.fio_rate(text))


def _video(place: Path, _: Path, seconds: float) -> list[str]:
    source = ("-f", "lavfi", "-i", "testsrc2=size=640x360:rate=30")
    coder = ("-threads", "1", "-c:v", "libx264", "-preset", "medium", "-f", "null")
    report = ("-progress", str(place / RESULT), "-stats_period", "0.2")
    return [
        "timeout", "--signal=INT", str(seconds), "ffmpeg", "-nostdin", "-v", "error", *source, *coder, *report, "-",
    ]  # fmt: skip


def _sockets(place: Path, file: Path, seconds: float) -> list[str]:
    """TCP on the loopback interface; the default port is the same for all pods."""
    return _stress("--sock", "1", "--sock-port", str(free_port())).command(place, file, seconds)


def source_text() -> str:
    """A C program that takes the optimiser a while."""
    body = "for (int i = 0; i < n; i++) for (int j = 0; j < 32; j++) a[i] += (a[(i * {0} + j) % n] * {0}) ^ (a[i] >> 3)"
    functions = [f"int f{n}(int *a, int n) {{ {body.format(n + 3)}; return a[{n}]; }}" for n in range(FUNCTIONS)]
    calls = " + ".join(f"f{n}(a, 64)" for n in range(FUNCTIONS))
    return "\n".join([*functions, f"int main(void) {{ static int a[256]; return {calls}; }}", ""])


def _compile(place: Path, _: Path, seconds: float) -> list[str]:
    (place / "program.c").write_text(source_text(), encoding="utf-8")
    compile_once = f"gcc -O2 -o {place}/program {place}/program.c && echo compiled >> {place / RESULT}"
    return ["timeout", str(seconds), "sh", "-c", f": > {place / RESULT}; while {compile_once}; do :; done"]


CPU = _stress("--cpu", "1", "--cpu-method", "matrixprod")
BANDWIDTH = _stress("--stream", "1", "--stream-l3-size", "8m")
NETWORK = Job("stress-ng --sock", "bogo ops/s", _sockets, CPU.rate)
FILES = _stress("--hdd", "1", "--hdd-bytes", "128m", "--hdd-opts", "fsync")
CACHE = _fio("cache", "--rw=read", "--bs=1m")
DISK = _fio("disk", "--rw=randrw", "--rwmixread=70", "--bs=256k", "--direct=1", "--ioengine=libaio", "--iodepth=8")
VIDEO = Job("ffmpeg", "frames/s", _video, outputs.ffmpeg_rate)
COMPILER = Job("gcc", "compilations/min", _compile, outputs.compile_rate)


@dataclass(frozen=True)
class BatchClass:
    """Each batch pod runs all `jobs`. `short_of_memory`: all pods share `NODE_MIB`."""

    jobs: tuple[Job, ...]
    short_of_memory: bool = False


CLASSES = {
    "cpu": BatchClass((CPU,)),
    "bandwidth": BatchClass((BANDWIDTH,)),
    "cache": BatchClass((CACHE,), short_of_memory=True),
    "disk": BatchClass((DISK,)),
    "files": BatchClass((FILES,)),
    "network": BatchClass((NETWORK,)),
    "compiler": BatchClass((COMPILER,)),
    "video": BatchClass((VIDEO,)),
    "all": BatchClass((CPU, BANDWIDTH, CACHE, DISK, NETWORK), short_of_memory=True),
}
