"""The options of the continuous kernel: their defaults. Bad ones are in ``test_bad_calls``."""

import pytest

from escnn_relaxed import ContinuousKernel
from escnn_relaxed.continuous import FourierKernel


def test_defaults_are_the_papers() -> None:
    kernel = ContinuousKernel()
    assert (kernel.net, kernel.hidden_size) == (FourierKernel, 32)
    assert (kernel.rotation_coordinates, kernel.support) == ("circle", "smooth")


def test_filter_frequency_that_is_not_given_follows_the_size() -> None:
    assert ContinuousKernel().frequencies(5) == {"position": pytest.approx(0.3), "rotation": 0.3, "reflection": 1.0}
    assert ContinuousKernel(filter_frequency=0).frequencies(5)["position"] == 0
    by_name = ContinuousKernel(filter_frequency={"reflection": 0.5}).frequencies(2)
    assert by_name == {"position": pytest.approx(0.12), "rotation": 0.3, "reflection": 0.5}
