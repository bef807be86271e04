"""Names the likeliest kind of file."""

from pathlib import Path

import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """target_label FP32 [214] -> LABEL BYTES [1], SCORE FP32 [1], LINE UINT8 [-1].

    LINE is the label for a terminal: a newline, the label and a newline, as text. Shorter labels
    of a batch have more newlines in front.
    """

    def initialize(self, args):
        """Read the names of the classes, which lie beside the model that has them."""
        path = Path(args["model_repository"]).parent / "magika" / "labels.txt"
        self._labels = np.array(path.read_bytes().splitlines(), np.object_)

    def execute(self, requests):
        """One response a request, in order."""
        responses = []
        for request in requests:
            scores = pb_utils.get_input_tensor_by_name(request, "target_label").as_numpy()
            labels = self._labels[scores.argmax(axis=1)]
            width = max(map(len, labels)) + 2
            lines = b"".join((label + b"\n").rjust(width, b"\n") for label in labels)
            outputs = {
                "LABEL": labels[:, np.newaxis],
                "SCORE": scores.max(axis=1, keepdims=True),
                "LINE": np.frombuffer(lines, np.uint8).reshape(-1, width),
            }
            tensors = [pb_utils.Tensor(*item) for item in outputs.items()]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
