"""The hardening ablation: its rows against networks hardened one by one, and the network as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from errors import ROUNDING
from small import SOFT_PARTS, soft_regular_layer
from small_networks import Network
from torch import nn

from escnn_relaxed import harden_network, softness_ablation
from escnn_relaxed.measure import AblationReport, AblationRow

SUBGROUPS = ("rotation", "reflection", "translation")
SOFT = ("first", "body.0", "body.3")


def evaluate(network: nn.Module) -> float:
    """A number that depends on every layer."""
    return network(network.features)[0, 0, 1, 2].item()


def hardened_copy(network: nn.Module, names: tuple[str, ...], subgroups: tuple[str, ...] = ()) -> nn.Module:
    """A copy whose named layers are their strict parts."""
    result = copy.deepcopy(network)
    for name in names:
        parent, _, child = name.rpartition(".")
        layer = result.get_submodule(name)
        setattr(result.get_submodule(parent), child, harden_network(layer, subgroups))
    return result.eval()


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
def test_rows_are_those_of_networks_hardened_one_by_one(soft_part: str) -> None:
    network = Network(soft_part)
    rows = softness_ablation(network, evaluate)
    members = {name: (name,) for name in SOFT}
    parts = [("nothing", "network")] + [(name, "layer") for name in SOFT]
    parts += [(name, "subgroup") for name in SUBGROUPS] + [("everything", "network")]
    assert [(row.part, row.kind) for row in rows] == parts
    whole = evaluate(hardened_copy(network, ()))
    for row in rows:
        subgroups = (row.part,) if row.kind == "subgroup" else ()
        hardened = () if row.part == "nothing" else members.get(row.part, SOFT)
        softness = max(network.get_submodule(name).softness(*subgroups).item() for name in hardened or SOFT)
        assert row.value == pytest.approx(evaluate(hardened_copy(network, hardened, subgroups)), rel=ROUNDING)
        assert row.change == pytest.approx(row.value - whole, abs=ROUNDING)
        assert row.softness == pytest.approx(softness, rel=ROUNDING)
    assert rows[-1].value == pytest.approx(evaluate(harden_network(network).eval()), rel=ROUNDING)
    # "body.0" alone is soft in reflection; no two others agree.
    assert len({round(row.value, 9) for row in rows}) == len(rows) - 1


class StopError(Exception):
    """Not one that the package could catch."""


def after_changing_everything(network: nn.Module) -> float:
    network.train()
    network(network.features)
    for parameter in network.parameters():
        parameter += 1
    return evaluate(network)


def failing_at(call: int) -> Callable[[nn.Module], float]:
    calls = []

    def fails(network: nn.Module) -> float:
        calls.append(network)
        if len(calls) == call:
            raise StopError
        return evaluate(network)

    return fails


@pytest.mark.parametrize("evaluation", [evaluate, after_changing_everything, failing_at(3)])
def test_network_is_left_as_it_was(evaluation: Callable[[nn.Module], float]) -> None:
    """With layers in training and in evaluation, one hardened in part, and gradients."""
    network = Network()
    network.plain.eval()
    network.body[3].harden("translation")
    network(network.features).square().mean().backward()
    modes = [module.training for module in network.modules()]
    state = {name: value.clone() for name, value in network.state_dict().items()}
    gradients = [copy.deepcopy(parameter.grad) for parameter in network.parameters()]
    try:
        softness_ablation(network, evaluation)
    except StopError:
        assert evaluation not in (evaluate, after_changing_everything)
    assert [module.training for module in network.modules()] == modes
    assert network.body[3].hardened == ("translation",)
    assert network.first.hardened == ()
    assert state.keys() == network.state_dict().keys()
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())
    assert all(
        parameter.grad is gradient or torch.equal(parameter.grad, gradient)
        for parameter, gradient in zip(network.parameters(), gradients, strict=True)
    )


def test_evaluation_is_in_eval_mode_without_gradients() -> None:
    network = Network().train()
    network.body.eval()

    def check(hardened: nn.Module) -> float:
        assert not any(module.training for module in hardened.modules())
        assert not hardened(hardened.features).requires_grad
        hardened.train()  # the next part starts in eval mode all the same
        return 1

    assert len(softness_ablation(network, check)) == 8


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
def test_what_is_not_soft_has_no_row(soft_part: str) -> None:
    """Strict for good, strict at ω′ = 0, and hardened; nor has a subgroup in which no layer is soft."""
    at_zero, hardened, soft = (
        soft_regular_layer(soft_part, relax={"rotation": 0.2, "translation": 0.0}) for _ in range(3)
    )
    at_zero.set_domain_frequency(rotation=0.0)
    hardened.harden()
    network = nn.ModuleList([soft_regular_layer(soft_part, relax={}), at_zero, hardened, soft])
    rows = softness_ablation(network, lambda net: net[3].softness().item())
    assert [row.part for row in rows] == ["nothing", "3", "rotation", "everything"]


def test_report_is_a_sequence_of_its_rows_and_a_table_of_them() -> None:
    row = AblationRow("nothing", "network", 96.5, 0.0, 0.123456)
    rows = (row, replace(row, part="layers.0.convolution", kind="layer", value=85.25, change=-11.25, softness=0.0))
    report = AblationReport(rows)
    assert tuple(report) == report.rows == rows
    assert (len(report), report[0], report[-1], report[1:]) == (2, rows[0], rows[1], rows[1:])
    assert str(report).splitlines() == [
        "hardened                  value   change  softness",
        "nothing                   96.50             0.1235",
        "layers.0.convolution      85.25   -11.25    0.0000",
    ]
    assert str(AblationReport(())) == "hardened          value   change  softness"
