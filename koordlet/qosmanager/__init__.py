"""QoS strategies (spec 03 §3): each looks at one picture of the node and says what shall be.

    States, MetricsAdvisor --view.py--> NodeView --strategy.decide--> Decision --manager.py--> Executor, Evictor

A strategy has no clock, no kernel and no API of its own; what it must remember between rounds (tokens, cooling) is its
own small state. What it no longer asks for is given back by the executor, so "off" needs no code.
"""
