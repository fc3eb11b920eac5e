"""Streams to containers (exec, attach, port-forward): HTTP upgrades, SPDY frames, and their translation to WebSocket.

The API server and the stand-in kubelet use the same parts: `upgrade` connects to the next server, `takeover` takes the
client's connection, `relay` copies between them. Nothing here knows pods or users.
"""
