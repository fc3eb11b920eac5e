"""Token buckets for rate limits, and exponential back-off after failures."""

from __future__ import annotations

import random

from koordlet.app.clock import Clock


class TokenBucket:
    """`qps` tokens per second, at most `burst` accumulated; qps <= 0 means no limit.

    Waiters reserve tokens in order of arrival and sleep until their token exists, so the bucket is fair without a
    queue. The level may be negative: these tokens are reserved by sleeping waiters.
    """

    def __init__(self, qps: float, burst: float, *, clock: Clock) -> None:
        self._qps = qps
        self._burst = max(1.0, float(burst))
        self._clock = clock
        self._tokens = self._burst
        self._at = clock.monotonic()

    def reserve(self) -> float:
        """Take a token and return the seconds to wait before using it."""
        if self._qps <= 0:
            return 0.0
        self._refill()
        self._tokens -= 1
        return max(0.0, -self._tokens / self._qps)

    def try_take(self, tokens: float = 1.0) -> bool:
        """Take a token, or this number, if they are available now."""
        if self._qps <= 0:
            return True
        self._refill()
        if self._tokens < tokens:
            return False
        self._tokens -= tokens
        return True

    async def acquire(self) -> float:
        """Wait for a token; returns the seconds waited. A cancelled wait returns its token."""
        delay = self.reserve()
        if delay > 0:
            try:
                await self._clock.sleep(delay)
            except BaseException:
                self._tokens += 1
                raise
        return delay

    def _refill(self) -> None:
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._qps)
        self._at = now


class ExponentialBackoff:
    """Growing delays with jitter: base, base*factor, … up to `maximum`, each extended by up to `jitter` of itself.

    The jitter prevents a thousand nodes from reconnecting to a restarted API server at the same time.
    """

    def __init__(
        self,
        base: float,
        maximum: float,
        *,
        jitter: float = 1.0,
        rng: random.Random | None = None,
    ) -> None:
        self._base = base
        self._maximum = maximum
        self._jitter = jitter
        self._rng = rng or random.Random()
        self.failures = 0

    def next(self) -> float:
        """Count a failure and return the delay in seconds."""
        # The exponent is bounded so that a long series of failures does not overflow a float.
        delay = min(self._maximum, self._base * 2.0 ** min(self.failures, 60))
        self.failures += 1
        return delay * (1 + self._jitter * self._rng.random())

    def expected_failure(self) -> None:
        """Count a failure that needs no delay, unless another one was counted since the last reset."""
        self.failures = max(1, self.failures)

    def reset(self) -> None:
        self.failures = 0
