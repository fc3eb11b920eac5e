"""Settings during a node's life, and refusals of `up` before it changes anything."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from control.ctl.errors import CtlError
from control.ctl.manifests.cluster import descheduler_configuration
from control.ctl.node import containers, up
from control.ctl.node.parts import PARTS, Layout, Part, of
from control.ctl.node.state import NodeSettings
from control.ctl.node.supervisor import Supervisor
from control.ctl.node.up import decide, settle
from control.ctl.progress import TerminalProgress
from control.descheduler.config.load import load
from control.descheduler.plugins.registry import PLUGINS

KNOWN = NodeSettings("n1", apiserver_port=7001, kubelet_port=7002, koordlet_port=7003)


def test_defaults_of_a_first_up() -> None:
    assert settle(None, {"node_name": None}, set(), "host") == NodeSettings("host")


def test_options_override_and_are_stored() -> None:
    first = settle(None, {"node_name": "n2", "cgroup_driver": "systemd"}, set(), "host")
    assert (first.node_name, first.cgroup_driver) == ("n2", "systemd")
    assert settle(first, {}, {"apiserver"}, "host") == first


def test_port_zero_chooses_a_free_one_and_keeps_it() -> None:
    zero = {"apiserver_port": 0, "kubelet_port": 0, "koordlet_port": 0, "manager_port": 0, "webhook_port": 0}
    first = settle(None, zero, set(), "host")
    ports = {getattr(first, name) for name in zero}
    assert len(ports) == 5 and 0 not in ports
    assert settle(first, zero, {"apiserver"}, "host") == first


def test_a_second_node_may_be_added_while_parts_run() -> None:
    first = settle(KNOWN, {"second_node": "n1-2"}, {"kubelet"}, "host")
    assert 0 not in (first.second_kubelet_port, first.descheduler_port)
    assert settle(first, {"second_node": None}, {"kubelet", "second-kubelet"}, "host") == first
    with pytest.raises(CtlError, match="--second-node other differs from n1-2"):
        settle(first, {"second_node": "other"}, {"kubelet", "second-kubelet"}, "host")
    assert {part.name for part in of(first)} - {part.name for part in of(KNOWN)} == {"second-kubelet", "descheduler"}


def test_settings_of_running_parts_cannot_change() -> None:
    with pytest.raises(CtlError, match="--port 1234 differs from 7001, which apiserver, kubelet use") as caught:
        settle(KNOWN, {"apiserver_port": 1234}, {"kubelet", "apiserver"}, "host")
    assert "koordctl down" in caught.value.hint
    assert settle(KNOWN, {"apiserver_port": 1234}, set(), "host").apiserver_port == 1234


def test_the_runtime_is_chosen_by_option_and_availability(tmp_path: Path) -> None:
    auto, chosen = NodeSettings("n"), NodeSettings("n", runtime="containerd")
    assert decide(auto, False, None).runtime == "containerd"
    refused = decide(auto, False, "not installed: runc")
    assert (refused.runtime, refused.runtime_reason) == ("process", "not installed: runc")
    assert "not installed: runc" in containers.describe_runtime(refused)
    assert decide(auto, True, None).runtime == "process", "a kubelet that runs was started without"
    assert decide(chosen, False, None) == chosen
    with pytest.raises(CtlError, match="--runtime containerd: not installed: runc"):
        decide(chosen, False, "not installed: runc")
    assert settle(chosen, {"runtime": "auto"}, {"kubelet"}, "n") == chosen
    assert settle(chosen, {"runtime": "auto"}, set(), "n").runtime == "auto"
    assert {"containerd", "runtimeproxy"} == {p.name for p in of(chosen)} - {p.name for p in of(refused)}
    assert containers.endpoint(tmp_path, refused) == ""
    assert containers.endpoint(tmp_path, chosen) == f"unix://{tmp_path}/proxy.sock"
    assert "too long" in (containers.unusable(tmp_path / ("x" * 100)) or "")


def test_every_part_gets_its_ports_and_places(tmp_path: Path) -> None:
    lines = {part.name: " ".join(part.argv(Layout(tmp_path), KNOWN)) for part in PARTS}
    assert "--secure-port=7001" in lines["apiserver"]
    assert "--metrics-addr=127.0.0.1:9317" in lines["manager"]
    manager = next(part for part in PARTS if part.name == "manager")
    assert manager.environ(Layout(tmp_path), KNOWN)["WEBHOOK_PORT"] == "9876"
    assert "--port=7002" in lines["kubelet"] and "--cleanup-on-exit" in lines["kubelet"]
    assert "--addr=127.0.0.1:7003" in lines["koordlet"]
    assert all(str(tmp_path) in line for line in lines.values())


def test_a_bare_node_leaves_out_what_an_installation_brings(tmp_path: Path) -> None:
    bare = NodeSettings("embedded", runtime="containerd", bare=True)
    assert [part.name for part in of(bare)] == ["apiserver", "containerd", "runtimeproxy", "kubelet"]
    lines = {part.name: " ".join(part.argv(Layout(tmp_path), bare)) for part in of(bare)}
    assert "--hook-server-dir=/etc/runtime/hookserver.d" in lines["runtimeproxy"], (
        "where koordlet's DaemonSet registers"
    )
    assert "--privileged-namespaces=koordinator-system" in lines["kubelet"]
    assert "--privileged-namespaces" not in " ".join(PARTS[5].argv(Layout(tmp_path), KNOWN))


def test_passed_flags_exist(tmp_path: Path) -> None:
    from control.descheduler.process.options import DeschedulerOptions
    from control.manager.options import ManagerOptions
    from control.scheduler.process.options import SchedulerOptions
    from control.standalone.apiserver.__main__ import ApiServerOptions
    from control.standalone.kubelet.options import KubeletOptions
    from koordlet.app.flags import read
    from koordlet.options import KoordletOptions
    from runtimeproxy.options import ProxyOptions

    agents = {
        "manager": ManagerOptions,
        "scheduler": SchedulerOptions,
        "kubelet": KubeletOptions,
        "koordlet": KoordletOptions,
    }
    second = {"second-kubelet": KubeletOptions, "descheduler": DeschedulerOptions}
    known = {"apiserver": ApiServerOptions, "runtimeproxy": ProxyOptions, **agents, **second}
    for part in PARTS:
        if part.name == "containerd":
            continue  # a third-party program
        read(known[part.name], part.argv(Layout(tmp_path), KNOWN)[3:])


async def test_without_root_nothing_is_created(
    tmp_path: Path, progress: TerminalProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(CtlError, match="not root"):
        await up.up(tmp_path / "s", {}, progress=progress)
    assert not (tmp_path / "s").exists()


async def test_agents_need_an_api_server(
    tmp_path: Path, progress: TerminalProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(CtlError, match="need the API server") as caught:
        await up.up(tmp_path, {}, without=["apiserver"], progress=progress)
    assert "koordlet --standalone" in caught.value.hint


def test_the_deschedulers_configuration_is_valid() -> None:
    settings = load(descheduler_configuration("127.0.0.1:1"), PLUGINS)
    assert settings.profiles[0].enabled["balance"] == ("InterferenceAware",)
    assert settings.profiles[0].enabled["evict"] == ("MigrationController",)


async def test_a_broken_containerd_is_not_used_and_reported(
    tmp_path: Path, progress: TerminalProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def not_yet(*_: object) -> str:
        return "no socket"

    broken = [sys.executable, "-S", "-c", "raise SystemExit('overlay is missing')"]
    part = Part("containerd", lambda *_: broken, None, not_yet, 60, 5, runtime="containerd")
    supervisor = Supervisor(tmp_path)
    decided = NodeSettings("n", runtime="containerd")
    settings = await up.try_containerd(supervisor, part, Layout(tmp_path), decided, progress)
    assert settings.runtime == "process"
    assert settings.runtime_reason == "containerd ended while it was starting"
    assert "containerd ended" in containers.describe_runtime(settings)
    assert "overlay is missing" in supervisor.tail("containerd")
    assert Supervisor(tmp_path).state.settings == settings, "remembered"


def test_progress_prints_plain_lines_when_it_is_no_terminal(progress: TerminalProgress) -> None:
    with progress.step("one") as step:
        step.note("waits")
        step.done("ready [pid 1]")
    with pytest.raises(ValueError, match="broken"), progress.step("two"):
        raise ValueError("broken")
    assert isinstance(progress.console.file, io.StringIO)
    lines = progress.console.file.getvalue().splitlines()
    assert lines[0].startswith("✓ one: ready [pid 1] (")
    assert lines[1].startswith("✗ two (")
