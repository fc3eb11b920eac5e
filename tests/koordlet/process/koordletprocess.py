"""A `python -m koordlet` in a view, and its pages."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.koordlet.process.patience import PATIENCE_S, until
from tests.koordlet.process.podtree import Container
from tests.koordlet.process.series import Series
from tests.koordlet.process.view import APPARMOR, View
from tests.ports import free_port

_serial = itertools.count()


class Koordlet:
    """One `python -m koordlet` with quick cadences."""

    def __init__(
        self,
        view: View,
        *flags: str,
        user: int | None = None,
        standalone: bool = True,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`environ` is added to this process's."""
        self.port = free_port()
        self.log_path = view.scratch / f"koordlet-{next(_serial)}.log"
        mode = ["--standalone"] if standalone else []
        command = [
            sys.executable, "-m", "koordlet", *mode, f"--addr=127.0.0.1:{self.port}", "--node-name=own-node",
            "--snapshot-interval=1s", "--psi-collector-interval=1s", *view.flags(), *flags,
        ]  # fmt: skip
        environment = {**os.environ, "agent_mode": "hostMode", "PYTHONDONTWRITEBYTECODE": "1", **(environ or {})}
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(view.enter(command, user), stderr=log, stdout=log, env=environment)
        self.view = view

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def get(self, path: str) -> bytes:
        url = f"http://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(url, timeout=120) as response:
            body: bytes = response.read()
        return body

    def answer(self, path: str) -> bytes | None:
        """None while it does not listen."""
        try:
            return self.get(path)
        except (urllib.error.URLError, OSError):
            assert self.process.poll() is None, f"koordlet ended with {self.process.returncode}: {self.log[-3000:]}"
            return None

    def wait(self) -> Koordlet:
        """Until the first figures are there, and every probe had its turn."""
        self.wait_for_figures()
        until(lambda: "starting" not in [probe.get("reason") for probe in self.top()["probes"]], "the probes")
        if profile := os.environ.get(APPARMOR):
            assert Path(f"/proc/{self.process.pid}/attr/current").read_text().strip() == f"{profile} (enforce)"
        return self

    def wait_for_figures(self) -> Koordlet:
        """Until the first figures are there."""

        def figures() -> bool:
            answer = self.answer("/top")
            return answer is not None and json.loads(answer).get("cpu") is not None

        until(figures, f"first figures in /top (log: {self.log_path})")
        return self

    def top(self) -> dict[str, Any]:
        page: dict[str, Any] = json.loads(self.get("/top"))
        return page

    def row(self, container: Container) -> dict[str, Any]:
        """The container's row in /top."""
        return next((row for row in self.top().get("rows", []) if row.get("id") == container.key), {})

    def families(self, path: str = "/metrics", start: str = "") -> dict[str, Any]:
        """By name. `start`: only those whose names begin so, because parsing all costs a poll much."""
        lines = self.get(path).decode().split("\n")
        kept = (start, f"# HELP {start}", f"# TYPE {start}")
        text = "\n".join(line for line in lines if not start or line.startswith(kept))
        return {family.name: family for family in text_string_to_metric_families(text)}

    def values(self, family: str, **labels: str) -> list[float]:
        """Values of one sample name whose labels include these."""
        families = self.families(start=family.removesuffix("_total"))
        owner = families.get(family) or families.get(family.removesuffix("_total"))
        samples = owner.samples if owner is not None else []
        return [s.value for s in samples if s.name == family and labels.items() <= s.labels.items()]

    def value(self, family: str, **labels: str) -> float:
        values = self.values(family, **labels)
        assert len(values) == 1, f"{family}{labels}: {values}"
        return values[0]

    def series(self, after: float = 0.0) -> Series:
        """The samples of the metric cache, out of a snapshot taken after `after` (CLOCK_BOOTTIME)."""
        path = self.view.state / "metrics.npz"

        def taken() -> Series | None:
            series = Series.read(path) if path.exists() else None
            return series if series is not None and series.at > after else None

        series: Series = until(taken, "a snapshot of the metric cache")
        return series

    def terminate(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
