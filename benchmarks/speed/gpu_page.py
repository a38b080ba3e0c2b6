"""A page for the docs of the figures from a GPU."""

from __future__ import annotations

from typing import Any

__all__ = ["page"]

Figures = dict[str, Any]


def page(figures: Figures) -> str:
    """Return the figures as Markdown."""
    lines = ["# On a GPU", "", "    make gpu", "", f"{figures['machine']}; {figures['seconds']:.0f} s in all."]
    if "speed" in figures:
        lines += ["", "## Forward and backward, beside `Conv2d`", ""]
        lines += ["| setting | what | ratio | quartiles | ms of `Conv2d` |", "|---|---|---|---|---|"]
        lines += [_row(*name.split(": "), of) for name, of in figures["speed"].items()]
    if "paper" in figures:
        lines += ["", "## The paper's networks, beside its CNN", "", "| row | training | inference |", "|---|---|---|"]
        for name, of in figures["paper"].items():
            lines.append(f"| {name} | {of['train']['median']:.2f} | {of['inference']['median']:.2f} |")
    for part in ("tests", "training"):
        if part in figures:
            of = figures[part]
            result = f"`{of['last line']}` in {of['seconds']:.0f} s, status {of['status']}."
            lines += ["", f"## {part.capitalize()}", "", result]
    if figures["cut short"]:
        lines += ["", f"No time was left in: {', '.join(figures['cut short'])}."]
    return "\n".join(lines) + "\n"


def _row(setting: str, name: str, of: Figures) -> str:
    if "failed" in of:
        return f"| {setting} | {name} | failed: {of['failed']} | | |"
    spread = f"{of['low']:.2f}–{of['high']:.2f}"
    return f"| {setting} | {name} | {of['median']:.2f} | {spread} | {1000 * of['seconds']:.2f} |"
