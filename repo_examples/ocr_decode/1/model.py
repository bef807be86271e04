"""Decodes a picture and prepares it for the detector of text."""

import io

import numpy as np
from PIL import Image, ImageOps

import triton_python_backend_utils as pb_utils

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
PIXELS_MAX = 24_000_000
"""A picture of a good camera; its pixels take 72 MB."""
SIDE_MAX = 1280
"""The detector sees the picture at most this wide and high; it finds small text up to here."""
STRIDE = 32
"""The detector halves its input five times, so both sides are multiples of this."""


def decode(content):
    """The picture, upright and without transparency, in RGB.

    Raises:
      ValueError: it is none, or too large.
    """
    try:
        picture = Image.open(io.BytesIO(content), formats=FORMATS)
        if picture.width * picture.height > PIXELS_MAX:
            size = f"{picture.width} x {picture.height}"
            raise ValueError(f"expected at most {PIXELS_MAX} pixels, got {size}")
        picture = ImageOps.exif_transpose(picture)
        if picture.has_transparency_data:
            paper = Image.new("RGBA", picture.size, "white")
            picture = Image.alpha_composite(paper, picture.convert("RGBA"))
        return picture.convert("RGB")
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        kinds = ", ".join(FORMATS)
        raise ValueError(f"expected a picture ({kinds}), got {len(content)} bytes") from error


def detector_size(width, height):
    """The width and height that the detector sees the picture in."""
    scale = min(1.0, SIDE_MAX / max(width, height))
    return tuple(max(1, round(side * scale / STRIDE)) * STRIDE for side in (width, height))


def detector_input(picture):
    """FP32 [1, 3, height, width] in -1 to 1, in the order BGR that the models know."""
    resized = picture.resize(detector_size(*picture.size), Image.Resampling.BILINEAR)
    values = np.asarray(resized, np.float32)[:, :, ::-1] / 127.5 - 1
    return np.ascontiguousarray(values.transpose(2, 0, 1)[np.newaxis])


class TritonPythonModel:
    """IMAGE UINT8 [-1], a file -> pixels UINT8 [height, width, 3] in BGR, x for the detector."""

    def execute(self, requests):
        """One response a request, in order."""
        return [self._response(request) for request in requests]

    def _response(self, request):
        content = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy().tobytes()
        try:
            picture = decode(content)
        except ValueError as error:
            fault = pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=fault)
        pixels = np.ascontiguousarray(np.asarray(picture)[:, :, ::-1])
        outputs = {"pixels": pixels, "x": detector_input(picture)}
        return pb_utils.InferenceResponse([pb_utils.Tensor(*item) for item in outputs.items()])
