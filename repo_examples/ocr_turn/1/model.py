"""Turns lines of text that are upside down."""

import numpy as np

import triton_python_backend_utils as pb_utils

TURNED_PROBABILITY_MIN = 0.9
"""A wrong turn costs a line, so the model must be sure."""


class TritonPythonModel:
    """Lines and whether each is upside down -> the lines the right way up.

    lines FP32 [lines, 3, 48, -1], widths INT32 [lines], boxes FP32 [lines, 4, 2], direction
    FP32 [lines, 2] (0 degrees, 180 degrees) -> turned_lines, turned_boxes, of the same shapes.
    """

    def execute(self, requests):
        """One response a request, in order."""
        return [self._response(request) for request in requests]

    def _response(self, request):
        lines, widths, boxes, direction = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy()
            for name in ("lines", "widths", "boxes", "direction")
        )
        lines, boxes = lines.copy(), boxes.copy()
        for index in np.flatnonzero(direction[:, 1] > TURNED_PROBABILITY_MIN):
            used = slice(widths[index])  # behind it is padding, which stays where it is
            lines[index, :, :, used] = lines[index, :, ::-1, used][:, :, ::-1]
            boxes[index] = np.roll(boxes[index], 2, axis=0)
        outputs = {"turned_lines": lines, "turned_boxes": boxes}
        return pb_utils.InferenceResponse([pb_utils.Tensor(*item) for item in outputs.items()])
