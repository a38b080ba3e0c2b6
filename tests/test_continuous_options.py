"""The options of the continuous kernel: their defaults. Bad ones are in ``test_bad_calls``."""

from typing import ClassVar

import pytest
import small
from escnn import gspaces

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv, RelaxedR3Conv
from escnn_relaxed.continuous import FourierKernel
from escnn_relaxed.kernel import TiedKernel


def test_defaults_are_the_papers() -> None:
    kernel = ContinuousKernel()
    assert (kernel.net, kernel.hidden_size) == (FourierKernel, 32)
    assert (kernel.rotation_coordinates, kernel.support) == ("circle", "smooth")


def test_filter_frequency_that_is_not_given_follows_the_size() -> None:
    assert ContinuousKernel().frequencies(5) == {"position": pytest.approx(0.3), "rotation": 0.3, "reflection": 1.0}
    assert ContinuousKernel(filter_frequency=0).frequencies(5)["position"] == 0
    by_name = ContinuousKernel(filter_frequency={"reflection": 0.5}).frequencies(2)
    assert by_name == {"position": pytest.approx(0.12), "rotation": 0.3, "reflection": 0.5}


def test_a_kernel_says_its_own_default_of_the_frequency() -> None:
    """A class by an attribute, ``ContinuousKernel`` by its options; others have one that the samples resolve."""

    class Steep(TiedKernel):
        default_frequency: ClassVar = {"rotation": 0.75}

    log = ContinuousKernel(hidden_size=2, rotation_coordinates="log")
    for kernel, rotation in [(None, 0.25), (Steep, 0.75), (ContinuousKernel(hidden_size=2), 0.25), (log, 1.0)]:
        layer = RelaxedR2Conv(*small.types("D4", "trivial -> regular"), 3, kernel=kernel)
        values = {name: value.item() for name, value in layer.domain_frequency.items()}
        assert values == {"rotation": rotation, "reflection": 0.25}
    given = RelaxedR2Conv(*small.types("D4", "trivial -> regular"), 3, kernel=log, relax={"rotation": 2.0})
    assert given.domain_frequency["rotation"].item() == 2.0


def test_rotations_of_space_have_no_log_coordinates() -> None:
    scalar = gspaces.octaOnR3().type(gspaces.octaOnR3().trivial_repr)
    with pytest.raises(ValueError, match=r"a rotation of space has no angle .* must be 'circle', got 'log'"):
        RelaxedR3Conv(scalar, scalar, 3, kernel=ContinuousKernel(rotation_coordinates="log"))
