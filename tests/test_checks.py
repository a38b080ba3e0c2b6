"""Names of subgroups are taken in one way wherever a user types them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small import soft_layer
from small_networks import answer

from escnn_relaxed import RelaxedR2Conv, harden_network
from escnn_relaxed.learning import which_softness_helps


def layer() -> RelaxedR2Conv:
    return soft_layer("D4", "regular -> regular", relax=("rotation", "reflection"))


def hardened_in_place(soft: RelaxedR2Conv, *names: Any) -> RelaxedR2Conv:
    soft.harden(*names)
    return soft


WAYS: dict[str, list[tuple[Any, ...]]] = {
    "one": [("rotation",), (("rotation",),), (["rotation"],), ({"rotation"},)],
    "two": [("rotation", "reflection"), (("rotation", "reflection"),), (["reflection", "rotation"],)],
    "all": [(), ((),)],
}


@pytest.mark.parametrize("count", WAYS)
def test_names_are_given_alone_or_together(count: str) -> None:
    soft = layer()
    softness = [soft.softness(*names).item() for names in WAYS[count]]
    assert len({round(value, 12) for value in softness}) == 1
    found = [hardened_in_place(copy_of(soft), *names) for names in WAYS[count]]
    assert len({of.hardened for of in found}) == 1
    of_networks = [names[0] if len(names) == 1 else names for names in WAYS[count]]
    for names in of_networks:
        assert torch.allclose(answer(harden_network(soft, names)), answer(found[0]), rtol=0, atol=1e-12)


def copy_of(soft: RelaxedR2Conv) -> RelaxedR2Conv:
    copied = layer()
    copied.load_state_dict(soft.state_dict())
    return copied


def trials(subgroups: Any) -> dict[str, bool]:
    losses = lambda network: torch.ones(4)  # noqa: E731
    return which_softness_helps(layer(), lambda network: None, losses, subgroups=subgroups).helps


def test_trials_are_of_a_name_alone_too() -> None:
    assert list(trials("rotation")) == list(trials(("rotation",))) == ["rotation"]


@pytest.mark.parametrize(
    "call", [layer().harden, layer().softness, lambda names: harden_network(layer(), names), trials]
)
def test_other_names_are_refused(call: Callable[[Any], object]) -> None:
    for wrong, kind in (("turn", ValueError), (("rotation", "turn"), ValueError), ((1,), ValueError), (3, TypeError)):
        with pytest.raises(kind, match="subgroups must be"):
            call(wrong)
