"""Scheduling plugins, one a module; `registry` names them."""
