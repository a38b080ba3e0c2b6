"""Networks of escnn's layers: swapped by name, relaxed, hardened, given back, exported, traced, saved, measured."""

import functools
import io
import pickle
from collections.abc import Callable

import drop_in_networks
import pytest
import small
import torch
from drop_in_networks import NETWORKS, images
from errors import ROUNDING, SINGLE, SINGLE_REORDERED, relative_error
from escnn import gspaces
from escnn import nn as enn
from escnn.nn import FieldType, R2Conv, R2ConvTransposed
from small import shake
from small_networks import WHAT_EXPORTERS_WARN_OF, of_onnx_runtime, tensors_of
from torch import Tensor, nn

import escnn_relaxed
from escnn_relaxed import RelaxedR2Conv, harden_network, relax_network, relaxation_summary
from escnn_relaxed.layer.relaxed_layer import RelaxedLayer
from escnn_relaxed.network import to_escnn

pytestmark = WHAT_EXPORTERS_WARN_OF

EVERY_NETWORK = pytest.mark.parametrize("name", NETWORKS)


def train(network: nn.Module, name: str) -> list[float]:
    """Two steps of Adam towards noise, which is not equivariant; the loss of each."""
    parameters = [parameter for parameter in network.train().parameters() if parameter.requires_grad]
    optimiser, losses = torch.optim.Adam(parameters, lr=0.01), []
    for _ in range(2):
        optimiser.zero_grad()
        found = network(images(name))
        loss = (found - torch.randn(found.shape, generator=torch.Generator().manual_seed(5))).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def answer(network: nn.Module, name: str, batch: int = 3) -> Tensor:
    return network.eval()(images(name, batch))


def parameters_of(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)


def trained(
    name: str, convolution: type = RelaxedR2Conv, transposed: type = escnn_relaxed.RelaxedR2ConvTransposed
) -> nn.Module:
    """The same network in every call after two steps, with relaxed layers as they are by default."""
    torch.manual_seed(0)
    network = NETWORKS[name][0](convolution, transposed)
    train(network, name)
    return network


def strict(name: str) -> nn.Module:
    return trained(name, R2Conv, R2ConvTransposed)


@EVERY_NETWORK
def test_network_of_which_nothing_is_relaxed_is_that_of_escnn(name: str) -> None:
    layers = [functools.partial(layer, relax=None) for layer in (RelaxedR2Conv, escnn_relaxed.RelaxedR2ConvTransposed)]
    swapped = NETWORKS[name][0](*layers)
    swapped.load_state_dict(strict(name).state_dict())
    networks = swapped, strict(name)
    assert relative_error(*(answer(network, name) for network in networks)) <= SINGLE
    losses, expected = (train(network, name) for network in networks)
    assert losses == pytest.approx(expected, rel=SINGLE_REORDERED)


@EVERY_NETWORK
def test_network_is_soft_by_default_and_learns_all_of_its_few_more_parameters(name: str) -> None:
    network = trained(name)
    losses = train(network, name)
    assert all(torch.tensor(losses).isfinite())
    for key, parameter in network.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, key
            assert parameter.grad.isfinite().all(), key
    layers = [module for module in network.modules() if isinstance(module, RelaxedLayer)]
    # 1×1 kernels between trivial fields cannot be.
    assert all((layer.softness().item() > 0) != bool(layer.cannot_be_soft) for layer in layers)
    assert any(layer.softness().item() > 0 for layer in layers)
    # The networks are small; 1.08 to 1.23 times are found.
    assert parameters_of(strict(name)) < parameters_of(network) <= 1.3 * parameters_of(strict(name))


@EVERY_NETWORK
def test_trace_and_onnx_runtime_compute_the_same_for_any_batch_size(name: str) -> None:
    network = trained(name).eval()
    expected, axes = answer(network, name, 5), {"images": {0: "batch"}}
    for each in (network, escnn_relaxed.export_network(network)):
        file = io.BytesIO()
        torch.onnx.export(each, (images(name),), file, dynamo=False, input_names=["images"], dynamic_axes=axes)
        assert relative_error(of_onnx_runtime(file, images(name, 5)), expected) <= SINGLE_REORDERED
    if "irreps" not in name:  # its modules share parameters, which torch.jit.trace refuses
        traced = torch.jit.trace(network, images(name))
        assert relative_error(answer(traced, name, 5), expected) <= SINGLE_REORDERED


def in_space() -> enn.SequentialModule:
    """Turns about z, with batch norm, blurred pooling and upsampling."""
    space = small.volume_space("C4")
    image, hidden = FieldType(space, [space.trivial_repr]), FieldType(space, [space.regular_repr] * 2)
    return enn.SequentialModule(
        *(enn.R3Conv(image, hidden, 3, padding=1), enn.IIDBatchNorm3d(hidden), enn.ReLU(hidden)),
        *(enn.PointwiseMaxPoolAntialiased3D(hidden, 2), enn.R3Conv(hidden, hidden, 3, padding=1), enn.ELU(hidden)),
        *(enn.R3Upsampling(hidden, scale_factor=2), enn.R3Conv(hidden, image, 1)),
    )


def gated_in_space() -> enn.SequentialModule:
    """Octahedral irreps with gates, a stride, a transposed layer, and norms."""
    space = small.volume_space("octahedral")
    fields, gates = (FieldType(space, of) for of in ([space.irrep(n) for n in range(3)], [space.trivial_repr] * 3))
    return enn.SequentialModule(
        enn.R3Conv(FieldType(space, [space.trivial_repr]), gates + fields, 3, 1, 2),
        enn.GatedNonLinearity1(gates + fields, gates=["gate"] * 3 + ["gated"] * 3),
        enn.R3ConvTransposed(fields, fields, 3, padding=1, stride=2, output_padding=1),
        enn.NormPool(fields),
    )


PLANE = gspaces.flipRot2dOnR2(4)
IMAGE, MAPS = FieldType(PLANE, [PLANE.trivial_repr]), FieldType(PLANE, [PLANE.regular_repr] * 2)


class Classifier(nn.Module):
    """A convolution, a mean over positions, a linear map of features and a head."""

    def __init__(self) -> None:
        super().__init__()
        space = gspaces.no_base_space(PLANE.fibergroup)
        self.features = FieldType(space, MAPS.representations)
        self.body = enn.SequentialModule(enn.R2Conv(IMAGE, MAPS, 3), enn.ReLU(MAPS))
        self.middle = enn.SequentialModule(enn.Linear(self.features, self.features), enn.ReLU(self.features))
        self.head = enn.Linear(self.features, FieldType(space, [space.trivial_repr] * 3))

    def forward(self, images: Tensor) -> Tensor:
        maps = self.body(IMAGE(images)).tensor.mean(dim=(2, 3))
        scores: Tensor = self.head(self.middle(self.features(maps))).tensor
        return scores


# A network of escnn's layers, the shape of its input, and the layers that it becomes.
KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], list[type]]] = {
    "U-Net": (lambda: drop_in_networks.SkipUNet(R2Conv, R2ConvTransposed), (3, 8, 8), [RelaxedR2Conv] * 4),
    "irreps": (lambda: drop_in_networks.Irreps(R2Conv, R2ConvTransposed), (1, 12, 12), [RelaxedR2Conv] * 3),
    "linear": (Classifier, (1, 7, 7), [RelaxedR2Conv, *[escnn_relaxed.RelaxedLinear] * 2]),
    "volumes": (in_space, (1, 8, 8, 8), [escnn_relaxed.RelaxedR3Conv] * 3),
    "volumes, gates": (
        gated_in_space,
        (1, 7, 7, 7),
        [escnn_relaxed.RelaxedR3Conv, escnn_relaxed.RelaxedR3ConvTransposed],
    ),
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


def answer_to(network: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        found = network(network.in_type(images)) if isinstance(network, enn.SequentialModule) else network(images)
        return found.tensor if isinstance(found, enn.GeometricTensor) else found


def of_kind(kind: str) -> tuple[nn.Module, Tensor]:
    """A network in evaluation with statistics of its input, and images."""
    torch.manual_seed(0)
    network, images = KINDS[kind][0](), torch.randn(2, *KINDS[kind][1])
    shake(network)
    answer_to(network, images)
    return network.eval(), images


def layers_of(network: nn.Module) -> list[RelaxedLayer]:
    return [module for module in network.modules() if isinstance(module, RelaxedLayer)]


def softened(network: nn.Module) -> nn.Module:
    for layer in layers_of(network):
        layer.kernel.start(layer.weights, 0.1)
    return network


@EVERY_KIND
def test_network_is_relaxed_hardened_to_the_last_bit_and_given_back(kind: str) -> None:
    theirs, images = of_kind(kind)
    expected = answer_to(theirs, images)
    relaxed = relax_network(theirs, relax={"rotation": 0.25, "translation": 0.5})
    layers = layers_of(relaxed)
    assert [type(layer) for layer in layers][: len(KINDS[kind][2])] == KINDS[kind][2]
    assert all(
        ("translation" in layer.domain_frequency) != isinstance(layer, escnn_relaxed.RelaxedLinear) for layer in layers
    )
    assert relaxation_summary(relaxed).strict == {}
    assert relative_error(answer_to(relaxed, images), expected) <= SINGLE_REORDERED
    before = answer_to(harden_network(relaxed), images)
    assert relative_error(answer_to(softened(relaxed), images), expected) > 1e-3
    hardened = harden_network(relaxed)
    assert torch.equal(answer_to(hardened, images), before)
    back = to_escnn(hardened)
    assert not layers_of(back)
    assert relative_error(answer_to(back, images), expected) <= SINGLE_REORDERED
    theirs.load_state_dict(back.state_dict())
    assert relative_error(answer_to(theirs, images), expected) <= SINGLE_REORDERED


@EVERY_KIND
def test_exported_network_computes_the_same_and_is_saved(kind: str) -> None:
    theirs, images = of_kind(kind)
    soft = softened(relax_network(theirs, relax={"rotation": 0.25, "translation": 0.5}))
    exported = escnn_relaxed.export_network(soft)
    assert not layers_of(exported)
    assert not {t.data_ptr() for t in tensors_of(soft)} & {t.data_ptr() for t in tensors_of(exported)}
    for each in (exported, pickle.loads(pickle.dumps(exported))):
        assert relative_error(answer_to(each, images), answer_to(soft, images)) <= SINGLE_REORDERED
    if kind != "irreps":  # its modules share parameters, which torch.jit.trace refuses
        traced = torch.jit.trace(exported, images, check_trace=False)
        assert relative_error(answer_to(traced, images), answer_to(soft, images)) <= SINGLE_REORDERED


def test_what_stays_strict_is_said() -> None:
    theirs, _ = of_kind("volumes, gates")
    relaxed = relax_network(theirs, lambda name, layer: isinstance(layer, enn.R3ConvTransposed))
    assert relaxation_summary(relaxed).strict == {"R3Conv": ("0",)}
    # Translation does not concern linear maps.
    soft = relax_network(of_kind("linear")[0], relax=("translation",))
    assert (type(soft.body[0]), type(soft.head)) == (RelaxedR2Conv, enn.Linear)
    assert relaxation_summary(soft).strict == {"Linear": ("middle.0", "head")}
    with pytest.raises(ValueError, match="network has no"):
        relax_network(soft.head, relax=("translation",))


def test_network_with_linear_maps_is_measured() -> None:
    soft = relax_network(of_kind("linear")[0], initial_softness=0.1).double().eval()
    images = torch.randn(8, 1, 7, 7, dtype=torch.float64)
    rows = relaxation_summary(soft, data=images, in_type=IMAGE).rows
    assert [row.name for row in rows] == ["body.0", "middle.0", "head"]
    assert all(row.error > 1e-3 for row in rows)
    rows = relaxation_summary(harden_network(soft), data=images, in_type=IMAGE).rows
    assert all(row.error <= ROUNDING for row in rows)
    report = escnn_relaxed.equivariance_error(harden_network(soft), layer="middle.0", data=images, in_type=IMAGE)
    assert len(report.rows) == 7
    assert max(row.error for row in report.rows) <= ROUNDING
