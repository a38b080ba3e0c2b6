"""The paper's network: its published parameter counts, its architecture written out, its symmetries, its export."""

import pytest
import torch
from errors import ROUNDING, largest_error, relative_error
from escnn.nn import GeometricTensor
from small import shake
from torch import Tensor, nn
from torch.nn import functional

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv, export_network
from escnn_relaxed.baselines import LAYERS, PartialR2Conv
from escnn_relaxed.continuous import start
from escnn_relaxed.models import RelaxedResNet
from escnn_relaxed.network.relaxed_layers import relaxed_layers

# The paper's table of parameter counts, whatever the number of rotations: of CIFAR-10; of CIFAR-100 5,850 more.
PUBLISHED = {
    "T(2), strict": ({"rotations": 1, "relax": None}, 451_898),
    "T(2), soft": ({"rotations": 1, "relax": {"translation": 1.0}}, 452_282),
    "SE(2), strict": ({"rotations": 4, "relax": None}, 451_898),
    "SE(2), strict, 16 rotations": ({"rotations": 16, "relax": None}, 451_898),
    "SE(2), partial": ({"rotations": 4, "layer": "partial"}, 469_615),
    "SE(2), soft in SO(2)": ({"rotations": 8, "relax": {"rotation": 1.0}}, 469_802),
    # Of each of 6 kernels two more coordinates, and ω′ of three.
    "SE(2), soft in both": (
        {"rotations": 4, "relax": {"translation": 0.5, "rotation": 1.0}, "learn_relaxation": True},
        469_802 + 6 * 2 * 32 + 6 * 3,
    ),
}
# The fields of the blocks in networks for which no number is published.
FIELDS = (4, 6)


def parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_are_those_published(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # How soft the weights start takes most of the time, and is the size of some of them.
    monkeypatch.setattr(start, "_expected_softness", lambda *_: 0.0)
    arguments, count = PUBLISHED[name]
    network = RelaxedResNet(10, **arguments)
    assert parameters(network) == count
    if name == "T(2), strict":
        assert parameters(RelaxedResNet(100, **arguments)) == count + 90 * (64 + 1)
    if "soft" in name:
        expected = list(arguments["relax"])
        assert [list(layer.domain_frequency) for layer in wide(network)] == 6 * [expected]
    if name == "SE(2), strict":
        lifting, first, second, last = (network.features[i] for i in (0, 3, 7, 11))
        parts = lifting, first, second.body, second.shortcut, last
        assert [*map(parameters, parts)] == [4_320, 69_952, 68_768 + 136_352, 35_120, 136_352]


def network_of(rotations: int = 4, **arguments: object) -> RelaxedResNet:
    """In float64 and eval mode, with every weight and statistic away from its start, and few fields."""
    network = RelaxedResNet(3, rotations, **{"fields": FIELDS, **arguments}).double()
    shake(network)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm3d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return network.eval()


def images(side: int = 28, batch: int = 1) -> Tensor:
    return torch.randn(batch, 3, side, side, dtype=torch.float64)


def by_hand(network: RelaxedResNet, features: Tensor, order: int, has_first_shortcut: bool) -> Tensor:
    """The paper's architecture (appendix "Network architecture") in plain functions, with the banks of the layers."""
    banks = [layer.filter_bank() for layer in relaxed_layers(network).values()]
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm3d)]

    def normalized(values: Tensor) -> Tensor:
        norm = norms.pop(0)
        fields = values.unflatten(1, (-1, order))
        per_field = [value.view(1, -1, 1, 1, 1) for value in (norm.running_mean, norm.running_var)]
        fields = (fields - per_field[0]) / (per_field[1] + norm.eps).sqrt()
        fields = fields * norm.weight.view(1, -1, 1, 1, 1) + norm.bias.view(1, -1, 1, 1, 1)
        return fields.flatten(1, 2).relu()

    def block(values: Tensor, has_shortcut: bool) -> Tensor:
        hidden = functional.conv2d(values, banks.pop(0), padding=3)
        hidden = functional.layer_norm(hidden, hidden.shape[1:]).relu()
        hidden = functional.conv2d(hidden, banks.pop(0), padding=3)
        hidden = functional.layer_norm(hidden, hidden.shape[1:])
        return hidden + (functional.conv2d(values, banks.pop(0)) if has_shortcut else values)

    values = normalized(functional.conv2d(features, banks.pop(0), padding=3))
    values = functional.max_pool2d(normalized(block(values, has_first_shortcut)), 2)
    values = functional.max_pool2d(normalized(block(values, True)), 2)
    values = normalized(functional.conv2d(values, banks.pop(0)))
    assert not banks
    assert not norms
    largest = values.unflatten(1, (FIELDS[1], order)).amax(dim=(2, 3, 4))
    return largest @ network.classifier.weight.mT + network.classifier.bias


@pytest.mark.parametrize(
    ("rotations", "arguments", "has_first_shortcut"),
    [(1, {"relax": None}, False), (4, {"relax": None}, False), (4, {"layer": "partial"}, True)],
)
@torch.no_grad()
def test_network_is_the_architecture_written_out(rotations: int, arguments: dict, has_first_shortcut: bool) -> None:
    network, batch = network_of(rotations, **arguments), images(side=32, batch=2)
    scores = network(batch)
    assert scores.shape == (2, 3)
    assert relative_error(scores, by_hand(network, batch, rotations, has_first_shortcut)) <= ROUNDING
    maps = network.features(network.in_type(batch))
    assert maps.tensor.shape == (2, FIELDS[1] * rotations, 2, 2)
    # A disk of 7 pixels across, in lifting too.
    assert all((layer.filter_bank().flatten(2) != 0).any(dim=0).any(dim=0).sum() == 29 for layer in wide(network))


FOURIER = ContinuousKernel()


def wide(network: nn.Module) -> list[nn.Module]:
    """The convolutions but shortcuts."""
    return [layer for layer in relaxed_layers(network).values() if layer.kernel_size > 1]


STRICT = [{"relax": None}, {"relax": None, "kernel": FOURIER}, {"relax": {"rotation": 0.0}}]
SOFT = [
    {"relax": {"rotation": 1.0}, "learn_relaxation": True},
    {"kernel": FOURIER},
    {"layer": "partial"},
    {"layer": "weighted"},
]


@pytest.mark.parametrize("arguments", STRICT, ids=str)
@torch.no_grad()
def test_strict_network_is_equivariant(arguments: dict) -> None:
    network, turned = network_of(**arguments), images()
    assert largest_error(network.features, images()) <= ROUNDING
    assert relative_error(network(turned.rot90(dims=(2, 3))), network(turned)) <= ROUNDING


@pytest.mark.parametrize("arguments", SOFT, ids=str)
@torch.no_grad()
def test_soft_network_is_not_equivariant_and_is_exported(arguments: dict) -> None:
    network, batch = network_of(**arguments, initial_softness=0.2), images()
    assert largest_error(network.features, batch) > 0.02
    exported = network.export()
    assert not any(type(module).__module__.startswith("escnn.") for module in exported.modules())
    assert relative_error(exported(batch), network(batch)) <= ROUNDING
    assert relative_error(export_network(network)(batch), network(batch)) <= ROUNDING
    network.classifier.bias += 1
    assert not torch.allclose(exported(batch), network(batch))


def test_network_takes_tensors_and_fields_and_trains_and_its_layers_are_those_of_the_word() -> None:
    for word, kind in LAYERS.items():
        network = network_of(layer=word).train()
        expected = [RelaxedR2Conv] + 5 * [PartialR2Conv] if word == "partial" else 6 * [kind]
        assert [type(layer) for layer in wide(network)] == expected
    batch = images(batch=4)
    scores = network(batch)
    assert torch.equal(network(GeometricTensor(batch, network.in_type)), scores)
    functional.cross_entropy(scores, torch.tensor([0, 1, 2, 0])).backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in network.parameters())


BAD = [
    ({"layer": "strict"}, ValueError, r"layer must be one of \['relaxed', 'partial', .*got 'strict'"),
    ({"rotations": 1, "layer": "partial"}, ValueError, "layer='partial' relaxes rotations, of which rotations=1 has"),
    ({"rotations": 1, "relax": {"rotation": 0.1}}, ValueError, "no rotation to relax"),
    ({"layer": "weighted", "relax": {"rotation": 0.1}}, TypeError, "WeightedR2Conv has no argument 'relax'"),
    ({"fields": (8,)}, ValueError, r"fields must be two numbers, one of each block, got \(8,\)"),
]


def test_bad_arguments_and_images_are_named() -> None:
    for arguments, error, message in BAD:
        with pytest.raises(error, match=message):
            RelaxedResNet(**{"rotations": 4, **arguments})
    network = RelaxedResNet(10, 1, relax=None, fields=FIELDS)
    for shape in ((1, 1, 32, 32), (1, 3, 32, 20), (3, 32, 32)):
        with pytest.raises(ValueError, match=r"images must be \(batch, 3, H, W\) with H and W of at least 28, got"):
            network(torch.randn(shape))
