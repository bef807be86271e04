"""The shared memory calls over gRPC: register, unregister and status of regions.

Semantics: the system and CUDA shared memory extensions as served by Triton.
"""

from __future__ import annotations

from typing import final

from grpclib.const import Handler

from ..memory.shared_memory import SharedMemoryRegions
from ..protocol.pb import inference as pb
from .grpc_unary import unary_handlers
from .region_access import require_regions


@final
class GrpcSharedMemory:
    """Answers the shared memory methods.

    Args:
      regions: The registered regions; None for a server without, which says so to every call.
    """

    def __init__(self, regions: SharedMemoryRegions | None) -> None:
        self._regions = regions

    def mapping(self) -> dict[str, Handler]:
        """Return path -> grpclib handler."""
        return unary_handlers(
            {
                "SystemSharedMemoryStatus": self._system_status,
                "SystemSharedMemoryRegister": self._system_register,
                "SystemSharedMemoryUnregister": self._system_unregister,
                "CudaSharedMemoryStatus": self._cuda_status,
                "CudaSharedMemoryRegister": self._cuda_register,
                "CudaSharedMemoryUnregister": self._cuda_unregister,
            }
        )

    async def _system_status(
        self, request: pb.SystemSharedMemoryStatusRequest
    ) -> pb.SystemSharedMemoryStatusResponse:
        return pb.SystemSharedMemoryStatusResponse(
            regions={
                region.name: pb.SystemSharedMemoryStatusResponseRegionStatus(
                    name=region.name,
                    key=region.key,
                    offset=region.offset,
                    byte_size=region.byte_size,
                )
                for region in require_regions(self._regions).system_regions(request.name)
            }
        )

    async def _system_register(
        self, request: pb.SystemSharedMemoryRegisterRequest
    ) -> pb.SystemSharedMemoryRegisterResponse:
        require_regions(self._regions).register_system(
            request.name, request.key, request.offset, request.byte_size
        )
        return pb.SystemSharedMemoryRegisterResponse()

    async def _system_unregister(
        self, request: pb.SystemSharedMemoryUnregisterRequest
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        require_regions(self._regions).unregister_system(request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    async def _cuda_status(
        self, request: pb.CudaSharedMemoryStatusRequest
    ) -> pb.CudaSharedMemoryStatusResponse:
        require_regions(self._regions).check_cuda_region(request.name)
        return pb.CudaSharedMemoryStatusResponse()

    async def _cuda_register(
        self, request: pb.CudaSharedMemoryRegisterRequest
    ) -> pb.CudaSharedMemoryRegisterResponse:
        require_regions(self._regions).register_cuda(request.name, request.raw_handle)
        return pb.CudaSharedMemoryRegisterResponse()

    async def _cuda_unregister(
        self, _: pb.CudaSharedMemoryUnregisterRequest
    ) -> pb.CudaSharedMemoryUnregisterResponse:
        require_regions(self._regions).unregister_cuda()
        return pb.CudaSharedMemoryUnregisterResponse()
