"""koord-device-daemon: runs vendors' tools to find the node's accelerators, and describes them in a file for koordlet.

`vendors` turns a tool's output into devices (pure), `rounds` queries all vendors and tolerates failed rounds of each,
`output` writes the file, `daemon` repeats this. Needs no API server: koordlet reports the file's content (spec 08 §1,
§2).
"""
