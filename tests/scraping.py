"""A real Prometheus that scrapes one process and evaluates rules; a dashboard's queries as Grafana sends them."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def queries(dashboard: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Where from -> expression, with `variables` filled in."""
    page = json.loads(dashboard.read_text())
    expressions = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in page["panels"]
        for target in panel.get("targets", ())
    }
    for variable in page["templating"]["list"]:
        if variable["type"] == "query":
            series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
            expressions[f"${variable['name']}"] = f"group by ({label}) ({series})"
    for name, value in variables.items():
        expressions = {where: expr.replace(name, value) for where, expr in expressions.items()}
    assert not any("$" in expr for expr in expressions.values()), expressions
    return expressions


class Prometheus:
    """A server that scrapes the port `target` at `path`; `process` is to be ended."""

    def __init__(self, job: str, target: int, path: str, rules: Path, port: int, directory: Path) -> None:
        self.port, self.log = port, directory / "prometheus.log"
        config = directory / "prometheus.yml"
        config.write_text(
            f"global: {{scrape_interval: 2s, evaluation_interval: 2s}}\nrule_files: ['{rules}']\n"
            f"scrape_configs:\n- job_name: {job}\n  metrics_path: {path}\n"
            f"  static_configs: [{{targets: ['127.0.0.1:{target}']}}]\n"
        )
        command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}",
                   f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def get(self, path: str, **parameters: str) -> Any:
        """`data` of the answer; None while the server starts."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return None
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        except OSError:
            assert self.process.poll() is None, self.log.read_text()
            return None
