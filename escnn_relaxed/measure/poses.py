"""Test of equal poses: a classifier that distinguishes images from rotated copies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from escnn.gspaces import GSpace, GSpace2D, GSpace3D
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from ..checks import FIBER_SUBGROUPS, check_bool, check_integer, check_mapping, check_positive
from .batches import Batches, images_of, in_order
from .isometry import Isometry, PixelGrid, isometries_of, moved, turn_or_flip
from .progress import progress
from .reports import Report

# Training of one classifier: pairs of a batch, steps and learning rate.
_BATCH, _STEPS, _RATE = 32, 400, 3e-3
_FEWEST = 40
# The longest sides that images and volumes are looked at with: 4,096 pixels of either.
_MOST_PIXELS = {2: 64, 3: 16}
# Images that are made smaller or looked at together.
_CHUNK = 256
# Whether poses are equal and whether softness helps → what follows.
_VERDICTS = {
    (True, False): "strict is right",
    (True, True): "soft: the labels need it",
    (False, False): "strict costs less than these images can show",
    (False, True): "soft is better on images like these; these data cannot say whether turned images keep their labels",
    (True, None): "train longer: the network still learns",
    (False, None): "train longer: the network still learns",
}


@dataclass(frozen=True)
class PoseRow:
    """Accuracy of a classifier that distinguishes images from rotated or mirrored ones.

    Attributes:
        subgroup: ``"rotation"`` or ``"reflection"``.
        told_apart: part of the pairs of an image and its copy in which it finds the image; 0.5 is chance, 1 is always.
        error: standard error of that part, that of half of the images, since the two halves depend on each other.
        equal: whether it is not above 0.5 by a few errors, so that images and copies look alike.

    Example:
        >>> PoseRow("rotation", 0.98, 0.004, False).cells()
        ('rotation', '98.0 ± 0.4 %', 'unequal')
    """

    subgroup: str
    told_apart: float
    error: float
    equal: bool

    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        part = f"{100 * self.told_apart:.1f} ± {100 * self.error:.1f} %"
        return self.subgroup, part, "equal" if self.equal else "unequal"


@dataclass(frozen=True)
class PoseReport(Report):
    """A row for each subgroup; its text is a table.

    Attributes:
        rows: of rotation and of reflection, where the gspace has them.

    Example:
        >>> print(PoseReport((PoseRow("rotation", 0.98, 0.004, False),)))
        subgroup  told from copies  poses
        rotation  98.0 ± 0.4 %      unequal
    """

    rows: tuple[PoseRow, ...]
    _header = ("subgroup", "told from copies", "poses")

    @property
    def equal(self) -> dict[str, bool]:
        """A dict from subgroup to True if its poses are equal."""
        return {row.subgroup: row.equal for row in self.rows}

    def verdicts(self, helps: Mapping[str, bool | None]) -> dict[str, str]:
        """Return for each subgroup what the poses and the need for softness mean together, as text.

        A symmetry can be broken in two ways. The labels may need it: sixes and turned sixes are two classes. Or only
        the poses are unequal: digits that are upright in every image. A soft network may use the second and then fails
        on rotated copies. No data of one pose can tell the two apart, and the verdict says so.

        Args:
            helps: subgroup → whether softness helps, as :func:`~escnn_relaxed.which_softness_helps` finds,
                None where it says to train longer.

        Returns:
            Subgroup → verdict, of the subgroups that both know.

        Raises:
            TypeError: for what is no mapping to True, False and None.
            ValueError: where no subgroup is in both.

        Example:
            >>> PoseReport((PoseRow("rotation", 0.5, 0.01, True),)).verdicts({"rotation": True})
            {'rotation': 'soft: the labels need it'}
        """
        known = check_mapping("helps", helps, "what which_softness_helps(…).helps gave")
        if not all(isinstance(value, bool | None) for value in known.values()):
            raise TypeError(f"helps must say True or False of each subgroup, or None to train longer, got {helps!r}")
        both = {name: _VERDICTS[equal, known[name]] for name, equal in self.equal.items() if name in known}
        if not both:
            raise ValueError(f"helps must have one of the subgroups {list(self.equal)}, got {list(known)}")
        return both


# It trains, wherever it is called.
@torch.inference_mode(mode=False)
def pose_test(
    images: Tensor | Batches,
    gspace: GSpace,
    *,
    sources: Tensor | None = None,
    errors: float = 3.0,
    seed: int = 0,
    verbose: bool = True,
) -> PoseReport:
    """Test whether images come in all poses of a group equally often, from the images alone.

    A small plain network learns to say which of two is the image and which its copy, moved by an element that is drawn
    for each pair. Half of the images train it and the other half are tried, then the halves change their parts. Where
    images come in all poses alike, an image and its copy could be exchanged, and the network is right in half of the
    pairs. Only elements that map pixels to pixels are drawn, so that nothing is interpolated: quarter turns, and the
    mirror that the gspace names. A group with other turns beside these is tested by these alone.

    Images of more than 64×64 pixels are averaged over areas to 64×64, volumes to 16×16×16, so that a thousand of one
    channel take 16 MB, whatever their size. What smaller images do not show is not seen. A thousand images of 28×28
    pixels take about 15 seconds of one core for each subgroup.

    Args:
        images: (n, channels, H, W), or volumes (n, channels, D, H, W), with equal sides; channels do not turn, as
            colours. 40 images at least, better a thousand. Or a DataLoader of such batches, with labels or without.
        gspace: of the network that is to be used.
        sources: a number for each image, (n,), that says which film, patient or scene it is of. Images of one source go
            into one half and count as one. Without it each image must be of its own: near copies in both halves would
            be recognised, and any poses called unequal. 40 sources at least.
        errors: how many standard errors above one half poses count as unequal.
        seed: of what is drawn. torch's generator stays as it is.
        verbose: whether a terminal shows the progress.

    Returns:
        A :class:`PoseReport`, a row for each subgroup.

    Raises:
        TypeError: for images that are no floating-point tensor, or another gspace.
        ValueError: for too few images, unequal sides, values that are not finite, or a gspace without elements that map
            pixels to pixels.

    Example:
        >>> from escnn import gspaces
        >>> upper_half = (torch.arange(9) < 4).float().view(9, 1)
        >>> images = torch.randn(100, 1, 9, 9) + upper_half  # all with a bright upper half
        >>> pose_test(images, gspaces.flipRot2dOnR2(4)).equal
        {'rotation': False, 'reflection': True}
    """
    choices = _exact_elements(gspace)
    check_positive("errors", errors)
    check_bool("verbose", verbose)
    if sources is not None and isinstance(images, DataLoader):
        in_order("sources", images)
    with torch.random.fork_rng(devices=[]):  # a loader draws a number each time that it is gone through
        small = _small(images, gspace)
    members = _members(small, sources)
    rows, steps = [], 2 * len(choices) * _STEPS
    devices = [small.device] if small.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.enable_grad():
        torch.manual_seed(check_integer("seed", seed, 0))
        with progress("pose_test", steps, verbose) as advance:
            for name, elements in choices.items():
                right = _right_pairs(small, _orders(elements, tuple(small.shape[2:])), members, advance)
                right = members.bincount(right) / members.bincount()
                part = right.mean().item()
                # What the halves have by chance alike helps both networks, so that only a half counts.
                count = len(right) / 2
                error = math.sqrt(max(part * (1 - part), 1 / count) / count)
                rows.append(PoseRow(name, part, error, part - errors * error <= 1 / 2))
    return PoseReport(tuple(rows))


def _exact_elements(gspace: GSpace) -> dict[str, list[Isometry]]:
    """Return the exact rotations and mirrors of the gspace, by subgroup."""
    if not isinstance(gspace, (GSpace2D, GSpace3D)):
        raise TypeError(f"gspace must be one of the plane or of space, got {gspace!r}")
    every = [isometry for isometry in isometries_of(gspace, None) if isometry.keeps_axes]
    mirror = getattr(gspace.fibergroup, "reflection", None)
    if mirror is not None and turn_or_flip(gspace, mirror).keeps_axes:
        mirrors = [turn_or_flip(gspace, mirror)]
    else:
        mirrors = [isometry for isometry in every if isometry.subgroup == "reflection"]
    turns = [isometry for isometry in every if isometry.subgroup == "rotation"]
    choices = zip(FIBER_SUBGROUPS, (turns, mirrors), strict=True)
    by_subgroup = {name: elements for name, elements in choices if elements}
    if not by_subgroup:
        raise ValueError(f"gspace must have a quarter turn, a half turn or a mirror of the pixels, got {gspace.name}")
    return by_subgroup


def _small(images: Tensor | Batches, gspace: GSpace) -> Tensor:
    """Return checked images, downsampled and normalised to mean 0 and variance 1, in single precision."""
    if isinstance(images, DataLoader):
        batches = [_smaller(images_of("images", batch), gspace) for batch in images]
        if len({(part.shape[1:], part.device) for part in batches}) > 1:
            raise ValueError(f"images must have equal shapes, got {[tuple(part.shape[1:]) for part in batches]}")
        small = torch.cat(batches) if batches else torch.zeros(0)
    else:
        small = _smaller(images, gspace)
    if len(small) < _FEWEST:
        raise ValueError(f"images must be {_FEWEST} or more, got {len(small)}")
    deviation, mean = torch.std_mean(small)
    return small.sub_(mean).div_(deviation.clamp_min(1e-12))


def _smaller(images: Tensor, gspace: GSpace) -> Tensor:
    """Return a copy of checked images; large ones are averaged over areas."""
    if not isinstance(images, Tensor) or not images.is_floating_point():
        raise TypeError(f"images must be a floating-point tensor, got {getattr(images, 'dtype', type(images))}")
    sides = images.shape[2:]
    if len(sides) != gspace.dimensionality or len(set(sides)) != 1:
        shape = "(n, channels, H, W)" if gspace.dimensionality == 2 else "(n, channels, D, H, W)"
        raise ValueError(f"images must be {shape} with equal sides, got {tuple(images.shape)}")
    # The areas of turned and mirrored images are the turned and mirrored areas.
    average = functional.adaptive_avg_pool2d if len(sides) == 2 else functional.adaptive_avg_pool3d
    side, small = min(sides[0], _MOST_PIXELS[len(sides)]), list[Tensor]()
    for part in images.detach().split(_CHUNK):
        if not part.isfinite().all():
            raise ValueError("images must be finite, got NaN or infinite values")
        part = part.float()
        small.append(average(part, side) if side < sides[0] else part)
    return torch.cat(small)


def _members(images: Tensor, sources: Tensor | None) -> Tensor:
    """Return the index of the source of each image, from 0; without sources each image is its own."""
    if sources is None:
        return torch.arange(len(images), device=images.device)
    if not isinstance(sources, Tensor):
        raise TypeError(f"sources must be a tensor with a number for each image, got {type(sources).__name__}")
    if sources.shape != images.shape[:1]:
        raise ValueError(f"sources must have a number for each of {len(images)} images, got {tuple(sources.shape)}")
    names, members = sources.to(images.device).unique(return_inverse=True)
    if len(names) < _FEWEST:
        raise ValueError(f"sources must be {_FEWEST} or more, got {len(names)}")
    return members


def _right_pairs(images: Tensor, orders: Tensor, members: Tensor, advance: Callable[[], None]) -> Tensor:
    """Return for each held-out image whether a classifier distinguishes it from a copy, ½ for ties."""
    right = images.new_zeros(len(images))
    count = int(members.max()) + 1
    # Sources in a random order, the images of each beside each other.
    places = torch.randperm(count, device="cpu").to(images.device).argsort()[members]
    in_first = int((places < (count + 1) // 2).sum())
    first, second = places.argsort(stable=True).split([in_first, len(images) - in_first])
    for trained, tried in ((first, second), (second, first)):
        score = _trained_score(images, trained, orders, advance)
        with torch.no_grad():
            for part in tried.split(_CHUNK):
                ahead = score(images[part]) - score(_copies(images[part], orders))
                right[part] = (1 + ahead.sign().flatten()) / 2
    return right


def _trained_score(images: Tensor, trained: Tensor, orders: Tensor, advance: Callable[[], None]) -> nn.Module:
    """Return a network trained to score some images above their copies, in eval mode."""
    network = _score_network(images).to(images)
    optimiser = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, _RATE, total_steps=_STEPS)
    for _ in range(_STEPS):
        batch = images[trained[torch.randint(len(trained), (_BATCH,)).to(trained.device)]]
        scores = network(torch.cat([batch, _copies(batch, orders)]))
        loss = functional.softplus(scores[_BATCH:] - scores[:_BATCH]).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        advance()
    return network.eval()


def _score_network(images: Tensor) -> nn.Sequential:
    """Return a small plain network from images to one score each."""
    is_plane, channels = images.dim() == 4, [images.shape[1], 8, 16, 32]
    convolution, norm = (nn.Conv2d, nn.BatchNorm2d) if is_plane else (nn.Conv3d, nn.BatchNorm3d)
    pool, spread = (nn.AvgPool2d, nn.AdaptiveAvgPool2d) if is_plane else (nn.AvgPool3d, nn.AdaptiveAvgPool3d)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(channels):
        layers += [convolution(before, after, 3, padding=1), norm(after), nn.ReLU(), pool(2, ceil_mode=True)]
    cells = 2 ** (images.dim() - 2)
    return nn.Sequential(*layers, spread(2), nn.Flatten(), nn.Linear(channels[-1] * cells, 1))


def _orders(elements: list[Isometry], size: tuple[int, ...]) -> Tensor:
    """Return the permutation of pixels of each element, (elements, pixels)."""
    grid, numbers = PixelGrid.of_image(*size), torch.arange(math.prod(size)).view(1, 1, *size)
    return torch.stack([moved(numbers, grid, grid, element, on_torus=False)[0].flatten() for element in elements])


def _copies(images: Tensor, orders: Tensor) -> Tensor:
    """Return each image transformed by a random element, given the permutations of all."""
    chosen = torch.randint(len(orders), (len(images),))
    order = orders[chosen].to(images.device).unsqueeze(1).expand(-1, images.shape[1], -1)
    return images.flatten(2).gather(2, order).view_as(images)
