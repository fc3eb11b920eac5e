"""kubectl prints the same, and exits with the same code, against the embedded API server and kube-apiserver."""

from __future__ import annotations

import json
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.kubernetes.apidiff.cases.kubectl import COMMANDS, NS, Command
from tests.kubernetes.apidiff.exchange import normal
from tests.kubernetes.apidiff.servers import ComparedServer
from tests.kubernetes.node import ROOT

VERSION = os.environ.get("KOORD_KUBERNETES", "v1.35")
pytestmark = [pytest.mark.kubernetes] if VERSION == "v1.35" else []  # `known` is about this version
PROGRAMS = ROOT / "build" / "kubernetes" / VERSION / "bin"
_AGES = re.compile(r"(?<![\w.:-])(\d+[dhms])+(?![\w.:-])|<invalid>|<unknown>")
_DATES = re.compile(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d [+-]\d{4}")
_VERSIONS = re.compile(r'(resourceVersion: |generation: |Resource Version: +)"?\d+"?')
_FOLDERS = re.compile(r"/tmp/(LIVE|MERGED)-\d+")
_FILE_TIMES = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ [+-]\d{4}")
_SPACES = re.compile(r" {2,}")


def run(server: ComparedServer, command: Command) -> tuple[int, str]:
    """Exit code and normalised outputs; `_` stands for a space within an argument."""
    argv = [str(PROGRAMS / "kubectl"), f"--kubeconfig={server.kubeconfig}", f"--namespace={NS}"]
    argv += [word.replace("_", " ") for word in command.args.split()]
    stdin = b"" if command.stdin is None else json.dumps(command.stdin).encode()
    env = {"PATH": os.environ["PATH"], "HOME": str(server.kubeconfig.parent)}
    done = subprocess.run(argv, input=stdin, env=env, capture_output=True, timeout=60, check=False)
    text = str(normal((done.stdout + b"\n---\n" + done.stderr).decode(errors="replace"))).replace(server.url, "<url>")
    for pattern, replacement in (
        (_VERSIONS, r"\1<version>"), (_DATES, "<date>"), (_FOLDERS, r"/tmp/\1"), (_FILE_TIMES, "<time>"),
        (_AGES, "<age>"), (_SPACES, "  "),
    ):  # fmt: skip
        text = pattern.sub(replacement, text)
    return done.returncode, text


def test_kubectl_prints_the_same(servers: tuple[ComparedServer, ComparedServer]) -> None:
    problems = []
    with ThreadPoolExecutor(2) as both:
        for args in (f"create namespace {NS}", "create serviceaccount default"):
            for code, text in both.map(run, servers, [Command(args)] * 2):
                assert code == 0, text
        for command in COMMANDS:
            real, embedded = both.map(run, servers, [command] * 2)
            if (real != embedded) is not bool(command.known):
                problems.append(f"kubectl {command.args}\n  kube-apiserver {real}\n  embedded       {embedded}")
    title = f"{len(problems)} of {len(COMMANDS)} differ, or are known to and do not:"
    assert not problems, "\n".join((title, *problems))
