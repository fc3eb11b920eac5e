"""Options of koord-device-daemon: flags, then environment, then a file, then defaults (spec 08 §1.1), and own flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import yaml

from devicedaemon.confinement import KEPT
from koordlet.api.encoding.times import Duration as GoDuration
from koordlet.app.flags import Duration, FlagError, flag, read
from koordlet.app.logging import LoggingOptions

OUTPUT = "/var/run/koordlet/xpu-device-infos/ic-device"
VERSION = "v1"
ENVIRONMENT = {
    "oneshot": ("KDD_ONESHOT",),
    "sleep-interval": ("KDD_SLEEP_INTERVAL",),
    "prints-output-file": ("KDD_PRINTS_OUTPUT_FILE", "PRINTS_OUTPUT_FILE"),
    "config-file": ("KDD_CONFIG_FILE", "CONFIG_FILE"),
    "no-timestamp": ("KDD_NO_TIMESTAMP",),
}
"""Flag -> variables; the first that is set and not empty counts."""


@dataclass
class DeviceDaemonOptions(LoggingOptions):
    """All options."""

    v: int = flag(1, "verbosity; 4 and above log debug messages")
    oneshot: bool = flag(False, "write once and exit")
    sleep_interval: Duration = flag("900s", "pause between two rounds", minimum=0.01)
    output: str = flag(OUTPUT, "file that is written; empty: standard output", name="prints-output-file")
    config_file: str = flag("", "YAML or JSON file with the same settings")
    no_timestamp: bool = flag(False, "accepted, no effect")
    keep_output: bool = flag(False, "leave the file at exit, so that a restart takes no device away from koordlet")
    tool_timeout: Duration = flag("30s", "time that one command of a vendor's tool gets", minimum=0.01)
    host_root_dir: str = flag("/hostfs", "the host's file system, where vendors' tools are")
    sys_root_dir: str = flag("/host-sys/", "where the host's sysfs is mounted")
    dev_root_dir: str = flag("/dev/", "where the host's devices are")
    keep_capabilities: list[str] = flag([*KEPT], "capabilities of vendors' tools; all others are dropped at the start")

    @property
    def path(self) -> Path | None:
        """None: standard output."""
        return Path(self.output) if self.output else None

    def document(self) -> dict[str, object]:
        """The configuration in force, in the format of the file."""
        return {
            "version": VERSION,
            "flags": {
                "kdd": {
                    "oneshot": self.oneshot,
                    "noTimestamp": self.no_timestamp,
                    "sleepInterval": str(GoDuration.of(nanoseconds=round(self.sleep_interval * 1e9))),
                    "printsOutputFile": self.output,
                }
            },
        }


class DaemonConfigError(ValueError):
    """Environment or file is invalid; the message names it and has the reason."""


class _Kdd(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    oneshot: bool | None = None
    no_timestamp: bool | None = None
    sleep_interval: str | None = None
    prints_output_file: str | None = None


class _Flags(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    kdd: _Kdd = msgspec.field(default_factory=_Kdd)


class _File(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    version: str = ""
    flags: _Flags = msgspec.field(default_factory=_Flags)


def resolve(argv: Sequence[str], environment: Mapping[str, str]) -> DeviceDaemonOptions:
    """All layers merged. Raises FlagError for the command line, DaemonConfigError for environment and file."""
    read(DeviceDaemonOptions, argv)
    variables = _environment_flags(environment)
    path = read(DeviceDaemonOptions, [*variables, *argv]).config_file
    file = _file_flags(Path(path)) if path else []
    return read(DeviceDaemonOptions, [*file, *variables, *argv])


def _environment_flags(environment: Mapping[str, str]) -> list[str]:
    flags = []
    for name, variables in ENVIRONMENT.items():
        variable = next((variable for variable in variables if environment.get(variable)), None)
        if variable is not None:
            flags.append(_checked(name, environment[variable], f"environment variable {variable}"))
    return flags


def _file_flags(path: Path) -> list[str]:
    try:
        value = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise DaemonConfigError(f"configuration file {path}: {error}") from error
    try:
        file = msgspec.convert({} if value is None else value, _File)
    except msgspec.ValidationError as error:
        raise DaemonConfigError(f"configuration file {path}: {error}") from error
    if file.version not in ("", VERSION):
        raise DaemonConfigError(f"configuration file {path}: unknown version {file.version!r}")
    kdd = file.flags.kdd
    values = {
        "oneshot": kdd.oneshot,
        "no-timestamp": kdd.no_timestamp,
        "sleep-interval": kdd.sleep_interval,
        "prints-output-file": kdd.prints_output_file,
    }
    return [
        _checked(name, str(value).lower() if isinstance(value, bool) else value, f"configuration file {path}")
        for name, value in values.items()
        if value is not None
    ]


def _checked(name: str, value: str, where: str) -> str:
    flag_text = f"--{name}={value}"
    try:
        read(DeviceDaemonOptions, [flag_text])
    except FlagError as error:
        raise DaemonConfigError(f"{where}: {error}") from error
    return flag_text
