"""koordctl: starts and stops a node on this machine, and shows koordlet's and the scheduler's data.

`main` is the command line; no other module depends on click (except `demo.__main__`).
"""
