"""koord-descheduler: decides which running pods should move, and has them evicted (spec 07)."""
