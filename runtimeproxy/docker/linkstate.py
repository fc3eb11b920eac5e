"""States of a `DockerLink`'s request side, and the possible changes between them. Pure."""

from __future__ import annotations

import enum


class LinkState(enum.Enum):
    """State of the request side of a link."""

    CONNECTING = enum.auto()
    """To dockerd; the client's bytes wait."""
    UNAVAILABLE = enum.auto()
    """dockerd cannot be connected: `UnavailableResponder` handles the client."""
    IDLE = enum.auto()
    """Between requests, or within a head."""
    FORWARDING = enum.auto()
    """A request's body is forwarded."""
    COLLECTING = enum.auto()
    """A request is held; its body is incomplete."""
    DECIDING = enum.auto()
    """A request is held; its handler runs."""
    WAITING = enum.auto()
    """The request is sent; its response is incomplete."""
    RELAY = enum.auto()
    """Bytes are relayed blindly in both directions."""
    CLOSED = enum.auto()


TRANSITIONS = {
    LinkState.CONNECTING: {LinkState.IDLE, LinkState.UNAVAILABLE, LinkState.CLOSED},
    LinkState.UNAVAILABLE: {LinkState.CLOSED},
    LinkState.IDLE: {LinkState.FORWARDING, LinkState.COLLECTING, LinkState.RELAY, LinkState.CLOSED},
    LinkState.FORWARDING: {LinkState.WAITING, LinkState.RELAY, LinkState.CLOSED},
    LinkState.COLLECTING: {LinkState.DECIDING, LinkState.FORWARDING, LinkState.RELAY, LinkState.CLOSED},
    LinkState.DECIDING: {LinkState.WAITING, LinkState.IDLE, LinkState.RELAY, LinkState.CLOSED},
    LinkState.WAITING: {LinkState.IDLE, LinkState.RELAY, LinkState.CLOSED},
    LinkState.RELAY: {LinkState.CLOSED},
    LinkState.CLOSED: set(),
}
REQUEST_RUNNING = (LinkState.FORWARDING, LinkState.COLLECTING, LinkState.DECIDING, LinkState.WAITING)
READS_REQUESTS = (LinkState.IDLE, LinkState.FORWARDING, LinkState.COLLECTING)
