"""The composition of koordlet, one part per module: each takes the `WiringContext`, builds objects, connects them, and
adds services to the runner.

`koordlet.daemon` calls the parts in order. Options are read here and not in the packages below.
"""
