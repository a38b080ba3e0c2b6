"""Draw docs/images/data_flow.svg: python docs/data_flow.py."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape


class Stage(NamedTuple):
    """A stage of the data flow: its name, its shape, and the files that make it."""

    what: str
    shape: str
    files: str


ELEMENTS = (
    Stage("group elements g, a(g)", "(M, D)", "group/elements.py, group/domain.py"),
    Stage("functions h, mean 0 over the group", "(J, M)", "kernel/modulation.py"),
    Stage("f of each channel and tap", "(C_out, T)", "kernel/modulation.py"),
    Stage("banks, K_strict ⊙ (1 + f)", "(R, C_out, C_in, T)", "kernel/tied.py"),
)
POSITIONS = (
    Stage("positions g⁻¹x of pixels", "(d, M, H, W)", "group/points.py"),
    Stage("functions h, mean 0 over the pixels", "(J, M, H, W)", "group/points.py"),
    Stage("factors at each pixel", "(R, C_out, H, W)", "kernel/position_modulation.py"),
)
SHARED = (
    Stage(
        "one conv2d, times the factors, added over R",
        "(batch, C_out, H, W)",
        "integral/factors.py, integral/geometry.py",
    ),
    Stage("GeometricTensor", "of out_type", "layer/kernel_layer.py"),
)

WIDTH, BOX, GAP, MARGIN = 620, 66, 24, 8
STYLE = (
    "rect{fill:#eef5fa;stroke:#0072b2;stroke-width:1.5}"
    "text{font-family:DejaVu Sans,Verdana,sans-serif;fill:#222;text-anchor:middle}"
    ".what{font-size:13px;font-weight:bold}.files{font-size:11.5px;fill:#0a5c8c}.shape{font-size:11.5px;fill:#555}"
    ".branch{font-size:12.5px;font-style:italic;fill:#555}path{stroke:#555;stroke-width:1.5;fill:none}"
)


def box(stage: Stage, left: float, top: float, width: float) -> list[str]:
    """A stage."""
    middle = left + width / 2
    lines = (
        ("what", 21, stage.what),
        ("shape", 39, stage.shape),
        ("files", 56, stage.files),
    )
    return [
        f'<rect x="{left:g}" y="{top:g}" width="{width:g}" height="{BOX}" rx="6"/>',
        *(
            f'<text class="{kind}" x="{middle:g}" y="{top + below:g}">{escape(text)}</text>'
            for kind, below, text in lines
        ),
    ]


def arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    """Down, across and down."""
    (x, y), (to_x, to_y) = start, end
    across = f" V{y + GAP / 2:g} H{to_x:g}" if x != to_x else ""
    return f'<path d="M{x:g} {y:g}{across} V{to_y:g} m-5 -7 l5 7 l5 -7"/>'


def column(
    stages: tuple[Stage, ...], left: float, top: float, width: float
) -> list[str]:
    """Stages from top to bottom, an arrow from each to the next."""
    parts = []
    for number, stage in enumerate(stages):
        at = top + number * (BOX + GAP)
        parts += box(stage, left, at, width)
        if number:
            parts.append(arrow((left + width / 2, at - GAP), (left + width / 2, at)))
    return parts


def picture() -> str:
    """A filter bank from elements beside factors from positions, then the convolution and the result."""
    full, half = WIDTH - 2 * MARGIN, (WIDTH - 3 * MARGIN) / 2
    top = MARGIN + 20
    joined = top + len(ELEMENTS) * (BOX + GAP)
    sides = (
        (ELEMENTS, MARGIN, "rotation, reflection"),
        (POSITIONS, 2 * MARGIN + half, "where translation is soft"),
    )
    parts = column(SHARED, MARGIN, joined, full)
    for stages, left, name in sides:
        middle = left + half / 2
        parts.append(
            f'<text class="branch" x="{middle:g}" y="{top - 8:g}">{name}</text>'
        )
        parts += column(stages, left, top, half)
        below = top + len(stages) * (BOX + GAP) - GAP
        parts.append(arrow((middle, below), (middle, joined)))
    end = joined + (len(SHARED) - 1) * (BOX + GAP)
    height = end + BOX + MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
            f'width="{WIDTH}" height="{height:g}">',
            "<title>From group elements to feature maps</title>",
            f"<style>{STYLE}</style>",
            *parts,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    (Path(__file__).parent / "images" / "data_flow.svg").write_text(
        picture(), encoding="utf-8"
    )
