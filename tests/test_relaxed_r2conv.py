"""RelaxedR2Conv and RelaxedR2ConvTransposed in the place of escnn's layers, and what is their own."""

import inspect

import pytest
import small
import torch
from errors import ROUNDING, answer_to, relative_error
from escnn.nn import FieldType, GeometricTensor, R2Conv, R2ConvTransposed
from reference import Layer
from small import EVERY_KERNEL, soft_layer

from escnn_relaxed import RelaxedR2Conv, RelaxedR2ConvTransposed

EVERY_CLASS = pytest.mark.parametrize(
    ("theirs", "ours"), [(R2Conv, RelaxedR2Conv), (R2ConvTransposed, RelaxedR2ConvTransposed)]
)
TYPES = small.types("C4", "regular + irreps -> irreps + regular")


@EVERY_CLASS
def test_arguments_of_escnns_layer_come_first_in_its_order(theirs: type, ours: type) -> None:
    expected = list(inspect.signature(theirs.__init__).parameters.values())
    found = list(inspect.signature(ours.__init__).parameters.values())
    assert [(p.name, p.default) for p in found[: len(expected)]] == [(p.name, p.default) for p in expected]
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in found[len(expected) :])
    own = inspect.signature(RelaxedR2Conv.__init__).parameters.values()
    keywords = [(p.name, p.default) for p in own if p.kind is inspect.Parameter.KEYWORD_ONLY]
    assert [(p.name, p.default) for p in found[len(expected) :]] == keywords


@EVERY_CLASS
def test_layer_has_the_attributes_of_escnns_layer(theirs: type, ours: type) -> None:
    """What they mean is beside the loops in test_against_loops."""
    types = small.types("C4", "regular + regular -> trivial + irreps + trivial + irreps")
    arguments = {"kernel_size": 3, "padding": (1, 2), "stride": 2, "dilation": 2, "groups": 2}
    layer, of_escnn = ours(*types, **arguments), theirs(*types, **arguments)
    output = layer(layer.in_type(small.random_input(layer.in_type, 7, 8, dtype=torch.float32)))
    assert isinstance(output, GeometricTensor)
    assert output.type == layer.out_type
    assert layer.evaluate_output_shape((2, layer.in_type.size, 7, 8)) == tuple(output.shape)
    for name in (*arguments, *(["output_padding"] if theirs is R2ConvTransposed else [])):
        assert getattr(layer, name) == getattr(of_escnn, name)


def test_repr_says_types_arguments_and_softness() -> None:
    in_type, out_type = TYPES
    text = repr(RelaxedR2Conv(in_type, out_type, 3, padding=(1, 2), bias=False, relax={"rotation": 0.25}))
    for part in ("RelaxedR2Conv", str(in_type), str(out_type), "kernel_size=3", "padding=(1, 2)", "bias=False", "0.25"):
        assert part in text
    assert "stride=1" in text
    assert "dilation" not in text
    layer = RelaxedR2ConvTransposed(in_type, out_type, 3, padding=1, stride=2, output_padding=1, relax=None)
    assert repr(layer).startswith("RelaxedR2ConvTransposed([")
    assert "stride=2, padding=(1, 1), output_padding=(1, 1), relax=None" in repr(layer)


def test_default_softens_rotation_and_reflection_where_the_group_has_them() -> None:
    for space in small.GSPACES:
        layer = RelaxedR2Conv(*small.types(space, "trivial -> trivial"), 3)
        assert set(layer.domain_frequency) == set(small.subgroups(space, 1.0))
        assert all((value > 0).all() for value in layer.domain_frequency.values())
        assert layer.is_stationary


def test_layer_has_one_filter_bank_or_one_at_each_pixel() -> None:
    layer = RelaxedR2Conv(*TYPES, 3, relax={"translation": 0.2})
    assert not layer.is_stationary
    with pytest.raises(RuntimeError, match="soft in translation and has several, see filter_banks"):
        layer.filter_bank()
    assert not hasattr(layer, "filter")
    layer.harden()
    assert torch.equal(layer.filter, layer.filter_bank())
    with pytest.raises(RuntimeError, match="filter_banks: this layer has one filter bank, see filter_bank"):
        layer.filter_banks((16, 16))


@EVERY_KERNEL
@pytest.mark.parametrize("make", [RelaxedR2Conv, RelaxedR2ConvTransposed])
def test_layer_is_its_bank_at_each_pixel(make: type[Layer], soft_part: str) -> None:
    """Where a kernel of one tap shows it: the bank is that of the pixel of the output, which is that of the input."""
    pair = "regular + regular -> irreps + regular + irreps + regular"
    relax = {"translation": (0.3, 0.5)}
    layer = soft_layer("C4", pair, kernel_size=1, groups=2, bias=False, relax=relax, soft_part=soft_part, make=make)
    features = small.random_input(layer.in_type, 3, 4)
    banks = layer.filter_banks((3, 4)).detach()[..., 0, 0]
    assert banks.shape[:2] == (3, 4)
    expected = []
    axis = 2 if make is RelaxedR2Conv else 3
    for bank, part in zip(banks.chunk(2, axis), features.chunk(2, 1), strict=True):
        expected.append(torch.einsum("hwoi,bihw->bohw", bank, part))
    assert relative_error(answer_to(layer, features), torch.cat(expected, 1)) <= ROUNDING


def test_size_of_an_output_is_checked() -> None:
    layer = RelaxedR2Conv(*TYPES, 3, relax={"translation": 0.2})
    assert torch.equal(layer.filter_banks(5), layer.filter_banks((5, 5)))
    assert torch.equal(layer.softness(size=5), layer.softness(size=(5, 5)))
    assert not torch.equal(layer.softness(size=5), layer.softness())
    for call in (layer.filter_banks, lambda size: layer.softness(size=size)):
        for size in ((16,), (16, 16, 16), (0, 0), (16, -1)):
            with pytest.raises(ValueError, match="size must be "):
                call(size)
        for size in (16.5, "16", (16, 16.5)):
            with pytest.raises(TypeError, match="size must be an integer"):
                call(size)


C4, D4 = small.gspace("C4"), small.gspace("D4")
REGULAR = FieldType(C4, [C4.regular_repr] * 2)
BAD_INPUT = {
    "a tensor": (lambda: torch.randn(1, 8, 5, 5), TypeError, "input.*GeometricTensor.*Tensor"),
    "another type": (lambda: C4.type(C4.regular_repr)(torch.randn(1, 4, 5, 5)), TypeError, "input.*type.*regular"),
    "another gspace": (lambda: D4.type(D4.regular_repr)(torch.randn(1, 8, 5, 5)), TypeError, "input.*type.*D4"),
    "integers": (lambda: REGULAR(torch.ones(1, 8, 5, 5, dtype=torch.int64)), TypeError, "input.*floating.*int64"),
    "a low image": (lambda: REGULAR(torch.randn(1, 8, 2, 5)), ValueError, "input must not be smaller.*2×5.*spans 3"),
}


@pytest.mark.parametrize("relax", [None, {"translation": 0.2}], ids=["stationary", "soft in translation"])
@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_raises_an_error_that_says_so(case: str, relax: dict[str, float] | None) -> None:
    make, error, message = BAD_INPUT[case]
    with pytest.raises(error, match=message):
        RelaxedR2Conv(REGULAR, REGULAR, 3, relax=relax)(make())


def input_of(*size: int) -> GeometricTensor:
    return REGULAR(torch.randn(1, 8, *size))


def test_sizes_that_do_not_fit_are_refused() -> None:
    dilated = RelaxedR2Conv(REGULAR, REGULAR, 3, dilation=2, padding=1)
    assert dilated(input_of(3, 3)).tensor.shape[2:] == (1, 1)
    with pytest.raises(ValueError, match=r"2×3.*spans 5.*padding is \(1, 1\)"):
        dilated(input_of(2, 3))
    for shape in ((1, 8, 5), (1, 7, 5, 5), (8, 5, 5)):
        with pytest.raises(ValueError, match=r"input_shape must be .*got"):
            dilated.evaluate_output_shape(shape)
    for relax in (None, {"translation": 0.2}):
        # Reflection has n − 1 pixels to copy, a circle n.
        for mode, padding, side in (("reflect", (0, 4), 4), ("circular", 4, 3)):
            layer = RelaxedR2Conv(REGULAR, REGULAR, 3, padding=padding, padding_mode=mode, relax=relax)
            with pytest.raises(ValueError, match=f"padding .*{mode}"):
                layer(input_of(side, side))
        for size in ((0, 5), (5, 0)):
            layer = RelaxedR2Conv(REGULAR, REGULAR, 3, padding=2, relax=relax)
            with pytest.raises(ValueError, match=f"a pixel of the output: got an image of {size[0]}×{size[1]}"):
                layer(REGULAR(torch.zeros(2, 8, *size)))
    up = RelaxedR2ConvTransposed(REGULAR, REGULAR, 3, padding=2)
    with pytest.raises(ValueError, match=r"got an image of 2×4 for .* 0×2, .* padding is \(2, 2\)"):
        up(input_of(2, 4))
    assert up(input_of(3, 3)).tensor.shape[2:] == (1, 1)
