"""Compares an installation of Koordinator with this system, for `koordctl migrate check`."""
