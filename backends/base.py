"""What a backend is: it completes configurations, makes instances, and they execute batches.

Everything here runs on worker threads and knows no trio. A backend is chosen by the `backend`
field of the model configuration; an instance lives on one thread of its own from `load` to
`unload`, so it may keep thread-bound state (a CUDA stream, a session) without locks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from ..protocol.pb.inference import ModelConfig
from ..protocol.requests import InferRequest, InferResponse
from .server_link import ServerLink

PostResponse: TypeAlias = Callable[[int, InferResponse], None]
"""Takes (index of the request in its batch, response); may be called from any thread."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where one version of a model lies.

    Attributes:
      name: The model's name.
      version: Its version number.
      model_directory: `<repository>/<model>`.
      version_directory: `<repository>/<model>/<version>`.
      backend_settings: `--backend-config` keys for this backend, the global ones included.
      complete_max_s: How long anybody waits for its configuration to be completed, in seconds; for
        backends that can end what they do.
    """

    name: str
    version: int
    model_directory: Path
    version_directory: Path
    backend_settings: dict[str, str] = field(default_factory=dict)
    complete_max_s: float = inf


@dataclass(frozen=True, slots=True)
class InstancePlace:
    """Which instance of a model this is and what it may use.

    Attributes:
      name: Instance name, such as "identity_0_0".
      kind: "CPU", "GPU" or "MODEL".
      device_id: GPU ordinal; 0 on the CPU.
      cpu_threads: The instance's share of the container's CPU quota; >= 1.
      passive: Whether the scheduler leaves it alone.
      number: What the server calls it, among the instances of all its models.
      server: What it may ask the server; None without one.
    """

    name: str
    kind: str = "CPU"
    device_id: int = 0
    cpu_threads: int = 1
    passive: bool = False
    number: int | None = None
    server: ServerLink | None = None


class Batch:
    """What one execution gets and what it gives back.

    The executing instance calls `respond` for each request; the time stamps are
    `time.perf_counter_ns` values it leaves behind. Whatever is missing after `execute` returned
    is answered with an error by the caller, unless `post` is set (decoupled models answer later).

    Attributes:
      requests: At least one; validated, inputs reshaped; rows in this order.
      responses: Index in `requests` -> its final response, or None.
      post: Delivers a response at once; set for decoupled models only.
      has_room: Whether `post` would not have to wait to take a response that is not final to the
        request at an index; None if it never waits.
      rescheduled: Indices of the requests of an iterative sequence model that want to be executed
        again; they are not answered yet.
      compute_start_ns: When gathering of inputs began.
      infer_start_ns: When the model proper began.
      infer_end_ns: When the model proper ended.
      compute_end_ns: When the outputs were split.
    """

    __slots__ = (
        "compute_end_ns",
        "compute_start_ns",
        "has_room",
        "infer_end_ns",
        "infer_start_ns",
        "post",
        "requests",
        "rescheduled",
        "responses",
    )

    def __init__(self, requests: Sequence[InferRequest], post: PostResponse | None = None) -> None:
        self.requests = requests
        self.responses: list[InferResponse | None] = [None] * len(requests)
        self.post = post
        self.has_room: Callable[[int], bool] | None = None
        self.rescheduled: set[int] = set()
        self.compute_start_ns = 0
        self.infer_start_ns = 0
        self.infer_end_ns = 0
        self.compute_end_ns = 0

    def respond(self, index: int, response: InferResponse) -> None:
        """Give one response to the request at `index`."""
        if self.post is not None:
            self.post(index, response)
        else:
            assert self.responses[index] is None, "one response a request"
            self.responses[index] = response

    def compute_ns(self) -> tuple[int, int, int]:
        """Return how long input, inference and output took; zeros without time stamps."""
        if not (self.compute_start_ns and self.infer_start_ns and self.infer_end_ns):
            return 0, 0, 0
        return (
            self.infer_start_ns - self.compute_start_ns,
            self.infer_end_ns - self.infer_start_ns,
            max(0, self.compute_end_ns - self.infer_end_ns),
        )


class SequenceEndReason(Enum):
    """Why a sequence is over."""

    END_FLAG = "end"
    IDLE = "idle"
    CANCELLED = "cancelled"
    ERROR = "error"
    RESTARTED = "restarted"
    UNLOAD = "unload"


@dataclass(frozen=True, slots=True)
class SequenceEnd:
    """A sequence that is over.

    Attributes:
      sequence_id: Its correlation id.
      reason: Why it is over.
    """

    sequence_id: int | str
    reason: SequenceEndReason


class DeviceFaultError(Exception):
    """The device of an instance is broken: the instance is replaced, its requests are retried.

    Attributes:
      begun: Whether the model may have seen requests of the batch.
    """

    def __init__(self, message: str, *, begun: bool = True) -> None:
        super().__init__(message)
        self.begun = begun


@runtime_checkable
class CanBeKilled(Protocol):
    """An instance outside of this process, which can be ended whatever it does."""

    def kill(self) -> None:
        """End it at once; whatever it was called for fails. Callable from any thread."""


@runtime_checkable
class HearsSequenceEnds(Protocol):
    """An instance that may keep something of a sequence, and wants to know when to let go of it.

    Attributes:
      hears_sequence_ends: Whether it does want to; constant once it is loaded.
    """

    hears_sequence_ends: bool

    def sequences_ended(self, ends: Sequence[SequenceEnd]) -> None:
        """Hear of sequences that this instance served; called on its thread between batches."""


@runtime_checkable
class ExecutesAsync(Protocol):
    """An instance that can execute as a task of the event loop.

    Attributes:
      executes_async: Whether it wants to, in place of `execute`; constant once it is loaded.
    """

    executes_async: bool

    async def execute_async(self, batch: Batch) -> None:
        """As `ModelInstance.execute`, but on the event loop; may be cancelled."""


@runtime_checkable
class SaysReady(Protocol):
    """An instance whose model has a say in whether it is ready.

    Attributes:
      says_ready: Whether it does; constant once it is loaded.
    """

    says_ready: bool

    def is_ready(self) -> bool:
        """Ask the model; called on the instance's thread between batches.

        Raises:
          RequestError: the model raised, or did not answer with a bool.
        """


class ModelInstance(Protocol):
    """One loaded copy of a model; every call comes from its own thread, one at a time."""

    def load(self) -> None:
        """Make the instance ready to execute.

        Raises:
          RequestError: the model cannot be loaded; the message becomes the model's reason.
        """

    def execute(self, batch: Batch) -> None:
        """Answer every request of the batch and stamp the times.

        Raises:
          RequestError: the whole batch fails with it.
          DeviceFaultError: the device is broken.
          Exception: a fault of the model; the whole batch fails with INTERNAL.
        """

    def unload(self) -> None:
        """Release what `load` took; called once, also after a failed `load`."""


class Backend(Protocol):
    """Makes instances of models of one kind.

    Attributes:
      name: The name in the `backend` field.
      stacks_inputs: Whether inputs of a batch are stacked, by the backend or by its models, so
        that only requests with the same inputs of equal dims may share one (True), or each
        request is seen by itself (False).
      cpu_instance_count: Default `count` of a KIND_CPU instance group.
    """

    name: str
    stacks_inputs: bool
    cpu_instance_count: int

    def complete_config(self, source: ModelSource, config: ModelConfig) -> ModelConfig:
        """Return the configuration with what the model's files tell filled in.

        Raises:
          RequestError: the files cannot be read or contradict the configuration.
        """

    def create_instance(
        self, source: ModelSource, config: ModelConfig, place: InstancePlace
    ) -> ModelInstance:
        """Return a new, not yet loaded instance; cheap, and callable on the event loop.

        Args:
          source: Where the model lies.
          config: Completed, normalised and validated.
          place: Which instance it is.
        """
