"""The default form, a strict kernel that is tied to its modulation: the number of its weights, and where it is none.

Its values are in ``test_against_loops``, its start in ``test_initialization``.
"""

from __future__ import annotations

import pytest
import reference_kappas
import small
import torch
from errors import FEW_TERMS
from escnn import gspaces
from escnn.nn import FieldType, R2Conv
from reference import Layer
from reference_group import Elements
from reference_kappas import REFERENCE, TiedKappa
from small import SIZES, relaxation
from small_networks import soft_weights
from torch import nn

from escnn_relaxed import RelaxedR2Conv

MANY_KINDS = "regular + irreps -> irreps + regular + quotient"


def counted(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.usefixtures("float64_default")
def test_number_of_weights_depends_on_nothing_but_the_types() -> None:
    """Neither on ω′, nor on the seed, nor on the default dtype."""
    types = small.types("D4", MANY_KINDS)
    wanted = counted(RelaxedR2Conv(*types, 3))
    torch.set_default_dtype(torch.float32)
    for seed, frequency in enumerate((0.0, 1e-6, 0.25, 1.0, 100.0)):
        torch.manual_seed(seed)
        assert counted(RelaxedR2Conv(*types, 3, relax={"rotation": frequency, "reflection": frequency})) == wanted


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


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("pair", ["regular -> regular", "irreps -> irreps"])
def test_every_weight_of_a_soft_part_at_zero_learns(pair: str, kind: str) -> None:
    """And ω′ has no slope there, since it multiplies nothing."""
    given = relaxation(kind, {"rotation": 0.2})
    options = {"padding": 1, "initial_softness": 0.0, "learn_relaxation": True}
    layer = RelaxedR2Conv(*small.types("C4", pair), 3, **options, **given).double()
    layer(layer.in_type(small.random_input(layer.in_type, *SIZES[kind]))).tensor.square().sum().backward()
    assert all((weights.grad != 0).all() for weights in soft_weights(layer))
    assert all(not value.grad.any() for value in layer.domain_frequency.values())


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
