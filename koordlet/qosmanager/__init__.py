"""QoS strategies (spec 03 §3): each gets the same snapshot of the node and decides which settings it wants.

    KubeStates, MetricsAdvisor --viewbuilder--> NodeView --Strategy.decide--> QoSDecision --manager--> Executor,
    PodEvictor

A strategy has no clock, no kernel access and no API client of its own; what it keeps between rounds (tokens, cooling
times) is small state of its own. The executor restores what a strategy no longer declares, so "off" needs no code.
"""
