"""Profiles applied to pods that exist already and wait for a node (spec 04 §8)."""

from control.manager.colocationprofile.controller import ColocationProfileController

__all__ = ["ColocationProfileController"]
