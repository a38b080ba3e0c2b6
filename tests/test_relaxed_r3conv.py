"""RelaxedR3Conv: exact where it is strict, as soft as it says, and exact for what it keeps and nothing else."""

from typing import Any

import numpy as np
import pytest
import small
import torch
from errors import BROKEN, ROUNDING, SINGLE, SINGLE_REORDERED, largest_error, relative_error
from escnn import gspaces
from escnn import nn as enn
from escnn.group.groups import _numerical_thomson, so3_utils
from escnn.nn import FieldType
from group_average import check_strict_part
from small import shake

import escnn_relaxed
from escnn_relaxed import ContinuousKernel, RelaxedR3Conv, RelaxedR3ConvTransposed
from escnn_relaxed.on_escnn.sampled_basis import basis_bytes, warn_of_heavy_basis


@pytest.mark.parametrize("space", ["SO(3)", "octahedral", "O(3)", "D4", "dihedral", "cone", "trivial"])
@pytest.mark.parametrize("groups", [1, 2])
def test_strict_layer_is_r3conv(space: str, groups: int) -> None:
    part = small.volume_type(space)
    fields = FieldType(part.gspace, part.representations * groups)
    options: dict[str, Any] = {"padding": 1, "stride": 2, "groups": groups}
    theirs = enn.R3Conv(fields, fields, 3, **options)
    shake(theirs)
    ours = RelaxedR3Conv(fields, fields, 3, relax=None, **options)
    assert not ours.load_state_dict(theirs.state_dict()).missing_keys
    features = fields(torch.randn(2, fields.size, 5, 6, 5))
    with torch.no_grad():
        assert relative_error(ours(features).tensor, theirs(features).tensor) <= SINGLE


# Groups all of whose elements, or all that are sampled, map voxels to voxels.
ON_THE_GRID = ["octahedral", "full octahedral", "SO(3)", "C4", "D4", "cone 4", "full cylinder 2", "inversion", "mirror"]


@pytest.mark.parametrize(
    ("space", "kernel"),
    [
        *((space, None) for space in small.VOLUME_SPACES if space not in (*ON_THE_GRID, "trivial")),
        pytest.param("icosahedral", None, marks=pytest.mark.slow),
        *((of, ContinuousKernel(hidden_size=6)) for of in ("SO(3)", "O(3)")),
    ],
)
def test_hardened_layer_is_exact_under_all_voxel_symmetries(space: str, kernel: ContinuousKernel | None) -> None:
    layer = small.volume_layer(small.volume_type(space), initial_softness=0.3, kernel=kernel)
    shake(layer)
    features = small.random_input(layer.in_type, 7, 7, 7)
    assert largest_error(layer, features) > BROKEN
    layer.harden()
    assert largest_error(layer, features) <= ROUNDING


@pytest.mark.parametrize("space", ON_THE_GRID)
def test_strict_part_is_the_mean_over_the_group(space: str) -> None:
    layer = small.volume_layer(small.volume_type(space), initial_softness=0.05)
    assert check_strict_part(layer) == pytest.approx(0.05)
    for name in layer.relaxed_subgroups:
        check_strict_part(layer, name)


@pytest.fixture
def few_steps_to_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """escnn takes twenty seconds to spread rotations evenly, and would keep on disk what it stopped at."""
    monkeypatch.setattr(so3_utils, "thomson_cube_so3", _numerical_thomson.thomson_cube_so3.func)
    monkeypatch.setattr(_numerical_thomson, "range", lambda steps: range(min(steps, 20)), raising=False)


@pytest.mark.usefixtures("few_steps_to_a_grid")
def test_finer_sample_of_rotations_is_closed_under_the_cube() -> None:
    """So that a layer that is averaged over it is exact on the grid; and it is another sample."""
    layers = []
    for samples in (24, 48):
        torch.manual_seed(0)
        layers.append(small.volume_layer(small.volume_type("SO(3)"), samples=samples, initial_softness=0.3))
        layers[-1].harden()
        # Points are refined from escnn's float32.
        assert largest_error(layers[-1], small.random_input(layers[-1].in_type, 7, 7, 7)) <= ROUNDING
        assert layers[-1].softness().item() <= 1e-20
    assert torch.equal(layers[0].weights, layers[1].weights)
    with pytest.raises(RuntimeError, match="samples is 48, here 24"):
        layers[0].load_state_dict(layers[1].state_dict())


PLACES = {"plain": {}, **small.TRANSPOSED_VOLUMES}


@pytest.mark.parametrize("place", PLACES)
def test_strict_transposed_layer_is_that_of_escnn_in_values_and_gradients(place: str) -> None:
    space, groups = small.volume_space("octahedral"), int(PLACES[place].get("groups", 1))
    types = [FieldType(space, groups * of) for of in ([space.trivial_repr, space.irrep(1)], [space.irrep(1)])]
    theirs = enn.R3ConvTransposed(*types, 3, **PLACES[place])
    shake(theirs)
    own = RelaxedR3ConvTransposed(*types, 3, **PLACES[place], relax=None)
    assert isinstance(own, enn.R3ConvTransposed)
    own.load_state_dict(theirs.state_dict())
    inputs = torch.randn(2, own.in_type.size, 4, 3, 2)
    outputs = [layer(layer.in_type(inputs)).tensor for layer in (own, theirs)]
    assert relative_error(*(of.detach() for of in outputs)) <= SINGLE
    for output in outputs:
        output.square().sum().backward()
    assert relative_error(own.weights.grad, theirs.weights.grad) <= SINGLE_REORDERED
    assert own.evaluate_output_shape(tuple(inputs.shape)) == tuple(outputs[0].shape)
    assert own.output_padding == theirs.output_padding
    # escnn's own export() drops the output padding.
    assert relative_error(escnn_relaxed.export_network(theirs.eval())(inputs).detach(), outputs[1].detach()) <= SINGLE


def test_description_has_the_samples_of_soft_layers_of_continuous_groups_alone() -> None:
    """The number is that of states that were saved before."""
    fields = small.volume_type("SO(3)")
    of_rotations = FieldType(gspaces.no_base_space(fields.fibergroup), [fields.fibergroup.irrep(1)])
    saved = {"fingerprint of the samples": [5.878598]}
    for make in (RelaxedR3Conv, RelaxedR3ConvTransposed):
        assert saved.items() <= make(fields, fields, 3).describe().items()
    for other in (
        RelaxedR3Conv(fields, fields, 3, relax=None),
        small.volume_layer(small.volume_type("octahedral")),
        escnn_relaxed.RelaxedLinear(of_rotations, of_rotations),
    ):
        assert not saved.keys() & other.describe().keys()


RADIAN = small.volume_space("SO(3)").fibergroup.element(np.array([0, 0, 1.0]), "EV")
CALLS: dict[str, tuple[str, dict[str, Any], type[Exception], str]] = {
    "all is kept": ("O(3)", {"keep": "o3"}, ValueError, "keep leaves nothing"),
    "relaxed and kept": ("O(3)", {"keep": (False, "so3"), "relax": {"rotation": 0.2}}, ValueError, "all of the rota"),
    "no axis": ("inversion", {"keep": "SO(2)"}, ValueError, "needs rotations about the axis z"),
    "no finite group": ("SO(3)", {"keep": [RADIAN]}, ValueError, "keep must generate a finite group"),
    "samples": ("O(3)", {"samples": 30}, ValueError, "samples of O.3. must be a multiple of 24.*24 or 48"),
    "rings": ("O(3)", {"rings": [5.0]}, ValueError, "rings must be radii .* here 1.732"),
    "cutoff": ("C4", {"frequencies_cutoff": -0.5}, ValueError, "frequencies_cutoff.* be finite and >= 0, got -0.5"),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_bad_call_says_what_would_be_right(call: str) -> None:
    space, options, error, words = CALLS[call]
    with pytest.raises(error, match=words):
        RelaxedR3Conv(*[small.volume_type(space)] * 2, 3, **options)


def test_fields_of_another_base_space_and_inputs_of_another_shape_are_refused() -> None:
    plane, space = gspaces.rot2dOnR2(4), small.volume_type("SO(3)")
    with pytest.raises(ValueError, match=r"in_type must live on a gspace of space \(escnn.gspaces.…OnR3\)"):
        RelaxedR3Conv(*[FieldType(plane, [plane.trivial_repr])] * 2, 3)
    with pytest.raises(ValueError, match="in_type must live on a gspace of the plane"):
        escnn_relaxed.RelaxedR2Conv(space, space, 3)
    layer = RelaxedR3Conv(space, space, 3)
    assert layer.evaluate_output_shape((2, 9, 5, 6, 7)) == (2, 9, 3, 4, 5)
    with pytest.raises(ValueError, match=r"input must not be smaller than the kernel"):
        layer(space(torch.zeros(1, 9, 2, 5, 5)))


def test_memory_of_a_basis_is_known_before_it_is_spent() -> None:
    """As much as escnn's sampled basis then has; gigabytes for the rotations of the cube."""
    for space, kernel_size in (("C4", 5), ("D4", 3)):
        regular = small.volume_space(space).regular_repr
        fields = FieldType(small.volume_space(space), [regular])
        expansion = enn.R3Conv(fields, fields, kernel_size).basisexpansion
        (pair,) = expansion._representations_pairs
        sampled = getattr(expansion, f"block_expansion_{expansion._escape_pair(pair)}").sampled_basis
        assert basis_bytes(regular, regular, kernel_size) == sampled.nbytes
    fields = FieldType(small.volume_space("octahedral"), [small.volume_space("octahedral").regular_repr])
    with pytest.warns(UserWarning, match=r"takes 2\.3 GB, and about 14\.\d GB while escnn samples it.*irreps"):
        warn_of_heavy_basis(fields, fields, 9, 1)
