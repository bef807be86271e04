"""Say what kind of file each argument is, by asking the model magika.

identify.py [--url HOST:PORT] FILE...
identify.py --request FILE      print the JSON body of the request instead of sending it
"""

import argparse
import json
from pathlib import Path

import numpy as np
import tritonclient.http as triton

WINDOW_BYTES = 4096
"""How much of either end of a file is looked at."""
KEPT_BYTES = 1024
"""How much of it the model gets, after white space at the outer edge is cut off."""
PADDING = 256
"""Stands for "no byte here"."""
KINDS_SHOWN = 3


def features(content: bytes) -> list[int]:
    """The 2048 numbers the model wants: the beginning and the end of the file, padded inwards."""
    begin = content[:WINDOW_BYTES].lstrip()[:KEPT_BYTES]
    end = content[-WINDOW_BYTES:].rstrip()[-KEPT_BYTES:]
    missing = [PADDING] * (2 * KEPT_BYTES - len(begin) - len(end))
    return [*begin, *missing, *end]


def request_body(content: bytes) -> str:
    """A KServe v2 inference request that asks for the likeliest kinds by name."""
    tensor = {
        "name": "bytes",
        "datatype": "INT32",
        "shape": [1, 2 * KEPT_BYTES],
        "data": features(content),
    }
    output = {"name": "target_label", "parameters": {"classification": KINDS_SHOWN}}
    return json.dumps({"inputs": [tensor], "outputs": [output]})


def identify(paths: list[Path], url: str) -> None:
    """Send all the files as one batch and print a line for each."""
    batch = np.array([features(path.read_bytes()) for path in paths], np.int32)
    tensor = triton.InferInput("bytes", list(batch.shape), "INT32")
    tensor.set_data_from_numpy(batch)
    output = triton.InferRequestedOutput("target_label", class_count=KINDS_SHOWN)
    with triton.InferenceServerClient(url) as client:
        answer = client.infer("magika", [tensor], outputs=[output]).as_numpy("target_label")
    for path, classes in zip(paths, answer, strict=True):
        # Each class is the text SCORE:INDEX:LABEL.
        parts = [text.decode().split(":", 2) for text in classes]
        print(f"{path}: " + ", ".join(f"{label} {float(score):.3f}" for score, _, label in parts))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Say what kind of file each argument is.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--url", default="localhost:8000", metavar="HOST:PORT")
    parser.add_argument("--request", action="store_true", help="print the request's JSON body")
    arguments = parser.parse_args()
    if arguments.request:
        print(request_body(arguments.files[0].read_bytes()))
    else:
        identify(arguments.files, arguments.url)


if __name__ == "__main__":
    main()
