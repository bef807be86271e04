"""The example ocr: its Python steps, the steps in a row, and the ensemble in a server."""

from __future__ import annotations

import io
import runpy
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from PIL import Image, ImageDraw, ImageFont
from tritonclient.utils import InferenceServerException

from tests.backends.builders import error_of
from tests.support.server_process import ServerProcess
from tritrio.protocol.tensors import Array

from .models import EXAMPLES
from .steps import Arrays, answer, answer_of_ensemble, image_of, needs_weights, respond

REGIONS = runpy.run_path(str(EXAMPLES / "ocr_boxes" / "1" / "regions.py"))
SAMPLE = (EXAMPLES / "ocr" / "sample.png").read_bytes()
SAMPLE_TEXT = [
    "Corner Bakery",
    "Receipt No. 2024-0117",
    "2 croissants",
    "5.80",
    "1 rye bread",
    "4.20",
    "Total",
    "10.00",
    "Thank you!",
    "printed upside down",
]
NEAR = 8
"""Pixels that a box may be off what was drawn; lines are 30 pixels high."""


def drawn(text: str, size: tuple[int, int] = (300, 60)) -> Image.Image:
    """Black text on white, from (20, 12)."""
    picture = Image.new("RGB", size, "white")
    ImageDraw.Draw(picture).text((20, 12), text, "black", ImageFont.load_default(28))
    return picture


def corners_of(text: str) -> Array:
    """[4, 2]: where a drawn text lies in its picture, clockwise from the top left."""
    left, top, right, bottom = ImageFont.load_default(28).getbbox(text)
    return np.add((20, 12), [[left, top], [right, top], [right, bottom], [left, bottom]])


def file_of(picture: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, form, **options)
    return buffer.getvalue()


def read(content: bytes) -> tuple[list[str], Array]:
    """Text and boxes, by the steps in a row."""
    outputs = answer_of_ensemble("ocr", image_of(content))
    assert outputs["SCORES"].shape == outputs["TEXT"].shape
    return [text.decode() for text in outputs["TEXT"]], outputs["BOXES"]


def test_every_line_of_the_sample_is_read_in_order() -> None:
    text, boxes = read(SAMPLE)
    assert text == SAMPLE_TEXT
    assert boxes.shape == (10, 4, 2)


def test_a_box_lies_around_its_line_and_begins_where_the_text_does() -> None:
    picture = Image.new("RGB", (640, 200), "white")
    picture.paste(drawn("the right way up"), (300, 20))
    picture.paste(drawn("upside down").rotate(180), (0, 120))
    text, (upright, turned) = read(file_of(picture))
    assert text == ["the right way up", "upside down"]
    assert upright == pytest.approx(np.add((300, 20), corners_of(text[0])), abs=NEAR)
    assert turned == pytest.approx(np.subtract((300, 180), corners_of(text[1])), abs=NEAR)


@pytest.mark.parametrize("degrees", [-90, 90, 8, -8])
def test_lines_that_are_not_level_are_read(degrees: int) -> None:
    picture = drawn("hello there").rotate(degrees, expand=True, fillcolor="white")
    assert read(file_of(picture))[0] == ["hello there"]


@pytest.mark.parametrize("form", ["BMP", "GIF", "JPEG", "TIFF", "WEBP"])
def test_other_kinds_of_files_are_read(form: str) -> None:
    assert read(file_of(drawn("hello there"), form))[0] == ["hello there"]


def test_a_photo_is_turned_as_its_camera_was_held() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # show it turned to the right
    content = file_of(drawn("hello there").rotate(90, expand=True), "JPEG", exif=exif)
    text, boxes = read(content)
    assert text == ["hello there"]
    assert boxes[0, 0] == pytest.approx([20, 16], abs=NEAR)


def test_what_is_transparent_counts_as_white() -> None:
    picture = Image.new("RGBA", (300, 60), (0, 0, 0, 0))
    ImageDraw.Draw(picture).text((20, 12), "hello there", "black", ImageFont.load_default(28))
    assert read(file_of(picture))[0] == ["hello there"]


@pytest.mark.parametrize("size", [(300, 200), (1, 1), (2000, 2)])
def test_a_picture_without_text_gives_no_lines(size: tuple[int, int]) -> None:
    outputs = answer_of_ensemble("ocr", image_of(file_of(Image.new("L", size, 200))))
    shapes = {name: array.shape for name, array in outputs.items()}
    assert shapes == {"TEXT": (0,), "SCORES": (0,), "BOXES": (0, 4, 2)}


@pytest.mark.parametrize(
    "content", [b"", b"%PDF-1.4", SAMPLE[:3000]], ids=["nothing", "a PDF", "half a picture"]
)
def test_what_is_no_picture_is_an_invalid_argument(content: bytes) -> None:
    assert error_of(respond("ocr_decode", image_of(content))) == (
        "INVALID_ARG: expected a picture (BMP, GIF, JPEG, PNG, TIFF, WEBP), "
        f"got {len(content)} bytes"
    )


def test_a_picture_with_too_many_pixels_is_refused_before_it_is_decoded() -> None:
    content = file_of(Image.new("1", (5000, 5000)))
    assert error_of(respond("ocr_decode", image_of(content))) == (
        "INVALID_ARG: expected at most 24000000 pixels, got 5000 x 5000"
    )


def test_the_detector_gets_multiples_of_32_and_at_most_1280() -> None:
    wide = answer("ocr_decode", image_of(file_of(Image.new("RGB", (2560, 130), (255, 0, 0)))))
    assert wide["pixels"].shape == (130, 2560, 3)
    assert wide["pixels"][0, 0].tolist() == [0, 0, 255]
    assert wide["x"].shape == (1, 3, 64, 1280)
    assert wide["x"][0, :, 0, 0].tolist() == [-1, -1, 1]


@pytest.mark.parametrize("degrees", [0, 30, -30, 44])
def test_the_smallest_rectangle_finds_the_angle(degrees: float) -> None:
    angle = np.deg2rad(degrees)
    along = np.array([np.cos(angle), np.sin(angle)]) * 100
    down = np.array([-np.sin(angle), np.cos(angle)]) * 20
    corners = np.add((50, 60), [-along - down, along - down, along + down, down - along])
    found = REGIONS["smallest_rectangle"](corners)
    assert (found.length, found.height) == pytest.approx((200, 40), abs=0.01)
    assert found.corners() == pytest.approx(corners, abs=0.01)


def test_pixels_that_touch_at_a_corner_are_one_region() -> None:
    mask = np.array([[1, 1, 0, 0, 1], [0, 0, 1, 0, 1], [1, 0, 0, 1, 0]], bool)
    labels = REGIONS["label_runs"](*REGIONS["find_runs"](mask).T.tolist())
    assert len(labels) == 6
    assert len(set(labels[[0, 1, 2, 3, 5]])) == 1
    assert labels[4] != labels[0]


def test_only_the_surest_lines_are_kept() -> None:
    probability = np.zeros((700, 400), np.float32)
    for number in range(68):
        probability[10 * number + 2 : 10 * number + 8, 50:350] = 1 - number / 256
    pixels = np.zeros((1400, 800, 3), np.uint8)
    inputs: Arrays = {"probability": probability[np.newaxis, np.newaxis], "pixels": pixels}
    boxes = answer("ocr_boxes", inputs)["boxes"]
    assert boxes.shape == (64, 4, 2)
    middles = boxes[:, :, 1].mean(axis=1)
    assert middles == pytest.approx(np.arange(64) * 20 + 10, abs=0.1)


def test_a_box_of_the_models_size_is_cut_out_pixel_by_pixel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    version = EXAMPLES / "ocr_boxes" / "1"
    monkeypatch.syspath_prepend(version)
    cut = runpy.run_path(str(version / "model.py"))["cut"]
    pixels = np.random.default_rng(0).integers(0, 256, (100, 200, 3), np.uint8)
    box = np.array([[20, 30], [170, 30], [170, 78], [20, 78]])
    expected = pixels[30:78, 20:170].transpose(2, 0, 1) / 127.5 - 1
    assert cut(pixels, box, 150) == pytest.approx(expected, abs=1e-5)
    upside_down = cut(pixels, np.roll(box, 2, axis=0), 150)
    assert upside_down == pytest.approx(expected[:, ::-1, ::-1], abs=1e-5)


def test_a_line_is_turned_without_its_padding() -> None:
    lines = np.arange(2 * 3 * 48 * 320, dtype=np.float32).reshape(2, 3, 48, 320)
    boxes = np.arange(16, dtype=np.float32).reshape(2, 4, 2)
    inputs: Arrays = {
        "lines": lines,
        "widths": np.array([100, 200], np.int32),
        "boxes": boxes,
        "direction": np.array([[0.8, 0.2], [0.05, 0.95]], np.float32),
    }
    outputs = answer("ocr_turn", inputs)
    turned = outputs["turned_lines"]
    assert (turned[0] == lines[0]).all()
    assert (turned[1, :, :, :200] == lines[1, :, ::-1, 199::-1]).all()
    assert (turned[1, :, :, 200:] == lines[1, :, :, 200:]).all()
    assert outputs["turned_boxes"][1].tolist() == [[12, 13], [14, 15], [8, 9], [10, 11]]


def test_text_is_spelled_without_repeats_and_unsure_lines_are_left_out() -> None:
    needs_weights(EXAMPLES / "ocr_text" / "characters.txt")
    path = EXAMPLES / "ocr_text" / "characters.txt"
    characters = path.read_text(encoding="utf-8").split("\n")
    probabilities = np.zeros((3, 6, 6625), np.float32)
    for line, text, score in ((0, "aa-ab-", 0.75), (1, "------", 1.0), (2, "cccccc", 0.25)):
        for step, character in enumerate(text):
            index = 0 if character == "-" else characters.index(character)
            probabilities[line, step, index] = score
    boxes = np.arange(24, dtype=np.float32).reshape(3, 4, 2)
    outputs = answer("ocr_text", {"probabilities": probabilities, "boxes": boxes})
    assert outputs["TEXT"].tolist() == [b"aab"]
    assert outputs["SCORES"].tolist() == [0.75]
    assert outputs["BOXES"].tolist() == boxes[:1].tolist()


def asked(content: bytes) -> list[triton.InferInput]:
    tensor = triton.InferInput("IMAGE", [len(content)], "UINT8")
    tensor.set_data_from_numpy(image_of(content)["IMAGE"])
    return [tensor]


@pytest.mark.e2e
@pytest.mark.slow
def test_pictures_that_arrive_together_are_read_as_each_alone(examples: ServerProcess) -> None:
    contents = [SAMPLE, file_of(Image.new("L", (90, 90))), file_of(drawn("hello there")), SAMPLE]
    with triton.InferenceServerClient(examples.http_url, concurrency=len(contents)) as client:
        pending = [client.async_infer("ocr", asked(content)) for content in contents]
        answers = [request.get_result() for request in pending]
    for content, result in zip(contents, answers, strict=True):
        text, boxes = read(content)
        assert [line.decode() for line in result.as_numpy("TEXT")] == text
        assert result.as_numpy("BOXES") == pytest.approx(boxes, abs=0.01)


@pytest.mark.e2e
@pytest.mark.slow
def test_the_fault_of_a_step_is_the_answer_of_the_ensemble(examples: ServerProcess) -> None:
    with (
        triton.InferenceServerClient(examples.http_url) as client,
        pytest.raises(InferenceServerException, match="expected a picture") as refusal,
    ):
        client.infer("ocr", asked(b"no picture at all"))
    assert refusal.value.status() == "400"
    assert "ocr" in refusal.value.message()
