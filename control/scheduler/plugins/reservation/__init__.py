"""Reservation: room on nodes for pods that do not exist yet (spec 06 §4)."""

from control.scheduler.plugins.reservation.plugin import ReservationPlugin

__all__ = ["ReservationPlugin"]
