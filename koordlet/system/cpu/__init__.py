"""CPU topology, CPU sets, core scheduling, performance counters."""
