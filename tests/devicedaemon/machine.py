"""A machine with accelerators of every vendor: PCI bus, /dev, and tools as programs that check their arguments."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from koordlet.api.deviceinfos import DeviceDescription, read_descriptions
from tests.devicedaemon import vendortools as tools

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0
BUSYBOX = Path("/bin/busybox")
"""Debian's busybox-static, for programs inside a chroot."""
TEXTS = (tools.huawei, tools.cambricon, tools.kunlun, tools.metax, tools.iluvatar)
PCI = {
    "0000:c1:00.0": "0x19e5", "0000:c2:00.0": "0x19e5", "0000:1a:00.0": "0xcabc", "0000:0b:00.0": "0x1d22",
    "0000:0a:00.0": "0x9999", "0000:4a:00.0": "0x1e3e", "0000:00:1f.0": "0x8086",
}  # fmt: skip


def all_texts() -> tools.Texts:
    return {command: text for vendor in TEXTS for command, text in vendor().items()}


class Machine:
    """`host` is the root of the tools, `out` the directory of the file."""

    def __init__(self, base: Path, *, chroot: bool = False) -> None:
        self.base, self.host, self.out = base, base / "host", base / "out"
        self.path = self.out / "ic-device"
        self._chroot = chroot
        self._processes: list[subprocess.Popen[str]] = []
        self._log = base / "log"
        for directory in (self.host / "usr/bin", self.host / "bin", self.host / "state", self.out, base / "dev"):
            directory.mkdir(parents=True)
        if chroot:
            (self.host / "bin/busybox").write_bytes(BUSYBOX.read_bytes())
            (self.host / "bin/busybox").chmod(0o755)
            for name in ("sh", "cat", "sleep"):
                (self.host / "bin" / name).symlink_to("busybox")

    def plug(self, *addresses: str) -> None:
        for address in addresses or PCI:
            tools.pci_function(self.base / "sys", address, PCI[address])
        for number in (0, 1):
            (self.base / f"dev/davinci{number}").touch()

    def install(self, texts: tools.Texts) -> None:
        """Each program accepts only these commands, waits while `state/wait` exists, and logs its calls."""
        state = Path("/state") if self._chroot else self.host / "state"
        by_program: dict[str, list[str]] = {}
        for place, (command, text) in enumerate(texts.items()):
            program, _, arguments = command.partition(" ")
            if isinstance(text, int):
                action = f"exit {text}"
            else:
                (self.host / f"state/{program}.{place}").write_text(text)
                action = f"cat {state}/{program}.{place}"
            by_program.setdefault(program, []).append(f"{shlex.quote(arguments)}) {action} ;;")
        for program, cases in by_program.items():
            script = [
                "#!/bin/sh",
                f'echo "{program} $*" >> {state}/calls',
                f"while [ -e {state}/wait ]; do sleep 0.05; done",
                'case "$*" in',
                *cases,
                '*) echo "unknown command $*" >&2; exit 64 ;;',
                "esac",
            ]
            path = self.host / "usr/bin" / program
            path.unlink(missing_ok=True)
            path.write_text("\n".join(script) + "\n")
            path.chmod(0o755)

    def hold(self, *, on: bool) -> None:
        """Whether tools wait."""
        if on:
            (self.host / "state/wait").touch()
        else:
            (self.host / "state/wait").unlink()

    @property
    def log(self) -> str:
        """Standard error of the last process."""
        return self._log.read_text()

    @property
    def calls(self) -> list[str]:
        path = self.host / "state/calls"
        return path.read_text().splitlines() if path.exists() else []

    def start(self, *flags: str, **environment: str) -> subprocess.Popen[str]:
        path = os.environ["PATH"] if self._chroot else f"{self.host / 'usr/bin'}:{os.environ['PATH']}"
        output = [f"--prints-output-file={self.path}"]
        if "KDD_CONFIG_FILE" in environment:
            output = []
        with self._log.open("w") as log:
            process = subprocess.Popen(
                [
                    sys.executable, "-m", "devicedaemon", f"--host-root-dir={self.host if self._chroot else '/'}",
                    f"--sys-root-dir={self.base / 'sys'}", f"--dev-root-dir={self.base / 'dev'}", *output, *flags,
                ],
                cwd=ROOT, env={**os.environ, **environment, "PATH": path}, text=True,
                stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        self._processes.append(process)
        return process

    def once(self, *flags: str, **environment: str) -> tuple[int, str, str]:
        """Exit status, standard output and error of a run that ends by itself."""
        process = self.start(*flags, **environment)
        out, _ = process.communicate(timeout=PATIENCE)
        return process.returncode, out, self.log

    def end(self, process: subprocess.Popen[str], number: int = signal.SIGTERM) -> int:
        process.send_signal(number)
        process.communicate(timeout=PATIENCE)
        return process.returncode

    def devices(self) -> list[DeviceDescription]:
        return read_descriptions(self.path.read_bytes(), where=str(self.path))

    def uuids(self) -> list[str]:
        """UUIDs in the file; empty while there is none."""
        return [device.uuid for device in self.devices()] if self.path.exists() else []

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()
