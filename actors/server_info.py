"""What the server says of itself."""

from __future__ import annotations

from dataclasses import dataclass

EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
"""The protocol extensions that are served, under the names and in the order clients know."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The server metadata.

    Attributes:
      name: The server's id.
      version: Its version.
      extensions: What it serves beyond the base protocol.
    """

    name: str
    version: str
    extensions: tuple[str, ...] = EXTENSIONS
