"""Hook servers: registration, calls, requests and responses (spec 08 §8-§10)."""
