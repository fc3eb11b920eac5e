"""koordctl: brings a node up on this machine, takes it down, and shows what koordlet sees.

`main` is the command line; every other module holds one idea and knows nothing of click.
"""
