"""CRI mode (spec 08 §11)."""
