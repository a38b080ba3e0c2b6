"""The study of the soft part's form: its tied candidates keep the strict kernel, and its runs are trained once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmark_runs import run_here
from escnn import gspaces
from escnn.nn import FieldType

from benchmarks.shared.run_log import Log
from benchmarks.soft_part import forms as soft_part_forms
from benchmarks.soft_part import report as soft_part_report
from benchmarks.soft_part import study
from benchmarks.soft_part.candidates import TiedPlane, TiedR2Conv, direction_basis, lowest
from escnn_relaxed.group.elements import GroupSample, sample_group
from escnn_relaxed.group.frame import GroupFrame

C4, C8, D4 = gspaces.rot2dOnR2(4), gspaces.rot2dOnR2(8), gspaces.flipRot2dOnR2(4)
SO2 = gspaces.rot2dOnR2(-1, maximum_frequency=3)


def regular(gspace: gspaces.GSpace2D) -> FieldType:
    return FieldType(gspace, [gspace.regular_repr] * 2)


def group_mean(layer: TiedR2Conv, sample: GroupSample) -> torch.Tensor:
    """mean_g ρ_out(g) K(g⁻¹d) ρ_in(g)⁻¹, word for word, of elements that map taps to taps."""
    bank = layer.filter_bank()
    size = layer.kernel_size
    centred = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
    points = torch.stack([centred.expand(size, size), -centred[:, None].expand(size, size)], -1)
    total = torch.zeros_like(bank)
    for element, action in zip(sample.elements, sample.action, strict=True):
        source = points @ torch.from_numpy(action)  # rows of points: g⁻¹d = gᵀd
        column = (source[..., 0] + (size - 1) / 2).round().long()
        row = (-source[..., 1] + (size - 1) / 2).round().long()
        out, into = (torch.from_numpy(np.asarray(t.representation(element))) for t in (layer.out_type, layer.in_type))
        moved = bank[:, :, row, column]
        total += torch.einsum("ab,bcyx,cd->adyx", out.to(bank), moved, into.to(bank).inverse())
    return total / len(sample)


@pytest.mark.parametrize(
    ("in_type", "out_type", "size", "parts"),
    [
        (regular(C4), regular(C4), 5, "oid"),
        (regular(C4), regular(C4), 3, "p"),
        # Eighths of a turn map the taps of a kernel of one tap alone to taps.
        (regular(C8), regular(C8), 1, "oi"),
        (regular(D4), regular(D4), 3, "oid"),
        (
            FieldType(C4, [C4.irrep(0), C4.irrep(1), C4.irrep(2), C4.regular_repr]),
            FieldType(C4, [C4.irrep(1), C4.irrep(1), C4.quotient_repr(2), C4.irrep(0)]),
            5,
            "oid",
        ),
    ],
)
def test_the_group_mean_of_a_tied_kernel_is_the_strict_one(
    in_type: FieldType, out_type: FieldType, size: int, parts: str
) -> None:
    layer = TiedR2Conv(in_type, out_type, size, functions=4, parts=parts, initial_softness=0.1).double()
    strict = layer.strict()
    error = (group_mean(layer, sample_group(in_type.gspace, 16)) - strict).norm() / strict.norm()
    # Bases of escnn are rounded to float32.
    assert error < 1e-6
    assert (layer.filter_bank() - strict).norm() > 0.1 * strict.norm()
    layer.make_strict()
    assert torch.equal(layer.filter_bank(), layer.strict())


@pytest.mark.parametrize("gspace", [C8, D4, SO2])
def test_modulations_of_the_direction_have_no_mean_over_the_group(gspace: gspaces.GSpace2D) -> None:
    frame = GroupFrame(gspace, 16)
    sample, coordinates = frame.sample, frame.translates(()).coordinates["rotation"][:, 0]
    functions = lowest(0.25 * coordinates, 2)
    orbit = sample.action @ np.array([1.3, 0.4])
    found = direction_basis(sample, functions, orbit)
    assert len(found) == 2
    # The matrices of escnn are rounded to float32.
    assert np.abs(found.mean(axis=1)).max() < 1e-6


@pytest.mark.parametrize("softness", [0.001, 0.1])
def test_tied_layers_start_as_soft_as_wanted(softness: float) -> None:
    plane = FieldType(gspaces.trivialOnR2(), [gspaces.trivialOnR2().trivial_repr] * 4)
    irreps = FieldType(SO2, [SO2.irrep(0), SO2.irrep(1), SO2.irrep(2)])
    for layer in (
        TiedR2Conv(irreps, irreps, 5, initial_softness=softness),
        TiedR2Conv(regular(C8), regular(C8), 5, initial_softness=softness),
        TiedPlane(plane, plane, 3, padding=1, initial_softness=softness),
    ):
        assert layer.softness().item() == pytest.approx(softness, rel=1e-3)


@pytest.mark.parametrize("form", ["strict", "tied, J = 2", "harmonics, J = 2"])
def test_networks_of_the_equal_side_have_as_many_parameters(form: str) -> None:
    for network in ("C4 regular", "smoke"):
        cell = next(cell for cell in soft_part_forms.CELLS if soft_part_forms.network_of(cell) == network)
        strict, one = (
            sum(
                p.numel()
                for p in soft_part_forms.build(f, network, soft_part_forms.widths_of(cell, f, "equal")).parameters()
            )
            for f in ("strict", form)
        )
        assert abs(one / strict - 1) < 0.035


def test_a_second_call_trains_nothing_and_tells_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "IMAGES", 64)
    monkeypatch.setattr(study, "VALIDATION", 32)
    monkeypatch.setattr(study, "EPOCHS", 1)
    monkeypatch.setattr(soft_part_forms, "WIDTHS", {**soft_part_forms.WIDTHS, "C4 regular": (1, 1, 1, 1)})
    monkeypatch.setattr(soft_part_report, "GROWTHS", soft_part_report.GROWTHS[:1])
    arguments = ["--cells", "C4, upright", "--forms", "strict;tied, J = 2", "--output", str(tmp_path)]
    first = run_here("soft_part.study", *arguments)
    assert "tied, J = 2" in (tmp_path / "table.md").read_text()
    runs = Log(tmp_path / "runs.jsonl").runs
    assert len(runs) == 2
    assert {json.loads(run)["form"] for run in runs} == {"strict", "tied, J = 2"}
    again = run_here("soft_part.study", *arguments)
    assert again.strip() in first
    assert run_here("soft_part.study", "--report", "--output", str(tmp_path)) == again
