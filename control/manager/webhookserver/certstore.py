"""Storage of the webhook's certificates: a Secret that all replicas share, and the directory that the server reads.

The directory is replaced atomically, like kubelet's volumes: the files are links through `..data`, which is replaced
with one rename. Modes are 0700 and 0600.
"""

from __future__ import annotations

import base64
import binascii
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from control.manager.webhookserver.certificates import FILES, PREVIOUS_CA, PREVIOUS_UNTIL, Certificates
from koordlet.api.core import Secret
from koordlet.api.meta import ObjectMeta
from koordlet.kube import Client, Conflict, NotFound

_LINK = "..data"
_OPTIONAL = (PREVIOUS_CA, PREVIOUS_UNTIL)


@dataclass(frozen=True)
class Stored:
    """The stored certificates, None when a part is missing; `version` is the resourceVersion for a conditional
    write."""

    certificates: Certificates | None
    version: str = ""


class FileStore:
    """The directory `cert_dir`. With WEBHOOK_CERT_WRITER=fs it is the only storage."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def read(self) -> Stored:
        return Stored(self.current())

    async def write(self, certs: Certificates, version: str) -> bool:
        """Does nothing: `replace` is called after the API server trusts the new CA."""
        return True

    def current(self) -> Certificates | None:
        """The certificates in the directory; None when one of the six files is missing."""
        data = {}
        for name in (*FILES, *_OPTIONAL):
            try:
                data[name] = (self.directory / name).read_bytes()
            except FileNotFoundError:
                continue
        return Certificates.of(data)

    def replace(self, certs: Certificates) -> None:
        """Replace the content of the directory, atomically for readers."""
        # A mounted volume belongs to root, so its mode stays; the content is in a directory with mode 0700.
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        data = certs.data()
        version = Path(tempfile.mkdtemp(prefix="..certs-", dir=self.directory))  # mode 0700
        for name, content in data.items():
            descriptor = os.open(version / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        link = self.directory / _LINK
        old = link.readlink() if link.is_symlink() else None
        temporary = self.directory / f"{_LINK}-new"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(version.name)
        temporary.replace(link)
        for name in data:
            self._link(name)
        for name in _OPTIONAL:
            if name not in data:
                (self.directory / name).unlink(missing_ok=True)
        if old is not None:
            shutil.rmtree(self.directory / old, ignore_errors=True)

    def _link(self, name: str) -> None:
        file, target = self.directory / name, Path(_LINK, name)
        if file.is_symlink() and file.readlink() == target:
            return
        temporary = self.directory / f"..link-{name}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        temporary.replace(file)  # atomic also if an older version wrote a plain file


class SecretStore:
    """The Secret. Every write is conditional on the resourceVersion that was read."""

    def __init__(self, client: Client, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name

    async def read(self) -> Stored:
        """Raises KubeError."""
        try:
            secret = await self._client.get(Secret, self._name, self._namespace)
        except NotFound:
            return Stored(None)
        data = {}
        for name, text in secret.data.items():
            try:
                data[name] = base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                continue  # invalid base64 counts as missing, so new certificates are made
        return Stored(Certificates.of(data), secret.metadata.resource_version)

    async def write(self, certs: Certificates, version: str) -> bool:
        """False after a conflict with another writer: read again. Raises KubeError."""
        data = {name: base64.b64encode(content).decode() for name, content in certs.data().items()}
        try:
            if not version:
                meta = ObjectMeta(name=self._name, namespace=self._namespace)
                await self._client.create(Secret(metadata=meta, data=data))
            else:
                await self._client.patch(
                    Secret,
                    self._name,
                    self._namespace,
                    body={"metadata": {"resourceVersion": version}, "data": {**dict.fromkeys(_OPTIONAL), **data}},
                )
        except Conflict:
            return False
        return True
