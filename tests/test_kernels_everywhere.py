"""Kernels of all kinds in linear maps, and other ways to relax in volumes: taps are one axis, of whatever they are."""

import functools
from collections.abc import Callable

import pytest
import small
import torch
from errors import BROKEN, ROUNDING, answer_to, largest_error, relative_error
from escnn import group, gspaces
from escnn.group import Group, GroupElement
from escnn.nn import FieldType
from reference import matrix_of
from torch import Tensor, nn

from escnn_relaxed import ContinuousKernel, RelaxedLinear, RelaxedR3Conv, harden_network
from escnn_relaxed.continuous import SirenKernel
from escnn_relaxed.kernel import Kernel, StrictKernel, WeightGroup
from escnn_relaxed.kernel.partial import PartialKernel
from escnn_relaxed.kernel.residual import ResidualKernel
from escnn_relaxed.kernel.weighted import WeightedKernel


class Gains(Kernel):
    """A user's kernel: K_strict · (1 + gain) with gains of mean 0 over the channels of one regular field."""

    def __init__(self, config) -> None:
        super().__init__(config)
        self.strict = StrictKernel(config)
        self.basis = self.strict.basis
        self.gains = nn.Parameter(torch.zeros(config.out_type.size))

    @property
    def relaxed_subgroups(self) -> tuple[str, ...]:
        return tuple(self.config.relax)

    def forward(self, weights: Tensor | None, averaged=()) -> Tensor:
        strict = self.strict(weights)
        return strict if averaged else strict * (1 + self.gains - self.gains.mean()).view(-1, 1, 1)

    def weight_groups(self) -> list[WeightGroup]:
        return [WeightGroup(frozenset(self.config.relax), [(self.gains, torch.arange(len(self.gains)))])]


CONTINUOUS, SIREN = ContinuousKernel(hidden_size=4), ContinuousKernel(net=SirenKernel, hidden_size=4)
LOG = ContinuousKernel(hidden_size=4, rotation_coordinates="log")
RELAXING = (ResidualKernel, WeightedKernel, PartialKernel)
GROUPS: dict[str, Callable[[], Group]] = {
    **{"C4": lambda: group.cyclic_group(4), "C8": lambda: group.cyclic_group(8), "D4": lambda: group.dihedral_group(4)},
    **{"SO(2)": lambda: group.so2_group(2), "O(2)": lambda: group.o2_group(2), "octahedral": group.octa_group},
    "SO(3)": lambda: group.so3_group(2),
}
LINEAR = [
    *((name, kernel) for name in ("C4", "D4") for kernel in (CONTINUOUS, *RELAXING)),
    *[("C8", LOG), ("C4", SIREN), ("C4", Gains), ("SO(2)", CONTINUOUS), ("O(2)", CONTINUOUS), ("O(2)", ResidualKernel)],
    *[("SO(3)", ResidualKernel), ("octahedral", ResidualKernel), ("octahedral", WeightedKernel)],
]


def name_of(value: object) -> str:
    return value if isinstance(value, str) else getattr(value, "__name__", type(value).__name__)


def features(name: str) -> FieldType:
    of = GROUPS[name]()
    irreps = {"SO(2)": [(0,), (1,), (2,)], "O(2)": [(0, 0), (1, 1), (1, 2)], "SO(3)": [(0,), (1,), (2,)]}.get(name)
    fields = [of.irrep(*irrep) for irrep in irreps] if irreps else [of.regular_representation]
    return FieldType(gspaces.no_base_space(of), fields)


def linear(name: str, kernel: object, **options: object) -> RelaxedLinear:
    torch.manual_seed(0)
    fields = features(name)
    relax = None if kernel in RELAXING else "default"
    return RelaxedLinear(fields, fields, relax=relax, kernel=kernel, **options).double()


def moved(layer: RelaxedLinear, element: GroupElement) -> Tensor:
    """ρ_out(h) W ρ_in(h)⁻¹."""
    of_output, of_input = (matrix_of(fields, element) for fields in (layer.out_type, layer.in_type))
    return of_output @ layer.matrix @ torch.linalg.inv(of_input)


@torch.no_grad()
@pytest.mark.parametrize(("name", "kernel"), LINEAR, ids=name_of)
def test_linear_map_takes_every_kernel(name: str, kernel: object) -> None:
    """Its strict part commutes with the whole group, and is the mean over one that is finite."""
    layer = linear(name, kernel, initial_softness=0.05)
    matrix, hardened = layer.matrix, harden_network(layer)
    elements = list(layer.in_type.fibergroup.testing_elements())
    for element in elements:
        assert relative_error(moved(hardened, element), hardened.matrix) <= ROUNDING
    assert any(relative_error(moved(layer, element), matrix) > BROKEN for element in elements)
    if not layer.in_type.fibergroup.continuous:
        mean = torch.stack([moved(layer, element) for element in layer.in_type.fibergroup.elements]).mean(0)
        assert relative_error(hardened.matrix, mean) <= ROUNDING
        share = (matrix - mean).square().sum() / matrix.square().sum()
        assert layer.softness().item() == pytest.approx(share.item(), abs=ROUNDING)


@torch.no_grad()
@pytest.mark.parametrize(("name", "kernel"), LINEAR, ids=name_of)
def test_linear_map_of_every_kernel_is_saved_exported_and_set(name: str, kernel: object) -> None:
    layer = linear(name, kernel)
    inputs = torch.randn(3, layer.in_type.size, dtype=torch.float64)
    if kernel is PartialKernel:
        with pytest.raises(ValueError, match="set_narrowing"):
            layer.set_softness(0.1)
    else:
        layer.set_softness(0.1)
        assert layer.softness().item() == pytest.approx(0.1, abs=1e-6)
    other = linear(name, kernel, initialize=kernel is not StrictKernel)
    for parameter in other.parameters():
        parameter.mul_(0.5)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(answer_to(other, inputs), answer_to(layer, inputs))
    assert torch.equal(layer.eval().export()(inputs), answer_to(layer, inputs))


def test_a_group_without_a_known_action_has_the_default_kernel_alone() -> None:
    of = gspaces.fullCylindricalOnR3(1).fibergroup
    fields = FieldType(gspaces.no_base_space(of), [of.regular_representation])
    for kernel in (CONTINUOUS, ResidualKernel):
        with pytest.raises(ValueError, match=r"kernel must be the default one for .*, of which no action .* got a "):
            RelaxedLinear(fields, fields, relax=None, kernel=kernel)


def test_a_continuous_kernel_is_not_for_linear_maps_of_so3() -> None:
    """Means over the rotations of the cube are no means over SO(3)."""
    with pytest.raises(ValueError, match=r"kernel must be another for linear maps of SO\(3\), got a ContinuousKernel"):
        linear("SO(3)", CONTINUOUS)


REGULAR = ("C4", "D4", "inversion", "mirror")
VOLUMES = [
    *((name, ResidualKernel) for name in ("octahedral", "full octahedral", "SO(3)", "O(3)", "cone 4", "cylinder 2")),
    *((name, functools.partial(WeightedKernel, banks=3)) for name in REGULAR),
]


@torch.no_grad()
@pytest.mark.parametrize(("name", "kernel"), VOLUMES, ids=lambda value: value if isinstance(value, str) else "")
def test_other_ways_to_relax_are_for_volumes(name: str, kernel: Callable[..., Kernel]) -> None:
    """The strict part is equivariant, the nearest one, and of a subgroup strict in it; states load."""
    torch.manual_seed(0)
    layer = small.volume_layer(small.volume_type(name), relax=None, kernel=kernel, padding=1)
    volume = torch.randn(1, layer.in_type.size, 5, 5, 5, dtype=torch.float64)
    layer.set_softness(0.2)
    assert layer.softness().item() == pytest.approx(0.2, abs=1e-6)
    elements = small.voxel_symmetries(layer.in_type.gspace)
    assert largest_error(layer, volume, lambda _: elements) > BROKEN
    for names in ((), *((each,) for each in layer.relaxed_subgroups)):
        hardened = harden_network(layer, names)
        assert hardened.softness(*names).item() == 0
        bank = layer.kernel.orthogonal_basis(layer.kernel(layer.weights))
        strict = layer.kernel.orthogonal_basis(layer.kernel(layer.weights, names or layer.relaxed_subgroups))
        # PK is the nearest: K − PK is orthogonal to it.
        assert abs(((bank - strict) * strict).sum().item()) <= ROUNDING * bank.square().sum().item()
    assert largest_error(harden_network(layer), volume, lambda _: elements) <= ROUNDING
    other = small.volume_layer(layer.in_type, relax=None, kernel=kernel, padding=1)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(answer_to(other, volume), answer_to(layer, volume))


def test_a_mean_over_rotations_that_escnn_has_no_basis_for_is_refused() -> None:
    fields = small.volume_type("cone")
    with pytest.raises(ValueError, match=r"a ResidualKernel has no mean over rotation alone on .*without reflections"):
        RelaxedR3Conv(fields, fields, 3, relax=None, kernel=ResidualKernel)


def test_a_window_on_the_group_needs_the_angle_of_the_plane() -> None:
    fields = small.volume_type("C4")
    with pytest.raises(ValueError, match=r"a PartialKernel must be a kernel of the plane, .* got C4_on_R3"):
        RelaxedR3Conv(fields, fields, 3, relax=None, kernel=PartialKernel)
