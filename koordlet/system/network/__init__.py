"""Netlink: traffic control, address sets, routes."""
