"""The hardening ablation: its rows against networks hardened one by one, and the network as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import battery
import pytest
import torch
from escnn import nn as enn
from layers import SOFT_PARTS
from soft_networks import Network, soft_regular_layer
from tolerances import ROUNDING
from torch import nn
from transformations import shift_error

from escnn_relaxed import RelaxedR2Conv, harden_network, softness_ablation
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


def softness_of(network: nn.Module, names: tuple[str, ...], *subgroups: str) -> float:
    return max(network.get_submodule(name).softness(*subgroups).item() for name in names)


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
        assert row.value == pytest.approx(evaluate(hardened_copy(network, hardened, subgroups)), rel=ROUNDING)
        assert row.change == pytest.approx(row.value - whole, abs=ROUNDING)
        assert row.softness == pytest.approx(softness_of(network, hardened or SOFT, *subgroups), rel=ROUNDING)
    assert rows[-1].value == pytest.approx(evaluate(harden_network(network).eval()), rel=ROUNDING)
    # "body.0" alone is soft in reflection; no two others agree.
    assert len({round(row.value, 9) for row in rows}) == len(rows) - 1


def modes(network: nn.Module) -> dict[str, bool]:
    return {name: module.training for name, module in network.named_modules()}


def everything_of(network: nn.Module) -> dict[str, object]:
    """Return all that the ablation must not change."""
    layers = {n: m for n, m in network.named_modules() if isinstance(m, RelaxedR2Conv)}
    return {
        "modes": modes(network),
        "hardened": {name: layer.hardened for name, layer in layers.items()},
        "state": {name: value.clone() for name, value in network.state_dict().items()},
        "gradients": {n: (p.requires_grad, copy.deepcopy(p.grad)) for n, p in network.named_parameters()},
        "output": network(network.features).detach(),
    }


def assert_is(found: dict[str, object], expected: dict[str, object]) -> None:
    for name in ("modes", "hardened"):
        assert found[name] == expected[name], name
    assert torch.equal(found["output"], expected["output"])
    assert found["state"].keys() == expected["state"].keys()
    assert [n for n, v in expected["state"].items() if not torch.equal(found["state"][n], v)] == []
    for name, (requires, gradient) in expected["gradients"].items():
        assert found["gradients"][name][0] == requires
        assert torch.equal(found["gradients"][name][1], gradient) if gradient is not None else True


def mixed(network: Network, mode: str) -> Network:
    """Training and evaluation side by side; batch norm always evaluates, so that looking changes nothing."""
    network.train(mode != "eval")
    if mode == "R2Conv in eval":
        network.plain.eval()
    if mode == "R2Conv in train":
        network.eval()
        network.plain.train()
        network.body[0].train()
    for norm in network.batch_norms():
        norm.eval()
    return network


def without_leaving_train_mode(network: nn.Module) -> float:
    value = evaluate(network)
    network.train()
    return value


def in_eval_mode_of_its_own(network: nn.Module) -> float:
    network.train()
    network.eval()
    return evaluate(network)


def after_changing_weights(network: nn.Module) -> float:
    for parameter in network.parameters():
        parameter += 1
    return evaluate(network)


EVALUATIONS = (evaluate, without_leaving_train_mode, in_eval_mode_of_its_own, after_changing_weights)


@pytest.mark.parametrize(
    ("mode", "evaluation"),
    [
        *[(mode, evaluate) for mode in ("train", "eval", "R2Conv in eval", "R2Conv in train")],
        *[("R2Conv in eval", evaluation) for evaluation in EVALUATIONS[1:]],
    ],
)
def test_network_is_left_as_it_was(mode: str, evaluation: Callable[[nn.Module], float]) -> None:
    network = Network()
    network.body[3].harden("translation")
    network(network.features).square().mean().backward()
    before = everything_of(mixed(network, mode))
    softness_ablation(network, evaluation)
    assert_is(everything_of(network), before)


class StopError(Exception):
    """Not one that the package could catch."""


def failing_at(call: int) -> Callable[[nn.Module], float]:
    calls = []

    def fails(network: nn.Module) -> float:
        calls.append(network)
        if len(calls) == call:
            network.train()
            raise StopError
        return evaluate(network)

    return fails


@pytest.mark.parametrize("call", [1, 3, 5, 8])
@pytest.mark.parametrize("mode", ["train", "R2Conv in eval"])
def test_network_is_left_as_it_was_after_an_error(mode: str, call: int) -> None:
    """At nothing, a layer, a subgroup, everything."""
    network = Network()
    network.body[0].harden("rotation")
    before = everything_of(mixed(network, mode))
    with pytest.raises(StopError):
        softness_ablation(network, failing_at(call))
    assert_is(everything_of(network), before)


def test_batch_norm_estimated_anew_for_each_part_is_left_as_it_was() -> None:
    """A hardened network needs new statistics before it can be judged (``update_bn``)."""
    with torch.no_grad():
        network = Network().eval()  # so that what R2Conv keeps in eval mode has no history, which deepcopy refuses
    before = everything_of(network)

    def estimate_and_evaluate(hardened: nn.Module) -> float:
        hardened.train()
        for _ in range(3):
            hardened(hardened.features)
        hardened.eval()
        return evaluate(hardened)

    rows = softness_ablation(network, estimate_and_evaluate)
    assert_is(everything_of(network), before)
    for row in rows[1:4]:
        assert row.value == pytest.approx(estimate_and_evaluate(hardened_copy(network, (row.part,))), rel=ROUNDING)


def test_evaluation_is_in_eval_mode_without_gradients() -> None:
    network = Network().train()
    network.body.eval()

    def check(hardened: nn.Module) -> float:
        assert not any(modes(hardened).values())
        assert not hardened(hardened.features).requires_grad
        hardened.train()  # the next part starts in eval mode all the same
        return 1

    assert len(softness_ablation(network, check)) == 8


def test_network_without_relaxed_layers_is_refused() -> None:
    fields = battery.field_type("C4", "regular")
    with pytest.raises(ValueError, match="network has no relaxed layer"):
        softness_ablation(enn.SequentialModule(enn.R2Conv(fields, fields, 3)), lambda _: 0.0)


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
def test_what_is_not_soft_has_no_row(soft_part: str) -> None:
    """Strict for good, strict at ω′ = 0, and hardened; nor has a subgroup in which no layer is soft."""
    at_zero, hardened = (soft_regular_layer(soft_part, relax={"rotation": 0.2, "translation": 0.0}) for _ in range(2))
    at_zero.set_domain_frequency(rotation=0.0)
    hardened.harden()
    soft = soft_regular_layer(soft_part, relax={"rotation": 0.2, "translation": 0.0})
    network = nn.ModuleList([soft_regular_layer(soft_part, relax={}), at_zero, hardened, soft])
    rows = softness_ablation(network, lambda net: net[3].softness().item())
    assert [row.part for row in rows] == ["nothing", "3", "rotation", "everything"]


def test_layer_that_is_soft_in_translation_is_hardened_in_it() -> None:
    layer = soft_regular_layer(relax={"translation": 0.3})
    network = enn.SequentialModule(layer, enn.ReLU(layer.out_type))
    features = battery.random_input(layer.in_type, 8, 8)
    rows = softness_ablation(network, lambda net: shift_error(net, features))
    assert [row.part for row in rows] == ["nothing", "0", "translation", "everything"]
    assert rows[0].value > 0.01
    assert all(row.value <= ROUNDING and row.change == row.value - rows[0].value for row in rows[1:])
    assert all(row.softness == layer.softness().item() > 0 for row in rows)


def test_table_has_a_line_for_each_row() -> None:
    row = AblationRow("nothing", "network", 96.5, 0.0, 0.123456)
    rows = [row, replace(row, part="layers.0.convolution", kind="layer", value=85.25, change=-11.25, softness=0.0)]
    rows.append(replace(row, part="everything", value=100.0, change=3.5, softness=1.0))
    assert str(AblationReport(tuple(rows))).splitlines() == [
        "hardened                  value   change  softness",
        "nothing                   96.50             0.1235",
        "layers.0.convolution      85.25   -11.25    0.0000",
        "everything               100.00    +3.50    1.0000",
    ]


def test_report_is_a_sequence_of_its_rows() -> None:
    rows = tuple(AblationRow(part, "layer", 96.5, 0.0, 0.1) for part in ("nothing", "0", "1"))
    report = AblationReport(rows)
    assert tuple(report) == report.rows == rows
    assert len(report) == 3
    assert (report[0], report[-1], report[1:]) == (rows[0], rows[2], rows[1:])
    assert rows[1] in report
    assert str(AblationReport(())) == "hardened          value   change  softness"
