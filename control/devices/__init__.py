"""Which devices of a node a pod gets: inventory, requests, search and joint allocation (spec 06 §3). Pure.

Input is a Device object and what pods hold; output is devices with amounts. Nothing here reads clocks or objects.
"""
