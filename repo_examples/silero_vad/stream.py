"""Print where somebody speaks in a recording, by streaming it to the model silero_vad.

    stream.py [--url HOST:PORT] FILE.wav

The recording is 16 kHz, mono, 16 bits.  It goes to the server in pieces of 32 ms, all of them
requests of one sequence; the server keeps what the model remembers of the stream.
"""

import argparse
import sys
import uuid
import wave
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import tritonclient.http as triton

RATE_HZ = 16_000
CHUNK = 512
"""Samples that the model takes at once."""
BEGIN_PROBABILITY = 0.5
"""Speech begins at this probability."""
END_PROBABILITY = 0.35
"""Speech goes on down to this one, so that it does not flicker."""
PAUSE_CHUNKS = 4
"""Quiet chunks, 128 ms, that end speech; shorter gaps lie inside of words."""


def read_wav(path: Path) -> np.ndarray:
    """The recording as FP32 [chunks, 512] in -1 to 1, with silence after the end."""
    with wave.open(str(path)) as file:
        form = (file.getframerate(), file.getnchannels(), file.getsampwidth())
        if form != (RATE_HZ, 1, 2):
            sys.exit(f"{path}: expected {RATE_HZ} Hz, 1 channel and 2 bytes a sample, got {form}")
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    padded = np.pad(samples, (0, -len(samples) % CHUNK))
    return padded.reshape(-1, CHUNK).astype(np.float32) / 32768


def probabilities(
    client: triton.InferenceServerClient, chunks: np.ndarray, sequence_id: int
) -> Iterator[float]:
    """How probable speech is in each chunk; a chunk is sent once the one before is answered."""
    for index, chunk in enumerate(chunks):
        tensor = triton.InferInput("audio", [1, CHUNK], "FP32")
        tensor.set_data_from_numpy(chunk[np.newaxis])
        answer = client.infer(
            "silero_vad",
            [tensor],
            sequence_id=sequence_id,
            sequence_start=index == 0,
            sequence_end=index == len(chunks) - 1,
        )
        yield float(answer.as_numpy("prob")[0, 0])


def segments(stream: Iterable[float]) -> Iterator[tuple[float, float]]:
    """The seconds at which speech begins and ends, for each stretch of it, once it is over."""
    begin = end = -1
    for index, probability in enumerate(stream):
        if probability >= (BEGIN_PROBABILITY if begin < 0 else END_PROBABILITY):
            begin = index if begin < 0 else begin
            end = index + 1
        elif begin >= 0 and index + 1 - end >= PAUSE_CHUNKS:
            yield begin * CHUNK / RATE_HZ, end * CHUNK / RATE_HZ
            begin = -1
    if begin >= 0:
        yield begin * CHUNK / RATE_HZ, end * CHUNK / RATE_HZ


def main() -> None:
    """Read the command line, stream, print."""
    parser = argparse.ArgumentParser(description="Print where somebody speaks in a recording.")
    parser.add_argument("file", type=Path, metavar="FILE.wav")
    parser.add_argument("--url", default="localhost:8000", metavar="HOST:PORT")
    arguments = parser.parse_args()
    chunks = read_wav(arguments.file)
    sequence_id = uuid.uuid4().int >> 64  # others may stream at the same time
    with triton.InferenceServerClient(arguments.url) as client:
        for begin_s, end_s in segments(probabilities(client, chunks, sequence_id)):
            print(f"{begin_s:6.2f} s to {end_s:6.2f} s", flush=True)


if __name__ == "__main__":
    main()
