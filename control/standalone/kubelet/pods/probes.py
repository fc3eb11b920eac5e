"""Startup, readiness and liveness probes: one task per probe; results are reported to the pod's worker.

The state of a probe changes only after `successThreshold` or `failureThreshold` equal results in a row.
The other probes of a container start after its startup probe has succeeded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from control.standalone.kubelet.pods.spec import ContainerSpec, LifecycleHandler, ProbeSpec
from control.standalone.kubelet.runtimes.runtime import ContainerRuntime, RuntimeFailure
from koordlet.app.clock import Clock

BODY_LIMIT_BYTES = 512


@dataclass(frozen=True, slots=True)
class HandlerResult:
    ok: bool
    text: str = ""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """`kind` is liveness, readiness or startup. `settled`: the threshold is reached."""

    kind: str
    container: str
    container_id: str
    ok: bool
    settled: bool
    text: str
    grace: int | None


def port_of(value: Any, container: ContainerSpec) -> int | None:
    if isinstance(value, int):
        return value
    text = str(value)
    return int(text) if text.isdigit() else container.ports.get(text)


async def http_get(spec: Mapping[str, Any], container: ContainerSpec, pod_ip: str, seconds: float) -> HandlerResult:
    """GET as in kubelet: status 200..399 is success, certificates are not verified."""
    port = port_of(spec.get("port"), container)
    if port is None:
        return HandlerResult(False, f"unknown port {spec.get('port')!r}")
    scheme, host = str(spec.get("scheme") or "HTTP").lower(), spec.get("host") or pod_ip
    path = str(spec.get("path") or "/")
    url = f"{scheme}://{host}:{port}/{path.removeprefix('/')}"
    headers = {"User-Agent": "kube-probe/1.x-standin", "Connection": "close"}
    headers |= {str(h.get("name")): str(h.get("value")) for h in spec.get("httpHeaders") or []}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=seconds)) as session,
            session.get(url, headers=headers, ssl=False, allow_redirects=False) as response,
        ):
            body = (await response.content.read(BODY_LIMIT_BYTES)).decode(errors="replace")
            if 200 <= response.status < 400:
                return HandlerResult(True, body)
            return HandlerResult(False, f"HTTP probe failed with statuscode: {response.status}")
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        return HandlerResult(False, f"Get {url!r}: {error or type(error).__name__}")


async def tcp_connect(spec: Mapping[str, Any], container: ContainerSpec, pod_ip: str, seconds: float) -> HandlerResult:
    port = port_of(spec.get("port"), container)
    if port is None:
        return HandlerResult(False, f"unknown port {spec.get('port')!r}")
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(spec.get("host") or pod_ip, port)
        writer.close()
    except (OSError, TimeoutError) as error:
        return HandlerResult(False, f"dial tcp {spec.get('host') or pod_ip}:{port}: {error or 'timeout'}")
    return HandlerResult(True)


async def run_handler(
    runtime: ContainerRuntime,
    container_id: str,
    container: ContainerSpec,
    handler: LifecycleHandler,
    pod_ip: str,
    seconds: float,
) -> HandlerResult:
    """Run one handler, of a probe or a lifecycle hook."""
    if handler.exec is not None:
        try:
            result = await runtime.exec(container_id, handler.exec, seconds)
        except RuntimeFailure as error:
            return HandlerResult(False, str(error))
        if result.timed_out:
            return HandlerResult(False, f"command timed out: {' '.join(handler.exec)!r} after {seconds:g}s")
        return HandlerResult(result.code == 0, result.output.decode(errors="replace"))
    if handler.http is not None:
        return await http_get(handler.http, container, pod_ip, seconds)
    if handler.tcp is not None:
        return await tcp_connect(handler.tcp, container, pod_ip, seconds)
    if handler.sleep is not None:
        await asyncio.sleep(min(handler.sleep, seconds))
        return HandlerResult(True)
    return HandlerResult(False, f"{handler.unsupported} is not supported by the stand-in kubelet")


class ContainerProber:
    """The probes of one running attempt of a container. `stop` ends them; results go to `report`."""

    def __init__(
        self,
        runtime: ContainerRuntime,
        clock: Clock,
        container: ContainerSpec,
        container_id: str,
        pod_ip: str,
        age: float,
        report: Callable[[ProbeResult], None],
    ) -> None:
        self._runtime = runtime
        self._clock = clock
        self._container = container
        self._id = container_id
        self._pod_ip = pod_ip
        self._report = report
        self._begin = clock.monotonic() - age
        self._startup_done = asyncio.Event()
        if container.startup is None:
            self._startup_done.set()
        probes = (
            ("startup", container.startup),
            ("readiness", container.readiness),
            ("liveness", container.liveness),
        )
        self._tasks = [
            asyncio.create_task(self._run(kind, probe), name=f"probe:{kind}:{container.name}")
            for kind, probe in probes
            if probe is not None
        ]

    def assume_started(self) -> None:
        """Skip the startup probe of an adopted container that has already passed it."""
        self._startup_done.set()

    async def _run(self, kind: str, probe: ProbeSpec) -> None:
        if kind != "startup":
            await self._startup_done.wait()
        delay = probe.initial_delay - (self._clock.monotonic() - self._begin)
        await self._clock.sleep(max(0.0, delay))
        last: bool | None = None
        streak = 0
        while not (kind == "startup" and self._startup_done.is_set()):
            result = await run_handler(
                self._runtime, self._id, self._container, probe.handler, self._pod_ip, probe.timeout
            )
            streak = streak + 1 if result.ok == last else 1
            last = result.ok
            settled = streak >= (probe.success_threshold if result.ok else probe.failure_threshold)
            if kind == "startup" and settled and result.ok:
                self._startup_done.set()
            self._report(
                ProbeResult(kind, self._container.name, self._id, result.ok, settled, result.text.strip(), probe.grace)
            )
            await self._clock.sleep(probe.period)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
