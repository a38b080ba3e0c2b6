"""Draw docs/images/data_flow.svg: python docs/data_flow.py."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

# What flows, the files of the stage that makes it, its shape.
STAGES = (
    ("group elements, taps, positions", "coordinates.py", "(M, 2, 2), (T, 2), (P, 2)"),
    ("coordinates ω ⊙ α, ω′ ⊙ α", "coordinate_grid.py", "(M, R, T, F), (M, P, D)"),
    ("hidden values φ", "kernel.py", "(J, M, R, T, P)"),
    ("steered features → K_soft − P K_soft", "steering.py, filter_bank.py", "(C_out, C_in, T)"),
    ("+ K_strict in R2Conv's basis", "steerable_basis.py", "(C_out, C_in, k, k)"),
    ("h(x) = Σ_d K(d; y) f(y)", "integral_operator.py", "(batch, C_out, H, W)"),
    ("GeometricTensor", "relaxed_r2conv.py and its bases", "of out_type"),
)
WIDTH, ROW, BOX, LEFT = 460, 74, 52, 20
STYLE = (
    "rect{fill:#eef5fa;stroke:#0072b2;stroke-width:1.5}"
    "text{font-family:DejaVu Sans,Verdana,sans-serif;fill:#222}"
    ".what{font-size:14px;font-weight:bold}.file{font-size:12px;fill:#0a5c8c}.shape{font-size:12px;fill:#555}"
    "path{stroke:#555;stroke-width:1.5;fill:none}"
)


def picture() -> str:
    """The stages from top to bottom, an arrow from each to the next."""
    height = ROW * len(STAGES) + 4
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
        "<title>From group elements to feature maps</title>",
        f"<style>{STYLE}</style>",
    ]
    for number, (what, file, shape) in enumerate(STAGES):
        top, middle = 4 + ROW * number, WIDTH // 2
        parts += [
            f'<rect x="{LEFT}" y="{top}" width="{WIDTH - 2 * LEFT}" height="{BOX}" rx="6"/>',
            f'<text class="what" x="{LEFT + 12}" y="{top + 22}">{escape(what)}</text>',
            f'<text class="file" x="{LEFT + 12}" y="{top + 41}">{escape(file)}</text>',
            f'<text class="shape" x="{WIDTH - LEFT - 12}" y="{top + 41}" text-anchor="end">{escape(shape)}</text>',
        ]
        if number + 1 < len(STAGES):
            below, tip = top + BOX, top + ROW
            parts.append(f'<path d="M{middle} {below} V{tip} m-5 -7 l5 7 l5 -7"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    (Path(__file__).parent / "images" / "data_flow.svg").write_text(picture(), encoding="utf-8")
