"""Server reflection: what tools ask about the services of a gRPC server, and the answers.

The answers are pieces of the committed descriptors, as they were serialized; nothing here builds
or reads a descriptor beyond the names in it.
Source: the gRPC server reflection protocol, version 1; v1alpha has the same messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final, final

from grpclib.const import Status

from .pb.descriptors import FILE_DESCRIPTOR_SET
from .pb.grpc.reflection.v1 import (
    ErrorResponse,
    ExtensionNumberResponse,
    FileDescriptorResponse,
    ListServiceResponse,
    ServerReflectionRequest,
    ServerReflectionResponse,
    ServiceResponse,
)
from .protobuf_wire import LENGTH_DELIMITED, FieldReader
from .wording import quoted

_FILES: Final = 1
"""Field of FileDescriptorSet."""
_NAME: Final = 1
"""Field of every descriptor."""
_PACKAGE, _DEPENDENCY = 2, 3
_KINDS: Final[Mapping[str, Mapping[int, str]]] = {
    "file": {4: "message", 5: "enum", 6: "service"},
    "message": {2: "field", 3: "message", 4: "enum", 8: "oneof"},
    "enum": {2: "value"},
    "service": {2: "method"},
}
"""Kind of descriptor -> its fields that hold descriptors, and of which kind."""

_Extent = tuple[int, int]


@final
class Descriptors:
    """Serialized descriptors by file name and by the symbols they define.

    Args:
      descriptor_set: A FileDescriptorSet, with every file that another one of it needs.
    """

    def __init__(self, descriptor_set: bytes) -> None:
        self._reader = FieldReader(descriptor_set)
        self._files: dict[str, bytes] = {}
        self._needed: dict[str, list[str]] = {}  # file -> those it imports
        self._file_of: dict[str, str] = {}  # symbol -> file
        self._messages: set[str] = set()
        self._services: list[str] = []
        for start, stop in self._values((0, len(descriptor_set)), _FILES):
            self._add_file((start, stop), descriptor_set[start:stop])

    def answer(self, request: ServerReflectionRequest) -> ServerReflectionResponse:
        """Return the answer to one request; a fault in it is an answer, too."""
        response = ServerReflectionResponse(valid_host=request.host, original_request=request)
        if request.list_services is not None:
            services = [ServiceResponse(name=name) for name in sorted(self._services)]
            response.list_services_response = ListServiceResponse(service=services)
        elif request.file_by_filename is not None:
            self._answer_file(response, request.file_by_filename, request.file_by_filename)
        elif request.file_containing_symbol is not None:
            symbol = request.file_containing_symbol
            self._answer_file(response, self._file_of.get(symbol, ""), symbol)
        elif request.all_extension_numbers_of_type is not None:
            name = request.all_extension_numbers_of_type
            if name in self._messages:
                response.all_extension_numbers_response = ExtensionNumberResponse(name, [])
            else:
                response.error_response = _not_found(name)
        elif request.file_containing_extension is not None:
            extension = request.file_containing_extension
            response.error_response = _not_found(
                f"{extension.containing_type} extension {extension.extension_number}"
            )
        else:
            response.error_response = ErrorResponse(
                Status.INVALID_ARGUMENT.value, "expected a kind of question, got none that is known"
            )
        return response

    def _answer_file(self, response: ServerReflectionResponse, name: str, asked: str) -> None:
        """Answer with a file and those it needs, each once, or that there is none."""
        if name not in self._files:
            response.error_response = _not_found(asked)
            return
        names = [name]
        for needed in names:
            names += [other for other in self._needed[needed] if other not in names]
        response.file_descriptor_response = FileDescriptorResponse(
            [self._files[needed] for needed in names]
        )

    def _add_file(self, extent: _Extent, content: bytes) -> None:
        name, package = self._text(extent, _NAME), self._text(extent, _PACKAGE)
        self._files[name] = content
        self._needed[name] = [self._str(found) for found in self._values(extent, _DEPENDENCY)]
        self._add_symbols(extent, "file", package, name)

    def _add_symbols(self, extent: _Extent, kind: str, scope: str, file: str) -> None:
        """Note the file of every symbol inside a descriptor."""
        for number, child_kind in _KINDS.get(kind, {}).items():
            for child in self._values(extent, number):
                symbol = f"{scope}.{self._text(child, _NAME)}"
                self._file_of[symbol] = file
                if child_kind == "message":
                    self._messages.add(symbol)
                elif child_kind == "service":
                    self._services.append(symbol)
                # The values of an enumeration are its siblings, as in C.
                self._add_symbols(
                    child, child_kind, scope if child_kind == "enum" else symbol, file
                )

    def _values(self, extent: _Extent, wanted: int) -> Iterator[_Extent]:
        for number, kind, start, stop in self._reader.fields(*extent):
            if number == wanted and kind == LENGTH_DELIMITED:
                yield start, stop

    def _text(self, extent: _Extent, number: int) -> str:
        return "".join(map(self._str, self._values(extent, number)))

    def _str(self, extent: _Extent) -> str:
        return bytes(self._reader.data[slice(*extent)]).decode()


def _not_found(what: str) -> ErrorResponse:
    return ErrorResponse(
        Status.NOT_FOUND.value, f"expected the name of something that is served, got {quoted(what)}"
    )


@cache
def served_descriptors() -> Descriptors:
    """Return the descriptors of every service; the first call reads them."""
    return Descriptors(FILE_DESCRIPTOR_SET)
