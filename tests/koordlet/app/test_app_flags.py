"""Flags as Go users type them, configuration files, and what is refused."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from koordlet.app.flags import Duration, FlagError, flag, parse, read, usage


@dataclass
class Options:
    addr: str = flag(":9316", "metrics address")
    pprof: bool = flag(False, "profiling", name="enable-pprof")
    report: bool = flag(True, "report", name="enable-node-metric-report")
    qps: float = flag(20, "queries a second", name="kube-api-qps")
    burst: int = flag(30, "burst", name="kube-api-burst")
    interval: Duration = flag("1s", "tick", name="collect-res-used-interval", minimum=1)
    gates: dict[str, bool] = flag({}, "gates", name="feature-gates")
    stages: list[str] = flag([], "stages", name="disable-stages")
    mode: str = flag("auto", "mode", choices=("auto", "off"))
    node: str | None = flag(None, "node", name="node-name")
    config: str = flag("", "configuration file", config_file=True)


def test_defaults_are_typed() -> None:
    options = read(Options, [])
    assert (options.addr, options.qps, options.interval, options.node) == (":9316", 20, 1.0, None)
    assert options.gates == {} and options.gates is not read(Options, []).gates


@pytest.mark.parametrize(
    ("argv", "field", "value"),
    [
        (["--addr=:1"], "addr", ":1"),
        (["-addr", ":1"], "addr", ":1"),
        (["--addr", "-x"], "addr", "-x"),
        (["--addr="], "addr", ""),
        (["--enable-pprof"], "pprof", True),
        (["-enable-pprof=T"], "pprof", True),
        (["--enable-node-metric-report=false"], "report", False),
        (["--enable_pprof"], "pprof", True),
        (["--kube-api-burst=0x10"], "burst", 16),
        (["--kube-api-qps=2.5"], "qps", 2.5),
        (["--collect-res-used-interval=1h30m"], "interval", 5400.0),
        (["--feature-gates=A=true,B=false", "--feature-gates", "B=1"], "gates", {"A": True, "B": True}),
        (["--disable-stages=a,b", "--disable-stages=c"], "stages", ["a", "b", "c"]),
        (["--node-name=n1"], "node", "n1"),
        (["--addr=:1", "--addr=:2"], "addr", ":2"),
    ],
)
def test_spellings(argv: list[str], field: str, value: Any) -> None:
    assert getattr(read(Options, argv), field) == value


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--adr=:1"], "unknown flag: --adr, did you mean --addr"),
        (["--addr"], "flag needs an argument: --addr"),
        (["--enable-pprof=maybe"], 'invalid argument "maybe" for --enable-pprof'),
        (["--kube-api-burst=ten"], "not an integer"),
        (["--kube-api-qps=x"], "not a number"),
        (["--collect-res-used-interval=500ms"], 'invalid argument "500ms" .* must be at least 1s'),
        (["--collect-res-used-interval=5"], "'5' is not a duration"),
        (["--feature-gates=A"], "key=value"),
        (["--feature-gates=A=2"], "boolean"),
        (["--mode=on"], "must be one of auto, off"),
        (["---addr=:1"], "bad flag syntax"),
        (["--=1"], "bad flag syntax"),
        (["--enable-pprof", "false"], 'unexpected argument "false"'),
        (["run"], 'unexpected argument "run"'),
    ],
)
def test_refusals_name_the_flag(argv: list[str], message: str) -> None:
    with pytest.raises(FlagError, match=message):
        read(Options, argv)


def test_configuration_file_is_below_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("addr: ':7'\nkubeApiBurst: 5\nfeature-gates: {A: true}\ndisable-stages: [x, y]\nmode: 'off'\n")
    options = read(Options, [f"--config={path}", "--addr=:8"])
    assert (options.addr, options.burst, options.gates, options.stages, options.mode) == (
        ":8", 5, {"A": True}, ["x", "y"], "off",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("adr: x", "unknown flag: --adr"),
        ("kube-api-burst: many", "not an integer"),
        ("- a", "must be a mapping"),
        ("a: [", "is not YAML"),
        ("collect-res-used-interval: 10ms", "at least 1s"),
    ],
)
def test_bad_configuration_file(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(content)
    with pytest.raises(FlagError, match=message):
        read(Options, ["--config", str(path)])


def test_missing_configuration_file_is_named() -> None:
    with pytest.raises(FlagError, match=r"cannot read configuration file nowhere/c\.yaml"):
        read(Options, ["--config=nowhere/c.yaml"])


def test_unknown_flag_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(Options, ["--adr"], prog="koordlet")
    assert stop.value.code == 2
    assert "did you mean --addr" in capsys.readouterr().err


@pytest.mark.parametrize(("word", "expected"), [("--help", "--kube-api-burst int"), ("--version", "koordlet v")])
def test_help_and_version_exit_0(capsys: pytest.CaptureFixture[str], word: str, expected: str) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(Options, [word], prog="koordlet")
    assert stop.value.code == 0
    assert expected in capsys.readouterr().out


def test_usage_shows_kinds_and_defaults() -> None:
    text = usage(Options, prog="koordlet")
    assert "--collect-res-used-interval duration\n        tick (default 1s)" in text
    assert "--enable-pprof\n" in text


def test_a_rule_over_several_flags_is_a_flag_error() -> None:
    @dataclass
    class Pair:
        low: int = flag(1, "low")
        high: int = flag(2, "high")

        def __post_init__(self) -> None:
            if self.low > self.high:
                raise ValueError("--low must not exceed --high")

    with pytest.raises(FlagError, match="--low must not exceed"):
        read(Pair, ["--low=3"])
