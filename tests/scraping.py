"""A real Prometheus that scrapes one process and evaluates rules; a dashboard's queries as Grafana sends them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Self

import yaml

from tests.waiting import until

PATIENCE_S = 180.0


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
    """A server that scrapes the port `target` at `path`; `async with` ends it."""

    def __init__(self, job: str, target: int, path: str, rules: Path, port: int, directory: Path) -> None:
        self.port, self.log, self.rules = port, directory / "prometheus.log", rules
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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.process.terminate()
        await asyncio.to_thread(self.process.wait, 120)

    async def wait_for_data(self, expressions: Mapping[str, str], act: Callable[[], Awaitable[None]]) -> None:
        """Until each of the queries (where from -> expression) had data; `act` runs before each round."""
        without_data = dict(expressions)

        async def all_have_data() -> bool:
            await act()
            for where, expr in expressions.items():
                series = await asyncio.to_thread(self.get, "query", query=expr) if where in without_data else None
                if series is not None and series["result"]:
                    del without_data[where]
            return not without_data

        with contextlib.suppress(TimeoutError):
            await until(all_have_data, PATIENCE_S)
        assert not without_data, "no data"

    async def firing_alerts(self) -> set[str]:
        """Names, once every rule of the file was evaluated without an error."""
        names = {rule["alert"] for group in yaml.safe_load(self.rules.read_text())["groups"] for rule in group["rules"]}

        async def evaluated_rules() -> Any:
            groups = (await asyncio.to_thread(self.get, "rules"))["groups"]
            rules = [rule for group in groups for rule in group["rules"]]
            return rules if all(rule["health"] != "unknown" for rule in rules) else None

        rules = await until(evaluated_rules, PATIENCE_S)
        assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}
        assert {rule["name"] for rule in rules} == names
        alerts = (await asyncio.to_thread(self.get, "alerts"))["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

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
