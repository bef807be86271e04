"""The client's side of gRPC: the h2 library over a connection in memory."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings
import numpy as np
import trio
from tritonclient.grpc import service_pb2 as pb

from tests.support.memory_stream import End

GOAWAY = 7
SERVICE = "/inference.GRPCInferenceService"
OK, CANCELLED, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND = 0, 1, 3, 4, 5
UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 12, 13, 14


def infer_message(
    model: str, rows: Sequence[Sequence[int]], *, request_id: str = "", **parameters: bool
) -> Any:
    """A ModelInferRequest for INPUT0."""
    request = pb.ModelInferRequest(model_name=model, id=request_id)
    tensor = request.inputs.add(name="INPUT0", datatype="INT32")
    array = np.array(rows, np.int32)
    tensor.shape.extend(array.shape)
    request.raw_input_contents.append(array.tobytes())
    for name, value in parameters.items():
        request.parameters[name].bool_param = value
    return request


def rows_of(response: Any) -> list[list[int]]:
    """The rows of the one output of a ModelInferResponse."""
    (output,) = response.outputs
    rows: list[list[int]] = (
        np.frombuffer(response.raw_output_contents[0], np.int32).reshape(output.shape).tolist()
    )
    return rows


def framed(message: Any) -> bytes:
    data = message if isinstance(message, bytes) else message.SerializeToString()
    return struct.pack(">BI", 0, len(data)) + data


class Call:
    """One call.

    Attributes:
      messages: The response messages so far, decoded, with the time each came.
      status: The gRPC status, None while it is open; -1 if the stream was reset or lost.
      trailers: The headers that ended it.
    """

    def __init__(self, client: GrpcClient, stream_id: int, response_type: Any) -> None:
        self._client = client
        self._response_type = response_type
        self._data = b""
        self._changed = trio.lowlevel.ParkingLot()
        self.stream_id = stream_id
        self.messages: list[Any] = []
        self.times_s: list[float] = []
        self.status: int | None = None
        self.text = ""
        self.trailers: dict[str, str] = {}
        self.ended_s = -1.0

    def send(self, message: Any, *, end: bool = False) -> None:
        self._client.send_data(self.stream_id, framed(message), end=end)

    def half_close(self) -> None:
        self._client.send_data(self.stream_id, b"", end=True)

    def cancel(self) -> None:
        self._client.reset(self.stream_id)
        self.end(-1, "cancelled by the client")

    async def done(self) -> int:
        """Wait for the end of the call; returns its status."""
        while self.status is None:
            await self._changed.park()
        return self.status

    async def received(self, count: int) -> list[Any]:
        """Wait for `count` messages."""
        while len(self.messages) < count and self.status is None:
            await self._changed.park()
        return self.messages

    def feed(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 5:
            size = int.from_bytes(self._data[1:5], "big")
            if len(self._data) < 5 + size:
                return
            message = self._response_type.FromString(self._data[5 : 5 + size])
            self._data = self._data[5 + size :]
            self.messages.append(message)
            self.times_s.append(trio.current_time())
            self._changed.unpark_all()

    def end(self, status: int, text: str) -> None:
        if self.status is None:
            self.status = status
            self.text = text
            self.ended_s = trio.current_time()
            self._changed.unpark_all()


class GrpcClient:
    """One HTTP/2 connection. `run` reads; everything else is synchronous.

    Attributes:
      goaways: When each GOAWAY came, and the last stream it said is served.
      reasons: Error code and text of each GOAWAY.
      pings: When the server has pinged; each is answered.
      pongs: When the server has answered a ping.
      closed_s: When the connection ended, if it has.

    Args:
      end: The connection.
      window_bytes: Initial flow-control window of each stream.
    """

    def __init__(self, end: End, *, window_bytes: int = 65_535) -> None:
        self.end = end
        self.calls: dict[int, Call] = {}
        self.goaways: list[tuple[float, int]] = []
        self.reasons: list[tuple[int, str]] = []
        self.pings: list[float] = []
        self.pongs: list[float] = []
        self.closed_s: float | None = None
        self._closed = trio.Event()
        self._data = b""
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.h2.local_settings = h2.settings.Settings(
            client=True,
            initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window_bytes},
        )
        self.h2.initiate_connection()
        self.flush()

    def flush(self) -> None:
        self.end.write(self.h2.data_to_send())

    def call(
        self,
        method: str,
        message: Any = None,
        *,
        response_type: Any = pb.ModelInferResponse,
        timeout: str = "",
        end: bool = True,
        metadata: Sequence[tuple[str, str]] = (),
        flush: bool = True,
    ) -> Call:
        """Begin a call; with a message and `end` the request is complete."""
        path = method if method.startswith("/") else f"{SERVICE}/{method}"
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "test"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *metadata,
        ]
        if timeout:
            headers.append(("grpc-timeout", timeout))
        stream_id = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream_id, headers)
        call = self.calls[stream_id] = Call(self, stream_id, response_type)
        if message is not None:
            self.h2.send_data(stream_id, framed(message), end_stream=end)
        if flush:
            self.flush()
        return call

    def infer(self, model: str, rows: Sequence[Sequence[int]], **more: Any) -> Call:
        request_id = more.pop("request_id", "")
        return self.call("ModelInfer", infer_message(model, rows, request_id=request_id), **more)

    def stream(self, **more: Any) -> Call:
        return self.call("ModelStreamInfer", response_type=pb.ModelStreamInferResponse, **more)

    def send_data(self, stream_id: int, data: bytes, *, end: bool) -> None:
        while True:
            room = min(
                self.h2.local_flow_control_window(stream_id), self.h2.max_outbound_frame_size
            )
            assert room or not data, "the server's window is full"
            piece, data = data[:room], data[room:]
            self.h2.send_data(stream_id, piece, end_stream=end and not data)
            if not data:
                break
        self.flush()

    def reset(self, stream_id: int) -> None:
        self.h2.reset_stream(stream_id, h2.errors.ErrorCodes.CANCEL)
        self.flush()

    def ping(self) -> None:
        self.h2.ping(bytes(8))
        self.flush()

    async def closed(self) -> float:
        """Wait until the server closes the connection; when that was."""
        await self._closed.wait()
        assert self.closed_s is not None
        return self.closed_s

    async def run(self) -> None:
        """Read until the connection ends."""
        try:
            while data := await self.end.read():
                for event in self.h2.receive_data(self._without_goaways(data)):
                    self._handle(event)
                self.flush()
        except trio.BrokenResourceError:
            pass
        self.closed_s = trio.current_time()
        self._closed.set()
        for call in self.calls.values():
            call.end(-1, "the connection was lost")

    def _without_goaways(self, data: bytes) -> bytes:
        """Take GOAWAY frames out: h2 thinks that they end a connection at once."""
        self._data += data
        rest = b""
        while len(self._data) >= 9 and len(self._data) >= (
            size := 9 + int.from_bytes(self._data[:3], "big")
        ):
            frame, self._data = self._data[:size], self._data[size:]
            if frame[3] == GOAWAY:
                self.goaways.append((trio.current_time(), int.from_bytes(frame[9:13], "big")))
                self.reasons.append((int.from_bytes(frame[13:17], "big"), frame[17:].decode()))
            else:
                rest += frame
        return rest

    def _handle(self, event: Any) -> None:
        match event:
            case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                headers = {_text(name): _text(value) for name, value in event.headers}
                if "grpc-status" in headers:
                    call = self.calls[event.stream_id]
                    call.trailers = headers
                    call.end(int(headers["grpc-status"]), headers.get("grpc-message", ""))
            case h2.events.DataReceived():
                self.calls[event.stream_id].feed(event.data)
                if event.flow_controlled_length:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.PingReceived():
                self.pings.append(trio.current_time())
            case h2.events.PingAckReceived():
                self.pongs.append(trio.current_time())
            case h2.events.StreamReset():
                self.calls[event.stream_id].end(-1, f"reset: {event.error_code}")


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()
