"""The example silero_vad: its graph, its client, and streams through a server."""

from __future__ import annotations

import functools
import runpy
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.support.server_process import ROOT, ServerProcess
from tritrio.protocol.tensors import Array

from .models import EXAMPLES
from .steps import needs_weights

MODEL = EXAMPLES / "silero_vad" / "1" / "model.onnx"
SPEECH = EXAMPLES / "silero_vad" / "speech.wav"
STREAM = runpy.run_path(str(EXAMPLES / "silero_vad" / "stream.py"))
STREAMS = 8
CHUNKS = 90
"""In each stream: 2.9 s."""
OFFSET = 3
"""How many chunks later than the stream before a stream begins, so that none are in step."""
SEGMENTS_S = [(6.78, 7.20), (7.65, 17.89), (18.08, 21.57), (21.82, 30.02)]
"""Where people speak in the recording: its makers' notes say the same, to a tenth of a second."""


def session(model: Any) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@functools.cache
def published() -> onnxruntime.InferenceSession:
    """The model as its authors publish it."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        names = runpy.run_path(str(ROOT / "scripts" / "fetch_models"))
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    try:
        wheel = names["fetch"](names["SILERO_VAD"])
    except names["FetchError"] as error:
        pytest.skip(f"no published model: {error}")
    content = names["read_member"](wheel, names["SILERO_VAD_DIR"] + "silero_vad.onnx")
    return session(content)


def probabilities_alone(chunks: Array) -> Array:
    """FP32 [chunks]: what the published model says of a stream FP32 [chunks, 512]."""
    state = np.zeros((2, 1, 128), np.float32)
    context = np.zeros(64, np.float32)
    found = []
    for chunk in chunks:
        feeds = {
            "input": np.concatenate([context, chunk])[np.newaxis],
            "state": state,
            "sr": np.array(16_000, np.int64),
        }
        probability, state = published().run(None, feeds)
        found.append(probability[0, 0])
        context = chunk[-64:]
    return np.array(found)


@functools.cache
def speech() -> Array:
    """The recording, FP32 [chunks, 512]."""
    needs_weights(SPEECH)
    chunks: Array = STREAM["read_wav"](SPEECH)
    return chunks


def streams() -> Array:
    """FP32 [streams, chunks, 512]: parts of the recording, each 2.9 s later than the last."""
    return speech()[: STREAMS * CHUNKS].reshape(STREAMS, CHUNKS, 512)


def audio(chunk: Array) -> triton.InferInput:
    tensor = triton.InferInput("audio", [1, 512], "FP32")
    tensor.set_data_from_numpy(chunk[np.newaxis])
    return tensor


def test_the_rewired_graph_answers_a_batch_of_streams_as_the_published_one_does_each() -> None:
    needs_weights(MODEL)
    rewired = session(str(MODEL))
    state = np.zeros((STREAMS, 2, 128), np.float32)
    context = np.zeros((STREAMS, 64), np.float32)
    found = []
    for chunks in streams().swapaxes(0, 1):
        feeds = {"audio": chunks, "state_in": state, "context": context}
        names = ["prob", "state_out", "context_out"]
        probability, state, context = rewired.run(names, feeds)
        found.append(probability[:, 0])
    for row, stream in zip(np.array(found).T, streams(), strict=True):
        assert row == pytest.approx(probabilities_alone(stream), abs=1e-5)


def test_people_are_heard_where_the_recordings_makers_hear_them() -> None:
    found = list(STREAM["segments"](map(float, probabilities_alone(speech()))))
    assert np.array(found) == pytest.approx(np.array(SEGMENTS_S), abs=0.005)


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [
        ([0.0] * 9, []),
        ([0.0, 0.5, 0.4, 0.0, 0.0, 0.0, 0.0], [(1, 3)]),
        ([0.9, 0.0, 0.0, 0.0, 0.36, 0.0], [(0, 5)]),
        ([0.9, 0.0, 0.0, 0.0, 0.0, 0.36, 0.5], [(0, 1), (6, 7)]),
    ],
    ids=["silence", "both thresholds", "a short pause, cut off by the end", "a long pause"],
)
def test_the_client_joins_speech_over_short_pauses(
    probabilities: list[float], expected: list[tuple[int, int]]
) -> None:
    found = [
        (begin_s / 0.032, end_s / 0.032) for begin_s, end_s in STREAM["segments"](probabilities)
    ]
    assert found == [pytest.approx(segment) for segment in expected]


def write_wav(path: Path, samples: Array, rate_hz: int = 16_000) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(samples.astype("<i2").tobytes())


def test_the_client_fills_the_last_chunk_with_silence(tmp_path: Path) -> None:
    write_wav(tmp_path / "x.wav", np.full(600, -16_384))
    chunks = STREAM["read_wav"](tmp_path / "x.wav")
    assert (chunks.dtype, chunks.shape) == (np.float32, (2, 512))
    assert chunks.ravel().tolist() == [-0.5] * 600 + [0.0] * 424


def test_the_client_refuses_a_recording_at_another_rate(tmp_path: Path) -> None:
    write_wav(tmp_path / "x.wav", np.zeros(600), rate_hz=8_000)
    with pytest.raises(SystemExit, match=r"expected 16000 Hz, .* got \(8000, 1, 2\)"):
        STREAM["read_wav"](tmp_path / "x.wav")


@pytest.mark.e2e
@pytest.mark.slow
def test_interleaved_streams_are_answered_as_each_alone(examples: ServerProcess) -> None:
    found: list[list[float]] = [[] for _ in range(STREAMS)]
    with triton.InferenceServerClient(examples.http_url, concurrency=STREAMS) as client:
        for step in range(CHUNKS + OFFSET * (STREAMS - 1)):
            asked = []
            for number, stream in enumerate(streams()):
                index = step - OFFSET * number
                if 0 <= index < CHUNKS:
                    answer = client.async_infer(
                        "silero_vad",
                        [audio(stream[index])],
                        sequence_id=number + 1,
                        sequence_start=index == 0,
                        sequence_end=index == CHUNKS - 1,
                    )
                    asked.append((number, answer))
            for number, answer in asked:
                found[number].append(answer.get_result().as_numpy("prob")[0, 0])
    for row, stream in zip(found, streams(), strict=True):
        assert row == pytest.approx(probabilities_alone(stream), abs=1e-5)
    assert max(max(row) for row in found) > 0.9


@pytest.mark.e2e
@pytest.mark.slow
def test_a_stream_begins_anew_with_each_start_and_shows_no_state(examples: ServerProcess) -> None:
    chunks = streams()[3][:6]
    with triton.InferenceServerClient(examples.http_url) as client:
        rounds = []
        for _ in range(2):
            answers = [
                client.infer(
                    "silero_vad", [audio(chunk)], sequence_id=99, sequence_start=index == 0
                )
                for index, chunk in enumerate(chunks)
            ]
            rounds.append([answer.as_numpy("prob")[0, 0] for answer in answers])
        client.infer("silero_vad", [audio(chunks[0])], sequence_id=99, sequence_end=True)
    assert rounds[0] == rounds[1]
    outputs = answers[-1].get_response()["outputs"]
    assert [output["name"] for output in outputs] == ["prob"]


@pytest.mark.e2e
@pytest.mark.slow
def test_a_chunk_of_a_stream_that_never_began_is_refused(examples: ServerProcess) -> None:
    with (
        triton.InferenceServerClient(examples.http_url) as client,
        pytest.raises(InferenceServerException, match="sequence") as refusal,
    ):
        client.infer("silero_vad", [audio(streams()[0][0])], sequence_id=12_345)
    assert refusal.value.status() == "400"
