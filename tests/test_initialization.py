"""The start of a layer: as soft as asked for, strict where R2Conv is, and nothing drawn from small numbers."""

from __future__ import annotations

import pytest
import small
import torch
from errors import ROUNDING, SINGLE, SINGLE_REORDERED, largest_error, relative_error
from escnn.nn import R2Conv
from group_average import energy, kernel_of, mean_over
from small import EVERY_KERNEL, options_of
from small_networks import features_of, soft_weights

from escnn_relaxed import RelaxedR2Conv

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


@pytest.mark.parametrize("softness", [0.001, 0.1, 0.9])
@pytest.mark.parametrize(
    ("space", "pair", "translation"),
    [*((*case, {}) for case in CASES), ("C4", "regular -> irreps", {"translation": 0.3})],
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
    ("space", "pair", "kernel_size"), [*((*CASES[0], size) for size in (1, 2, 5)), *((*case, 1) for case in CASES[1:])]
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
def test_start_follows_the_seed_and_shapes_do_not(soft_part: str) -> None:
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        types = small.types("D4", "regular + irreps -> irreps + regular")
        states.append(RelaxedR2Conv(*types, 5, relax={"rotation": 0.2}, **options_of(soft_part)).state_dict())
    first, again, other = states
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert any(not torch.allclose(value, other[name]) for name, value in first.items())
    assert {name: value.shape for name, value in first.items()} == {name: of.shape for name, of in other.items()}


@pytest.mark.parametrize("relax", [("rotation",), ("rotation", "translation")], ids=" + ".join)
def test_continuous_layer_starts_alike_at_frequency_0(relax: tuple[str, ...]) -> None:
    layers = []
    for start in (0.0, 0.25):
        torch.manual_seed(0)
        options = {"relax": dict.fromkeys(relax, start), **options_of("continuous", hidden_size=6)}
        layers.append(RelaxedR2Conv(*small.types("C4", "regular -> regular"), 3, **options).double())
    layers[0].set_domain_frequency(**dict.fromkeys(relax, 0.25))
    banks = [layer.filter_banks(3) if "translation" in relax else layer.filter_bank() for layer in layers]
    assert relative_error(*(of.detach() for of in banks)) <= SINGLE


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


@pytest.mark.parametrize("softness", [0.0, 0.001, 0.5])
def test_step_of_an_optimiser_is_as_large_whatever_the_softness_of_the_start(softness: float) -> None:
    """A weight of 1 makes a modulation of 0.2, as the root of the mean square over channels and taps."""
    types = small.types("C4", "regular -> regular")
    layer = RelaxedR2Conv(*types, 3, relax={"rotation": 0.25}, initial_softness=softness)
    strict = layer.basisexpansion(layer.weights).detach()
    (weights,) = soft_weights(layer)
    assert bool(weights.any()) == (softness > 0)
    with torch.no_grad():
        for number in range(len(weights)):
            weights.zero_()[number] = 1.0
            modulation = layer.filter_bank().flatten(2) / strict - 1
            assert modulation.square().mean().sqrt().item() == pytest.approx(0.2, rel=1e-4)


@EVERY_KERNEL
@pytest.mark.usefixtures("float64_default")
def test_layer_can_be_built_with_float64_as_the_default(soft_part: str) -> None:
    """escnn's R2Conv cannot. In the state of one that was built in float32 it is the same layer."""
    types = small.types("D4", "trivial + regular + irreps + regular -> last irrep + regular + trivial + mixed")
    arguments = {"padding": 1, "relax": {"rotation": 0.2, "translation": 0.3}, "initial_softness": 0.3}
    built = RelaxedR2Conv(*types, 3, **arguments, **options_of(soft_part))
    assert {parameter.dtype for parameter in built.parameters()} == {torch.float64}
    torch.set_default_dtype(torch.float32)
    turned = RelaxedR2Conv(*types, 3, **arguments, **options_of(soft_part)).double()
    built.load_state_dict(turned.state_dict())
    features = built.in_type(features_of(built, side=9))
    found, expected = (layer(features).tensor for layer in (built, turned))
    assert found.dtype == torch.float64
    # NumPy's vectorised loops round by the alignment of an array.
    assert (found - expected).norm() <= ROUNDING * expected.norm()
