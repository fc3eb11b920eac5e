"""The controller of Reservations: expiry, the status of bound ones, garbage collection (spec 06 §4.8).

`lifecycle` decides without I/O, `owners` follows the pods that consume Reservations, `controller` writes and deletes.
"""

from control.scheduler.reservationcontrol.controller import ReservationController

__all__ = ["ReservationController"]
