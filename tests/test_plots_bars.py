"""Bars are as high as the numbers that they are given."""

from __future__ import annotations

import matplotlib as mpl
import pytest
from battery import field_type
from layers import build
from torch import nn

from escnn_relaxed.learning import EvidenceRow
from escnn_relaxed.measure import AblationRow

mpl.use("Agg")
from escnn_relaxed.plots import plot_ablation, plot_evidence, plot_softness


@pytest.fixture(autouse=True)
def closed_figures() -> None:
    mpl.pyplot.close("all")


ROWS = [
    AblationRow("nothing", "network", 96.0, 0.0, 0.1),
    AblationRow("first", "layer", 49.5, -46.5, 0.1),
    AblationRow("rotation", "subgroup", 50.5, -45.5, 0.1),
]


def labels(axes: mpl.axes.Axes) -> list[str]:
    return [label.get_text() for label in axes.get_xticklabels()]


def test_ablation_has_a_bar_for_each_part_and_a_line_for_the_whole() -> None:
    axes = plot_ablation(ROWS)
    assert [bar.get_height() for bar in axes.patches] == [49.5, 50.5]
    assert labels(axes) == ["first", "rotation"]
    assert set(axes.lines[0].get_ydata()) == {96.0}


def test_ablation_without_parts_is_refused() -> None:
    with pytest.raises(ValueError, match="hardened part"):
        plot_ablation(ROWS[:1])


def test_softness_has_a_bar_for_each_layer() -> None:
    fields = field_type("C4", "regular")
    network = nn.Sequential(build(fields, fields), build(fields, fields, relax={"rotation": 0.3}))
    axes = plot_softness(network)
    assert [bar.get_height() for bar in axes.patches] == [layer.softness().item() for layer in network]
    assert labels(axes) == ["0", "1"]


def test_pictures_go_where_they_are_told() -> None:
    figure, axes = mpl.pyplot.subplots()
    assert plot_ablation(ROWS, axes=axes) is axes
    assert len(mpl.pyplot.get_fignums()) == 1
    mpl.pyplot.close(figure)


def test_a_network_without_relaxed_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="network has no relaxed layer"):
        plot_softness(nn.Sequential())


def test_evidence_has_a_bar_for_each_layer_and_subgroup() -> None:
    places = [("first", "rotation"), ("first", "reflection"), ("second", "rotation")]
    rows = [EvidenceRow(*place, 10, float(number), 0.1, 1.0) for number, place in enumerate(places)]
    axes = plot_evidence(rows)
    assert [bar.get_height() for bar in axes.patches] == [0.0, 0.2, 0.1]
    assert labels(axes) == ["first", "second"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["rotation", "reflection"]


def test_evidence_that_is_no_table_is_refused() -> None:
    with pytest.raises(ValueError, match="rows must have one or more"):
        plot_evidence([])
    with pytest.raises(TypeError, match="rows must be the table of SoftnessEvidence"):
        plot_evidence(ROWS)
