"""The paper's form, one continuous kernel: its strict part, its limits, its start, and its states."""

from typing import Any

import numpy as np
import pytest
import small
import torch
from errors import BROKEN, DECOMPOSED, ROUNDING, largest_error, relative_error
from escnn import gspaces
from escnn.nn import FieldType, R2Conv
from small import ROUGH, build, options_of, soft_layer
from small_networks import features_of
from torch import Tensor

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv, RelaxedR3Conv, harden_network
from escnn_relaxed.checks import SUBGROUPS
from escnn_relaxed.continuous.start import rectified
from escnn_relaxed.group.elements import sample_group

CONSTANT = {"position": 0.0, "rotation": 0.0, "reflection": 0.0}


def soft(space: str, pair: str, relax: object = "default", **arguments: object) -> RelaxedR2Conv:
    options = {"soft_part": "continuous", "filter_frequency": ROUGH, **arguments}
    return soft_layer(space, pair, relax=relax, **options)


def test_layer_has_no_weights_of_r2conv_and_its_learned_frequency_says_how_soft_it_is() -> None:
    layer = soft("C4", "regular -> regular", learn_relaxation=True)
    assert layer.weights is None
    assert layer.basisexpansion is None
    (group,) = layer.kernel.weight_groups()
    assert [value for value, _ in group.entries] == [layer.domain_frequency[group.name]]
    assert set(layer.soft_parameters()) == {layer.domain_frequency["rotation"], layer.kernel.net.domain_weight}
    layer.set_softness(0.1)
    assert layer.softness().item() == pytest.approx(0.1, rel=1e-3)
    with pytest.raises(ValueError, match=r"softness 0.999 cannot be reached"):
        layer.set_softness(0.999)
    assert harden_network(layer).hardened == SUBGROUPS


def disk(kernel_size: int) -> Tensor:
    """1 on the taps within (k − 1)/2 of the centre, for even k within k/2: (k, k)."""
    line = torch.arange(kernel_size) - (kernel_size - 1) / 2
    radius = kernel_size // 2
    return (line[:, None] ** 2 + line**2 <= radius**2 + 1e-9).double()


@torch.no_grad()
@pytest.mark.parametrize(
    ("space", "pair", "kernel_size"),
    [
        *[("trivial", "trivial -> trivial", size) for size in (2, 3, 5)],
        ("C8", "trivial -> regular", 3),
        ("C4", "two regular -> regular", 4),
        ("D4", "regular -> irreps", 5),
        ("SO(2)", "band-limited -> irreps", 2),
    ],
)
def test_no_frequency_at_all_gives_pooling_over_the_disk(space: str, pair: str, kernel_size: int) -> None:
    """ω = ω′ = 0, the paper's limit (iii): the kernel is constant on the disk, and over the group too.

    With an ω of the position it is not; nor is it on a smooth edge, which is a window too.
    """
    arguments = {"relax": small.subgroups(space, 0.0) | {"translation": 0.0}, "support": "disk"}
    layer = build(*small.types(space, pair), kernel_size, filter_frequency=CONSTANT, **arguments)
    bank, middle = layer.filter_bank(), kernel_size // 2
    mixing = bank[:, :, middle, middle]
    assert mixing.norm() > 0
    assert relative_error(bank, mixing[:, :, None, None] * disk(kernel_size)) <= ROUNDING
    if pair == "trivial -> regular":
        assert relative_error(mixing, mixing[:1].expand_as(mixing)) <= ROUNDING
        frequency = CONSTANT | {"position": 0.3}
        other = build(*small.types(space, pair), kernel_size, filter_frequency=frequency, **arguments).filter_bank()
        assert float(other[0, 0, [1, 1, 0], [1, 2, 1]].std() / other.std()) > BROKEN


@pytest.mark.parametrize("pair", ["regular -> regular", "trivial -> regular", "regular -> trivial"])
@pytest.mark.parametrize("make", [gspaces.rot2dOnR2, gspaces.flipRot2dOnR2], ids=["C_N", "D_N"])
def test_parameter_count_does_not_depend_on_the_number_of_rotations_or_taps(pair: str, make: Any) -> None:
    counts = set()
    for order in (4, 8, 16):
        space = make(order)
        fields = {"regular": space.regular_repr, "trivial": space.trivial_repr}
        in_type, out_type = (FieldType(space, [fields[name]] * 3) for name in pair.split(" -> "))
        layer = build(in_type, out_type, relax={"rotation": 0.1}, soft_part="continuous")
        counts.add(sum(p.numel() for p in layer.parameters()))
    assert len(counts) == 1


@pytest.mark.parametrize("space", ["flip", "C2", "C3", "D4"])
def test_means_over_the_group_have_a_weight_for_each_map_that_commutes_with_it(space: str) -> None:
    """Between irreps at one tap (Schur's lemma), in groups of two elements as in larger ones."""
    fields = small.field_type(space, "irreps")
    layer = build(fields, fields, kernel_size=1, relax=None, soft_part="continuous")
    irreps = [fields.gspace.fibergroup.irrep(*irrep) for irrep in fields.irreps]
    expected = [a.sum_of_squares_constituents if a == b else 0 for a in irreps for b in irreps]
    assert [of.shape[-1] for name, of in layer.named_parameters() if name.endswith(".weights")] == expected


@pytest.mark.usefixtures("warnings_not_yet_given")
def test_what_the_group_cannot_see_is_no_soft_part() -> None:
    """The angle over 2π at ω′ = 4 is an integer on C4: what rounding leaves of the soft part is not scaled up."""
    options = options_of("continuous", rotation_coordinates="log")
    with pytest.warns(UserWarning, match="it aliases"):
        layer = RelaxedR2Conv(
            *small.types("C4", "regular -> regular"), 3, padding=1, relax={"rotation": 4.0}, **options
        )
    assert layer.softness() < 1e-10  # rounding of float32, squared
    assert largest_error(layer, features_of(layer)) < 1e-4


@pytest.mark.parametrize(("hidden_size", "initial_softness"), [(2, 0.9), (8, 0.001)])
@pytest.mark.parametrize(
    ("space", "pair"), [("C4", "two regular -> two regular"), ("O(2)", "last irrep -> last irrep")]
)
def test_domain_weights_never_start_large(space: str, pair: str, hidden_size: int, initial_softness: float) -> None:
    """Also where a kernel net cannot be as soft as asked for: ω′ must keep its meaning."""
    arguments = {"relax": small.subgroups(space, 0.2), "initial_softness": initial_softness, "samples": 4}
    options = options_of("continuous", hidden_size=hidden_size)
    layer = RelaxedR2Conv(*small.types(space, pair), 3, **arguments, **options)
    # Standard normal draws stay below 5; ten times that would be another frequency altogether.
    assert all(weights.abs().max() < 50 for weights in layer.soft_parameters())


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:relax. the domain frequency .* aliases:UserWarning")
@pytest.mark.parametrize(
    ("space", "pair", "frequency"),
    [("C8", "two regular -> regular", 0.0), ("D4", "regular -> regular", 0.5), ("SO(2)", "irreps -> irreps", 2.0)],
)
def test_kernel_starts_with_the_energy_of_r2conv(space: str, pair: str, frequency: float) -> None:
    """As the geometric mean over draws, which scatter: so variances stay as they are through many layers."""
    types, ratios = small.types(space, pair), []
    for _ in range(8):
        layer = RelaxedR2Conv(*types, 5, relax=small.subgroups(space, frequency), **options_of("continuous"))
        kernels = layer.filter_bank(), R2Conv(*types, 5).expand_parameters()[0]
        ratios.append(float(kernels[0].square().sum() / kernels[1].square().sum()))
    assert 2 / 3 < np.exp(np.mean(np.log(ratios))) < 3 / 2


@pytest.mark.parametrize("name", ["SO(3)", "O(3)"])
def test_sums_of_irreps_of_rotations_of_space_are_rectified_on_the_group_at_the_start(name: str) -> None:
    """As escnn's Fourier nonlinearities do, which take such fields."""
    space = gspaces.rot3dOnR3(1) if name == "SO(3)" else gspaces.flipRot3dOnR3(1)
    group = space.fibergroup
    fields = [group.bl_regular_representation(1), group.bl_sphere_representation(2)]
    cube = sample_group(space, 24).elements[5]
    for field in fields:
        maps, matrix = torch.randn(2, field.size, 3).double(), torch.from_numpy(field(cube))
        rectified_maps = rectified(maps, [field], space)
        assert 0.2 < rectified_maps.square().mean() / maps.square().mean() < 0.8  # half of them, in the mean
        turned = rectified(torch.einsum("ab,nbx->nax", matrix, maps), [field], space)
        assert (turned - torch.einsum("ab,nbx->nax", matrix, rectified_maps)).abs().max() <= DECOMPOSED
    scalars = space.type(space.trivial_repr)
    layer = RelaxedR3Conv(scalars, space.type(fields[0]), 3, kernel=ContinuousKernel(hidden_size=4))
    volume = scalars(torch.randn(1, 1, 5, 5, 5))
    assert 0.1 < layer(volume).tensor.square().mean() < 10


@pytest.mark.usefixtures("warnings_not_yet_given")
def test_a_layer_of_space_says_that_it_is_strict_for_sampled_rotations_alone() -> None:
    space = gspaces.rot3dOnR3()
    fields = space.type(space.trivial_repr, space.irrep(1))
    with pytest.warns(UserWarning, match=r"ContinuousKernel on SO\(3\) is strict for the sampled rotations alone"):
        RelaxedR3Conv(fields, fields, 3, kernel=ContinuousKernel(hidden_size=4))
    cube = gspaces.octaOnR3()
    scalars = cube.type(cube.trivial_repr)
    RelaxedR3Conv(scalars, scalars, 3, kernel=ContinuousKernel(hidden_size=4))  # a finite group is exact: no warning
