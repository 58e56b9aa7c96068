"""Figures of the page as inline SVG and small images: a chain that moves, a field with its interval, and bars.

All of them are complete without JavaScript; page.js adds the controls. Colours come from the style sheet.
"""

import base64
import json
import math
import struct
import zlib
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

PALETTES = {
    "values": ("#440154", "#3b528b", "#21918c", "#5ec962", "#fde725"),
    "widths": ("#000004", "#51127c", "#b73779", "#fc8961", "#fcfdbf"),
}
"""Colours from low to high; those between are interpolated."""


class Bar(NamedTuple):
    """A bar with its value as text; `ours` is highlighted."""

    label: str
    value: float
    text: str
    ours: bool = False


def bar_chart(bars: Sequence[Bar], axis: str) -> str:
    """Horizontal bars on a logarithmic scale if values differ by more than a factor 30; labels above bars."""
    values = [bar.value for bar in bars]
    logarithmic = min(values) > 0 and max(values) / min(values) > 30
    wide, line = 320.0, 40.0

    def length(value: float) -> float:
        if logarithmic:
            low, high = math.log(min(values) / 2), math.log(max(values))
            return wide * (math.log(value) - low) / (high - low)
        return wide * max(value, 0.0) / (max(values) or 1.0)

    rows = []
    for number, bar in enumerate(bars):
        top = line * number
        rows.append(
            f'<text x="0" y="{top + 13:g}">{escape(bar.label)}</text>'
            f'<text class="value" x="{wide:g}" y="{top + 13:g}" text-anchor="end">{escape(bar.text)}</text>'
            f'<rect class="{"ours" if bar.ours else "theirs"}" x="0" y="{top + 19:g}" width="{length(bar.value):.1f}" '
            'height="12" rx="2"/>'
        )
    height = line * len(bars)
    scale = ", logarithmic scale" if logarithmic else ""
    described = "; ".join(f"{bar.label}: {bar.text}" for bar in bars)
    return (
        f'<figure class="bars"><svg viewBox="0 0 {wide:g} {height:g}" role="img" '
        f'aria-label="{escape(axis + scale)}. {escape(described)}.">{"".join(rows)}</svg>'
        f"<figcaption>{escape(axis + scale)}</figcaption></figure>"
    )


class Walk(NamedTuple):
    """Chains of one sampler at several step sizes."""

    sampler: str
    step_sizes: list[float]
    positions: list[list[list[float]]]
    """By step size and step: x and y."""


WALK_X, WALK_Y = 0.75, 3.4
"""Half the width and height of the region shown."""
WALK_SIZE = 300, 260


def walk_figure(walks: Sequence[Walk], covariance: np.ndarray) -> str:
    """Chains side by side over contours of a two-dimensional Gaussian, with sliders for step and step size."""
    last = len(walks[0].step_sizes) - 1
    steps = min(len(path) for walk in walks for path in walk.positions)
    contours = "".join(f'<polygon class="contour" points="{_ellipse(covariance, radius)}"/>' for radius in (1, 2, 3))
    panels = []
    for walk in walks:
        points = [_pixel(x, y) for x, y in walk.positions[last]]
        across, down = points[-1].split(",")
        ours = "theirs" if walk is walks[0] else "ours"
        panels.append(
            f'<div><p class="panel"><b>{escape(walk.sampler)}</b>, step size '
            f'<output class="size">{walk.step_sizes[last]:g}</output></p>'
            f'<svg viewBox="0 0 {WALK_SIZE[0]} {WALK_SIZE[1]}" role="img" aria-label="The first {steps} steps of a '
            f'chain of {escape(walk.sampler)} over the contours of a narrow, tilted Gaussian.">{contours}'
            f'<polyline class="path {ours}" points="{" ".join(points)}"/>'
            f'<circle class="now {ours}" r="5" cx="{across}" cy="{down}"/></svg></div>'
        )
    data = {
        "size": [*WALK_SIZE, WALK_X, WALK_Y],
        "stepSizes": [walk.step_sizes for walk in walks],
        "paths": [[[round(1000 * c) for xy in path for c in xy] for path in walk.positions] for walk in walks],
    }
    controls = (
        '<div class="controls" hidden><button type="button">Pause</button>'
        f'<label>step <input type="range" class="step" min="1" max="{steps}" value="{steps}"></label>'
        f'<output class="count">{steps}</output>'
        f'<label>step size <input type="range" class="which" min="0" max="{last}" value="{last}"></label></div>'
    )
    return (
        f'<figure class="walk"><div class="panels">{"".join(panels)}</div>{controls}{_data(data)}'
        f"<figcaption>The first {steps} steps of two chains from the same point, drawn by the library. Contours: one, "
        "two and three standard deviations of the posterior.</figcaption></figure>"
    )


def _pixel(x: float, y: float) -> str:
    across = WALK_SIZE[0] * (x / WALK_X + 1) / 2
    down = WALK_SIZE[1] * (1 - y / WALK_Y) / 2
    return f"{across:.1f},{down:.1f}"


def _ellipse(covariance: np.ndarray, radius: float) -> str:
    factor = np.linalg.cholesky(covariance)
    angles = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    x, y = radius * factor @ np.stack([np.cos(angles), np.sin(angles)])
    return " ".join(_pixel(float(a), float(b)) for a, b in zip(x, y, strict=True))


class Field(NamedTuple):
    """A predicted field on a grid (row, column), rows upwards: truth, mean and ends of an interval."""

    truth: np.ndarray
    mean: np.ndarray
    lower: np.ndarray
    upper: np.ndarray

    @property
    def inside(self) -> float:
        """Share of the true values in their intervals."""
        return float(np.mean((self.lower <= self.truth) & (self.truth <= self.upper)))


def field_figure(field: Field, what: str, level: str) -> str:
    """The predicted field, and the error in half widths of the interval; pointer or arrow keys read a point."""
    ratio = 2 * np.abs(field.truth - field.mean) / (field.upper - field.lower)
    rows, columns = field.mean.shape
    shown = (
        (f"predicted {what}", field.mean, "values", f"{field.mean.min():.3g}", f"{field.mean.max():.3g}"),
        (
            f"error ÷ half the {level} interval (above 1: outside)",
            np.minimum(ratio, 2.0),
            "widths",
            "0",
            "2 or more",
        ),
    )
    panels = "".join(
        f'<div><p class="panel">{escape(title)}</p><div class="map"><img alt="{escape(title)}: from {low} to {high}." '
        f'src="{_image(values, PALETTES[palette])}"><span class="cross" hidden></span></div>'
        f'<p class="range"><span>{low}</span><span class="ramp {palette}"></span><span>{high}</span></p></div>'
        for title, values, palette, low, high in shown
    )
    row, column = rows // 2, columns // 2
    unit = float(np.abs(field).max()) / 1e6
    data = {
        "rows": rows,
        "columns": columns,
        "at": [row, column],
        "unit": unit,
        "level": level,
        **{name: np.round(np.ravel(values) / unit).astype(int).tolist() for name, values in field._asdict().items()},
    }
    reading = (
        f'<p class="reading" aria-live="polite">{escape(_reading(field, row, column, level))}</p>'
        '<svg class="interval" viewBox="0 0 320 34" aria-hidden="true">'
        '<line class="axis" x1="0" x2="320" y1="17" y2="17"/><line class="bar ours" x1="80" x2="240" y1="17" y2="17"/>'
        '<circle class="mean ours" cx="160" cy="17" r="5"/><path class="truth" d="M-6 -6L6 6M-6 6L6 -6" '
        f'transform="translate({_place(field, row, column):.1f} 17)"/></svg>'
        '<p class="key">● prediction, ▬ its interval, × truth</p>'
    )
    return (
        f'<figure class="field"><div class="panels" tabindex="0" role="group" aria-label="{escape(what)}: move the '
        'pointer over the field, or use the arrow keys, to read prediction, interval and truth">'
        f"{panels}</div>{reading}{_data(data)}</figure>"
    )


def _reading(field: Field, row: int, column: int, level: str) -> str:
    truth, mean, lower, upper = (float(values[row, column]) for values in field)
    where = "inside" if lower <= truth <= upper else "outside"
    return (
        f"Row {row + 1}, column {column + 1}: predicted {mean:.4g}, {level} interval {lower:.4g} to {upper:.4g}, "
        f"true {truth:.4g} ({where})."
    )


def _place(field: Field, row: int, column: int) -> float:
    """Where the truth is on an axis on which the interval covers the middle half."""
    truth, mean, lower, upper = (float(values[row, column]) for values in field)
    return min(316.0, max(4.0, 160 + 160 * (truth - mean) / max(upper - lower, 1e-300)))


def _data(content: dict[str, Any]) -> str:
    """Data for page.js; `<` is escaped, so that no text can end the element."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json">{text}</script>'


def _image(values: np.ndarray, palette: Sequence[str]) -> str:
    """A field as an indexed PNG, one pixel per value, the first row at the bottom."""
    low, high = float(values.min()), float(values.max())
    levels = np.round(255 * (values - low) / ((high - low) or 1.0)).astype(np.uint8)[::-1]
    anchors = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in palette])
    places = np.linspace(0, len(palette) - 1, 256)
    colours = np.stack([np.interp(places, range(len(palette)), anchors[:, i]) for i in range(3)], axis=1)
    rows = b"".join(b"\0" + line.tobytes() for line in levels)
    height, width = levels.shape
    image = b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, content)
        for kind, content in (
            (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            (b"PLTE", np.round(colours).astype(np.uint8).tobytes()),
            (b"IDAT", zlib.compress(rows, 9)),
            (b"IEND", b""),
        )
    )
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
