"""docs/runtime-proxy.md names every flag and every metric family, and the installed units the flags that there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from control.ctl.manifests import runtimeproxy as units
from koordlet.app.flags import read, usage
from koordlet.app.logging import LoggingOptions
from runtimeproxy.metrics import ProxyMetrics
from runtimeproxy.options import CONTAINERD, DOCKER, ProxyOptions

PAGE = (Path(__file__).resolve().parents[2] / "docs/runtime-proxy.md").read_text()


def test_every_flag_is_told() -> None:
    usual = set(re.findall(r"^  --(\S+)", usage(LoggingOptions, prog=""), re.MULTILINE)) - {"v", "logging-format"}
    offered = set(re.findall(r"^  --(\S+)", usage(ProxyOptions, prog="koord-runtime-proxy"), re.MULTILINE))
    told = set(re.findall(r"`--([a-z-]+)`", PAGE[PAGE.index("## Flags") : PAGE.index("## Metrics")]))
    assert told == offered - usual


def test_every_family_is_told() -> None:
    registry = CollectorRegistry()
    ProxyMetrics.of(registry)
    counted = {family.name + ("_total" if family.type == "counter" else "") for family in registry.collect()}
    told = set(re.findall(r"^\| `(koord_runtime_proxy_\w+)` \|", PAGE, re.MULTILINE))
    assert told == counted


@pytest.mark.parametrize(("backend", "mode"), [("containerd", CONTAINERD), ("docker", DOCKER)])
def test_units_pass_flags_that_the_proxy_takes(backend: str, mode: str) -> None:
    (line,) = re.findall(r"^ExecStart=(.*)$", units.texts()[f"{backend}/{units.UNIT}"], re.MULTILINE)
    program, *flags, more = shlex.split(line)
    assert (program, more) == (units.BINARY, "$KOORD_RUNTIME_PROXY_FLAGS")
    options = read(ProxyOptions, flags)
    assert options.mode == mode
    assert options.backend_path.name == ("docker.sock" if mode == DOCKER else "containerd.sock")
    assert str(options.endpoint_path) == "/var/run/koord-runtimeproxy/runtimeproxy.sock"
    assert options.hook_servers == "/etc/runtime/hookserver.d"
