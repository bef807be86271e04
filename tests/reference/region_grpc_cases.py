"""Cases of shared memory over gRPC; the region "a" is registered before each."""

from __future__ import annotations

from typing import Any

from tritonclient.grpc import service_pb2 as pb

from .cases import Case, Differs
from .grpc_exchange import Call
from .grpc_requests import DATA, infer, output, parameter, request, stream, tensor
from .regions import FIFO, INTS, KEY, PAGE, SIZE, TARGET, TEXT, Steps

REGION = "shared_memory_region"
OFFSET = "shared_memory_offset"
BYTES = "shared_memory_byte_size"
OBJECTS = "region-objects"


def call(method: str, **fields: Any) -> Call:
    return Call(method, (getattr(pb, f"{method}Request")(**fields),))


def register(name: str = "b", **fields: Any) -> Call:
    given = {"key": KEY, "offset": 0, "byte_size": 64, **fields}
    return call("SystemSharedMemoryRegister", name=name, **given)


def register_cuda(name: str = "c", **fields: Any) -> Call:
    given = {"raw_handle": bytes(64), "device_id": 0, "byte_size": 64, **fields}
    return call("CudaSharedMemoryRegister", name=name, **given)


def status(name: str = "") -> Call:
    return call("SystemSharedMemoryStatus", name=name)


def unregister(name: str = "") -> Call:
    return call("SystemSharedMemoryUnregister", name=name)


REGIONS: list[Case[Steps]] = [
    Case("register", (register(offset=PAGE, byte_size=PAGE), status()), "OK"),
    Case("register without a name", (register(""),), Differs("OK", "INVALID_ARGUMENT", OBJECTS)),
    Case("register a name in use", (register("a"),), "ALREADY_EXISTS"),
    Case("register no such object", (register(key=f"{KEY}_none"),), "INTERNAL"),
    Case("register too many bytes", (register(byte_size=SIZE + 1),), "INVALID_ARGUMENT"),
    Case("register no bytes", (register(byte_size=0),), "INVALID_ARGUMENT"),
    Case(
        "register without a key",
        (register(key=""),),
        Differs("INTERNAL", "INVALID_ARGUMENT", OBJECTS),
    ),
    Case("register a pipe", (register(key=FIFO),), "INVALID_ARGUMENT"),
    Case("the status of one", (status("a"),), "OK"),
    Case("the status of an unknown one", (status("x"),), "NOT_FOUND"),
    Case("the CUDA status", (call("CudaSharedMemoryStatus"),), "OK"),
    Case(
        "the CUDA status of a system region",
        (call("CudaSharedMemoryStatus", name="a"),),
        "NOT_FOUND",
    ),
    Case(
        "the CUDA status of an unknown one",
        (call("CudaSharedMemoryStatus", name="x"),),
        "NOT_FOUND",
    ),
    Case("unregister over gRPC", (unregister("a"), status()), "OK"),
    Case("unregister an unknown one over gRPC", (unregister("x"), status()), "OK"),
    Case("unregister all over gRPC", (unregister(), status()), "OK"),
    Case(
        "unregister a system region as CUDA",
        (call("CudaSharedMemoryUnregister", name="a"), status()),
        "OK",
    ),
    Case("register a CUDA region", (register_cuda(),), "INVALID_ARGUMENT"),
    Case("register a short handle", (register_cuda(raw_handle=b"abc"),), "INVALID_ARGUMENT"),
    Case("register a CUDA region without a name", (register_cuda(""),), "INVALID_ARGUMENT"),
    Case(
        "register a CUDA region of a name in use",
        (register_cuda("a"),),
        Differs("ALREADY_EXISTS", "INVALID_ARGUMENT", "cuda-regions"),
    ),
]


def place(region: Any = "a", offset: Any = 0, byte_size: Any = 8) -> dict[str, Any]:
    """Parameters of a tensor; those that are None are left out."""
    given = {REGION: region, OFFSET: offset, BYTES: byte_size}
    return {key: value for key, value in given.items() if value is not None}


def source(
    parameters: dict[str, Any] | None = None,
    *,
    name: str = "INPUT0",
    datatype: str = "FP32",
    shape: tuple[int, ...] = (1, 2),
    contents: dict[str, Any] | None = None,
) -> pb.ModelInferRequest.InferInputTensor:
    """An input in the region."""
    made = tensor(name, datatype, shape, contents)
    for key, value in (place() if parameters is None else parameters).items():
        made.parameters[key].CopyFrom(parameter(value))
    return made


def taken(*arguments: Any, raw: tuple[bytes, ...] = (), **members: Any) -> Steps:
    """A request with one input in the region."""
    return (infer([source(*arguments, **members)], raw),)


def given(**parameters: Any) -> Steps:
    """A request with an input in the region, and an output with these parameters."""
    return (infer([source()], outputs=[output("OUTPUT0", **parameters)]),)


def unsigned(value: int) -> pb.InferParameter:
    return pb.InferParameter(uint64_param=value)


INT32S: dict[str, Any] = {"datatype": "INT32", "shape": (1, 4)}
PAIR = [source(place("a", INTS, 16), **INT32S), tensor("INPUT1", "INT32", [1, 4])]
BAD = "INVALID_ARGUMENT"

INPUTS: list[Case[Steps]] = [
    Case("a gRPC input", taken(), "OK"),
    Case("a gRPC input without an offset", taken(place(offset=None)), "OK"),
    Case("a gRPC input without a byte size", taken(place(byte_size=None)), BAD),
    Case("a gRPC input of an unknown region", taken(place("x")), "NOT_FOUND"),
    Case(
        "an unknown region and model",
        (infer([source(place("x"))], model="nobody"),),
        "NOT_FOUND",
    ),
    Case("a region and contents", taken(contents={"fp32_contents": [1, 2]}), BAD),
    Case("a region and raw contents", taken(raw=(DATA,)), "OK"),
    Case("an unsigned offset", taken(place(offset=unsigned(0))), BAD),
    Case("an unsigned byte size", taken(place(byte_size=unsigned(8))), BAD),
    Case("a byte size that is a double", taken(place(byte_size=8.0)), BAD),
    Case("a region that is a number", taken(place(3)), BAD),
    Case("an offset below 0", taken(place(offset=-1)), BAD),
    Case("a byte size below 0", taken(place(byte_size=-1)), BAD),
    Case("only an offset", taken(place(None, byte_size=None), raw=(DATA,)), BAD),
    Case("only a byte size", taken(place(None, offset=None), raw=(DATA,)), BAD),
    Case("a gRPC input across the end", taken(place(offset=SIZE - 4)), BAD),
    Case("a gRPC input at the end", taken(place(offset=SIZE)), BAD),
    Case("a gRPC input too short", taken(place(byte_size=4)), BAD),
    Case(
        "a gRPC input without elements",
        taken(place(byte_size=0), shape=(1, 0)),
        Differs(BAD, "OK", "empty-slices"),
    ),
    Case("a gRPC input beside raw contents", (infer(PAIR, [bytes(16)], model="add_sub"),), "OK"),
    Case(
        "a gRPC input of text",
        (infer([source(place("a", TEXT, 7), datatype="BYTES", shape=(1, 1))], model="text"),),
        "OK",
    ),
]

OUTPUTS: list[Case[Steps]] = [
    Case("a gRPC output", given(**place(offset=TARGET)), "OK"),
    Case("a gRPC output too small", given(**place(offset=TARGET, byte_size=4)), "INTERNAL"),
    Case("a gRPC output without a byte size", given(**place(byte_size=None)), BAD),
    Case("a gRPC output of an unknown region", given(**place("x")), "NOT_FOUND"),
    Case("a gRPC output and classes", given(**place(offset=TARGET), classification=1), BAD),
    Case("an unsigned byte size of an output", given(**place(byte_size=unsigned(8))), BAD),
    Case("a byte size below 0 of an output", given(**place(byte_size=-8)), BAD),
    Case("only an offset of an output", given(**place(None, byte_size=None)), BAD),
    Case(
        "a gRPC output beside one in the message",
        (
            infer(
                PAIR,
                [bytes(16)],
                model="add_sub",
                outputs=[output("OUTPUT0", **place("a", TARGET, 16)), "OUTPUT1"],
            ),
        ),
        "OK",
    ),
    Case(
        "the second gRPC output too small",
        (
            infer(
                PAIR,
                [bytes(16)],
                model="add_sub",
                outputs=[
                    output("OUTPUT0", **place("a", TARGET, 16)),
                    output("OUTPUT1", **place("a", TARGET + 16, 4)),
                ],
            ),
        ),
        Differs("INTERNAL", "INTERNAL", "response-places"),
    ),
]


def repeated(byte_size: int) -> pb.ModelInferRequest:
    """A request for two responses, into a place of some bytes."""
    one = source(place("a", INTS, 8), name="IN", datatype="INT32", shape=(2,))
    return request(
        [one], model="repeat", name="1", outputs=[output("OUT", **place("a", TARGET, byte_size))]
    )


STREAMS: list[Case[Steps]] = [
    Case(
        "a stream of requests",
        (
            stream(
                request([source()], name="1", outputs=[output("OUTPUT0", **place(offset=TARGET))]),
                request([source(place("x"))], name="2"),
                request([source()], name="3", outputs=[output("OUTPUT0", **place(byte_size=4))]),
            ),
        ),
        "OK",
    ),
    Case("responses of a decoupled model", (stream(repeated(4)),), "OK"),
    Case(
        "responses of a decoupled model too large",
        (stream(repeated(2)),),
        Differs("OK", "OK", "response-places"),
    ),
]

CASES: list[Case[Steps]] = [*REGIONS, *INPUTS, *OUTPUTS, *STREAMS]
