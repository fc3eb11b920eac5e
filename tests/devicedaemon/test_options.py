"""Sources of koord-device-daemon's options: flag, then environment, then file, then default."""

from __future__ import annotations

from pathlib import Path

import pytest

from devicedaemon.options import ENVIRONMENT, DaemonConfigError, DeviceDaemonOptions, resolve
from koordlet.app.flags import FlagError

FILE = """\
version: v1
flags:
  kdd:
    oneshot: true
    noTimestamp: true
    sleepInterval: 7s
    printsOutputFile: /from/file
"""


def test_defaults() -> None:
    options = resolve([], {})
    assert (options.v, options.oneshot, options.sleep_interval, options.no_timestamp) == (1, False, 900.0, False)
    assert options.output == "/var/run/koordlet/xpu-device-infos/ic-device"
    assert (options.config_file, options.keep_output) == ("", False)
    assert (options.host_root_dir, options.sys_root_dir, options.dev_root_dir) == ("/hostfs", "/host-sys/", "/dev/")
    assert options.document() == {
        "version": "v1",
        "flags": {
            "kdd": {
                "oneshot": False, "noTimestamp": False, "sleepInterval": "15m0s", "printsOutputFile": options.output,
            }
        },
    }  # fmt: skip


@pytest.mark.parametrize("text", [FILE, '{"version": "", "flags": {"kdd": {"printsOutputFile": "/from/file"}}}'])
def test_flags_override_environment_and_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "kdd").write_text(text)
    environment = {"KDD_CONFIG_FILE": str(tmp_path / "kdd")}
    assert resolve([], environment).output == "/from/file"
    environment["PRINTS_OUTPUT_FILE"] = "/older"
    assert resolve([], environment).output == "/older"
    environment["KDD_PRINTS_OUTPUT_FILE"] = "/newer"
    assert resolve([], environment).output == "/newer"
    assert resolve(["--prints-output-file=/flag"], environment).output == "/flag"
    assert resolve(["--prints-output-file="], environment).path is None
    environment["KDD_PRINTS_OUTPUT_FILE"] = environment["PRINTS_OUTPUT_FILE"] = ""
    assert resolve([], environment).output == "/from/file", "an empty variable is ignored"


def test_every_option_can_come_from_file_and_environment(tmp_path: Path) -> None:
    (tmp_path / "kdd").write_text(FILE)
    options = resolve([], {"CONFIG_FILE": str(tmp_path / "kdd")})
    assert (options.oneshot, options.no_timestamp, options.sleep_interval, options.output) == (
        True, True, 7.0, "/from/file",
    )  # fmt: skip
    environment = {"KDD_ONESHOT": "false", "KDD_NO_TIMESTAMP": "0", "KDD_SLEEP_INTERVAL": "1m30s"}
    options = resolve([f"--config-file={tmp_path / 'kdd'}"], {**environment, "KDD_CONFIG_FILE": "/nowhere"})
    assert (options.oneshot, options.no_timestamp, options.sleep_interval) == (False, False, 90.0)
    assert (
        resolve(["--oneshot"], environment).oneshot
        and resolve(["-sleep-interval", "2s"], environment).sleep_interval == 2.0
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("version: v2", "unknown version 'v2'"),
        ("flags: {kdd: {sleepInterval: soon}}", "sleep-interval.*soon"),
        ("flags: {kdd: {sleepInterval: -1s}}", "sleep-interval"),
        ("flags: {kdd: {oneshot: perhaps}}", "flags.kdd.oneshot"),
        ("flags: {kdd: {sleepIntervall: 1s}}", "sleepIntervall"),
        ("flags: {nfd: {}}", "nfd"),
        ("kdd: {}", "kdd"),
        ("[]", "kdd.yaml"),
        ("flags: {", "kdd.yaml"),
        ("\x00", "kdd.yaml"),
        (None, "kdd.yaml"),
    ],
)
def test_an_invalid_file_is_an_error(tmp_path: Path, text: str | None, error: str) -> None:
    path = tmp_path / "kdd.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DaemonConfigError, match=error) as raised:
        resolve([f"--config-file={path}"], {})
    assert str(path) in str(raised.value)


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "kdd").touch()
    assert resolve([f"--config-file={tmp_path / 'kdd'}"], {}).sleep_interval == 900.0


@pytest.mark.parametrize(("name", "value"), [("KDD_ONESHOT", "perhaps"), ("KDD_SLEEP_INTERVAL", "10")])
def test_errors_name_the_variable(name: str, value: str) -> None:
    with pytest.raises(DaemonConfigError, match=f"environment variable {name}: "):
        resolve([], {name: value})


def test_errors_of_the_command_line() -> None:
    for argv in (["--sleep=1s"], ["--sleep-interval=never"], ["word"]):
        with pytest.raises(FlagError):
            resolve(argv, {})


def test_variables_belong_to_flags() -> None:
    for name in ENVIRONMENT:
        field = {"prints-output-file": "output"}.get(name, name.replace("-", "_"))
        assert field in DeviceDaemonOptions.__dataclass_fields__
