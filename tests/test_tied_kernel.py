"""The default form: the number of its weights, where it is none, and the start: as soft as asked for."""

import pytest
import reference_kappas
import small
import torch
from errors import FEW_TERMS, ROUNDING, SINGLE_REORDERED, largest_error
from escnn import gspaces
from escnn.nn import FieldType, R2Conv
from group_average import energy, kernel_of, mean_over
from reference import Layer
from reference_group import Elements
from reference_kappas import REFERENCE, TiedKappa
from small import EVERY_KERNEL, options_of
from small_networks import features_of, soft_weights
from torch import nn

from escnn_relaxed import RelaxedR2Conv


def counted(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def functions_of(layer: Layer) -> list[list[reference_kappas.Function]]:
    """The functions of each field by the loops, which raise an error for another number of weights."""
    kappa = TiedKappa(layer, Elements(layer.in_type.gspace))
    return [
        list(functions)
        for of in filter(None, (kappa.by_position, kappa.by_element))
        for functions in of.functions.values()
    ]


def test_no_function_lies_so_near_a_threshold_that_rounding_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thresholds may be a thousandth larger or smaller; rounding is 1e-15."""
    least, nothing = reference_kappas.LEAST, reference_kappas.NOTHING
    for space in small.GSPACES:
        relax = {"translation": REFERENCE, **small.subgroups(space, REFERENCE)}
        pair = "irreps -> irreps" if space in small.CONTINUOUS else "trivial -> regular + irreps"
        layer = RelaxedR2Conv(*small.types(space, pair), 3, relax=relax).double()
        found = []
        for factor in (0.999, 1.001):
            monkeypatch.setattr(reference_kappas, "LEAST", factor * least)
            monkeypatch.setattr(reference_kappas, "NOTHING", factor * nothing)
            found.append(functions_of(layer))
        assert found[0] == found[1], space


def many(space: str, field: str, count: int) -> FieldType:
    return FieldType(small.gspace(space), list(small.field_type(space, field).representations) * count)


SO2 = gspaces.rot2dOnR2(-1)
IRREPS = FieldType(SO2, [SO2.irrep(n) for n in range(3)] * 4)
# Types, size of the kernel, subgroups, most parameters in proportion to R2Conv.
BUDGETS = {
    "lifting 1×1": (many("C8", "trivial", 1), many("C8", "regular", 4), 1, "default", 2.0),
    "C8, 4 → 4, 3×3": (many("C8", "regular", 4), many("C8", "regular", 4), 3, "default", 1.12),
    "C8, 32 → 32, 5×5": (many("C8", "regular", 32), many("C8", "regular", 32), 5, "default", 1.05),
    "SO(2), irreps": (IRREPS, IRREPS, 5, "default", 1.35),
    "translation": (
        *(many("trivial", "trivial", 32), many("trivial", "trivial", 32)),
        *(3, {"translation": 0.25}, 1.5),
    ),
}


@pytest.mark.parametrize("name", BUDGETS)
def test_layer_has_hardly_more_parameters_than_r2conv(name: str) -> None:
    in_type, out_type, kernel_size, relax, most = BUDGETS[name]
    layer = RelaxedR2Conv(in_type, out_type, kernel_size, relax=relax)
    plain = counted(R2Conv(in_type, out_type, kernel_size))
    assert plain < counted(layer) <= most * plain


CANNOT_BE_SOFT = [
    ("C4", "trivial -> trivial", 1, {"rotation": 0.25}),
    ("flip", "irreps -> irreps", 1, {"reflection": 0.5}),
    # Rotations take the directions of taps away.
    ("D4", "irreps -> irreps", 3, {"reflection": 0.5}),
]


@pytest.mark.usefixtures("warnings_not_yet_given")
@pytest.mark.parametrize(("space", "pair", "kernel_size", "relax"), CANNOT_BE_SOFT)
def test_layer_that_no_weights_make_soft_is_that_of_r2conv(space, pair, kernel_size: int, relax) -> None:
    types = small.types(space, pair)
    with pytest.warns(UserWarning, match="cannot be soft in"):
        layer = RelaxedR2Conv(*types, kernel_size, relax=relax)
    plain = R2Conv(*types, kernel_size)
    assert layer.cannot_be_soft == tuple(relax)
    assert layer.relaxed_subgroups == ()
    assert counted(layer) == counted(plain)
    assert layer.softness().item() == 0
    layer.set_domain_frequency(**dict.fromkeys(relax, 1.0))
    with pytest.raises(ValueError, match="softness can be set where"):
        layer.set_softness(0.1)
    with pytest.raises(ValueError, match="'translation' has no domain frequency"):
        layer.set_domain_frequency(translation=0.1)
    layer.load_state_dict(plain.state_dict())
    assert torch.equal(layer.weights, plain.weights)


@pytest.mark.parametrize("name", ["rotation", "reflection"])
def test_weights_act_by_the_frequencies_of_their_subgroups(name: str) -> None:
    """Where the other ω′ is 0, those of this subgroup do and no others."""
    layer = RelaxedR2Conv(*small.types("D4", "regular + irreps -> irreps + regular"), 3).double()
    layer.set_domain_frequency(**{of: 0.25 if of == name else 0.0 for of in layer.relaxed_subgroups})
    bank = layer.filter_bank()
    groups = {group.name: group.entries for group in layer.kernel.weight_groups()}
    (weights,) = soft_weights(layer)
    (gradient,) = torch.autograd.grad(bank, weights, torch.randn_like(bank))
    ((_, numbers),) = groups[name]
    assert set(groups) == {"rotation", "reflection", "rotation × reflection"}
    assert (gradient.abs() > FEW_TERMS).nonzero().flatten().tolist() == numbers.tolist()


CASES = [
    ("C4", "two regular -> two regular"),
    ("C4", "irreps -> irreps"),
    ("D4", "regular + irreps -> mixed, sheared + regular + quotient"),
    ("C8", "trivial -> regular"),
    ("SO(2)", "irreps -> band-limited"),
    ("O(2)", "irreps -> irreps"),
]


@pytest.mark.parametrize("space", ["trivial", "C8", "D4", "SO(2)"])
def test_strict_part_starts_as_r2conv_does(space: str) -> None:
    """To the last bit of the weights, so that a soft layer trains as the layer in whose place it stands."""
    types = small.types(space, "trivial -> irreps" if space == "trivial" else "irreps -> irreps")
    torch.manual_seed(0)
    expected = R2Conv(*types, 5).weights
    torch.manual_seed(0)
    relax = {"translation": 0.25, **small.subgroups(space, 0.25)}
    assert torch.equal(RelaxedR2Conv(*types, 5, relax=relax).weights, expected)


@pytest.mark.parametrize(
    ("space", "pair", "translation", "softness"),
    [
        *((*case, {}, (0.001, 0.1, 0.9)[number % 3]) for number, case in enumerate(CASES)),
        ("C4", "regular -> irreps", {"translation": 0.3}, 0.1),
    ],
)
def test_layer_starts_exactly_as_soft_as_asked(space: str, pair: str, translation: dict, softness: float) -> None:
    relax = {**small.subgroups(space, 0.25), **translation}
    layer = RelaxedR2Conv(*small.types(space, pair), 3, relax=relax, initial_softness=softness)
    assert layer.softness().item() == pytest.approx(softness, rel=1e-4)  # float32
    for wanted in (0.01, 0.5):
        layer.set_softness(wanted)
        assert layer.softness().item() == pytest.approx(wanted, rel=1e-4)


def test_continuous_layer_starts_as_soft_as_asked_within_the_scatter_of_its_draws() -> None:
    """Kernels of few fields scatter: a factor of 3. Energies are what is drawn as asked, not their ratio."""
    for space, pair in CASES[:2]:
        soft, whole = 0.0, 0.0
        for _ in range(3):
            options = options_of("continuous")
            layer = RelaxedR2Conv(*small.types(space, pair), 3, initial_softness=0.01, **options).double()
            kernel = kernel_of(layer).detach()
            soft += float(energy(layer, kernel - mean_over(layer, kernel)))
            whole += float(energy(layer, kernel))
        assert 0.01 / 3 <= soft / whole <= 0.01 * 3
    with pytest.raises(ValueError, match="initial_softness must be above 0"):
        RelaxedR2Conv(*small.types("C4", "regular -> regular"), 3, initial_softness=0.0, **options)


@pytest.mark.filterwarnings("ignore:relax. the layer from .* cannot be soft")
@EVERY_KERNEL
@pytest.mark.parametrize(
    ("space", "pair", "kernel_size"), [(*CASES[0], 2), (*CASES[0], 5), *((*case, 1) for case in CASES[1::2])]
)
def test_layer_in_float32_is_equivariant_to_float32_rounding_at_zero(
    space: str, pair: str, kernel_size: int, soft_part: str
) -> None:
    """Also between fields that have no strict kernel: units must not blow rounding errors up."""
    relax = small.subgroups(space, 0.15)
    layer = RelaxedR2Conv(*small.types(space, pair), kernel_size, relax=relax, **options_of(soft_part))
    layer.set_domain_frequency(**small.subgroups(space, 0.0))
    # Rounding is 1e-7; sums of some hundred terms of both signs lose a digit or two.
    assert largest_error(layer, small.random_input(layer.in_type, 7, 7, dtype=torch.float32)) <= SINGLE_REORDERED


@EVERY_KERNEL
@pytest.mark.parametrize("relax", [{"rotation": 0.0}, {"rotation": 0.0, "translation": 0.0}], ids=["0", "0, 0"])
def test_layer_that_starts_strict_can_become_soft(relax: dict[str, float], soft_part: str) -> None:
    """Units and sizes are fixed on a frequency that is not 0."""
    types = small.types("C4", "regular -> regular")
    layer = RelaxedR2Conv(*types, 3, padding=1, relax=relax, **options_of(soft_part)).double()
    assert largest_error(layer, features_of(layer, side=6)) <= ROUNDING
    layer.set_domain_frequency(rotation=0.25)
    default = {"tied": 0.001, "continuous": 0.01}[soft_part]
    # For one kernel within a factor of 9.
    assert default / 9 <= layer.softness().item() <= default * 9
