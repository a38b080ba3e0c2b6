"""The prior of the evidence is an object: another one is a class with a method."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from errors import ROUNDING
from evidence_networks import CLOSED_FORM, Classifier, images

from escnn_relaxed import SoftnessEvidence
from escnn_relaxed.learning import GammaPrior, LearnedGroup, Prior
from escnn_relaxed.learning.prior import LEAST_PRECISION


class FixedPrecision(Prior):
    """As a user would write it."""

    def __init__(self, precision: float) -> None:
        self.precision = precision

    def update(self, groups: Sequence[LearnedGroup]) -> list[float]:
        return [self.precision for _ in groups]


class GroupLasso(Prior):
    def update(self, groups: Sequence[LearnedGroup]) -> list[float]:
        return [3 / group.square**0.5 for group in groups]


class Returns(Prior):
    def __init__(self, returned: Any) -> None:
        self.returned = returned

    def update(self, groups: Sequence[LearnedGroup]) -> list[float]:
        return self.returned


def updated(prior: Prior | None) -> SoftnessEvidence:
    torch.manual_seed(1)
    network, inputs = Classifier(), images(40)
    evidence = SoftnessEvidence(network, 1000, prior=prior)
    evidence.update(inputs)
    return evidence


def squares(evidence: SoftnessEvidence) -> list[float]:
    sizes = [row.weights for row in evidence.table()]
    return [float(values.square().sum()) for values in evidence._soft.values().detach().split(sizes)]


def test_a_fixed_precision_is_that_of_the_penalty_the_decay_and_what_is_determined() -> None:
    evidence = updated(FixedPrecision(7.0))
    table = evidence.table()
    assert {row.precision for row in table} == {7.0}
    assert evidence.penalty().item() == pytest.approx(7 * sum(squares(evidence)) / 2000, rel=ROUNDING)
    groups = evidence._present()
    rows = torch.cat([group.rows for group in groups], 1)
    # δΣ by the whole matrix; γ = n − δ tr Σ.
    shares = 7 * torch.linalg.inv(rows.mT @ rows + 7 * torch.eye(rows.shape[1], dtype=rows.dtype)).diagonal()
    for row, share in zip(table, shares.split([group.size for group in groups]), strict=True):
        assert row.determined == pytest.approx(float((1 - share).sum()), rel=CLOSED_FORM)
    before = evidence._soft.values().detach().clone()
    evidence.decay(0.1)
    torch.testing.assert_close(evidence._soft.values().detach(), before * (1 - 0.1 * 7 / 1000), rtol=ROUNDING, atol=0)


def test_the_gradient_of_a_group_lasso_has_the_same_size_in_each_group() -> None:
    evidence = updated(GroupLasso())
    evidence.penalty().backward()
    for group in evidence._groups:
        slopes = [parameter.grad.flatten()[places] for parameter, places in group.weights.entries]
        assert torch.cat(slopes).norm().item() == pytest.approx(3 / 1000, rel=1e3 * ROUNDING)


def test_the_default_is_the_gamma_prior_and_its_numbers_are_arguments() -> None:
    tables = [list(updated(prior).table()) for prior in (None, GammaPrior(), GammaPrior(1.0, 0.5))]
    assert tables[0] == tables[1] == tables[2]
    # Many weights of size 0.1 leave the data no say.
    assert [row.precision for row in updated(GammaPrior(1e9, 0.1)).table()] == pytest.approx([100.0] * 6, rel=1e-6)


def test_states_go_on_under_another_prior() -> None:
    evidence, other = updated(None), updated(FixedPrecision(7.0))
    other.load_state_dict(evidence.state_dict())
    assert [row.precision for row in other.table()] == [row.precision for row in evidence.table()]
    other.update(images(40))
    assert {row.precision for row in other.table()} == {7.0}


def test_a_precision_of_0_counts_as_the_least() -> None:
    assert {row.precision for row in updated(FixedPrecision(0.0)).table()} == {LEAST_PRECISION}


@pytest.mark.parametrize(
    ("returned", "error", "text"),
    [
        ([1.0], ValueError, "prior: update must return 6 precisions, one a group, got 1"),
        ([-1.0] * 6, ValueError, "prior: a precision of update must be finite and >= 0, got -1"),
        ([float("nan")] * 6, ValueError, "prior: a precision of update must be finite"),
        (["1"] * 6, TypeError, "prior: a precision of update must be a"),
        (1.0, TypeError, "prior: update must return a list of 6 precisions, one a group, got 1.0"),
    ],
)
def test_what_a_prior_returns_is_checked(returned: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        updated(Returns(returned))


def test_a_class_is_no_prior() -> None:
    with pytest.raises(TypeError, match=r"prior must be a Prior, as GammaPrior\(\), or None, got <class"):
        SoftnessEvidence(Classifier(), 1000, prior=GammaPrior)  # type: ignore[arg-type]
