"""Print the lines of text in pictures, by asking the ensemble ocr.

read.py [--url HOST:PORT] [--boxes] FILE...
"""

import argparse
from pathlib import Path

import numpy as np
import tritonclient.http as triton


def read(client: triton.InferenceServerClient, path: Path) -> triton.InferResult:
    """Send a file as it is; the server decodes it."""
    content = np.fromfile(path, np.uint8)
    tensor = triton.InferInput("IMAGE", list(content.shape), "UINT8")
    tensor.set_data_from_numpy(content)
    return client.infer("ocr", [tensor])


def main() -> None:
    """Read the command line, ask, print."""
    parser = argparse.ArgumentParser(description="Print the lines of text in pictures.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--url", default="localhost:8000", metavar="HOST:PORT")
    parser.add_argument("--boxes", action="store_true", help="print scores and corners, too")
    arguments = parser.parse_args()
    with triton.InferenceServerClient(arguments.url) as client:
        for path in arguments.files:
            answer = read(client, path)
            names = ("TEXT", "SCORES", "BOXES")
            for text, score, box in zip(*map(answer.as_numpy, names), strict=True):
                corners = " ".join(f"{x:.0f},{y:.0f}" for x, y in box)
                print(f"{score:.2f}  {corners}  " * arguments.boxes + text.decode())


if __name__ == "__main__":
    main()
