"""Spells out what the recogniser saw, and leaves out what it could not read."""

from pathlib import Path

import numpy as np

import triton_python_backend_utils as pb_utils

SCORE_MIN = 0.5
"""Lines that are less certain are no text."""
NOTHING = 0
"""The class between two characters."""


class TritonPythonModel:
    """Probabilities of characters along each line -> text.

    probabilities FP32 [lines, steps, 6625], boxes FP32 [lines, 4, 2] -> TEXT BYTES [-1],
    SCORES FP32 [-1], BOXES FP32 [-1, 4, 2] of the lines that can be read.
    """

    def initialize(self, args):
        """Read the characters: line i of the file is class i."""
        path = Path(args["model_repository"]) / "characters.txt"
        self._characters = np.array(path.read_text(encoding="utf-8").split("\n")[:-1], np.object_)

    def execute(self, requests):
        """One response a request, in order."""
        return [self._response(request) for request in requests]

    def _response(self, request):
        probabilities = pb_utils.get_input_tensor_by_name(request, "probabilities").as_numpy()
        boxes = pb_utils.get_input_tensor_by_name(request, "boxes").as_numpy()
        read = [self._spell(line) for line in probabilities]
        kept = [index for index, (_, score) in enumerate(read) if score >= SCORE_MIN]
        outputs = {
            "TEXT": np.array([read[index][0].encode() for index in kept], np.object_),
            "SCORES": np.array([read[index][1] for index in kept], np.float32),
            "BOXES": boxes[kept],
        }
        return pb_utils.InferenceResponse([pb_utils.Tensor(*item) for item in outputs.items()])

    def _spell(self, line):
        """The text of a line [steps, classes], and how certain its characters are on average.

        A class that goes on is one character; nothing is in between two equal ones (CTC).
        """
        classes = line.argmax(axis=1)
        is_new = np.append(True, classes[1:] != classes[:-1])
        is_character = is_new & (classes != NOTHING)
        text = "".join(self._characters[classes[is_character]]).strip()
        return text, float(line.max(axis=1)[is_character].mean()) if text else 0.0
