"""A Prometheus server on this machine, and its answers as series."""

from __future__ import annotations

import json
import math
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

SCRAPE_S = 5
START_TIMEOUT_S = 60.0
CONFIGURATION, DATA = "prometheus.yml", "data"


class PrometheusError(RuntimeError):
    """It does not run, or refuses a query."""


@dataclass(frozen=True)
class Series:
    """One series of an answer: (seconds, value), without values that are no numbers."""

    labels: dict[str, str]
    points: list[tuple[float, float]]


def write_configuration(folder: Path, targets: Path, rules: Sequence[Path]) -> None:
    """The configuration of a server whose targets are in a file that changes while it runs. JSON is YAML."""
    discovery = {"files": [str(targets)], "refresh_interval": f"{SCRAPE_S}s"}
    document = {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [{"job_name": "components", "file_sd_configs": [discovery]}],
    }
    (folder / CONFIGURATION).write_text(json.dumps(document))


class PrometheusServer:
    """`with PrometheusServer(folder) as server:` runs on the folder's configuration and data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._url = f"http://127.0.0.1:{free.getsockname()[1]}"

    def __enter__(self) -> Self:
        command = [
            "prometheus", f"--config.file={self._folder / CONFIGURATION}",
            f"--storage.tsdb.path={self._folder / DATA}", f"--web.listen-address={self._url.removeprefix('http://')}",
        ]  # fmt: skip
        with (self._folder / "prometheus.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                urllib.request.urlopen(f"{self._url}/-/ready", timeout=5).close()
                return self
            except OSError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.__exit__()
                    raise PrometheusError(f"not ready: {error}; see {self._folder / 'prometheus.log'}") from error
            time.sleep(0.2)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)

    def range(self, expr: str, start: float, end: float, step: float) -> list[Series]:
        return self._series("query_range", query=expr, start=start, end=end, step=step)

    def instant(self, expr: str, at: float) -> list[Series]:
        return self._series("query", query=expr, time=at)

    def _series(self, path: str, **parameters: Any) -> list[Series]:
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as response:
                result = json.load(response)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise PrometheusError(f"{parameters['query']}: {error.read().decode()}") from error
        return [named for named in map(series, result) if named.points]


def series(answer: dict[str, Any]) -> Series:
    """One element of `result`, of a range or an instant query."""
    pairs = answer["values"] if "values" in answer else [answer["value"]]
    points = [(float(at), float(value)) for at, value in pairs]
    return Series(answer["metric"], [(at, value) for at, value in points if math.isfinite(value)])
