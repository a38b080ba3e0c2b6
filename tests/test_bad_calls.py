"""Bad calls of everything public: each works, or says which argument is wrong."""

import copy
import inspect
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import small
import torch
from escnn import gspaces
from escnn import nn as enn
from escnn.nn import FieldType, R2Conv
from small import soft_regular_layer
from small_networks import network_of
from torch import nn

import escnn_relaxed
from escnn_relaxed import baselines, continuous, kernel, learning, measure, models, network, plots
from escnn_relaxed.measure import EquivarianceReport, ErrorRow, poses

mpl.use("Agg")

FIELDS = small.field_type("C4", "regular")
TRIVIAL = small.field_type("C4", "trivial")
NETWORK = network_of(soft_regular_layer(), soft_regular_layer(learn_relaxation=True)).eval()
STRICT = soft_regular_layer(relax={"rotation": 0.0})
PLACE = {"in_type": FIELDS, "out_type": FIELDS, "kernel_size": 3}
SUPPORT = {"width": 1.5, "n_rings": 2}
REPORT = EquivarianceReport("", (ErrorRow("rotation 90°", "rotation", 90.0, "exact", 0.1, 0.0),))

TURN = measure.RobustnessRow("rotation 90°", "rotation", 90.0, "exact", 0.5, 0.5, 0.1, 1.0)
ROBUSTNESS = measure.RobustnessReport(1.0, 2, (TURN,))
SWEEP = measure.SoftnessSweep((measure.SweepRow(0.0, 0.5, 0.4, 0.3, ROBUSTNESS),))


def images() -> torch.Tensor:
    return torch.ones(2, 4, 5, 5, dtype=torch.float64)


class Classes(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean(dim=(2, 3))


class SoftClasses(Classes):
    def __init__(self) -> None:
        super().__init__()
        self.layer = soft_regular_layer().eval()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(self.layer(FIELDS(images)).tensor)


FEATURES = gspaces.no_base_space(gspaces.rot2dOnR2(4).fibergroup).type(gspaces.rot2dOnR2(4).regular_repr)
VOLUMES = FieldType(gspaces.rot2dOnR3(4), [gspaces.rot2dOnR3(4).trivial_repr])

# Good arguments of everything public that takes some; the parameters that are not named have good defaults.
GOOD: dict[Callable[..., Any], dict[str, Any]] = {
    escnn_relaxed.RelaxedR2Conv: PLACE,
    escnn_relaxed.RelaxedR2ConvTransposed: PLACE,
    escnn_relaxed.RelaxedR3Conv: {**PLACE, "in_type": VOLUMES, "out_type": VOLUMES},
    escnn_relaxed.RelaxedR3ConvTransposed: {**PLACE, "in_type": VOLUMES, "out_type": VOLUMES},
    escnn_relaxed.RelaxedR2PointConv: {"in_type": FIELDS, "out_type": FIELDS, **SUPPORT},
    escnn_relaxed.RelaxedR3PointConv: {"in_type": VOLUMES, "out_type": VOLUMES, **SUPPORT},
    escnn_relaxed.RelaxedLinear: {"in_type": FEATURES, "out_type": FEATURES},
    escnn_relaxed.ContinuousKernel: {},
    escnn_relaxed.ReferenceField: {"in_type": FIELDS},
    baselines.PartialR2Conv: PLACE,
    baselines.ResidualR2Conv: PLACE,
    baselines.WeightedR2Conv: PLACE,
    escnn_relaxed.relax_network: {"network": R2Conv(FIELDS, FIELDS, 3)},
    escnn_relaxed.harden_network: {"network": NETWORK},
    escnn_relaxed.export_network: {"network": NETWORK},
    escnn_relaxed.to_escnn: {"network": escnn_relaxed.harden_network(NETWORK)},
    escnn_relaxed.SoftnessEvidence: {"network": NETWORK, "observations": 100},
    learning.frequency_penalty: {"network": NETWORK},
    escnn_relaxed.gate_softness: {"network": NETWORK, "gate": 0.5},
    escnn_relaxed.parameter_groups: {"network": NETWORK},
    learning.annealed_gate: {"progress": 0.5},
    learning.GammaPrior: {},
    learning.share_domain_frequency: {"network": NETWORK},
    learning.which_softness_helps: {
        "network": soft_regular_layer(),
        "train": lambda network: None,
        "losses": lambda network: torch.ones(4),
    },
    measure.assert_equivariant: {"module": STRICT, "data": images()},
    measure.equivariance_error: {"module": NETWORK, "data": images()},
    measure.relaxation_summary: {"network": NETWORK, "data": images()},
    measure.symmetry_profile: {"network": NETWORK},
    measure.robustness_report: {
        "classifier": Classes(),
        "data": images(),
        "labels": torch.zeros(2, dtype=torch.long),
        "in_type": FIELDS,
    },
    measure.softness_sweep: {
        "network": SoftClasses(),
        "data": images(),
        "labels": torch.zeros(2, dtype=torch.long),
        "gates": (0.0, 1.0),
        "in_type": FIELDS,
    },
    measure.pose_test: {"images": torch.rand(40, 1, 8, 8), "gspace": gspaces.flip2dOnR2()},
    measure.relaxation_scalars: {"network": NETWORK, "data": images()},
    plots.plot_equivariance_error: {"reports": REPORT},
    plots.plot_filter_over_positions: {"layer": soft_regular_layer(), "size": 7, "positions": 2},
    plots.plot_filters_over_rotations: {"layers": soft_regular_layer()},
    plots.plot_robustness: {"reports": ROBUSTNESS},
    plots.plot_softness_sweep: {"sweeps": SWEEP},
    plots.plot_softness: {"history": [{"softness/conv": 0.1}]},
    plots.plot_symmetry_profile: {"profiles": measure.symmetry_profile(NETWORK)},
}

# Methods of results that take arguments of the user's.
POSES = measure.PoseReport((measure.PoseRow("rotation", 0.5, 0.1, True),))
METHODS: dict[Callable[..., Any], dict[str, Any]] = {POSES.verdicts: {"helps": {"rotation": True}}}

# Classes of results, which this package fills and not users: documented, and in no __all__.
RESULTS = ("EquivarianceReport", "ErrorRow")
RESULTS += ("EvidenceRow", "EvidenceTable", "HardeningReport", "HardeningTrial", "LayerSummary", "RelaxationSummary")
RESULTS += ("LearnedGroup", "TrainingTrial", "TrainingTrials", "PoseReport", "PoseRow")
RESULTS += ("SoftnessSweep", "SweepRow", "ProfileRow", "SymmetryProfile", "RobustnessReport", "RobustnessRow")
ABSTRACT = {"Prior"}

BAD: dict[str, Any] = {
    **{"None": None, "word": "wrong", "no word": "", "bytes": b"1", "True": True, "complex": 1j},
    **{"zero": 0, "negative": -1, "three": 3, "half": 2.5, "below half": -0.5},
    **{"nan": float("nan"), "inf": float("inf"), "-inf": -float("inf"), "NumPy's nan": np.float32("nan")},
    **{"list": [], "list of None": [None], "words": ["wrong", "0"], "pair": (0, -3), "three numbers": (1, 2, 3)},
    **{"pair of nan": (float("nan"), 1.0), "table": {}, "wrong table": {"wrong": "wrong"}},
    "table of nan": {"0": float("nan"), "rotation": float("nan")},
    "object": object(),
    "class": nn.ReLU,
    "function": lambda: None,
    "module": nn.ReLU(),
    "empty network": nn.Sequential(),
    "tensor": torch.ones(2, 3),
    "number as tensor": torch.tensor(float("nan")),
    "whole tensor": torch.ones(2, 4, 5, 5, dtype=torch.int64),
    "other channels": torch.ones(2, 3, 5, 5, dtype=torch.float64),
    "no images": torch.ones(0, 4, 5, 5, dtype=torch.float64),
    "no pixels": torch.ones(2, 4, 0, 5, dtype=torch.float64),
    "other fields": TRIVIAL(torch.ones(2, 1, 5, 5, dtype=torch.float64)),
    "field type": TRIVIAL,
    "strict layer": enn.ReLU(FIELDS),
}


# Functions of the user's, whose errors are their own.
CALLED = {("relax_network", "where")}
CALLED |= {("which_softness_helps", name) for name in ("train", "losses")}
POINTS = ("RelaxedR2PointConv", "RelaxedR3PointConv")
for _layer in ("RelaxedR2Conv", "RelaxedR2ConvTransposed", "RelaxedR3Conv", "RelaxedR3ConvTransposed", *POINTS):
    CALLED |= {(_layer, "basis_filter"), (_layer, "frequencies_cutoff"), (_layer, "kernel")}
CALLED |= {(name, "output") for name in ("assert_equivariant", "equivariance_error", "robustness_report")}
CALLED.add(("annealed_gate", "schedule"))

# Bad values that end otherwise, and why.
NO_FIELDS = "it is the argument in_type that is missing"
ALLOWED: dict[tuple[str, str, str], str] = {
    ("assert_equivariant", "module", "module"): NO_FIELDS,
    ("assert_equivariant", "module", "empty network"): NO_FIELDS,
    ("assert_equivariant", "atol", "zero"): "rounding is above 0",
    ("equivariance_error", "module", "module"): NO_FIELDS,
    ("equivariance_error", "module", "empty network"): NO_FIELDS,
    ("robustness_report", "data", "other fields"): "the classifier's own error, whose forward takes plain tensors",
}


def names(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", str(function))


def failures(function: Callable[..., Any], good: dict[str, Any], count: int) -> Iterator[str]:
    """Calls with one bad argument each, of so many values, that end in an error which does not name it."""
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        for word in random.Random(f"{names(function)} {name}").sample(sorted(BAD), count):
            value = BAD[word]
            is_called = (names(function), name) in CALLED and callable(value)
            if is_called or (names(function), name, word) in ALLOWED:
                continue
            try:
                function(**{**good, name: value})
            except (TypeError, ValueError) as error:
                if name not in str(error):
                    yield f"{name}={word}: {type(error).__name__}: {str(error)[:90]}"
            except Exception as error:
                yield f"{name}={word}: {type(error).__name__}: {str(error)[:90]}"


@pytest.mark.parametrize("function", [*GOOD, *METHODS], ids=names)
def test_a_bad_argument_is_named(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(poses, "_STEPS", 2)
    count = 16
    if (inspect.isclass(function) and issubclass(function, nn.Module)) or function is learning.which_softness_helps:
        # Layers take long to build and have many arguments, and trials copy a network several times.
        count = 6
    good = copy.deepcopy({**GOOD, **METHODS}[function])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function(**good)
        found = list(failures(function, good, count))
        mpl.pyplot.close("all")
    assert not found, "\n".join(["", *found])


def test_everything_public_is_called() -> None:
    """What users can import from a room, which is more than it lists: classes of results are there, too."""
    modules = (escnn_relaxed, measure, learning, plots, baselines)
    listed = {name for module in modules for name in module.__all__ if callable(getattr(module, name))}
    found = {
        name
        for module in (escnn_relaxed, measure, learning)
        for name, value in vars(module).items()
        if name[0] != "_" and callable(value)
    }
    called = {names(function) for function in GOOD}
    assert listed == called | ABSTRACT
    assert found | listed == called.union(ABSTRACT, RESULTS)


def test_each_name_is_listed_once_and_there_are_few() -> None:
    modules = (escnn_relaxed, measure, learning, plots, baselines, continuous, kernel, models, network)
    listed = [name for module in modules for name in module.__all__]
    assert len(set(listed)) == len(listed) <= 55
    assert not set(listed).intersection(RESULTS)
