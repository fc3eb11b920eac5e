"""`koordctl up`, `down`, `status`: the processes of a one-machine cluster."""
