"""Prepares the content of files for the model magika."""

import numpy as np

import triton_python_backend_utils as pb_utils

WINDOW_BYTES = 4096
"""How much of either end of a file is looked at."""
KEPT_BYTES = 1024
"""How much of it the model gets, after white space at the outer edge is cut off."""
PADDING = 256
"""Stands for "no byte here"."""


def features(content):
    """INT32 [2048]: the beginning and the end of the file, padded inwards."""
    begin = content[:WINDOW_BYTES].lstrip()[:KEPT_BYTES]
    end = content[-WINDOW_BYTES:].rstrip()[-KEPT_BYTES:]
    row = np.full(2 * KEPT_BYTES, PADDING, np.int32)
    row[: len(begin)] = np.frombuffer(begin, np.uint8)
    row[len(row) - len(end) :] = np.frombuffer(end, np.uint8)
    return row


class TritonPythonModel:
    """CONTENT BYTES [1], a file -> bytes INT32 [2048]."""

    def execute(self, requests):
        """One response a request, in order."""
        responses = []
        for request in requests:
            contents = pb_utils.get_input_tensor_by_name(request, "CONTENT").as_numpy()
            rows = np.stack([features(content) for content in contents[:, 0]])
            tensor = pb_utils.Tensor("bytes", rows)
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
