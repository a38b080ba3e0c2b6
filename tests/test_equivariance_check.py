"""``check_equivariance``: strict layers pass where ``R2Conv`` does, broken ones fail, soft ones are checked in part."""

import inspect
import re
from typing import Any

import pytest
import small
import torch
from escnn.nn import R2Conv
from small_networks import left_alone
from torch import Tensor

from escnn_relaxed import RelaxedR2Conv, RelaxedR2ConvTransposed, RelaxedR3Conv
from escnn_relaxed.layer.convolution import RelaxedConvolution

# Off the pixel grid, and of each kind of group.
SPACES = {
    "C8": "regular + irreps -> irreps + regular",
    "D8": "regular + trivial -> regular",
    "SO(2)": "band-limited + irreps -> irreps",
    "O(2)": "irreps -> band-limited",
}
GEOMETRIES: dict[str, tuple[type[RelaxedConvolution], dict[str, object]]] = {
    "even": (RelaxedR2Conv, {"kernel_size": 4, "padding": 1}),
    "wide padding": (RelaxedR2Conv, {"kernel_size": 3, "padding": 9, "padding_mode": "reflect"}),
    "transposed, strided": (RelaxedR2ConvTransposed, {"kernel_size": 5, "stride": 2, "padding": 1}),
}


class _Rolled:
    """What lays the kernel of a layer beside its taps."""

    def _filters(self, *setting: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
        bank, factors, bias = super()._filters(*setting)
        return bank.roll(1, -1), factors, bias


class Rolled(_Rolled, RelaxedR2Conv):
    pass


class RolledInSpace(_Rolled, RelaxedR3Conv):
    pass


def checked_elements(layer: RelaxedConvolution, **arguments: object) -> list[str]:
    """The elements that are checked, as texts."""
    return [str(element) for element, _ in layer.check_equivariance(verbose=False, **arguments)]


def test_signature_is_that_of_r2conv() -> None:
    own, of_escnn = (inspect.signature(each.check_equivariance).parameters for each in (RelaxedR2Conv, R2Conv))
    assert [(name, of.default) for name, of in own.items()] == [(name, of.default) for name, of in of_escnn.items()]


@pytest.mark.parametrize("space", SPACES)
def test_strict_layer_passes_and_broken_ones_fail(space: str) -> None:
    place = *small.types(space, SPACES[space]), 7
    layer = RelaxedR2Conv(*place, relax=None)
    errors = layer.check_equivariance(verbose=False)
    assert [element for element, _ in errors] == list(layer.space.testing_elements)
    # For outputs of order one; interpolation makes it, and the kernel on its grid.
    assert 0 < max(error for _, error in errors) < 0.02
    broken = Rolled(*place, relax=None)
    with pytest.raises(AssertionError, match=r"The error found during equivariance check with element .* too high"):
        broken.check_equivariance(verbose=False)
    assert max(error for _, error in broken.check_equivariance(assertion=False, verbose=False)) > 0.2


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_layer_passes_wherever_taps_and_pixels_meet(geometry: str) -> None:
    make, arguments = GEOMETRIES[geometry]
    make(*small.types("C8", "regular -> irreps"), **arguments, relax=None).check_equivariance(verbose=False)


SOFT = {
    "rotation": ("C8", {"relax": {"rotation": 0.25}}, "rotation", ["0[2pi/8]"]),
    "kept": ("C8", {"relax": {"rotation": 0.25}, "keep": "C4"}, "rotation", [f"{n}[2pi/8]" for n in (0, 2, 4, 6)]),
    "at zero": ("C4", {"relax": {"rotation": 0.0}}, None, [f"{n}[2pi/4]" for n in range(4)]),
    "reflection": ("D4", {"relax": {"reflection": 0.25}}, "reflection", [f"(+, {n}[2pi/4])" for n in range(4)]),
    "both": ("D4", {"relax": {"rotation": 0.25, "reflection": 0.25}}, "rotation, reflection", ["(+, 0[2pi/4])"]),
    "translation": ("C8", {"relax": {"translation": 0.5}}, "translation", [f"{n}[2pi/8]" for n in (0, 2, 4, 6)]),
}


@pytest.mark.parametrize("case", SOFT)
def test_soft_layer_is_checked_where_it_is_strict_and_the_rest_is_named(case: str) -> None:
    space, arguments, softness, expected = SOFT[case]
    layer = RelaxedR2Conv(*small.types(space, "trivial -> regular"), 5, padding=2, initial_softness=0.5, **arguments)
    if softness is None:
        assert checked_elements(layer) == expected
        return
    count = len(list(layer.space.testing_elements))
    message = f"soft in {softness}: {count - len(expected)} of {count} elements are not checked"
    with pytest.warns(UserWarning, match=re.escape(message)) as caught:
        # Exact on the grid of pixels, whatever is soft.
        assert checked_elements(layer, atol=1e-4, rtol=0.0) == expected
    (own,) = [each for each in caught if each.category is UserWarning]
    assert own.filename == __file__


def test_warning_is_at_the_line_of_the_user() -> None:
    """Of a caller in another module than the tests, with decorators between."""
    layer = RelaxedR2Conv(*small.types("C4", "trivial -> regular"), 3, initial_softness=0.5)
    line = "layer.check_equivariance(verbose=False)"
    source = compile(f"\n\n{line}\n", "script.py", "exec")
    with pytest.warns(UserWarning, match="elements are not checked") as caught:
        exec(source, {"layer": layer, "__name__": "__main__"})
    # Newer versions of NumPy have warnings of their own for escnn.
    own = [each for each in caught if each.category is UserWarning]
    assert [(each.filename, each.lineno) for each in own] == [("script.py", 3)]


@pytest.mark.parametrize("space", ["octahedral", "O(3)", "cone 4"])
def test_layer_of_volumes_is_checked_where_it_is_strict(space: str) -> None:
    fields = small.volume_type(space)
    strict = small.volume_layer(fields, relax=None, initial_softness=None, padding=(1, 2, 0), stride=2)
    found = strict.check_equivariance(atol=1e-5, rtol=0, verbose=False)
    assert {element for element, _ in found} == set(small.voxel_symmetries(fields.gspace))
    with pytest.warns(UserWarning, match="the layer is soft in rotation"):
        (only,) = small.volume_layer(fields, initial_softness=0.3).check_equivariance(atol=1e-5, verbose=False)
    assert only[0] == fields.fibergroup.identity
    with pytest.raises(AssertionError, match="too high"):
        RolledInSpace(fields, fields, 3, relax=None).check_equivariance(verbose=False)


def test_layer_is_left_as_it_is_and_lines_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    layer = RelaxedR2Conv(*small.types("C4", "trivial -> regular"), 3, relax=None).double()
    with left_alone(layer):
        layer.check_equivariance()
    assert layer.weights.dtype == torch.float64
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert re.fullmatch(r"1\[2pi/4\]: error \S+ at most, \S+ in the mean", lines[1])
    layer.check_equivariance(verbose=False)
    assert not capsys.readouterr().out


@pytest.mark.usefixtures("float64_default")
def test_check_is_the_same_whatever_the_defaults_of_torch() -> None:
    layer = RelaxedR2Conv(*small.types("C4", "regular -> regular"), 3, relax=None)
    expected = layer.float().check_equivariance(verbose=False)
    with torch.device("meta"):
        assert layer.check_equivariance(verbose=False) == expected
    torch.set_default_dtype(torch.float32)
    assert layer.check_equivariance(verbose=False) == expected


def test_values_that_are_no_numbers_fail() -> None:
    layer = RelaxedR2Conv(*small.types("C4", "trivial -> regular"), 3, relax=None)
    layer.weights.data.fill_(float("nan"))
    with pytest.raises(AssertionError, match="max = nan"):
        layer.check_equivariance(verbose=False)
