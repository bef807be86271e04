"""The repository extension over gRPC: the index, and loading and unloading of models."""

from __future__ import annotations

from typing import final

from grpclib.const import Handler

from ..protocol import repository_control
from ..protocol.grpc_codec import repository_index_message
from ..protocol.pb import inference as pb
from .grpc_unary import unary_handlers
from .model_control import LoadOverride, ModelControl
from .repository_index import RepositoryIndex


@final
class RepositoryService:
    """Answers the service's methods for the repository; holds no state of its own.

    A load goes on when its client leaves: see `ModelControl`.
    """

    def __init__(self, *, index: RepositoryIndex, control: ModelControl) -> None:
        self._entries = index.entries
        self._control = control

    def mapping(self) -> dict[str, Handler]:
        """Return path -> grpclib handler."""
        return unary_handlers(
            {
                "RepositoryIndex": self._index,
                "RepositoryModelLoad": self._load,
                "RepositoryModelUnload": self._unload,
            }
        )

    async def _index(self, request: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        repository_control.refuse_repository_name(request.repository_name)
        return repository_index_message(await self._entries(ready_only=request.ready))

    async def _load(self, request: pb.RepositoryModelLoadRequest) -> pb.RepositoryModelLoadResponse:
        repository_control.refuse_repository_name(request.repository_name)
        override = LoadOverride(*repository_control.parse_load_message(request.parameters))
        await self._control.load(request.model_name, override)
        return pb.RepositoryModelLoadResponse()

    async def _unload(
        self, request: pb.RepositoryModelUnloadRequest
    ) -> pb.RepositoryModelUnloadResponse:
        repository_control.refuse_repository_name(request.repository_name)
        await self._control.unload(
            request.model_name,
            unload_dependents=repository_control.parse_unload_message(request.parameters),
        )
        return pb.RepositoryModelUnloadResponse()
