"""Tables and texts that koordctl prints."""
