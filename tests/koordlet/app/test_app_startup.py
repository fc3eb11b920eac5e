"""Loading leaves collections, certificates and endings of files out, and only while it lasts."""

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import gc, json, os, ssl
from koordlet.app.startup import loaded, loading
with loading():
    inside = [gc.isenabled(), os.environ.get("SSL_CERT_FILE"), len(ssl.create_default_context().get_ca_certs())]
after = [gc.isenabled(), os.environ.get("SSL_CERT_FILE")]
loaded()
print(json.dumps([inside, after, [gc.isenabled(), gc.get_freeze_count() > 0]]))
"""


def output_of(**environment: str) -> list[list[object]]:
    bare = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env={**bare, **environment}
    )
    results: list[list[object]] = json.loads(done.stdout)
    return results


def test_loading_collects_nothing_and_reads_no_certificates() -> None:
    assert output_of() == [[False, os.devnull, 0], [False, None], [True, True]]


def test_what_loading_left_behind_is_collected_before_the_rest_is_kept() -> None:
    program = """
import weakref
from koordlet.app.startup import loaded, loading
class Ring:
    def __init__(self): self.me = self
with loading():
    gone = weakref.ref(Ring())
assert gone() is not None
loaded()
assert gone() is None
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_loading_reads_no_endings_of_files() -> None:
    program = """
import mimetypes
from koordlet.app.startup import loading
mimetypes.knownfiles[:] = ["no such file is asked for"]
asked = []
mimetypes.os.path.isfile = lambda path: asked.append(path)
with loading():
    import aiohttp.web
assert not asked
assert mimetypes.guess_type("a.json")[0] == "application/json"
assert asked
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_configured_file_of_certificates_is_read(tmp_path: Path) -> None:
    file = str(tmp_path / "ca.pem")
    inside, after, _ = output_of(SSL_CERT_FILE=file)
    assert inside[1] == after[1] == file
