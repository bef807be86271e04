"""From a map that says how probable text is at each pixel to the rectangles it lies in."""

from dataclasses import dataclass

import numpy as np

PIXEL_PROBABILITY_MIN = 0.3
"""Pixels below are background."""
REGION_PROBABILITY_MIN = 0.6
"""Regions whose pixels have less on average are noise."""
SIDE_MIN = 3
"""Thinner rectangles, in pixels of the map, hold no text."""
CANDIDATES_MAX = 1000
"""Regions that are looked at; a page has a tenth of that."""
GROWTH = 1.6
"""The detector marks the core of a line; the line is larger by its area / perimeter times this."""
UPRIGHT_RATIO = 1.5
"""A rectangle so much higher than wide is a line that runs downwards or upwards."""
ANGLES = np.deg2rad(sorted(np.arange(-45.0, 45.0, 0.5), key=abs))
"""Of the rectangles tried; with the smallest first, so that ties go to level ones."""
ALONG = np.stack([np.cos(ANGLES), np.sin(ANGLES)]).astype(np.float32)
DOWN = np.stack([-np.sin(ANGLES), np.cos(ANGLES)]).astype(np.float32)
"""Directions of the sides of those rectangles, [2, angles]."""


@dataclass
class Rectangle:
    """A line of text: x and y grow to the right and downwards.

    Attributes:
      centre: x and y.
      angle: From the x axis to the direction in which the line runs, clockwise, in radians.
      length: Of the line.
      height: Of the line.
    """

    centre: np.ndarray
    angle: float
    length: float
    height: float

    def corners(self):
        """[4, 2]: x and y of the corners, clockwise from where the line begins at the top."""
        along = np.array([np.cos(self.angle), np.sin(self.angle)]) * self.length / 2
        down = np.array([-np.sin(self.angle), np.cos(self.angle)]) * self.height / 2
        return self.centre + np.stack([-along - down, along - down, along + down, down - along])


def find_rectangles(probability, count_max):
    """The rectangles around text in a map [height, width], at most so many, the surest first."""
    runs = find_runs(probability > PIXEL_PROBABILITY_MIN)
    row, begin, end = runs.T
    _, regions = np.unique(label_runs(*runs.T.tolist()), return_inverse=True)
    sums = np.pad(probability.cumsum(dtype=np.float64), (1, 0))
    line = row * probability.shape[1]
    sizes = np.bincount(regions, end - begin)
    means = np.bincount(regions, sums[line + end] - sums[line + begin]) / sizes
    likely = np.flatnonzero((means >= REGION_PROBABILITY_MIN) & (sizes >= SIDE_MIN**2))
    likely = likely[np.argsort(-means[likely], kind="stable")][:CANDIDATES_MAX]
    runs = runs[np.argsort(regions, kind="stable")]
    runs_of = np.split(runs, np.bincount(regions).cumsum()[:-1])
    rectangles = [smallest_rectangle(outline(*runs_of[region].T)) for region in likely]
    wide = [each for each in rectangles if min(each.length, each.height) >= SIDE_MIN]
    return [grown(rectangle) for rectangle in wide[:count_max]]


def find_runs(mask):
    """[runs, 3]: row, begin and end (exclusive) of each run of set pixels, row by row."""
    steps = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, begins = np.nonzero(steps == 1)
    ends = np.nonzero(steps == -1)[1]
    return np.stack([rows, begins, ends], axis=1)


def label_runs(rows, begins, ends):
    """A number for each run; runs that touch, diagonally too, have the same one."""
    parents = list(range(len(rows)))

    def root(run):
        while parents[run] != run:
            parents[run] = parents[parents[run]]
            run = parents[run]
        return run

    above = 0  # the first run of the row before that may touch this one or one to its right
    for run, row in enumerate(rows):
        while rows[above] < row - 1 or (rows[above] == row - 1 and ends[above] < begins[run]):
            above += 1
        other = above
        while rows[other] == row - 1 and begins[other] <= ends[run]:
            parents[root(other)] = root(run)
            other += 1
    return np.array([root(run) for run in range(len(rows))], np.int64)


def outline(rows, begins, ends):
    """[points, 2]: the outer corners of the first and the last pixel of each row, in row order."""
    tops, first = np.unique(rows, return_index=True)
    left, right = np.minimum.reduceat(begins, first), np.maximum.reduceat(ends, first)
    sides, tops = np.concatenate([left, right]), np.concatenate([tops, tops])
    return np.stack([np.tile(sides, 2), np.concatenate([tops, tops + 1])], axis=1)


def smallest_rectangle(points):
    """The rectangle of the smallest area around points [points, 2]."""
    places = points.astype(np.float32) @ np.concatenate([ALONG, DOWN], axis=1)
    low, high = (side.reshape(2, -1) for side in (places.min(axis=0), places.max(axis=0)))
    best = (high - low).prod(axis=0).argmin()
    length, height = high[:, best] - low[:, best]
    along, down = (high[:, best] + low[:, best]) / 2
    centre = along * ALONG[:, best] + down * DOWN[:, best]
    if height >= UPRIGHT_RATIO * length:
        return Rectangle(centre, ANGLES[best] + np.pi / 2, height, length)
    return Rectangle(centre, ANGLES[best], length, height)


def grown(rectangle):
    """The rectangle around the whole of the line, not its core alone."""
    length, height = rectangle.length, rectangle.height
    growth = GROWTH * length * height / (length + height)
    return Rectangle(rectangle.centre, rectangle.angle, length + growth, height + growth)


def in_reading_order(boxes):
    """Boxes [4, 2], line by line from the top, and from left to right inside a line."""
    lines = []
    for box in sorted(boxes, key=lambda box: box[:, 1].mean()):
        half_height = np.linalg.norm(box[3] - box[0]) / 2
        if lines and box[:, 1].mean() - lines[-1][-1][:, 1].mean() < half_height:
            lines[-1].append(box)
        else:
            lines.append([box])
    return [box for line in lines for box in sorted(line, key=lambda box: box[:, 0].mean())]
