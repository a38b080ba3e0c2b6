"""The table of a network's layers says what the layers say."""

from __future__ import annotations

import battery
import pytest
from layers import build
from torch import nn

from escnn_relaxed import AblationRow, relaxation_summary


@pytest.fixture
def network() -> nn.Module:
    fields = battery.field_type("D4", "two regular")
    soft = build(fields, fields, relax={"rotation": 0.2, "translation": (0.1, 0.3)})
    return nn.ModuleDict({"strict": build(fields, fields, relax=None), "soft": soft})


def test_every_relaxed_layer_has_a_row_with_its_own_numbers(network: nn.Module) -> None:
    strict, soft = relaxation_summary(network).rows
    assert (strict.name, strict.domain_frequency, strict.penalty) == ("strict", {}, 0)
    assert (strict.softness, strict.hardened_value) == ({"all": 0}, None)
    assert soft.domain_frequency == {name: tuple(v.tolist()) for name, v in network["soft"].domain_frequency.items()}
    assert soft.penalty == pytest.approx(0.2**2 + 0.1**2 + 0.3**2, rel=1e-6)  # ω′ is drawn up in float32
    assert soft.softness == {
        "translation": network["soft"].softness("translation").item(),
        "rotation": network["soft"].softness("rotation").item(),
        "all": network["soft"].softness().item(),
    }


def test_the_table_has_a_line_a_layer(network: nn.Module) -> None:
    header, strict, soft = str(relaxation_summary(network)).splitlines()
    assert header.split()[:2] == ["layer", "fields"]
    assert "strict" in strict
    assert "2 regular -> 2 regular" in soft
    assert "rotation 0.2" in soft
    assert "translation 0.1 0.3" in soft


def test_an_ablation_adds_a_column(network: nn.Module) -> None:
    rows = [AblationRow("nothing", "network", 90.0, 0.0, 0.1), AblationRow("soft", "layer", 51.25, -38.75, 0.1)]
    summary = relaxation_summary(network, rows)
    assert [row.hardened_value for row in summary.rows] == [None, 51.25]
    assert str(summary).splitlines()[2].endswith("51.25")


def test_a_network_without_relaxed_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="no RelaxedR2Conv"):
        relaxation_summary(nn.Linear(2, 2))
