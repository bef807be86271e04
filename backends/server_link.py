"""What a model may ask of the server that it runs in.

All of it is plain data and may be asked from any thread, so that a model in a process of its own
can ask the same over a socket.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol, TypeAlias

from ..protocol.requests import InferRequest, InferResponse
from .metric_store import Metrics

RESPONSES_AHEAD: Final = 32
"""Responses of one call that are handed over before the caller takes any: enough that a caller who
computes does not hold the callee up, and few enough that one who is slow costs no more memory."""

Respond: TypeAlias = Callable[[InferResponse], None]
"""Takes one response of a call, the last of which is final; must neither raise nor wait."""

Arm: TypeAlias = Callable[[Callable[[], None]], None]
"""Is given a function, and has it called, on any thread, once what is waited for is there."""


class OpenCall(Protocol):
    """A call that has been sent; both methods may be called from any thread, and never wait."""

    def cancel(self) -> None:
        """Cancel the call unless it has had its final response; then it gets one that says so."""

    def more(self, count: int) -> None:
        """Let so many more responses be handed over, beyond the first `RESPONSES_AHEAD`."""


class ServerLink(Protocol):
    """A server, as its models see it."""

    @property
    def metrics(self) -> Metrics:
        """Where its models make their own metrics."""

    def infer(
        self, request: InferRequest, respond: Respond, *, caller: int | None, decoupled: bool
    ) -> OpenCall:
        """Send a request to another model; never waits, and never raises.

        Args:
          request: Not validated yet; its tensors are not changed until the call ends.
          respond: Called with each response; the last is final, and there always is one. Whatever
            is wrong, such as a model that is not ready, is an error response.
          caller: The number of the instance whose execution waits for this call (see
            `InstancePlace.number`), so that it ends with its requests and cannot wait for itself;
            None if none does.
          decoupled: Whether there may be any number of responses.
        """

    def load_model(
        self, name: str, config: str | None, files: Mapping[str, bytes], *, caller: int | None
    ) -> None:
        """Load a model; waits until it is READY.

        Args:
          name: The model's name.
          config: Its configuration as JSON text, or None for what is in the repository.
          files: Path below the model's directory -> content.
          caller: The number of the instance whose code asks; None if that is unknown.

        Raises:
          RequestError: it cannot be loaded, or not on request.
        """

    def unload_model(self, name: str, *, unload_dependents: bool, caller: int | None) -> None:
        """Begin to unload a model; see `load_model`.

        Raises:
          RequestError: it cannot be unloaded, or not on request.
        """

    def is_model_ready(self, name: str, version: str) -> bool:
        """Return whether a version of a model, or with "" any version, takes requests."""

    def sleep(self, arm: Arm) -> Awaitable[None]:
        """Sleep, in code that trio runs, until the function that `arm` is given was called."""
