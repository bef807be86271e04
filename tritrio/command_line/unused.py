"""The options of Triton that mean nothing here: they are checked, and answered with a warning."""

from __future__ import annotations

from typing import Final

from . import kinds
from .kinds import Kind
from .option import Group, Option

_LOOP = "one event loop serves all connections"
_GPU = "no GPU is used"
_LIBRARIES = "backends, caches and agents are Python packages, not shared libraries"
_BUFFERS = "messages have no pools: the byte budget bounds them"


def _unused(name: str, kind: Kind, default: str, why: str, *, repeatable: bool = False) -> Option:
    return Option(name, kind, default, why, repeatable=repeatable, unused=True)


UNUSED: Final = Group(
    "of Triton's options, without effect here",
    (
        _unused("--http-thread-count", kinds.COUNT, "8", _LOOP),
        _unused("--grpc-infer-thread-count", kinds.integer("N", 2, 128), "2", _LOOP),
        _unused("--grpc-infer-allocation-pool-size", kinds.NATURAL, "8", _BUFFERS),
        _unused("--grpc-max-response-pool-size", kinds.COUNT, "2147483647", _BUFFERS),
        _unused("--buffer-manager-thread-count", kinds.NATURAL, "0", "copies need no threads"),
        _unused("--host-policy", kinds.HOST_POLICY, "", "threads are not pinned", repeatable=True),
        _unused("--backend-directory", kinds.DIRECTORY, "", _LIBRARIES),
        _unused("--cache-directory", kinds.DIRECTORY, "", _LIBRARIES),
        _unused("--repoagent-directory", kinds.DIRECTORY, "", _LIBRARIES),
        _unused("--pinned-memory-pool-byte-size", kinds.BYTES_OR_NONE, "268435456", _GPU),
        _unused("--cuda-memory-pool-byte-size", kinds.GPU_BYTES, "", _GPU, repeatable=True),
        _unused("--cuda-virtual-address-size", kinds.GPU_BYTES, "", _GPU, repeatable=True),
        _unused("--min-supported-compute-capability", kinds.NUMBER, "0", _GPU),
        _unused("--model-load-gpu-limit", kinds.GPU_FRACTION, "", _GPU, repeatable=True),
        _unused("--enable-peer-access", kinds.BOOL, "true", _GPU),
        _unused("--allow-gpu-metrics", kinds.BOOL, "true", _GPU),
        _unused("--sagemaker-thread-count", kinds.COUNT, "8", _LOOP),
        _unused("--vertex-ai-thread-count", kinds.COUNT, "8", _LOOP),
    ),
)
