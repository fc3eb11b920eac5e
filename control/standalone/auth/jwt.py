"""Compact JSON web tokens signed with ES256, for service-account tokens.

One algorithm and one key, no negotiation: a token that names another algorithm is rejected. Pure.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

_COORDINATE = 32  # bytes of r and of s on P-256


class JwtError(ValueError):
    """The token is invalid; the message has the reason, never the token."""


class Signer:
    """Signs and verifies with one P-256 key."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key
        self._public = key.public_key()
        der = self._public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        self.key_id = _b64(hashlib.sha256(der).digest())

    @classmethod
    def from_pem(cls, pem: bytes) -> Signer:
        """Raises JwtError for anything but an unencrypted P-256 private key."""
        try:
            key = serialization.load_pem_private_key(pem, password=None)
        except (ValueError, TypeError) as error:
            raise JwtError("the service account key is not a PEM private key") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
            raise JwtError("the service account key is not an EC P-256 key")
        return cls(key)

    def sign(self, claims: Mapping[str, Any]) -> str:
        header = {"alg": "ES256", "kid": self.key_id}
        signed = f"{_b64(_json(header))}.{_b64(_json(claims))}"
        r, s = decode_dss_signature(self._key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{_b64(r.to_bytes(_COORDINATE) + s.to_bytes(_COORDINATE))}"

    def verify(self, token: str) -> dict[str, Any]:
        """The claims of a token signed by this key; raises JwtError. The caller has to check the times."""
        parts = token.split(".")
        if len(parts) != 3:
            raise JwtError("not a compact JSON web token")
        try:
            header, claims, signature = json.loads(_unb64(parts[0])), json.loads(_unb64(parts[1])), _unb64(parts[2])
        except (ValueError, RecursionError, binascii.Error) as error:
            raise JwtError("malformed token") from error
        if not isinstance(header, dict) or header.get("alg") != "ES256" or not isinstance(claims, dict):
            raise JwtError("unsupported token algorithm")
        if len(signature) != 2 * _COORDINATE:
            raise JwtError("invalid signature")
        r, s = int.from_bytes(signature[:_COORDINATE]), int.from_bytes(signature[_COORDINATE:])
        try:
            signed = f"{parts[0]}.{parts[1]}".encode()
            self._public.verify(encode_dss_signature(r, s), signed, ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, ValueError) as error:
            raise JwtError("invalid signature") from error
        return claims


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unb64(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
