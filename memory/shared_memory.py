"""Shared memory regions of clients: which are registered, and copies from and to them.

A client may make its object shorter at any time. Touching a mapping behind the new end would kill
the process (SIGBUS), so nothing is mapped: tensors are read with `pread` into buffers of our own
and written with `pwrite`, for which the kernel reports the end instead. Measured, a mebibyte takes
83 µs to read where a copy out of a mapping takes 56, and 64 MiB the same 50 ms either way.
Source: the KServe v2 system and CUDA shared memory extensions as served by Triton.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import stat
import weakref
from collections.abc import Iterable
from typing import Final, final

from ..protocol.errors import ErrorCode, RequestError, invalid_argument
from ..protocol.shared_tensors import RegionSlice
from ..protocol.tensors import Buffer
from ..protocol.wording import quoted

REGIONS_MAX: Final = 1024
"""Registered regions; each keeps a file open. A client needs one or two for each of its requests in
flight. Half of the files that the process may have open is the bound where that is less."""
REGION_NAME_CHARACTERS_MAX: Final = 1024
"""Characters of a region's name; what is registered is kept and listed."""
OBJECT_NAME_BYTES_MAX: Final = 255
"""Bytes of the name of a shared memory object on Linux (NAME_MAX)."""
KEY_CHARACTERS_MAX: Final = 4096
"""Characters of a key, its slashes in front included (PATH_MAX)."""
RESERVED_PREFIX: Final = "triton_python_backend_shm_region_"
"""Objects of Triton's own; clients may not look into them."""
CUDA_HANDLE_BYTES: Final = 64
"""Size of a `cudaIpcMemHandle_t`."""
DIRECTORY: Final = "/dev/shm"  # noqa: S108 - where Linux has POSIX shared memory objects
SIZE_MAX: Final = 2**64 - 1
"""The highest end that offset and byte size may have together."""

_NO_SUCH_OBJECT = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EINVAL, errno.ENODEV})
"""What opening says of a symbolic link, a directory, a socket or a device."""
_NO_FILES = frozenset({errno.EMFILE, errno.ENFILE})


@final
class SystemRegion:
    """A registered part of a POSIX shared memory object.

    The object stays open, so that it can be used after its client has unlinked it, until the region
    is closed or garbage.

    Attributes:
      name: The region's name.
      key: The object's name, as the client gave it.
      offset: Where in the object the region starts, in bytes.
      byte_size: Its size in bytes.
      users: Requests, and copies, that need it.
      leaving: Whether it goes once there are no users.
    """

    def __init__(self, name: str, key: str, offset: int, byte_size: int, descriptor: int) -> None:
        self.name = name
        self.key = key
        self.offset = offset
        self.byte_size = byte_size
        self.users = 0
        self.leaving = False
        self._descriptor = descriptor
        self._close = weakref.finalize(self, os.close, descriptor)

    def __repr__(self) -> str:
        return f"<SystemRegion {self.name!r}: {self.byte_size} bytes, {self.users} users>"

    def close(self) -> None:
        """Close the object; idempotent."""
        self._close()

    def read(self, offset: int, byte_size: int) -> bytes:
        """Return a copy of some bytes, which have to lie in the region.

        Raises:
          RequestError: INVALID_ARG; the object has become shorter. UNAVAILABLE; it cannot be read.
        """
        start = self.offset + offset
        pieces: list[bytes] = []
        missing = byte_size
        while missing:  # a call gives 2 GiB at most
            try:
                piece = os.pread(self._descriptor, missing, start)
            except OSError as error:
                raise self._failed("read", error) from None
            if not piece:
                raise self._shrunk(offset + byte_size, start)
            pieces.append(piece)
            start += len(piece)
            missing -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def write(self, offset: int, data: Buffer) -> None:
        """Write some bytes, which have to lie in the region.

        An object that has become shorter is not made longer again, unless that happens while this
        writes.

        Raises:
          RequestError: INVALID_ARG; the object has become shorter. UNAVAILABLE; it cannot be
            written, for example since the memory for it is used up.
        """
        view = memoryview(data)
        start = self.offset + offset
        try:
            size = os.fstat(self._descriptor).st_size
            if start + len(view) > size:
                raise self._shrunk(offset + len(view), size)
            while view:
                count = os.pwrite(self._descriptor, view, start)
                view = view[count:]
                start += count
        except OSError as error:
            raise self._failed("written", error) from None

    def _shrunk(self, end: int, size: int) -> RequestError:
        return invalid_argument(
            f"shared memory region {quoted(self.name)} needs {end} bytes from byte {self.offset} "
            f"of its object {quoted(self.key)}, which has become shorter: it has {size}"
        )

    def _failed(self, what: str, error: OSError) -> RequestError:
        return RequestError(
            ErrorCode.UNAVAILABLE,
            f"shared memory region {quoted(self.name)} cannot be {what}: {error.strerror}",
        )


@final
class SharedMemoryRegions:
    """The regions of all clients. Lives on the event loop; `read` and `write` of a region need not.

    System and CUDA regions share their names. There is no GPU support, so that no CUDA region is
    ever registered.

    Args:
      allowed: Whether clients may register and unregister regions.
    """

    def __init__(self, *, allowed: bool = True) -> None:
        self._allowed = allowed
        self._regions: dict[str, SystemRegion] = {}

    def __repr__(self) -> str:
        return f"<SharedMemoryRegions {list(self._regions)}>"

    def require_allowed(self) -> None:
        """Refuse to register and unregister where that is switched off.

        Raises:
          RequestError: UNSUPPORTED.
        """
        if not self._allowed:
            raise RequestError(
                ErrorCode.UNSUPPORTED,
                "shared memory of clients is switched off; --allow-client-shm=true switches it on",
            )

    def register_system(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register a part of a POSIX shared memory object, with the rules of `shm_open` and `mmap`.

        Args:
          name: The region's name.
          key: The object's name; slashes in front of it do not count.
          offset: Where in the object the region starts; a multiple of the page size.
          byte_size: Its size; > 0.

        Raises:
          RequestError: INVALID_ARG; ALREADY_EXISTS; INTERNAL if the object cannot be opened;
            UNSUPPORTED; UNAVAILABLE if there are too many.
        """
        self.require_allowed()
        _check_name(name)
        object_name = _object_name(name, key)
        self._check_new(name)
        descriptor = _open(name, key, object_name)
        try:
            _check_range(name, offset, byte_size, os.fstat(descriptor).st_size)
        except BaseException:
            os.close(descriptor)
            raise
        self._regions[name] = SystemRegion(name, key, offset, byte_size, descriptor)

    def register_cuda(self, name: str, raw_handle: bytes) -> None:
        """Refuse a region of CUDA memory.

        Args:
          name: The region's name.
          raw_handle: The `cudaIpcMemHandle_t`.

        Raises:
          RequestError: always; INVALID_ARG.
        """
        self.require_allowed()
        _check_name(name)
        if len(raw_handle) != CUDA_HANDLE_BYTES:
            raise invalid_argument(
                f"'raw_handle' of CUDA shared memory region {quoted(name)} must be a CUDA IPC "
                f"handle of {CUDA_HANDLE_BYTES} bytes in base64, got {len(raw_handle)} bytes"
            )
        raise invalid_argument(
            f"CUDA shared memory region {quoted(name)} cannot be registered: this build has no GPU "
            "support"
        )

    def unregister_system(self, name: str = "") -> None:
        """Unregister a system region, or all with ""; one that nobody knows is no error.

        A region in use takes no more requests, and goes when those in flight have ended.

        Raises:
          RequestError: UNSUPPORTED.
        """
        self.require_allowed()
        region = self._regions.get(name)
        regions = list(self._regions.values()) if not name else [region] if region else []
        for each in regions:
            each.leaving = True
            self._drop_if_unused(each)

    def unregister_cuda(self) -> None:
        """Unregister CUDA regions, of which there are none.

        Raises:
          RequestError: UNSUPPORTED.
        """
        self.require_allowed()

    def system_regions(self, name: str = "") -> list[SystemRegion]:
        """Return a system region, or all with "", by name.

        Raises:
          RequestError: NOT_FOUND.
        """
        if not name:
            return [self._regions[each] for each in sorted(self._regions)]
        region = self._regions.get(name)
        if region is None:
            raise _not_found(f"system shared memory region {quoted(name)} is not registered")
        return [region]

    def check_cuda_region(self, name: str) -> None:
        """Say that a CUDA region is not registered, unless `name` is "" and means all.

        Raises:
          RequestError: NOT_FOUND.
        """
        if name in self._regions:
            raise _not_found(
                f"shared memory region {quoted(name)} is registered as system shared memory, not "
                "as CUDA shared memory"
            )
        if name:
            raise _not_found(f"CUDA shared memory region {quoted(name)} is not registered")

    def find(self, place: RegionSlice) -> SystemRegion:
        """Return the region of a slice, which lies in it.

        Raises:
          RequestError: NOT_FOUND; INVALID_ARG.
        """
        region = self._regions.get(place.region)
        if region is None or region.leaving:
            raise _not_found(f"shared memory region {quoted(place.region)} is not registered")
        _, offset, byte_size = place
        if offset >= region.byte_size:
            raise invalid_argument(
                f"'shared_memory_offset' must be below the {region.byte_size} bytes of shared "
                f"memory region {quoted(region.name)}, got {offset}"
            )
        if offset + byte_size > SIZE_MAX:
            raise invalid_argument(
                f"'shared_memory_offset' {offset} and 'shared_memory_byte_size' {byte_size} in "
                f"shared memory region {quoted(region.name)} exceed the maximum of {SIZE_MAX} "
                "together"
            )
        if offset + byte_size > region.byte_size:
            raise invalid_argument(
                f"{byte_size} bytes from byte {offset} are not within the {region.byte_size} bytes "
                f"of shared memory region {quoted(region.name)}"
            )
        return region

    def hold(self, regions: Iterable[SystemRegion]) -> None:
        """Keep regions open until `let_go` of the same."""
        for region in regions:
            region.users += 1

    def let_go(self, regions: Iterable[SystemRegion]) -> None:
        """Undo one `hold`; a region that was unregistered meanwhile goes with its last user."""
        for region in regions:
            region.users -= 1
            self._drop_if_unused(region)

    def _drop_if_unused(self, region: SystemRegion) -> None:
        if region.leaving and not region.users:
            del self._regions[region.name]
            region.close()

    def _check_new(self, name: str) -> None:
        if name in self._regions:
            raise RequestError(
                ErrorCode.ALREADY_EXISTS,
                f"shared memory region {quoted(name)} is registered already, or still in use",
            )
        most = _regions_max()
        if len(self._regions) >= most:
            raise RequestError(
                ErrorCode.UNAVAILABLE,
                f"shared memory region {quoted(name)} cannot be registered: there may be "
                f"{most} regions",
            )


def _regions_max() -> int:
    """Return how many regions there may be; some files have to be left for connections."""
    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return REGIONS_MAX if files_max == resource.RLIM_INFINITY else min(REGIONS_MAX, files_max // 2)


def _not_found(message: str) -> RequestError:
    return RequestError(ErrorCode.NOT_FOUND, message)


def _check_name(name: str) -> None:
    if not name:
        raise invalid_argument("a shared memory region needs a name, got none")
    if len(name) > REGION_NAME_CHARACTERS_MAX:
        raise invalid_argument(
            f"the name of a shared memory region may have {REGION_NAME_CHARACTERS_MAX} characters, "
            f"got {len(name)}"
        )


def _object_name(name: str, key: str) -> bytes:
    """Return the name of the object in its directory."""
    where = f"key {quoted(key)} of shared memory region {quoted(name)}"
    if len(key) > KEY_CHARACTERS_MAX:
        raise invalid_argument(f"{where} may have {KEY_CHARACTERS_MAX} characters, got {len(key)}")
    bare = key.lstrip("/")
    if not bare:
        raise invalid_argument(f"{where} must name a shared memory object, got only slashes")
    if bare.startswith(RESERVED_PREFIX):
        raise invalid_argument(f"{where} starts with the reserved prefix '{RESERVED_PREFIX}'")
    try:
        encoded = bare.encode()
    except UnicodeEncodeError:
        encoded = b"/"
    if b"/" in encoded or b"\0" in encoded or bare in {".", ".."}:
        raise invalid_argument(f"{where} must be one name behind its slashes, without '/' or NUL")
    if len(encoded) > OBJECT_NAME_BYTES_MAX:
        raise invalid_argument(
            f"{where} may have {OBJECT_NAME_BYTES_MAX} bytes behind its slashes, got {len(encoded)}"
        )
    return encoded


def _open(name: str, key: str, object_name: bytes) -> int:
    """Return a descriptor of an object, opened as `shm_open` does."""
    where = f"object {quoted(key)} of shared memory region {quoted(name)}"
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(os.path.join(os.fsencode(DIRECTORY), object_name), flags)
    except OSError as error:
        if error.errno in _NO_SUCH_OBJECT:
            raise invalid_argument(f"{where} must be a shared memory object") from None
        code = ErrorCode.UNAVAILABLE if error.errno in _NO_FILES else ErrorCode.INTERNAL
        raise RequestError(code, f"{where} cannot be opened: {error.strerror}") from None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise invalid_argument(f"{where} must be a shared memory object")


def _check_range(name: str, offset: int, byte_size: int, size: int) -> None:
    where = f"shared memory region {quoted(name)}"
    if offset + byte_size > size:
        raise invalid_argument(
            f"{where} of {byte_size} bytes from byte {offset} is not within its object of {size} "
            "bytes"
        )
    if not byte_size:
        raise invalid_argument(f"{where} needs a byte size above 0")
    if offset % mmap.PAGESIZE:
        raise invalid_argument(
            f"{where} must start at a multiple of the page size of {mmap.PAGESIZE} bytes, got byte "
            f"{offset}"
        )
