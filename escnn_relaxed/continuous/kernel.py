"""The paper's kernel: ``ContinuousKernel`` holds options and builds, ``SteeredKernel`` is the kernel K that is built.

One continuous kernel κ makes the strict and the soft part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ..checks import check_choice, check_integer, check_not_negative, warn_once
from ..group.elements import is_of_space
from ..group.fields import FieldStructure
from ..kernel.config import KernelConfig, WeightGroup
from ..kernel.domain_frequency import DEFAULT_FREQUENCY, DomainFrequency
from ..kernel.kernel import Kernel
from .coordinates import DomainPoints, FilterPoints
from .domain import ContinuousDomain
from .nets import FourierKernel, KernelNet
from .start import few_of, gain, start_weights
from .steering import SteeredAverage, sees_relative_element

# ω of the relative element. In log coordinates a kernel is smooth on the circle at whole numbers.
_RELATIVE = {"rotation": 0.3, "reflection": 1.0}
_RELATIVE_IN_LOG = {"rotation": 1.0, "reflection": 1.0}
# ω of the position for each pixel of the radius. A strict part learns more slowly with a lower one
# (docs/concepts/mathematics.md, "The paper's kernel").
_BANDWIDTH_PER_PIXEL = 0.12


class SteeredKernel(Kernel):
    """The kernel that a ``ContinuousKernel`` builds, K of equation (2): the mean over the group of κ, steered.

    Its mean over the domain is the strict part.
    """

    default_softness = 0.01

    def __init__(self, config: KernelConfig, options: ContinuousKernel) -> None:
        super().__init__(config)
        self.public_name = "ContinuousKernel"
        config.check_action(self.public_name)
        if config.in_type.gspace.dimensionality == 0 and is_of_space(config.domain.gspace.fibergroup):
            raise ValueError(
                f"kernel must be another for linear maps of {config.domain.gspace.name}, got a ContinuousKernel: its "
                f"strict part would be equivariant to the rotations of the sample alone"
            )
        if is_of_space(config.domain.gspace.fibergroup):
            # Measured with smooth volumes, kernels of 5×5×5 and fields up to degree 2; the default kernel has 1 %.
            warn_once(
                f"a ContinuousKernel on {config.domain.gspace.fibergroup.name} is strict for the sampled rotations "
                f"alone: others may move the outputs by 20 to 40 % with samples=24 and by 3 to 17 % with samples=96; "
                f"the default kernel is strict for all"
            )
        ignored = [name for name, value in config.basis_arguments.items() if value is not None and value is not False]
        if ignored:
            warn_once(
                f"{', '.join(sorted(ignored))}: ignored, because these only shape the basis of escnn's R2Conv; a layer "
                f"without kernel=ContinuousKernel() uses them"
            )
        if options.sampling != "grid":
            _check_can_be_drawn(config)
        self.options, self.angle, self.draws_for_itself = options, 0.0, True
        domain = ContinuousDomain(config.domain, options.rotation_coordinates)
        frequencies = options.frequencies(config.kernel_size)
        sample = domain.sample
        inputs, outputs = (
            FieldStructure(fields.representations, sample) for fields in (config.in_type, config.out_type)
        )
        sees_relative = any(sees_relative_element(b, a) for a in outputs.blocks for b in inputs.blocks)
        self.filter_points = FilterPoints(config, domain, frequencies, sees_relative, options.support)
        self.domain_points = DomainPoints(domain, tuple(config.relax))
        self.net = self._new_net()
        self.steered_average = SteeredAverage(inputs, outputs, sample)
        self.frequency = DomainFrequency(config.relax, config.learn_relaxation, config.domain.dimension)
        self.relaxed_subgroups = self.frequency.names
        # The features, and the bank.
        elements, count = self.filter_points.taps.shape[:2]
        self.values_at_a_pixel += elements * count * len(config.taps) * (options.hidden_size + 1)
        if domain.rotations_in_a_turn > 2:  # any function of two rotations is resolved
            formula = "N/2" if domain.is_log else "N/4π, above which features hold harmonics over N/2,"
            reason = f"{formula} for N = {domain.rotations_in_a_turn:g} rotations in a turn"
            self.frequency.limits["rotation"] = (domain.resolved_frequency, reason)
        if domain.is_log and self.net.can_be_periodic:  # another net jumps at every frequency, as its docstring says
            self._warn_of_jumps(frequencies["rotation"] if sees_relative else 1.0)
        for name, value in self.frequency.values().items():
            self.frequency.warn("relax", name, value.tolist())

    def _new_net(self) -> KernelNet:
        """Return a newly drawn kernel net for the coordinates of this kernel."""
        columns = self.filter_points.columns, self.domain_points.columns
        build: Callable[..., KernelNet] = self.options.net
        net = build(*map(len, columns), self.options.hidden_size)
        if self.options.rotation_coordinates == "log":
            net.make_periodic(*([n for n, name in enumerate(names) if name == "rotation"] for names in columns))
        return net

    def _warn_of_jumps(self, of_relative: float) -> None:
        """Warn once where K is not smooth on the circle, now or once ω′ is another: log coordinates want whole ones."""
        jumps = (
            "rotation_coordinates='log': the kernel jumps where the angle does, at half a turn, unless ω and ω′ of "
            "rotation are whole numbers (rotation_coordinates='circle' is smooth at every frequency)"
        )
        if of_relative % 1:
            warn_once(f"{jumps}, got ω = {of_relative:g}")
        if "rotation" in self.frequency.names:
            self.frequency.jumps["rotation"] = jumps
            value = self.frequency.values()["rotation"].item()
            if self.frequency.learn and not (of_relative % 1 or value % 1):
                warn_once(
                    "rotation_coordinates='log': a learned ω′ leaves the whole numbers, so the kernel jumps where the "
                    "angle does, at half a turn; rotation_coordinates='circle' is smooth at every frequency"
                )

    def forward(self, weights: Tensor | None, averaged: Sequence[str] = ()) -> Tensor:
        """Return K where it is the same at all positions, (C_out, C_in, T)."""
        return self._banks(self.features(self.net, self.frequency, averaged)).squeeze(0)

    def at_pixels(
        self, weights: Tensor | None, size: tuple[int, ...], averaged: Sequence[str], start: int, end: int
    ) -> Tensor:
        """Return K at some pixels of an image, (pixels, C_out, C_in, T)."""
        positions = self.domain_points.pixels(size)[:, start:end]
        return self._banks(self.features(self.net, self.frequency, averaged, positions))

    def features(
        self, net: KernelNet, frequency: DomainFrequency, averaged: Sequence[str] = (), positions: Tensor | None = None
    ) -> Tensor:
        """Return the features of κ: φ times the window, and the window, (J + 1, M, P, R, T)."""
        window = self.filter_points.window
        hidden = net.domain_mean(
            self.filter_points.taps.flatten(1, 2), self.domain_points(frequency, averaged, positions)
        )
        values = hidden.unflatten(-1, (-1, len(window))) * window
        return torch.cat([values, window.expand_as(values[:1])])

    def _banks(self, features: Tensor) -> Tensor:
        """Return filter banks (P, C_out, C_in, T) of features (J + 1, M, P, R, T)."""
        banks: Tensor = self.steered_average(features)
        return banks

    @torch.no_grad()
    def start(self, weights: Tensor | None, softness: float) -> None:
        """Draw the output weights; set the initial softness and the scale of the output."""
        if self.relaxed_subgroups and not softness:
            raise ValueError(
                "initial_softness must be above 0 with kernel=ContinuousKernel(), where the same weights make the "
                "strict part; relax={'rotation': 0.0} starts strict"
            )
        # A layer that may become soft later starts alike, with the default ω′ in place of 0.
        own = {name: value.tolist() for name, value in self.frequency.values().items()}
        frequencies = {name: [value or DEFAULT_FREQUENCY for value in values] for name, values in own.items()}
        frequency = DomainFrequency(frequencies, axes=self.config.domain.dimension)

        def features(net: KernelNet, averaged: Sequence[str]) -> Tensor:
            positions = None
            if "translation" in frequency.names:
                positions = self.domain_points.pixels(self.config.domain.reference_size)
            return self.features(net, frequency, averaged, positions)

        dtype, wanted = self.filter_points.taps.dtype, softness if self.relaxed_subgroups else None
        self.double()  # so that no rounding is scaled up to a kernel
        start_weights(self.steered_average, self.net, self._new_net, features, wanted)
        self.to(dtype)
        bank = self._banks(self.features(self.net, frequency)).squeeze(0)
        scale = self._gain(bank)
        for pair in self.steered_average.block_pairs:
            pair.weights.div_(scale)

    def _gain(self, bank: Tensor) -> float:
        """Return the gain of a bank on feature maps like those behind strict continuous layers of the same options."""
        # A linear map is like a convolution of one tap.
        fields, gspace = self.config.in_type.representations, self.config.domain.gspace
        few, sides = (
            self.config.in_type.gspace.type(*few_of(fields)[0]),
            [self.config.kernel_size] * gspace.dimensionality,
        )
        config = replace(self.config, in_type=few, out_type=few, relax={}, learn_relaxation=False, basis_arguments={})
        strict = SteeredKernel(config, replace(self.options, sampling="grid"))
        strict.to(self.filter_points.taps)

        def draw_bank() -> Tensor:
            features = strict.features(strict.net, strict.frequency)
            average = strict.steered_average
            average.initialize(features, average.count_directions(features))
            return strict(None).unflatten(-1, sides)

        return gain(bank.unflatten(-1, sides), fields, self.config.out_type.representations, gspace, draw_bank)

    @property
    def settings(self) -> Hashable:  # type: ignore[override]
        """The rotation of the samples."""
        return self.angle

    def draw(self) -> None:
        """Draw the rotation of the samples, unless :func:`draw_samples` draws it."""
        if self.draws_for_itself:
            self.turn(_drawn_angle())

    @property
    def is_random(self) -> bool:  # type: ignore[override]
        """True if samples are random in this mode."""
        return self.options.sampling == "random" and self.training

    def turn(self, angle: float) -> None:
        """Sample the group at the elements g r, r the rotation by an angle, g on the grid."""
        if angle != self.angle:
            self.angle = angle
            self.filter_points.turn(angle)
            self.domain_points.turn(angle)
            for pair in self.steered_average.block_pairs:
                pair.turn(angle)

    def train(self, mode: bool = True) -> Self:
        """Set the mode; in eval mode the samples are those of the grid."""
        super().train(mode)
        if not self.is_random:
            self.turn(0.0)
        return self

    def weight_groups(self) -> list[WeightGroup]:
        """Return a learned ω′ of each subgroup, else the weights through which the domain coordinates enter."""
        if self.frequency.learn:
            own = dict(self.frequency.named_parameters())
            return [WeightGroup(frozenset({name}), [(value, torch.arange(len(value)))]) for name, value in own.items()]
        weight, columns = self.net.domain_weight, self.domain_points.columns
        if weight is None:
            return []
        numbers = torch.arange(weight.numel()).view_as(weight)
        if not self.net.has_weights_by_coordinate:
            return [WeightGroup(frozenset(columns), [(weight, numbers.flatten())], needs_all=True)]
        chosen = {name: [column == name for column in columns] for name in dict.fromkeys(columns)}
        return [WeightGroup(frozenset({name}), [(weight, numbers[:, mask].flatten())]) for name, mask in chosen.items()]

    def soft_parameters(self) -> Iterator[nn.Parameter]:
        """Yield ω′ where it is learned, and the weights of the domain coordinates; all others make the strict part."""
        yield from self.frequency.parameters()
        if self.net.domain_weight is not None:
            yield self.net.domain_weight

    def describe(self) -> dict[str, Any]:
        """Return the settings under which the tensors of a state dict define the kernel."""
        config, options = self.config, self.options
        return {
            **super().describe(),
            "strict kernel": "continuous",
            "samples": config.domain.samples if config.domain.gspace.fibergroup.continuous else None,
            "kernel net": [options.net.state_name or options.net.__name__, options.hidden_size],
            "dilation": config.dilation,
            "support": options.support,
            "filter frequency": options.frequencies(config.kernel_size),
            "rotation coordinates": options.rotation_coordinates,
        }


def _check_can_be_drawn(config: KernelConfig) -> None:
    """Raise a ``ValueError`` unless fields can be read as samples of a continuous group of the plane."""
    gspace = config.domain.gspace
    fields = (*config.in_type.representations, *config.out_type.representations)
    is_sampled = all(field.is_trivial() or field.name == "regular" for field in fields)
    if config.domain.dimension != 2 or not (gspace.fibergroup.continuous or (not gspace.flips_order and is_sampled)):
        raise ValueError(
            f"sampling must be 'grid' here: random samples are those of SO(2) and O(2), or of regular and trivial "
            f"fields of C_N, got {gspace.name} with {sorted({field.name for field in fields})}"
        )


def _drawn_angle() -> float:
    """Return an angle in [0, 2π), drawn from torch's generator, so that seeds and checkpoints repeat it."""
    return 2 * math.pi * torch.rand((), device="cpu").item()


@dataclass(frozen=True)
class ContinuousKernel:
    r"""The options of the paper's kernel, which a layer builds from them: one continuous κ for strict and soft part.

    .. math::
        K(d; x) = \operatorname{mean}_g \rho_{\mathrm{out}}(g)\,
            \kappa(g^{-1}d;\, \omega' \odot a(g, x))\, \rho_{\mathrm{in}}(g)^{-1}

    The number of its weights does not depend on the size of the group or of the kernel. The layer has no weights of
    ``R2Conv``: states of ``R2Conv`` do not load, and escnn's arguments that shape its basis are ignored.

    Args:
        net: the class of the kernel net, called as ``net(filter_dimension, domain_dimension, hidden_size)``:
            :class:`~escnn_relaxed.continuous.FourierKernel`, :class:`~escnn_relaxed.continuous.SirenKernel` or another
            subclass of :class:`~escnn_relaxed.continuous.KernelNet`.
        hidden_size: J, the number of hidden values of the kernel net. Default: 32, the paper's.
        filter_frequency: ω of ``"position"``, ``"rotation"``, ``"reflection"``, or one number for the position.
            Default: 0.12 for each pixel of the radius k/2. With 0.05 in its place kernels of 5×5 and 7×7 turn
            about as well between pixels as those of ``R2Conv``. What a lower ω loses in training was not measured.
        rotation_coordinates: ``"circle"``: a rotation is (cos θ, sin θ), which is smooth and may learn its ω′.
            ``"log"``: it is its angle over 2π, the paper's form, where ω of the relative rotation is 1 by default. A
            ``FourierKernel`` is then smooth on the circle at whole numbers alone; a warning says where it is not. A
            ``SirenKernel``, whose weights W are learned, jumps at half a turn.
        support: ``"smooth"``: a disk whose edge falls over one pixel. ``"disk"``: the paper's hard disk.
        sampling: the elements by which SO(2) or O(2) is sampled. ``"grid"``: N equal steps. ``"random"``: the grid
            turned by an angle that each forward of training draws, as in the paper. Regular fields of C_N are then
            samples of SO(2), so all layers of a network must turn alike: call
            :func:`~escnn_relaxed.continuous.draw_samples` before each forward, as
            :class:`~escnn_relaxed.models.RelaxedResNet` does.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for a value that has no meaning.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import ContinuousKernel, RelaxedR2Conv
        >>> from escnn_relaxed.continuous import SirenKernel
        >>> image = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).trivial_repr])
        >>> kernel = ContinuousKernel(net=SirenKernel, hidden_size=16)
        >>> layer = RelaxedR2Conv(image, image, 5, relax={"translation": 0.5}, kernel=kernel)
    """

    net: type[KernelNet] = FourierKernel
    hidden_size: int = 32
    filter_frequency: Mapping[str, float] | float | None = None
    rotation_coordinates: str = "circle"
    support: str = "smooth"
    sampling: str = "grid"

    def __post_init__(self) -> None:
        if not (isinstance(self.net, type) and issubclass(self.net, KernelNet)):
            raise TypeError(f"net must be a subclass of escnn_relaxed.continuous.KernelNet, got {self.net!r}")
        check_integer("hidden_size", self.hidden_size, 1)
        check_choice("rotation_coordinates", self.rotation_coordinates, ("circle", "log"))
        check_choice("support", self.support, ("smooth", "disk"))
        check_choice("sampling", self.sampling, ("grid", "random"))
        _given_frequencies(self.filter_frequency)

    def __call__(self, config: KernelConfig) -> SteeredKernel:
        """Return a kernel with these options, which is not started. A layer calls this with its own configuration."""
        return SteeredKernel(config, self)

    @property
    def default_frequency(self) -> dict[str, float]:
        """ω′ of rotation where ``relax`` gives none: in log coordinates 1, a wave that is smooth on the circle."""
        return {"rotation": 1.0} if self.rotation_coordinates == "log" else {}

    def frequencies(self, kernel_size: int) -> dict[str, float]:
        """Return ω of each filter coordinate, for kernels of k taps along each axis."""
        position = _BANDWIDTH_PER_PIXEL * kernel_size / 2
        relative = _RELATIVE_IN_LOG if self.rotation_coordinates == "log" else _RELATIVE
        return {"position": position, **relative, **_given_frequencies(self.filter_frequency)}


def _given_frequencies(value: Mapping[str, float] | float | None) -> dict[str, float]:
    """Return the frequencies that are given, by the name of their coordinate."""
    if value is None:
        return {}
    given = value if isinstance(value, Mapping) else {"position": value}
    known = ["position", *_RELATIVE]
    for name in given:
        if name not in known:
            raise ValueError(f"filter_frequency: unknown coordinate {name!r}; known are {known}")
    words = "filter_frequency: the frequency of"
    return {name: check_not_negative(f"{words} {name!r}", number) for name, number in given.items()}


def draw_samples(network: nn.Module) -> None:
    """Draw one rotation of the samples for all layers of a network that have random ones in its present mode.

    Call it before each forward. A layer that no call has reached draws a rotation for itself, which is right between
    fields of irreps alone. Layers keep the rotation until the next call, so that activation checkpointing repeats it.

    Args:
        network: any module, with layers of ``ContinuousKernel(sampling="random")``.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import ContinuousKernel, RelaxedR2Conv
        >>> fields = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).regular_repr)
        >>> kernel = ContinuousKernel(sampling="random")
        >>> layers = [RelaxedR2Conv(fields, fields, 5, kernel=kernel) for _ in range(2)]
        >>> draw_samples(nn.SequentialModule(*layers))
        >>> layers[0].kernel.angle == layers[1].kernel.angle != 0
        True
    """
    kernels = [module for module in network.modules() if isinstance(module, SteeredKernel) and module.is_random]
    angle = _drawn_angle() if kernels else 0.0
    for kernel in kernels:
        kernel.draws_for_itself = False
        kernel.turn(angle)
