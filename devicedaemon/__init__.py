"""koord-device-daemon: asks vendors' tools which accelerators the node has and describes them in a file for koordlet.

`vendors` turns what a tool prints into devices (pure), `rounds` asks all vendors and forgives each its bad rounds,
`output` writes the file, `daemon` repeats that. Needs no API server: koordlet reports what the file says (spec 08 §1,
§2).
"""
