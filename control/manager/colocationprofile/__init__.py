"""Applies ClusterColocationProfiles to existing pods that are not scheduled yet (spec 04 §8)."""

from control.manager.colocationprofile.controller import ColocationProfileController

__all__ = ["ColocationProfileController"]
