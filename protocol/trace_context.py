"""The W3C trace context: of which trace of its client a request is part.

Source: the W3C recommendation "Trace Context", `traceparent` version 00.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

TRACESTATE_CHARS_MAX: Final = 512
"""A longer `tracestate` is left out, which the recommendation allows from this length on."""

_TRACEPARENT = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-[0-9a-f]{2}"
    r"(?P<more>-.*)?"
)


TRACESTATE_MEMBERS_MAX: Final = 32
"""Most members of a valid `tracestate`."""

_MEMBER = re.compile(
    r"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
    r"=(?=[ -~]{1,256}\Z)[^,=]*[^,= ]"
)


class TraceContext(NamedTuple):
    """A span to be the parent of others.

    Attributes:
      trace_id: 32 lower-case hexadecimal digits.
      span_id: 16 of them.
      state: The `tracestate`, passed on as it came; may be empty.
    """

    trace_id: str
    span_id: str
    state: str = ""

    def headers(self) -> dict[str, str]:
        """Return the headers that tell of the span; whoever gets them has to record, too."""
        headers = {"traceparent": f"00-{self.trace_id}-{self.span_id}-01"}
        if self.state:
            headers["tracestate"] = self.state
        return headers


def parse_trace_context(traceparent: str, tracestate: str = "") -> TraceContext | None:
    """Return what two headers say, or None if they are no valid context.

    A later version of `traceparent` may have more fields behind those of version 00. A `tracestate`
    that is not valid is left out.
    """
    found = _TRACEPARENT.fullmatch(traceparent.strip())
    if found is None or found["version"] == "ff":
        return None
    if found["more"] and found["version"] == "00":
        return None
    if not (found["trace"].strip("0") and found["span"].strip("0")):
        return None
    state = tracestate.strip()
    return TraceContext(found["trace"], found["span"], state if _is_state(state) else "")


def _is_state(text: str) -> bool:
    """Return whether a text is a `tracestate` to pass on; members may be empty."""
    if len(text) > TRACESTATE_CHARS_MAX:
        return False
    members = [member.strip(" \t") for member in text.split(",")]
    return len(members) <= TRACESTATE_MEMBERS_MAX and all(
        not member or _MEMBER.fullmatch(member) for member in members
    )
