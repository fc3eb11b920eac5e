"""CPU, memory and pressure of node, pods and containers, read once per tick (spec 02 §5)."""
