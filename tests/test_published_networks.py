"""escnn's published architectures with relaxed layers: swapped, trained, saved, copied, exported, hardened."""

from __future__ import annotations

import copy
import functools
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from escnn.nn import EquivariantModule, FieldType, R2Conv
from layers import shake
from published_networks import NETWORKS, Classifier, images, train
from tolerances import SINGLE_REORDERED, SLIGHTLY_BROKEN
from torch import Tensor, nn
from transformations import relative_error

from escnn_relaxed import RelaxedR2Conv, harden_network, relax_network
from escnn_relaxed.network.relaxed_layers import named_relaxed_layers

EVERY_NETWORK = pytest.mark.parametrize("name", NETWORKS)


def directly(name: str) -> Classifier:
    """Built with relaxed layers, those without padding soft in translation too."""

    def convolution(in_type: FieldType, out_type: FieldType, *arguments: object, **options: object) -> RelaxedR2Conv:
        relax = {"rotation": 0.2}
        if in_type.gspace.flips_order > 0:
            relax["reflection"] = 0.3
        if options.get("padding") == 0:
            relax["translation"] = 0.3
        return RelaxedR2Conv(in_type, out_type, *arguments, relax=relax, initial_softness=0.1, **options)

    return NETWORKS[name](convolution)


def by_relaxing(name: str) -> Classifier:
    """A strict network trained for a step, then relaxed."""
    strict = NETWORKS[name](R2Conv)
    train(strict, steps=1)
    return relax_network(strict, initial_softness=0.01)


SWAPS: dict[str, Callable[[str], Classifier]] = {"directly": directly, "by relaxing": by_relaxing}
# Each network in one way, each way with two kinds of fields.
EVERY_SWAP = pytest.mark.parametrize(
    ("name", "swap"),
    [
        ("steerable CNN", "by relaxing"),
        ("gates and norms", "directly"),
        ("Wide-ResNet", "by relaxing"),
        ("Wide-ResNet", "directly"),
    ],
)


@functools.cache
def _trained(name: str, swap: str) -> tuple[Classifier, list[float]]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = SWAPS[swap](name)
        return network, train(network)


def trained(name: str, swap: str) -> Classifier:
    """After two steps."""
    return copy.deepcopy(_trained(name, swap)[0])


@torch.no_grad()
def answer(network: nn.Module, features: Tensor | None = None) -> Tensor:
    """In eval mode."""
    return network.eval()(images() if features is None else features)


def turning_error(network: nn.Module) -> float:
    """Return the error of the answer under a quarter turn; a strict network is invariant."""
    return relative_error(answer(network, images().rot90(1, (2, 3))), answer(network))


@EVERY_NETWORK
def test_relaxed_network_computes_what_it_computed_and_learns(name: str) -> None:
    strict = NETWORKS[name](R2Conv)
    train(strict)
    assert turning_error(strict) <= SINGLE_REORDERED
    relaxed = relax_network(strict.train(), relax={"rotation": 0.2})
    assert relative_error(answer(relaxed), answer(strict)) <= SINGLE_REORDERED
    assert {key for key, _ in strict.named_modules() if not _is_inside_r2conv(strict, key)} <= {
        key for key, _ in relaxed.named_modules()
    }
    assert not any(isinstance(module, R2Conv) for module in relaxed.modules())
    losses = train(relaxed.train(), steps=3)
    assert all(layer.softness().item() > 0 for _, layer in named_relaxed_layers(relaxed))
    assert losses[-1] < losses[0]
    assert turning_error(relaxed) > SLIGHTLY_BROKEN


def _is_inside_r2conv(network: nn.Module, key: str) -> bool:
    parts = key.split(".")
    return any(isinstance(network.get_submodule(".".join(parts[:end])), R2Conv) for end in range(1, len(parts)))


@EVERY_SWAP
def test_network_learns_all_of_its_parameters(name: str, swap: str) -> None:
    network, losses = _trained(name, swap)
    assert all(torch.tensor(losses).isfinite())
    assert len(list(named_relaxed_layers(network))) >= 4
    network = trained(name, swap).train()
    network(images()).square().sum().backward()
    for key, parameter in network.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, key
            assert parameter.grad.isfinite().all(), key


@EVERY_SWAP
def test_state_is_saved_and_loaded_in_either_mode(name: str, swap: str) -> None:
    network = trained(name, swap)
    expected = answer(network)
    other = copy.deepcopy(network)
    for save in (True, False):
        shake(other)
        assert relative_error(answer(other), expected) > SLIGHTLY_BROKEN
        file = io.BytesIO()
        torch.save(network.train(save).state_dict(), file)
        file.seek(0)
        other.train(not save).load_state_dict(torch.load(file, weights_only=True))
        assert torch.equal(answer(other), expected)


@EVERY_SWAP
def test_whole_network_is_copied_and_pickled_after_training_and_eval(name: str, swap: str) -> None:
    network = trained(name, swap)
    expected = answer(network)
    for copied in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert torch.equal(answer(copied), expected)
        train(copied.train(), steps=1)
        assert relative_error(answer(copied), expected) > SLIGHTLY_BROKEN
    assert torch.equal(answer(network), expected)


@EVERY_SWAP
def test_network_is_exported_without_escnn(name: str, swap: str) -> None:
    network = trained(name, swap)
    exported = network.export()
    assert not any(type(module).__module__.startswith("escnn.") for module in exported.modules())
    assert not any(isinstance(module, EquivariantModule) for module in exported.modules())
    with torch.no_grad():
        assert relative_error(exported(images()), answer(network)) <= SINGLE_REORDERED


@EVERY_SWAP
def test_hardened_network_is_equivariant_and_stays_so_in_training(name: str, swap: str) -> None:
    network = trained(name, swap)
    assert turning_error(network) > SLIGHTLY_BROKEN
    hardened = harden_network(network)
    assert turning_error(hardened) <= SINGLE_REORDERED
    train(hardened.train())
    assert turning_error(hardened) <= SINGLE_REORDERED
    assert turning_error(network) > SLIGHTLY_BROKEN


@EVERY_NETWORK
def test_strict_and_soft_layers_mix_in_any_order(name: str) -> None:
    """Every second one relaxed."""
    strict = NETWORKS[name](R2Conv)
    names = [key for key, module in strict.named_modules() if isinstance(module, R2Conv)]
    mixed = relax_network(strict, where=lambda key, _: key in names[::2], relax={"rotation": 0.2})
    kinds = [type(mixed.get_submodule(key)) for key in names]
    assert kinds == [(RelaxedR2Conv, R2Conv)[number % 2] for number in range(len(names))]
    assert all(torch.tensor(train(mixed)).isfinite())
    with torch.no_grad():
        assert relative_error(mixed.export()(images()), answer(mixed)) <= SINGLE_REORDERED
    assert turning_error(harden_network(mixed)) <= SINGLE_REORDERED
