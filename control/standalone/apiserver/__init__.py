"""The embedded API server, as a process and as an object (`server.ApiServer`)."""

from control.standalone.apiserver.server import AlreadyRunning, ApiServer, ApiServerConfig

__all__ = ["AlreadyRunning", "ApiServer", "ApiServerConfig"]
