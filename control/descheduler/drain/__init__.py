"""Drain controller: empties nodes. First a plan by Reservations, then, once confirmed, migrations (spec 07 §12)."""
