"""The common start of every test of this suite.

The process that starts the others imports this file, and they wait for it: so what takes long to import is imported
where it is used.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    import torch

# Imports and tests make many objects, and leave little to collect.
gc.set_threshold(100_000, 20, 20)

# Constructing field types takes escnn a varying time, so no deadline; examples are fixed so that a run repeats.
settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("search", parent=settings.get_profile("suite"), derandomize=False, max_examples=1000)
settings.register_profile("quick", parent=settings.get_profile("suite"), max_examples=20)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


# Files whose tests are of what stands around the package.
TOOLS = (
    *("test_benchmark", "test_experiments"),
    *("test_docs", "test_notebooks", "test_site"),
    "test_examples",
    "test_import_order",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="one case of each test that is neither slow nor of the tools")


def pytest_configure(config: pytest.Config) -> None:
    """Before the tests are imported, which ask for a share of a profile's examples."""
    if config.getoption("--quick"):
        settings.load_profile("quick")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of the tools; with --quick, keep one case of each test that is not slow, or all of a whole one."""
    for item in items:
        if item.path.name.startswith(TOOLS):
            item.add_marker("tools")
    if not config.getoption("--quick"):
        return
    first: dict[str, pytest.Item] = {}
    for item in items:
        if not any(item.get_closest_marker(name) for name in ("slow", "tools")):
            name = item.nodeid if item.get_closest_marker("whole") else item.nodeid.partition("[")[0]
            first.setdefault(name, item)
    kept = set(first.values())
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = first.values()


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Small tensors are slower with two, and xdist runs a process per core."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Every test draws the same numbers, whatever ran before it. Without a GPU torch is slow to seed those it knows."""
    import torch

    (torch if torch.cuda.is_available() else torch.default_generator).manual_seed(0)


@pytest.fixture(autouse=True)
def no_cast_bases() -> None:
    """Escnn shares bases between layers: ``.double()`` on an R2Conv of one test would break those of the next."""
    import torch
    from escnn.nn.modules.basismanager.basisexpansion_singleblock import _stored_filters

    def is_cast(basis: torch.Tensor) -> bool:
        return basis.dtype != torch.float32 or not basis.is_cpu

    # Keys are looked up for cast bases alone: escnn takes a tenth of a second to hash those of all that it keeps.
    for key in [key for key, block in _stored_filters.items() if is_cast(block._buffers["sampled_basis"])]:
        del _stored_filters[key]


@pytest.fixture
def bases_that_are_overwritten() -> Iterator[None]:
    """Escnn shares bases between layers, and a state of this test writes others over them: later tests build anew."""
    from escnn.nn.modules.basismanager.basisexpansion_singleblock import _stored_filters

    yield
    _stored_filters.clear()


@pytest.fixture(params=["cpu", "another"])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The CPU, and a device whose tensors it does not mix with."""
    import torch
    from pretend_device import another_device

    if request.param == "cpu":
        yield torch.device("cpu")
        return
    with another_device() as device:
        yield device


@pytest.fixture
def warnings_not_yet_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings that are given once per process come up again in this test."""
    monkeypatch.setattr("escnn_relaxed.checks._warned", set())


@pytest.fixture
def float64_default() -> Iterator[None]:
    """Torch builds in float64 during this test."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
