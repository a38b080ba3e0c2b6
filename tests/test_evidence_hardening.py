"""What hardening by the evidence makes strict, in which order, and what it keeps; tables of both."""

import html
import math
import re
from dataclasses import replace

import pytest
import small
import torch
from escnn import nn as enn
from evidence_networks import CLOSED_FORM, Classifier, entries, images
from small import soft_regular_layer
from torch import Tensor, nn

from escnn_relaxed import RelaxedR2Conv, SoftnessEvidence
from escnn_relaxed.baselines import ResidualR2Conv
from escnn_relaxed.learning import EvidenceRow, EvidenceTable, HardeningReport, HardeningTrial
from escnn_relaxed.learning.fisher_matrix import Batch
from escnn_relaxed.learning.posterior import occam_factor_of
from escnn_relaxed.measure import EquivarianceReport, ErrorRow, LayerSummary, RelaxationSummary


@pytest.mark.whole
@pytest.mark.parametrize(("beyond", "error", "is_hardened"), [(1, 2, True), (3, 2, False), (-1, 2, True)])
def test_hardening_allows_for_the_error_of_the_rise(
    beyond: int, error: int, is_hardened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rise may be above twice the Occam factor and log 20 by as much as its error."""
    layer, count = soft_regular_layer(), 16
    inputs = layer.in_type(torch.randn(count, 4, 3, 3, dtype=torch.float64))
    evidence = SoftnessEvidence(layer, 100, "gaussian")
    evidence.update(inputs, torch.randn_like(layer(inputs).tensor))
    before, price = evidence.table(), occam_factor_of(evidence._present())
    mean, deviation = (2 * price + math.log(20) + beyond) / 100, error / 100 * count**0.5
    rises = mean + deviation * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(count // 2)
    losses = iter([torch.zeros_like(rises), rises])
    monkeypatch.setattr(Batch, "losses", lambda *_: next(losses))
    (trial,) = evidence.harden(inputs, torch.zeros(count))
    assert (trial.occam_factor, trial.error) == (pytest.approx(price), pytest.approx(error))
    assert trial.rise == pytest.approx(2 * price + math.log(20) + beyond)
    assert trial.needed == pytest.approx(2 * price + math.log(20))
    assert trial.determined == pytest.approx(sum(row.determined for row in before))
    assert trial.is_hardened == is_hardened == bool(layer.hardened)


def test_hardening_goes_subgroup_by_subgroup_and_then_layer_by_layer() -> None:
    """The first layer has to be soft; the second has hardly any softness, and it goes."""
    torch.manual_seed(1)
    image, hidden = small.field_type("C4", "trivial"), small.field_type("C4", "regular")
    network = enn.SequentialModule(
        RelaxedR2Conv(image, hidden, 5, initial_softness=0.5),
        RelaxedR2Conv(hidden, hidden, 1, initial_softness=1e-9),
        enn.GroupPooling(hidden),
    )
    inputs = network.in_type(torch.randn(100, 1, 5, 5))
    with torch.no_grad():
        targets = network(inputs).tensor + 1e-3 * torch.randn(100, 1, 1, 1)
    evidence = SoftnessEvidence(network, 100, "gaussian")
    evidence.update(inputs, targets)
    report = evidence.harden(inputs, targets)
    assert [(trial.layers, trial.is_hardened) for trial in report] == [
        (("0", "1"), False),
        (("1",), True),
        (("0",), False),
    ]
    assert [layer.hardened for layer in (network[0], network[1])] == [(), ("rotation",)]
    assert [row.layer for row in evidence.table()] == ["0"]


def test_layer_that_breaks_mirrors_by_weights_of_rotation_is_hardened_in_them() -> None:
    torch.manual_seed(1)
    image, hidden = small.field_type("D4", "trivial"), small.field_type("D4", "regular")
    first, second = (RelaxedR2Conv(*ends, 3, initial_softness=0.2) for ends in ((image, hidden), (hidden, image)))
    network, inputs = enn.SequentialModule(first, second), image(torch.randn(100, 1, 5, 5))
    targets = network(inputs).tensor.detach() + 1e-3 * torch.randn(100, 1, 1, 1)
    evidence = SoftnessEvidence(network, 100, "gaussian")
    evidence.update(inputs, targets)
    assert [row.subgroup for row in evidence.table() if row.layer == "1"] == ["rotation"]
    trials = {(trial.subgroup, trial.layers): trial.weights for trial in evidence.harden(inputs, targets)}
    assert trials["reflection", ("0", "1")] == trials["reflection", ("0",)] > trials["reflection", ("1",)] == 0


def test_layers_that_were_hardened_may_be_soft_again() -> None:
    network, inputs = Classifier(), images(20)
    evidence = SoftnessEvidence(network, 100)
    evidence.update(inputs)
    before, penalty = list(evidence.table()), evidence.penalty().item()
    labels = torch.randint(0, 3, (20,))
    trials = list(evidence.harden(inputs, labels))
    network.first.hardened = network.second.hardened = ()
    assert list(evidence.harden(inputs, labels)) == trials
    network.first.hardened = network.second.hardened = ()
    evidence.load_state_dict(evidence.state_dict())
    assert (list(evidence.table()), evidence.penalty().item()) == (before, penalty)


def test_layers_stay_as_they_are_where_a_trial_fails() -> None:
    network = Classifier()
    evidence = SoftnessEvidence(network, 100)
    evidence.update(images(20))
    network.second.register_forward_hook(lambda layer, *_: 1 / (not network.first.hardened) and None)
    with pytest.raises(ZeroDivisionError):
        evidence.harden(images(20), torch.randint(0, 3, (20,)))
    assert network.first.hardened == network.second.hardened == ()


class Squares(nn.Module):
    """A layer of D4 of eight outputs for each image, soft in rotation and reflection."""

    def __init__(self) -> None:
        super().__init__()
        fields, relax = small.field_type("D4", "regular"), {"rotation": 0.25, "reflection": 0.25}
        self.layer = RelaxedR2Conv(fields, fields, 3, relax=relax, initial_softness=0.05).double()

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(self.layer.in_type(images)).tensor.flatten(1)


def updated(network: nn.Module, noise: float) -> tuple[SoftnessEvidence, Tensor, Tensor]:
    """The evidence after an update with what the network answers, and its inputs and targets."""
    inputs = torch.randn(60, 8, 3, 3, dtype=torch.float64)
    with torch.no_grad():
        targets = network(inputs)
        targets = targets + noise * torch.randn_like(targets)
    evidence = SoftnessEvidence(network, len(inputs), "gaussian")
    evidence.update(inputs, targets)
    return evidence, inputs, targets


def test_subgroups_that_the_data_determine_least_are_hardened_first() -> None:
    firsts = set()
    for weak, strong in (("rotation", "reflection"), ("reflection", "rotation")):
        network = Squares()
        with torch.no_grad():
            for parameter, places in entries(network, weak):
                parameter.view(-1)[places] *= 1e-3
        evidence, inputs, targets = updated(network, noise=0.1)
        shares = {row.subgroup: row.gamma_per_weight for row in evidence.table()}
        assert shares[weak] < shares[strong]
        firsts.add((weak, evidence.harden(inputs, targets)[0].subgroup))
    assert firsts == {("rotation", "rotation"), ("reflection", "reflection")}


def test_rise_of_a_trial_is_beside_what_has_been_hardened_before() -> None:
    """So the rises of what stays strict add up to that of all of it."""
    network = Squares()
    evidence, inputs, targets = updated(network, noise=10.0)
    before, weights = (
        evidence._batch(inputs, targets, None).losses(evidence._likelihood).sum(),
        sum(row.weights for row in evidence.table()),
    )
    trials = evidence.harden(inputs, targets)
    assert sum(trial.weights for trial in trials) == weights
    assert [trial.is_hardened for trial in trials] == [True, True]
    assert all(abs(trial.rise) > 1e-3 for trial in trials)
    rise = (evidence._batch(inputs, targets, None).losses(evidence._likelihood).sum() - before).item()
    assert sum(trial.rise for trial in trials) == pytest.approx(rise, rel=CLOSED_FORM)


def test_subgroups_that_have_gone_with_others_have_no_trial_of_their_own() -> None:
    """Free weights belong to all subgroups together, and where they go first nothing is left for rotation alone."""
    fields = small.field_type("D4", "regular")
    network = enn.SequentialModule(
        ResidualR2Conv(fields, fields, 3, initial_softness=1e-6),
        RelaxedR2Conv(fields, fields, 1, initial_softness=1e-6),
        enn.GroupPooling(fields),
    )
    inputs, targets = fields(torch.randn(60, 8, 3, 3)), torch.randn(60, 1, 1, 1)
    evidence = SoftnessEvidence(network, 60, "gaussian")
    evidence.update(inputs, targets)
    assert {row.subgroup for row in evidence.table()} >= {"rotation, reflection", "rotation", "reflection"}
    evidence._learned = {
        key: replace(learned, determined=0.0 if "," in key else 1.0) for key, learned in evidence._learned.items()
    }
    (trial,) = evidence.harden(inputs, targets)
    assert (trial.subgroup, trial.layers, trial.is_hardened) == ("rotation, reflection", ("0", "1"), True)
    assert not evidence.table()


def test_occam_factor_is_that_with_the_weights_less_that_without() -> None:
    """Of weights that others can stand in for: ½ (δ‖α‖² + log det Σ⁻¹/δ), of all less of those that stay."""
    network = Squares()
    evidence, inputs, targets = updated(network, noise=0.1)
    rows = {key: learned.rows for key, learned in evidence._learned.items()}
    precision = {row.subgroup: row.precision for row in evidence.table()}
    groups = {group.name: group.entries[0] for group in network.layer.kernel.weight_groups()}
    squares = {name: parameter.detach()[places].square().sum() for name, (parameter, places) in groups.items()}

    def price(names: list[str]) -> float:
        scaled = torch.cat([rows[f"layer/{name}"] / precision[name] ** 0.5 for name in names], 1)
        curvature = torch.linalg.slogdet(torch.eye(scaled.shape[1], dtype=torch.float64) + scaled.mT @ scaled)[1]
        return float(sum(precision[name] * squares[name] for name in names) + curvature) / 2

    trial = evidence.harden(inputs, targets)[0]
    left = [name for name in precision if trial.subgroup not in name]
    assert trial.occam_factor == pytest.approx(price(list(precision)) - price(left), rel=CLOSED_FORM)
    # Not the one that they would have alone.
    gone = [name for name in precision if trial.subgroup in name]
    assert abs(trial.occam_factor - price(gone)) > 0.01 * trial.occam_factor


def test_layers_that_share_soft_weights_are_hardened_together() -> None:
    network, inputs = Classifier(), images(20)
    network.second.kernel.modulation.weights = network.first.kernel.modulation.weights
    evidence = SoftnessEvidence(network, 20)
    evidence.update(inputs)
    report = evidence.harden(inputs, torch.randint(0, 3, (20,)))
    assert all(trial.layers == ("first", "second") for trial in report)
    assert network.first.hardened == network.second.hardened != ()
    # They count where one of their layers is soft.
    network.first.hardened, network.second.hardened = ("rotation",), ()
    assert [(row.layer, row.subgroup) for row in SoftnessEvidence(network, 20).table()] == [
        ("first", "reflection"),
        ("second", "rotation"),
        ("second", "rotation × reflection"),
    ]


ROWS = (EvidenceRow("first", "rotation", 40, 2.0, 1e-4, 300.0), EvidenceRow("second", "rotation", 8, 6.0, 0.02, 1.0))
TRIALS = (
    HardeningTrial("rotation", ("first", "second"), 48, 8.0, 20.0, 43.0, 300.0, 12.0, False),
    HardeningTrial("rotation", ("first",), 40, 2.0, 3.0, 9.0, 1.25, 0.5, True),
)


def test_texts_are_tables_with_sums() -> None:
    table = EvidenceTable((*ROWS, EvidenceRow("second", "reflection", 4, 1.0, 0.3, 1.0)))
    rows = [
        "first     rotation    40         2.0           0.05  1.0e-04",
        "second    rotation    8          6.0           0.75  2.0e-02",
        "second    reflection  4          1.0           0.25  3.0e-01",
    ]
    sums = [
        "2 layers  rotation    48         8.0           0.17  2.0e-02",
        "all       all         52         9.0           0.17  3.0e-01",
    ]
    assert str(table).splitlines()[1:] == [*rows, *sums]
    assert len(str(EvidenceTable(ROWS[:1])).splitlines()) == 2  # one row is its own sum
    # A table is a tuple of its rows. Sums are of the text alone, or whoever adds up rows would count weights twice.
    assert table[:2] == EvidenceTable(ROWS).rows == ROWS
    assert len(table) == 3
    assert (type(table.rows), HardeningReport(TRIALS).rows) == (tuple, TRIALS)
    assert str(HardeningReport(TRIALS)).splitlines()[1:] == [
        "rotation  2 layers  48         8.0           20.0          43.0      300.0 ± 12.0  soft",
        "rotation  first     40         2.0           3.0           9.0       1.2 ± 0.5     strict",
    ]


REPORTS = {
    "evidence": EvidenceTable(ROWS),
    "hardening": HardeningReport(TRIALS),
    "errors": EquivarianceReport("<layer>", (ErrorRow("rotation 90°", "rotation", 90.0, "exact", 0.5, 0.0),)),
    "summary": RelaxationSummary((LayerSummary("conv", "1 -> 1", {}, {"all": 0.0}),), {"R2Conv": ("1",)}),
}


@pytest.mark.parametrize("name", REPORTS)
def test_reports_are_html(name: str) -> None:
    report = REPORTS[name]
    text = re.fullmatch("<pre>(.*)</pre>", report._repr_html_(), re.DOTALL)
    assert text is not None
    assert html.unescape(text[1]) == str(report)
    assert "->" not in text[1]
