"""Cuts the lines of text out of a picture."""

import numpy as np
from regions import find_rectangles, in_reading_order

import triton_python_backend_utils as pb_utils

LINES_MAX = 64
"""The most probable ones are kept; the models for lines take as many in a batch."""
LINE_HEIGHT = 48
LINE_WIDTH_MIN, LINE_WIDTH_MAX = 320, 1536
"""Lines are padded to the longest, at least to what the recogniser was trained on; longer ones
are squeezed."""
THUMBNAIL_WIDTH = 192
SAMPLES_MAX = 4
"""How many pixels of the picture, in each direction, make one of a line that is shrunk."""


def cut(pixels, box, width):
    """A box of the picture as FP32 [3, 48, width] in -1 to 1.

    Args:
      pixels: UINT8 [height, width, 3].
      box: [4, 2]; corners, clockwise from where the text begins.
      width: What to stretch or squeeze it to.
    """
    along, down = box[1] - box[0], box[3] - box[0]
    columns, column_samples = _places(np.linalg.norm(along), width)
    rows, row_samples = _places(np.linalg.norm(down), LINE_HEIGHT)
    points = box[0] + columns[np.newaxis, :, np.newaxis] * along
    points = points + rows[:, np.newaxis, np.newaxis] * down
    values = _interpolate(pixels, points - 0.5)  # pixel 0 has its centre at 0.5
    shape = (LINE_HEIGHT, row_samples, width, column_samples, 3)
    return values.reshape(shape).mean(axis=(1, 3)).transpose(2, 0, 1) / 127.5 - 1


def _places(length, count):
    """Where on a side, from 0 to 1, samples are taken for `count` pixels, and how many for each."""
    samples = int(np.clip(round(length / count), 1, SAMPLES_MAX))
    return (np.arange(count * samples) + 0.5) / (count * samples), samples


def _interpolate(pixels, points):
    """FP32 [..., 3]: the picture's values at points [..., 2] between its pixels."""
    height, width, _ = pixels.shape
    points = np.clip(points, 0, [width - 1, height - 1])
    left, top = x, y = np.floor(points).astype(np.int64).transpose(2, 0, 1)
    right, bottom = np.minimum(left + 1, width - 1), np.minimum(top + 1, height - 1)
    part = (points - np.stack([x, y], axis=-1)).astype(np.float32)
    across, down = part[..., :1], part[..., 1:]
    upper = pixels[top, left] * (1 - across) + pixels[top, right] * across
    lower = pixels[bottom, left] * (1 - across) + pixels[bottom, right] * across
    return upper * (1 - down) + lower * down


def padded(lines, width):
    """FP32 [lines, 3, 48, width], with grey behind the end of shorter lines."""
    batch = np.zeros((len(lines), 3, LINE_HEIGHT, width), np.float32)
    for row, line in zip(batch, lines, strict=True):
        row[:, :, : line.shape[2]] = line
    return batch


def find_boxes(probability, pixels):
    """FP32 [lines, 4, 2]: corners in pixels of the picture, in reading order; at least one."""
    scale = np.array(pixels.shape[1::-1]) / probability.shape[::-1]
    rectangles = find_rectangles(probability, LINES_MAX)
    boxes = in_reading_order([rectangle.corners() * scale for rectangle in rectangles])
    # A batch cannot be empty: a picture without text has one line that nobody can read.
    return np.array(boxes or [np.zeros((4, 2))], np.float32)


class TritonPythonModel:
    """Probability and pixels of a picture -> its lines, for all further models.

    probability FP32 [1, 1, -1, -1], pixels UINT8 [height, width, 3] -> boxes FP32 [lines, 4, 2],
    lines FP32 [lines, 3, 48, -1], widths INT32 [lines], thumbnails FP32 [lines, 3, 48, 192].
    """

    def execute(self, requests):
        """One response a request, in order."""
        return [self._response(request) for request in requests]

    def _response(self, request):
        probability = pb_utils.get_input_tensor_by_name(request, "probability").as_numpy()[0, 0]
        pixels = pb_utils.get_input_tensor_by_name(request, "pixels").as_numpy()
        boxes = find_boxes(probability, pixels)
        lengths = np.linalg.norm(boxes[:, 1] - boxes[:, 0], axis=1)
        heights = np.linalg.norm(boxes[:, 3] - boxes[:, 0], axis=1)
        widths = np.ceil(LINE_HEIGHT * lengths / np.maximum(heights, 1)).astype(np.int32)
        widths = np.clip(widths, 1, LINE_WIDTH_MAX)
        lines = [cut(pixels, box, width) for box, width in zip(boxes, widths, strict=True)]
        small_widths = np.minimum(widths, THUMBNAIL_WIDTH)
        small = [cut(pixels, box, width) for box, width in zip(boxes, small_widths, strict=True)]
        outputs = {
            "boxes": boxes,
            "lines": padded(lines, max(LINE_WIDTH_MIN, *widths)),
            "widths": widths,
            "thumbnails": padded(small, THUMBNAIL_WIDTH),
        }
        return pb_utils.InferenceResponse([pb_utils.Tensor(*item) for item in outputs.items()])
