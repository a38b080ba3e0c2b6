"""References that take the right layer, or say why not, and clouds whose softness and states are what the docs say."""

import pytest
import small_clouds
import torch
from escnn import group, gspaces
from escnn import nn as enn
from escnn.nn import GeometricTensor
from torch import nn

from escnn_relaxed import ReferenceField, RelaxedR2PointConv, relax_network
from escnn_relaxed.layer.referenced_layer import ReferencedLayer

SPACE = gspaces.rot2dOnR2(4)
IMAGE, REGULAR = SPACE.type(SPACE.trivial_repr), SPACE.type(SPACE.regular_repr)
# Kernels of escnn's basis, made in float32.
OF_SINGLE = 1e-6


class HeadFirst(nn.Module):
    """A network that registers its last layer first."""

    def __init__(self) -> None:
        super().__init__()
        self.head = enn.R2Conv(REGULAR, REGULAR, 3, padding=1)
        self.lift = enn.SequentialModule(enn.R2Conv(IMAGE, REGULAR, 3, padding=1), enn.ReLU(REGULAR))

    def forward(self, images: torch.Tensor) -> GeometricTensor:
        return self.head(self.lift(IMAGE(images)))


class Skip(enn.EquivariantModule):
    """A network of layers of one type, whose order only its forward knows."""

    def __init__(self) -> None:
        super().__init__()
        self.in_type = self.out_type = REGULAR
        self.last, self.first = (enn.R2Conv(REGULAR, REGULAR, 3, padding=1) for _ in range(2))

    def forward(self, features: GeometricTensor) -> GeometricTensor:
        return self.last(self.first(features))

    def evaluate_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        return input_shape


def referenced(network: nn.Module) -> list[str]:
    """The layers with a reference field."""
    return [name for name, module in network.named_modules() if isinstance(module, ReferencedLayer)]


def test_a_reference_at_the_input_is_before_the_layer_that_takes_it() -> None:
    assert referenced(relax_network(HeadFirst(), reference="input")) == ["lift.0"]
    nested = enn.SequentialModule(enn.ReLU(REGULAR), enn.SequentialModule(enn.R2Conv(REGULAR, REGULAR, 3)))
    assert referenced(relax_network(nested, reference="input")) == ["1.0"]
    with pytest.raises(ValueError, match=r"may be any of \['last', 'first'\], so name it"):
        relax_network(Skip(), reference="input")
    assert referenced(relax_network(Skip(), reference="first")) == ["first"]


def test_what_a_reference_cannot_do_is_refused() -> None:
    product = group.direct_product(group.cyclic_group(2), group.cyclic_group(3))
    features = gspaces.no_base_space(product).type(product.regular_representation)
    for options in ({}, {"representation": product.regular_representation}, {"relax": "group"}):
        with pytest.raises(ValueError, match="in_type must be of a group of rotations and reflections, got C2 X C3"):
            ReferenceField(features, **options)
    plane = gspaces.rot2dOnR2(-1, maximum_frequency=3)
    with pytest.raises(ValueError, match="got C8: give representation=, or a gspace with a higher maximum_frequency"):
        ReferenceField(plane.type(plane.trivial_repr), keep="C8")
    with pytest.raises(ValueError, match="domain_radius must be left out where reference= is given without relax="):
        relax_network(enn.R2Conv(IMAGE, REGULAR, 3), reference="input", domain_radius=3.0)


@pytest.mark.parametrize("name", ["D4", "SO(3)"])
def test_a_reference_beside_a_cloud(name: str) -> None:
    """It is a constant feature of the nodes; turned with the cloud it keeps the symmetry."""
    pytest.importorskip("torch_geometric")
    fields = small_clouds.fields(name)
    cloud, edges = small_clouds.cloud(fields)
    reference = ReferenceField(fields).double()
    layer = small_clouds.build(reference.out_type, fields, relax=None)
    with torch.no_grad():
        torch.nn.init.normal_(reference.vector)
    found = reference(cloud)
    assert found.coords is cloud.coords
    assert torch.equal(found.tensor, torch.cat([cloud.tensor, reference.value.expand(len(cloud.tensor), -1)], 1))
    changes = []
    for element in list(fields.gspace.testing_elements)[1:4]:
        moved = cloud.transform(element)
        v = torch.from_numpy(reference.reference_type.representation(element)) @ reference.value
        both = GeometricTensor(
            torch.cat([moved.tensor, v.expand(len(moved.tensor), -1)], 1), reference.out_type, moved.coords
        )
        expected = layer(found, edges).transform(element).tensor
        # Turned together they are equivariant; v alone stays, and breaks the symmetry.
        assert (layer(both, edges).tensor - expected).abs().max() <= OF_SINGLE * expected.abs().max()
        changes.append((layer(reference(moved), edges).tensor - expected).abs().max() / expected.abs().max())
    assert max(changes) > 1e-2


def test_references_for_clouds_that_do_not_work_are_refused() -> None:
    pytest.importorskip("torch_geometric")
    fields = small_clouds.fields("SO(2)")
    cloud, _ = small_clouds.cloud(fields)
    with pytest.raises(ValueError, match="input must be an image"):
        ReferenceField(fields, relax="translation").double()(cloud)
    with pytest.raises(ValueError, match=r"network has convolutions of clouds alone, \[''\]"):
        relax_network(small_clouds.build(fields), reference="input")


def test_a_state_of_another_domain_radius_is_refused() -> None:
    pytest.importorskip("torch_geometric")
    fields = small_clouds.fields("SO(2)")
    layers = [small_clouds.build(fields, relax="translation", domain_radius=radius) for radius in (3.0, 6.0, 3.0)]
    layers[2].load_state_dict(layers[0].state_dict())
    with pytest.raises(RuntimeError, match=r"domain radius is \[3.0\], here \[6.0\]"):
        layers[1].load_state_dict(layers[0].state_dict())


def test_each_ring_of_the_support_counts_the_same() -> None:
    """The origin, too, which is one point and not a circle of them."""
    pytest.importorskip("torch_geometric")
    layer: RelaxedR2PointConv = small_clouds.build(small_clouds.fields("C8"), initial_softness=0.3)
    angles = 2 * torch.pi * torch.arange(48).double() / 48
    circle = torch.stack([angles.cos(), angles.sin()], 1)
    whole, strict = 0.0, 0.0
    for radius in (0.0, 0.75, 1.5):  # rings of SUPPORT
        kernel = layer.expand_filter(radius * circle).detach()
        layer.harden()
        part = layer.expand_filter(radius * circle).detach()
        layer.hardened = ()
        whole, strict = whole + kernel.square().mean().item(), strict + part.square().mean().item()
    assert layer.softness().item() == pytest.approx(1 - strict / whole, abs=OF_SINGLE)
