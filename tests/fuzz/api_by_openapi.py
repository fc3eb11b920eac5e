"""The embedded API server with schemathesis: requests made from its own OpenAPI documents must not be answered 5xx.

    build/fuzz/venv/bin/python -m tests.fuzz.api_by_openapi PYTHON SECONDS [OPTION ...]

PYTHON runs the server (build/venv); options are those of schemathesis. The time is divided among the documents, which
are those of groups with the kinds of tenants. Part of `scripts/fuzz.sh`.
"""

from __future__ import annotations

import base64
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("api/v1", "apis/apps/v1", "apis/batch/v1", "apis/policy/v1", "apis/rbac.authorization.k8s.io/v1")
START_S = 60.0
"""Time to start the server, and to load a document."""


def credentials(kubeconfig: Path) -> tuple[str, ssl.SSLContext]:
    """The administrator's token and the server's authority."""
    document: Any = yaml.safe_load(kubeconfig.read_text())
    authority = base64.b64decode(document["clusters"][0]["cluster"]["certificate-authority-data"]).decode()
    return document["users"][0]["user"]["token"], ssl.create_default_context(cadata=authority)


def ready(url: str, kubeconfig: Path) -> bool:
    if not kubeconfig.exists():
        return False
    token, context = credentials(kubeconfig)
    request = urllib.request.Request(f"{url}/readyz", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=5, context=context) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def fuzz(url: str, token: str, document: str, seconds: float, options: Sequence[str]) -> int:
    """Exit status of schemathesis: 1 for a failure. It ends after this time and that of loading the document."""
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run", f"{url}/openapi/v3/{document}", f"--url={url}",
        f"--header=Authorization: Bearer {token}", "--tls-verify=false", "--checks=not_a_server_error",
        "--phases=fuzzing", f"--max-time={max(1, int(seconds))}", "--request-timeout=20",
        "--continue-on-failure", "--no-color", "--warnings=off", *options,
    ]  # fmt: skip
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "tests.fuzz.openapi_hooks", "PYTHONPATH": str(ROOT)}
    folder = ROOT / "build" / "fuzz"  # schemathesis writes what it found into its working directory
    folder.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(command, cwd=folder, env=environment)
    try:
        return process.wait(seconds + START_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()
        return 1


def main(argv: list[str]) -> int:
    python, seconds, options = argv[0], float(argv[1]), argv[2:]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"https://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = Path(folder, "data/admin.kubeconfig")
        command = [python, "-m", "control.standalone.apiserver", f"--data-dir={folder}/data", f"--secure-port={port}"]
        with Path(folder, "log").open("wb") as log:
            server = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            end = time.monotonic() + START_S
            while not ready(url, kubeconfig):
                assert server.poll() is None and time.monotonic() < end, Path(folder, "log").read_text()[-3000:]
                time.sleep(0.2)
            token, _ = credentials(kubeconfig)
            share = seconds / len(DOCUMENTS)
            failed = [document for document in DOCUMENTS if fuzz(url, token, document, share, options)]
            assert server.poll() is None, f"the server ended: {Path(folder, 'log').read_text()[-3000:]}"
        finally:
            server.terminate()
            server.wait()
    print("failed:", ", ".join(failed) or "none")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
