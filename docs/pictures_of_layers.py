"""Pictures of what layers do."""

from __future__ import annotations

from collections.abc import Sequence

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv, RelaxedR3Conv, harden_network
from escnn_relaxed.baselines import LAYERS
from escnn_relaxed.measure import symmetry_profile
from escnn_relaxed.plots import plot_filters_over_rotations, plot_symmetry_profile

import torch
from escnn import gspaces, nn
from matplotlib import pyplot
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional

from drawing import FONT, show

# The picture of the paper's special cases.
PLANE = gspaces.trivialOnR2()
FIELD = PLANE.type(PLANE.trivial_repr)
SIDE = 8
FREQUENCIES = (0, 0.0625, 0.125, 0.25, 0.5, 1, 2, 4)
# What wants output weights this many times as large as the easiest map is left out.
LARGEST = 100


def lifting_layer(initial_softness: float, seed: int) -> RelaxedR2Conv:
    """A layer from an image to one regular field of C8."""
    torch.manual_seed(seed)
    gspace = gspaces.rot2dOnR2(8)
    return RelaxedR2Conv(
        nn.FieldType(gspace, [gspace.trivial_repr]),
        nn.FieldType(gspace, [gspace.regular_repr]),
        7,
        padding=3,
        bias=False,
        relax=("rotation",),
        initial_softness=initial_softness,
    )


def filters_over_rotations() -> Figure:
    """The filters of a strict and of a soft layer over the rotations of C8."""
    soft = lifting_layer(initial_softness=0.4, seed=3)
    strict = harden_network(nn.SequentialModule(soft))[0]
    return plot_filters_over_rotations({"strict": strict, "soft": soft}).figure


def parts_of_a_kernel() -> Figure:
    """K, its strict part and its soft part, over the rotations of C8."""
    layer = lifting_layer(initial_softness=0.4, seed=3)
    strict = harden_network(nn.SequentialModule(layer))[0]
    with torch.no_grad():
        whole, kept = layer.filter_bank(), strict.filter_bank()
    rows = {"K": whole, "strict part PK": kept, "soft part K − PK": whole - kept}
    figure, panels = pyplot.subplots(3, 8, figsize=(8, 3.3), layout="constrained")
    largest = float(whole.abs().max())
    for (label, bank), line in zip(rows.items(), panels, strict=True):
        for kernel, axes in zip(bank[:, 0], line, strict=True):
            show(axes, kernel, largest)
        line[0].set_ylabel(label.replace(" part ", " part\n"), fontsize=FONT)
    for number, axes in enumerate(panels[0]):
        axes.set_title(f"{45 * number}°", fontsize=FONT)
    figure.suptitle(
        f"softness s = ‖K − PK‖² / ‖K‖² = {layer.softness().item():.2f}", fontsize=FONT
    )
    return figure


def factors_of_a_filter() -> Figure:
    """The filters of a strict layer over C8, the factors of the soft part, and their products."""
    layer = lifting_layer(initial_softness=0.1, seed=3)
    with torch.no_grad():
        # Stronger at 90° than at 270°, and heavier at the top.
        layer.kernel.modulation.weights.copy_(torch.tensor([0.0, 1.8, 0.0, 1.5]))
        soft = layer.filter_bank()
        strict = harden_network(nn.SequentialModule(layer))[0].filter_bank()
        factors = layer.kernel.modulation(layer.kernel.frequency).view_as(soft) + 1
    rows = {"strict": strict, "× factor": factors, "= soft": soft}
    figure, panels = pyplot.subplots(3, 8, figsize=(5.6, 2.5), layout="constrained")
    largest = float(soft.abs().max())
    for (label, bank), line in zip(rows.items(), panels, strict=True):
        for kernel, axes in zip(bank[:, 0], line, strict=True):
            show(axes, kernel, largest)
            if label == "× factor":
                axes.imshow(kernel, cmap="Greys", vmin=0, vmax=2)
        line[0].set_ylabel(label, fontsize=FONT)
    for number, axes in enumerate(panels[0]):
        axes.set_title(f"{45 * number}°", fontsize=FONT)
    return figure


def ways_to_relax() -> Figure:
    """The strict and the soft part of each way to relax, over the rotations of C8, from equal strict weights."""
    gspace = gspaces.rot2dOnR2(8)
    image = nn.FieldType(gspace, [gspace.trivial_repr])
    field = nn.FieldType(gspace, [gspace.regular_repr])
    figure, panels = pyplot.subplots(4, 17, figsize=(8, 2.3), layout="constrained")
    weights = None
    for (word, layer_class), line in zip(LAYERS.items(), panels, strict=True):
        torch.manual_seed(3)
        options = {"relax": ("rotation",)} if word == "relaxed" else {}
        layer = layer_class(
            image, field, 7, padding=3, bias=False, initial_softness=0.3, **options
        )
        with torch.no_grad():
            if weights is None:
                weights = layer.weights.clone()
            layer.weights.copy_(weights)
            whole = layer.filter_bank()
            strict = harden_network(nn.SequentialModule(layer))[0].filter_bank()
        largest = float(strict.abs().max())
        line[8].axis("off")
        for part, axes in ((strict, line[:8]), (whole - strict, line[9:])):
            for kernel, one in zip(part[:, 0], axes, strict=True):
                show(one, kernel, largest)
        line[0].set_ylabel(
            word, fontsize=FONT, rotation=0, ha="right", va="center", labelpad=6
        )
    for number in range(8):
        for axes in (panels[0, number], panels[0, number + 9]):
            axes.set_title(f"{45 * number}°", fontsize=FONT - 3)
    for axes, words in (
        (panels[3, 3], "strict part PK"),
        (panels[3, 12], "soft part K − PK"),
    ):
        axes.set_xlabel(words, fontsize=FONT)
    return figure


def digit(size: int) -> Tensor:
    """A six of scikit-learn's, (1, 1, size, size)."""
    digits = load_digits()
    six = torch.from_numpy(digits.images[digits.target == 6][0] / 16).float()[
        None, None
    ]
    inner = functional.interpolate(
        six, size=size - 8, mode="bilinear", align_corners=True
    )
    return functional.pad(inner, [4] * 4)


def soft_translation() -> Figure:
    """The factor at each pixel of the output of a layer that is soft in translation, and the filter there."""
    torch.manual_seed(0)
    gspace = gspaces.trivialOnR2()
    fields = nn.FieldType(gspace, [gspace.trivial_repr])
    layer = RelaxedR2Conv(
        fields, fields, 7, padding=3, relax=("translation",), initial_softness=0.3
    )
    size = 8
    with torch.no_grad():
        # Stronger on the left than on the right, and at the top than at the bottom.
        layer.kernel.position_modulation.weights.copy_(
            torch.tensor([-2.2, 1.6, 0.0, 0.0])
        )
        banks = layer.filter_banks(size)[:, :, 0, 0]
        _, factors = layer.kernel.filters(layer.weights, (size, size))
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(7.4, 3.7), layout="constrained"
    )
    drawn = left.imshow(factors[0, 0], cmap="Greys", vmin=0, vmax=2)
    figure.colorbar(drawn, ax=left, fraction=0.046, pad=0.03, ticks=[0, 1, 2])
    left.set(xticks=[], yticks=[])
    left.set_title("factor at each pixel of the output", fontsize=FONT)
    grid = torch.cat(
        [
            torch.cat([functional.pad(bank, [1] * 4) for bank in row], dim=1)
            for row in banks
        ]
    )
    show(right, grid, float(banks.abs().max()))
    right.axis("off")
    right.set_title("filter at each pixel", fontsize=FONT)
    return figure


def layer_of_volumes(keep: str | None) -> RelaxedR3Conv:
    """A layer from a density to one regular field of the rotations of the cube."""
    torch.manual_seed(0)
    gspace = gspaces.octaOnR3()
    return RelaxedR3Conv(
        nn.FieldType(gspace, [gspace.trivial_repr]),
        nn.FieldType(gspace, [gspace.regular_repr]),
        3,
        keep=keep,
        initial_softness=0.1,
    )


def symmetry_profile_in_space() -> Figure:
    """How far each rotation of the cube moves a soft layer, and one that keeps the turns about z."""
    profiles = {
        "soft": symmetry_profile(layer_of_volumes(keep=None)),
        'soft, keep="SO(2)"': symmetry_profile(layer_of_volumes(keep="SO(2)")),
    }
    return plot_symmetry_profile(profiles).figure


def layer_of_positions(size: int, frequency: float, **options: object) -> RelaxedR2Conv:
    """A layer of T(2) whose domain coordinates have weights of unit size."""
    torch.manual_seed(0)
    found = RelaxedR2Conv(
        FIELD,
        FIELD,
        size,
        padding=size // 2,
        bias=False,
        relax={"translation": frequency},
        kernel=ContinuousKernel(**options),
    ).double()
    found.kernel.net.domain_weight.data.normal_()
    return found


def missed_variance(
    hidden_size: int, frequencies: Sequence[float] = FREQUENCIES
) -> list[float]:
    """The part of the variance of random weights at 8×8 pixels that a 1×1 kernel misses at each ω′, on average."""
    kernel = layer_of_positions(1, 1.0, hidden_size=hidden_size).kernel
    positions = kernel.domain_points.pixels((SIDE, SIDE))
    missed = []
    for frequency in frequencies:
        kernel.frequency.set(translation=float(frequency))
        with torch.no_grad():
            features = kernel.features(kernel.net, kernel.frequency, (), positions)
        values = features.flatten(1).mT
        least = torch.linalg.matrix_norm(values, 2) / LARGEST
        # Deviations from the mean, since the variance is theirs. Each direction takes an equal part of it.
        rank = torch.linalg.matrix_rank(values - values.mean(0), atol=least, rtol=0)
        missed.append(1 - rank.item() / (SIDE**2 - 1))
    return missed


def side_by_side(banks: Tensor) -> Tensor:
    """Kernels at each pixel (rows, columns, k, k) as one image."""
    if banks.shape[-1] > 1:
        banks = functional.pad(banks, [1] * 4)
    return banks.permute(0, 2, 1, 3).flatten(2).flatten(0, 1)


def special_cases() -> Figure:
    """The kernel at each pixel in the three special cases and between, and the missed variance against ω′."""
    product = torch.randn(SIDE, SIDE, 1, 1, generator=torch.Generator().manual_seed(3))
    soft, strict = layer_of_positions(5, 0.2), layer_of_positions(5, 0.0)
    pooling = layer_of_positions(
        5, 0.0, filter_frequency={"position": 0.0}, support="disk"
    )
    with torch.no_grad():
        panels = {
            "linear product\nlarge ω′": product,
            "between": soft.filter_banks(SIDE)[:, :, 0, 0],
            "convolution\nω′ = 0": strict.filter_bank().expand(SIDE, SIDE, 5, 5),
            "pooling\nω = ω′ = 0": pooling.filter_bank().expand(SIDE, SIDE, 5, 5),
        }
    figure = pyplot.figure(figsize=(8, 5), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=[1.15, 1])
    for axes, (title, banks) in zip(upper.subplots(1, 4), panels.items(), strict=True):
        image = side_by_side(banks)
        show(axes, image, float(image.abs().max()))
        axes.set_title(title, fontsize=FONT)
    axes = lower.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    for hidden_size, colour, marker in ((32, "0.6", "o"), (160, "0.1", "s")):
        label = f"{hidden_size} hidden values"
        missed = missed_variance(hidden_size)
        axes.plot(FREQUENCIES, missed, color=colour, marker=marker, label=label)
    # Logarithmic, but for 0.
    axes.set_xscale("symlog", linthresh=FREQUENCIES[1], base=2, linscale=1)
    axes.set_xticks(FREQUENCIES, [f"{frequency:g}" for frequency in FREQUENCIES])
    axes.set(ylim=(-0.04, 1.04), xlim=(-0.01, 1.1 * FREQUENCIES[-1]))
    axes.set_xlabel("ω′ of translation, logarithmic from 1/16 on", fontsize=FONT)
    axes.set_ylabel("variance missed", fontsize=FONT)
    axes.tick_params(labelsize=FONT)
    axes.legend(frameon=False, fontsize=FONT)
    return figure
