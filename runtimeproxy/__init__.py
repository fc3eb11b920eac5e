"""koord-runtime-proxy: sits between kubelet and a container runtime, asks hook servers, and is otherwise not there.

What is asked and what an answer may change is protocol-neutral (`hooks`, `registry`, `dispatch`, `answers`, `merge`,
`store`); `calls` and `recover` know CRI's messages. How bytes travel is the business of the protocol sides. Knows
koordlet by its wire only (spec 08 §7-§12).
"""

AGENT = "koord-runtime-proxy"
"""Who calls, as gRPC servers are told."""
