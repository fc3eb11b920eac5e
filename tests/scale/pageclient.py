"""A client of koordlet's HTTPS pages that keeps its connection and accepts gzip, as Prometheus and koordctl do."""

from __future__ import annotations

import gzip
import http.client
import ssl

TIMEOUT_S = 10.0


class PageClient:
    """`token` may read every page. The certificate is self-signed."""

    def __init__(self, port: int, token: str) -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_S, context=context)
        self._headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": "gzip"}

    def get(self, path: str) -> str:
        """The page. Raises OSError, also for a status that is not 200."""
        try:
            self._connection.request("GET", path, headers=self._headers)
            response = self._connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise OSError(f"{path}: {error}") from error
        if response.status != 200:
            raise OSError(f"{path}: status {response.status}")
        return (gzip.decompress(body) if response.headers.get("Content-Encoding") == "gzip" else body).decode()
