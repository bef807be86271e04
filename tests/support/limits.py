"""How long a test may take."""

from __future__ import annotations

TEST_LIMIT_S = 3600.0
"""Virtual seconds; a deadlock lets the autojump clock reach it at once, so it fails, not hangs."""

TICK_S = 1 / 1024
"""Virtual durations are multiples of it: they add exactly, so times can be compared with ==."""
