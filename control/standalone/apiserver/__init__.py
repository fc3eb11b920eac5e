"""The embedded API server as a process and as an object: see `server`."""

from .server import AlreadyRunning, ApiServer, Config

__all__ = ["AlreadyRunning", "ApiServer", "Config"]
