"""docs/runtime-proxy.md names every flag and every metric family, and the installed units use existing flags."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from koordlet.app.flags import read, usage
from koordlet.app.logging import LoggingOptions
from runtimeproxy.metrics import ProxyMetrics
from runtimeproxy.options import CONTAINERD, DOCKER, ProxyOptions
from tests.runtimeproxy import unitfiles

PAGE = (Path(__file__).resolve().parents[2] / "docs/runtime-proxy.md").read_text()


def test_every_flag_is_documented() -> None:
    log_flags = set(re.findall(r"^  --(\S+)", usage(LoggingOptions, prog=""), re.MULTILINE)) - {
        "v",
        "logging-format",
    }
    flags = set(re.findall(r"^  --(\S+)", usage(ProxyOptions, prog="koord-runtime-proxy"), re.MULTILINE))
    documented = set(re.findall(r"`--([a-z-]+)`", PAGE[PAGE.index("## Flags") : PAGE.index("## Metrics")]))
    assert documented == flags - log_flags


def test_every_metric_family_is_documented() -> None:
    registry = CollectorRegistry()
    ProxyMetrics.of(registry)
    exported = {family.name + ("_total" if family.type == "counter" else "") for family in registry.collect()}
    documented = set(re.findall(r"^\| `(koord_runtime_proxy_\w+)` \|", PAGE, re.MULTILINE))
    assert documented == exported


@pytest.mark.parametrize(("backend", "mode"), [("containerd", CONTAINERD), ("docker", DOCKER)])
def test_units_pass_flags_that_the_proxy_takes(backend: str, mode: str) -> None:
    (line,) = re.findall(r"^ExecStart=(.*)$", unitfiles.text(backend), re.MULTILINE)
    program, *flags, more = shlex.split(line)
    assert (program, more) == (unitfiles.BINARY, "$KOORD_RUNTIME_PROXY_FLAGS")
    options = read(ProxyOptions, flags)
    assert options.mode == mode
    assert options.backend_path.name == ("docker.sock" if mode == DOCKER else "containerd.sock")
    assert str(options.endpoint_path) == "/var/run/koord-runtimeproxy/runtimeproxy.sock"
    assert options.hook_servers == "/etc/runtime/hookserver.d"
