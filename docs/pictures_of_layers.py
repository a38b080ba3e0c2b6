"""Pictures of what layers do, and of which to take."""

from __future__ import annotations

import torch
from escnn import gspaces, nn
from matplotlib import pyplot
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional

from drawing import FONT, SOFT, arrow, box, new_figure, show
from escnn_relaxed import RelaxedR2Conv, harden_network

__all__ = [
    "a_turned_image",
    "parts_of_a_kernel",
    "regions_of_an_image",
    "turned_features",
    "which_subgroup",
]


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
        relax={"rotation": 0.5},
        initial_softness=initial_softness,
    )


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


def turned_features() -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Of a soft layer and of the same one hardened, (H, W) each, the channels of the group pooled.

    Features of an image, features of it turned by 90° and turned back, and their difference.
    """
    layer = lifting_layer(initial_softness=0.3, seed=1)
    image, regular = layer.in_type, layer.out_type
    soft = nn.SequentialModule(layer, nn.ReLU(regular), nn.GroupPooling(regular)).eval()
    images, found = digit(33), {}
    for label, network in {"strict": harden_network(soft), "soft": soft}.items():
        with torch.no_grad():
            features = network(image(images)).tensor[0, 0]
            of_turned = (
                network(image(images.rot90(1, (2, 3)))).tensor[0, 0].rot90(-1, (0, 1))
            )
        found[label] = features, of_turned, of_turned - features
    return found


def a_turned_image() -> Figure:
    """Features of an image and of its turned copy, of a soft layer and of its strict part."""
    titles = (
        "features\nof the image",
        "of the image turned\nby 90°, turned back",
        "difference",
    )
    figure, panels = pyplot.subplots(2, 4, figsize=(8, 4.3), layout="constrained")
    for line, (label, features) in zip(panels, turned_features().items(), strict=True):
        line[0].imshow(digit(33)[0, 0], cmap="Greys")
        line[0].set_ylabel(label, fontsize=FONT + 1)
        for axes, part in zip(line[1:], features, strict=True):
            show(axes, part, float(features[0].abs().max()))
        size = float(features[2].norm() / features[0].norm())
        line[3].set_xlabel(
            "0 to rounding" if size < 1e-5 else f"{100 * size:.0f} % of the features",
            fontsize=FONT,
        )
        line[0].set(xticks=[], yticks=[])
    for axes, title in zip(panels[0], ("image", *titles), strict=True):
        axes.set_title(title, fontsize=FONT)
    return figure


def regions_of_an_image() -> Figure:
    """The 4 × 4 regions of a layer that is soft in translation over an image, and the filter of each."""
    torch.manual_seed(0)
    gspace = gspaces.trivialOnR2()
    fields = nn.FieldType(gspace, [gspace.trivial_repr])
    layer = RelaxedR2Conv(
        fields, fields, 7, padding=3, relax={"translation": 0.4}, initial_softness=0.6
    )
    size = 32
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(7.4, 3.7), layout="constrained"
    )
    left.imshow(digit(size)[0, 0], cmap="Greys", extent=(0, size, size, 0))
    for border in range(0, size + 1, size // 4):
        left.axvline(border, color=SOFT, linewidth=1.4)
        left.axhline(border, color=SOFT, linewidth=1.4)
    left.set(xticks=[], yticks=[], xlim=(0, size), ylim=(size, 0))
    left.set_title("a filter bank in each of 4 × 4 regions", fontsize=FONT)
    right.set_title("the filter in each of them", fontsize=FONT)
    with torch.no_grad():
        banks = layer.region_banks((size, size))[:, :, 0, 0]
    grid = torch.cat(
        [
            torch.cat([functional.pad(bank, [1] * 4) for bank in row], dim=1)
            for row in banks
        ]
    )
    show(right, grid, float(banks.abs().max()))
    right.axis("off")
    return figure


def which_subgroup() -> Figure:
    """A decision tree: what do the data break?"""
    figure, axes = new_figure(7.4, 4.6)
    questions = (
        (
            "Do turned images mean something else?\n(a 6 and a 9; a sky that is above)",
            "rotation",
        ),
        (
            "Do mirrored images mean something else?\n(a b and a d; the side of a face)",
            "reflection",
        ),
        (
            "Does it matter where something is?\n(centred objects; the ground below)",
            "translation",
        ),
    )
    for number, (question, subgroup) in enumerate(questions):
        y = 3 - number
        box(axes, (1.5, y), question, "0.95")
        box(
            axes,
            (5.0, y),
            f'relax={{"{subgroup}": 0.25}}',
            "#fbe6d6",
            family="monospace",
        )
        arrow(axes, (3.1, y), (3.7, y), "yes")
        arrow(axes, (1.5, y - 0.27), (1.5, y - 0.73), "no")
    box(axes, (1.5, 0), "R2Conv, or relax=None", "#d6e6f4", family="monospace")
    words = "More than one yes: name them all.\nIn doubt: the default, soft in rotation\nand reflection."
    axes.text(5.0, 0, words, ha="center", va="center", fontsize=FONT)
    axes.set(xlim=(-0.2, 6.5), ylim=(-0.4, 3.4))
    axes.axis("off")
    return figure
