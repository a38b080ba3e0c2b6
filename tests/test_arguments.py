"""Bad arguments: the right error, which names the argument, the value and what would be right; and warnings."""

import inspect
import math
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import small
import torch
from escnn import gspaces
from escnn.nn import FieldType, R2Conv
from small import with_kernel

from escnn_relaxed import RelaxedLinear, RelaxedR2Conv, RelaxedR2ConvTransposed, RelaxedR3Conv

C4, D4 = small.gspace("C4"), small.gspace("D4")
REGULAR, TRIVIAL = FieldType(C4, [C4.regular_repr] * 2), FieldType(C4, [C4.trivial_repr])
UNEQUAL = FieldType(C4, [C4.regular_repr, C4.trivial_repr])
DIHEDRAL = FieldType(D4, [D4.regular_repr])
SPACE_3D = gspaces.rot3dOnR3()
IN_SPACE = FieldType(SPACE_3D, [SPACE_3D.trivial_repr])
NAN = float("nan")

# name: (arguments that replace those of a good layer, the error, a pattern of its message). That every bad value is
# named is in ``test_bad_calls``; here, what would be right.
BAD = {
    "out_type on another gspace": ({"out_type": DIHEDRAL}, ValueError, "in_type.*out_type.*gspace.*D4"),
    "a gspace of space": ({"in_type": IN_SPACE, "out_type": IN_SPACE}, ValueError, "in_type.*plane"),
    "padding in a word": ({"padding": "same"}, TypeError, r"an integer or one for each axis, got 'same'.*half of"),
    "stride of unequal steps": ({"stride": (2, 1)}, ValueError, r"stride.*pair of equal ones.*\(2, 1\)"),
    "groups that split": ({"in_type": UNEQUAL, "groups": 2}, ValueError, "groups=2 must split in_type.*equal parts"),
    "unknown subgroup": ({"relax": {"scaling": 1.0}}, ValueError, "relax.*'scaling'.*rotation.*translation"),
    "two frequencies of rotation": ({"relax": {"rotation": (0.1, 0.1)}}, ValueError, "relax.*rotation.*1 value"),
    "kernel that is none": ({"kernel": lambda config: 1}, TypeError, "kernel must return a Kernel, got int"),
    "kernel that is a module": ({"kernel": torch.nn.Identity()}, TypeError, r"kernel must be .*Kernel, got Identity"),
    "pair in words": ({"relax": {"translation": "12"}}, TypeError, r"relax.*translation.*pair \(x, y\).*'12'"),
}
NOTHING = {"frequencies_cutoff": lambda radius: -1.0, "rings": [1.0]}
BAD_BASIS = {
    "sigma of more rings": ({"rings": [1.0], "sigma": [0.5, 0.6]}, ValueError, r"sigma.*1 rings.*\[0.5, 0.6\]"),
    "a ring outside": ({"rings": [0.0, 9.0]}, ValueError, "rings.*1.414.*9.0"),
    "cutoff that keeps nothing": (NOTHING, ValueError, r"frequencies_cutoff=<function.*rings=\[1.0\]: it is empty"),
    "cutoff below 0": ({"frequencies_cutoff": -0.5}, ValueError, "frequencies_cutoff.*>= 0.*-0.5"),
}


@pytest.mark.parametrize("case", BAD | BAD_BASIS)
def test_bad_argument_raises_an_error_that_says_so(case: str) -> None:
    arguments, error, message = (BAD | BAD_BASIS)[case]
    with pytest.raises(error, match=message):
        RelaxedR2Conv(**{"in_type": REGULAR, "out_type": REGULAR, "kernel_size": 3, **arguments})


def test_output_padding_that_no_stride_allows_is_refused() -> None:
    with pytest.raises(ValueError, match="got 1 for stride=1, dilation=1: at most 0"):
        RelaxedR2ConvTransposed(REGULAR, REGULAR, 3, output_padding=1)


def layer_of(**arguments: object) -> RelaxedR2Conv:
    return RelaxedR2Conv(REGULAR, REGULAR, 3, **with_kernel(arguments))


def test_filter_may_keep_what_other_field_types_lack() -> None:
    """Elements of frequency 1 lead from trivial fields to regular ones, not to trivial ones."""
    keep = {"basis_filter": lambda element: element["irrep:frequency"] == 1}
    assert len(RelaxedR2Conv(TRIVIAL, REGULAR, 3, **keep).weights) == len(R2Conv(TRIVIAL, REGULAR, 3, **keep).weights)
    with pytest.raises(ValueError, match="basis_filter"):
        RelaxedR2Conv(TRIVIAL, TRIVIAL, 3, **keep)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("rotation", Fraction(1, 4), [0.25]),
        ("rotation", torch.nn.Parameter(torch.tensor([-0.5])), [-0.5]),
        ("translation", 0.5, [0.5, 0.5]),
        ("translation", (torch.tensor(0.25), np.float32(-0.5)), [0.25, -0.5]),
    ],
)
def test_frequency_is_a_number_or_for_translation_a_pair(name: str, value: object, expected: list[float]) -> None:
    """Learning may make it negative; what was learned starts another layer."""
    layer = layer_of(relax={name: value}, learn_relaxation=True)
    assert layer.domain_frequency[name].tolist() == expected
    other = layer_of(relax=layer.domain_frequency)
    other.set_domain_frequency(**{name: value})
    assert other.domain_frequency[name].tolist() == expected


@pytest.mark.parametrize(
    ("value", "error"), [(True, TypeError), (NAN, ValueError), ("much", TypeError), ((0.1, 0.2), ValueError)]
)
def test_bad_frequency_is_refused_when_set_and_changes_nothing(value: object, error: type[Exception]) -> None:
    layer = layer_of(relax={"rotation": 0.25})
    with pytest.raises(error, match=r"set_domain_frequency.*rotation"):
        layer.set_domain_frequency(rotation=value)
    with pytest.raises(ValueError, match=r"translation.*rotation"):
        layer.set_domain_frequency(translation=0.1)
    assert layer.domain_frequency["rotation"].item() == 0.25


def test_numbers_of_numpy_are_numbers() -> None:
    layer = RelaxedR2Conv(REGULAR, REGULAR, np.int64(3), padding=np.int64(1), initial_softness=np.float32(0.125))
    assert layer(REGULAR(torch.randn(1, 8, 4, 4))).tensor.shape == (1, 8, 4, 4)
    assert layer.softness().item() == pytest.approx(0.125)


IGNORED = {
    **{"sigma": 0.5, "frequencies_cutoff": 2.0, "rings": [0.0, 1.0], "maximum_offset": 1, "recompute": True},
    "basis_filter": lambda attributes: True,
}
CONTINUOUS = with_kernel({"soft_part": "continuous"})


@pytest.mark.usefixtures("warnings_not_yet_given")
@pytest.mark.parametrize("name", IGNORED)
def test_argument_without_meaning_for_a_continuous_kernel_is_warned_of_once(name: str) -> None:
    with pytest.warns(UserWarning, match=f"{name}.*ignored") as caught:
        RelaxedR2Conv(REGULAR, REGULAR, 3, **CONTINUOUS, **{name: IGNORED[name]})
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RelaxedR2Conv(REGULAR, REGULAR, 3, **CONTINUOUS, **{name: IGNORED[name]})
        # Every default of R2Conv's, spelled out.
        layer_of(**{name: False if name == "recompute" else None for name in IGNORED})


ALIASING = [
    ("C4", {}, "rotation", 4 / (4 * math.pi)),
    ("C8", {"rotation_coordinates": "log"}, "rotation", 4.0),
    ("SO(2)", {}, "rotation", 16 / (4 * math.pi)),
    ("SO(2)", {"rotation_coordinates": "log"}, "rotation", 8.0),
]


@pytest.mark.usefixtures("warnings_not_yet_given")
@pytest.mark.parametrize(("space", "options", "name", "limit"), ALIASING)
def test_frequency_that_the_samples_of_a_continuous_kernel_do_not_resolve_is_warned_of_once(
    space: str, options: dict[str, object], name: str, limit: float
) -> None:
    def build(frequency: object) -> RelaxedR2Conv:
        arguments = with_kernel({"soft_part": "continuous", "relax": {name: frequency}, **options})
        return RelaxedR2Conv(*small.types(space, "trivial -> irreps"), 1, **arguments)

    # Whole numbers in log coordinates, where others jump.
    step = 1.0 if options else 0.01 * limit
    layer = build(-(limit - step))  # warnings are errors
    value = limit + step
    shown = f"{value:g}"[:4]
    with pytest.warns(UserWarning, match=rf"relax: .* {shown}.* of {name} is above .* it aliases"):
        build(value)
    build(value)
    with pytest.warns(UserWarning, match=rf"set_domain_frequency: .* of {name} .* it aliases"):
        layer.set_domain_frequency(**{name: -value})
    # A tied kernel has no waves.
    RelaxedR2Conv(*small.types("C4", "trivial -> regular"), 1, relax={name: 100.0})


def test_every_frequency_of_reflection_is_resolved() -> None:
    """It has two elements, and any function of two is a wave."""
    fields = small.types("D4", "trivial -> regular")
    layer = RelaxedR2Conv(*fields, 3, relax={"reflection": 100.0}, initial_softness=0.1, **CONTINUOUS)
    layer.set_domain_frequency(reflection=-1000.0)  # warnings are errors
    assert layer.softness("reflection").item() > 0


def test_warning_points_at_the_line_outside_the_package(warnings_not_yet_given: None) -> None:
    types = small.types("C8", "trivial -> regular")
    layer = RelaxedR2Conv(*types, 1, relax={"rotation": 0.5}, **CONTINUOUS)
    calls = (
        lambda: RelaxedR2Conv(*types, 1, relax={"rotation": 3.0}, **CONTINUOUS),
        lambda: layer.set_domain_frequency(rotation=4.0),
    )
    for call in calls:
        with pytest.warns(UserWarning, match="aliases") as caught:
            call()
        assert [(Path(of.filename), of.lineno) for of in caught] == [(Path(__file__), call.__code__.co_firstlineno)]


@pytest.mark.parametrize("layer", [RelaxedR2Conv, RelaxedR2ConvTransposed, RelaxedR3Conv, RelaxedLinear])
def test_an_unknown_keyword_is_named_beside_the_known_ones(layer: type) -> None:
    space = {RelaxedR3Conv: gspaces.octaOnR3, RelaxedLinear: lambda: gspaces.no_base_space(REGULAR.fibergroup)}
    gspace = space.get(layer, lambda: REGULAR.gspace)()
    fields, size = gspace.type(gspace.trivial_repr), () if layer is RelaxedLinear else (3,)
    known = "relax, learn_relaxation, keep, initial_softness, samples, kernel"
    with pytest.raises(TypeError, match=rf"{layer.__name__} has no argument 'relaxed' \(='rotation'\);.*: {known}$"):
        layer(fields, fields, *size, relaxed="rotation")
    own = [each for each in inspect.signature(layer).parameters.values() if each.kind is each.KEYWORD_ONLY]
    assert ", ".join(each.name for each in own) == known
    assert [each.default for each in own] == ["default", False, None, None, None, None]
