"""What plugins are and what they work with: extension points, evictor, handle, profiles (spec 07 §3)."""
