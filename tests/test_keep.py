"""``keep``: layers that are soft, and exactly equivariant to a subgroup all the same (the mean over its cosets)."""

import re
from collections.abc import Callable

import pytest
import small
import torch
from errors import ROUNDING, largest_error
from escnn import gspaces
from escnn.gspaces import GSpace
from reference import Layer
from small import EVERY_KERNEL, options_of

from escnn_relaxed import RelaxedR2Conv, RelaxedR2ConvTransposed, RelaxedR3Conv, harden_network

C8 = ("C8", "regular -> regular")
KINDS = "regular + trivial + regular + quotient"
KEPT = [
    (*C8, "C4"),
    ("C8", "regular -> irreps", "C4"),
    ("D4", f"{KINDS} -> {KINDS}", "D2"),
    ("D4", f"{KINDS} -> {KINDS}", "C4"),
    ("SO(2)", "irreps -> band-limited", "C4"),
    ("O(2)", "irreps -> irreps", "D4"),
]


def layer_that_keeps(
    keep: str | None, space: str = C8[0], pair: str = C8[1], make: type = RelaxedR2Conv, **arguments: object
) -> Layer:
    torch.manual_seed(0)
    arguments = {"initial_softness": 0.3, "padding": 1, **arguments}
    return make(*small.types(space, pair), 3, keep=keep, **arguments).double()


def error_in(layer: Layer, keep: str, size: int = 9) -> float:
    """The largest error of the elements of a group that map the pixel grid to itself."""
    features = small.random_input(layer.in_type, size, size)
    return largest_error(layer, features, lambda space: small.kept_elements(space, keep))


@EVERY_KERNEL
@pytest.mark.parametrize(("space", "pair", "keep"), KEPT)
def test_layer_is_soft_and_exact_for_what_it_keeps(space: str, pair: str, keep: str, soft_part: str) -> None:
    make = RelaxedR2ConvTransposed if keep == "D2" else RelaxedR2Conv
    layer, free = (layer_that_keeps(of, space, pair, make, **options_of(soft_part)) for of in (keep, None))
    assert layer.softness() > 0.01
    assert error_in(layer, keep) <= ROUNDING
    assert error_in(free, keep) > 1e-3


def test_softness_is_what_the_kept_mean_leaves() -> None:
    """A kept subgroup takes its part of the energy; the strict part stays as it is."""
    layer, free = (layer_that_keeps(keep, initial_softness=0.1) for keep in ("C4", None))
    assert layer.softness().item() == pytest.approx(0.1)
    torch.testing.assert_close(*(harden_network(of).filter_bank() for of in (layer, free)))


def test_layer_says_what_it_keeps_in_its_text_and_state() -> None:
    layer, free = layer_that_keeps("C4"), layer_that_keeps(None)
    assert "keep='C4'" in repr(layer)
    assert "keep" not in repr(free)
    layer_that_keeps("C4").load_state_dict(layer.state_dict())
    with pytest.raises(RuntimeError, match="keeps is C4, here C1"):
        free.load_state_dict(layer.state_dict())
    # The default leaves out what is kept whole.
    assert layer_that_keeps("D2", "D4", "regular -> regular").relaxed_subgroups == ("rotation",)


@pytest.mark.parametrize(
    ("keep", "arguments", "error", "message"),
    [
        ("C3", {}, ValueError, "keep='C3' must have a number of rotations that divides 8"),
        ("D4", {}, ValueError, "keep='D4' has a reflection, but .* has none: use 'C4'"),
        ("C8", {}, ValueError, "keep leaves nothing of rotation and reflection to be soft"),
        ("C8", {"relax": {"rotation": 0.25}}, ValueError, "all of the rotation is in the group to keep"),
    ],
)
def test_wrong_groups_are_named(keep: object, arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        layer_that_keeps(keep, **arguments)


@pytest.mark.parametrize(
    ("space", "keep", "key"),
    [
        (gspaces.octaOnR3, "C4", "(False, 4)"),
        (gspaces.rot3dOnR3, "D4", "(True, 4)"),
        (gspaces.flipRot3dOnR3, "C4", "(False, False, 4)"),
        (lambda: gspaces.rot2dOnR3(4), "C2", "2"),
        (lambda: gspaces.dihedralOnR3(4), "C4", "(None, 4)"),
        (lambda: gspaces.dihedralOnR3(4), "D4", "(0.0, 4)"),
    ],
)
def test_a_name_of_the_plane_is_answered_with_the_id_in_space(space: Callable[[], GSpace], keep: str, key: str) -> None:
    gspace = space()
    fields = gspace.type(gspace.trivial_repr)
    with pytest.raises(ValueError, match=re.escape(f"got {keep!r}: keep={key} is {keep} here")):
        RelaxedR3Conv(fields, fields, 3, keep=keep)
    RelaxedR3Conv(fields, fields, 3, keep=eval(key), relax=None)
    for other in ("CC", "E4"):
        with pytest.raises(ValueError, match=f"got '{other}'$"):
            RelaxedR3Conv(fields, fields, 3, keep=other)
