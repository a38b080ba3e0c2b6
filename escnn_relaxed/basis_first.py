"""W (Σ_d φ f): pixels meet the few features of κ = W φ before its many weights (docs/performance.md)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .contraction import MOVED_VALUE, KernelContraction, PixelGradient, joined, rows_of
from .positional_kernel import PositionalKernel
from .tiled_integral import Tensors, Workspace

__all__ = ["BasisFirst"]


class BasisFirst(KernelContraction):
    """Pixels meet the steered features first, then the weights; the strict part is a convolution of its own."""

    @staticmethod
    def cost(kernel: PositionalKernel, batch: int) -> float:
        """Pixels meet features four times and then weights three times; both results are moved, pixels as gathered."""
        taps, groups = len(kernel.bank.grid.support_numbers), kernel.geometry.groups
        products, moved = 0.0, 4.0 * taps * groups * kernel.bank.steered_average.assembly.shape[1]
        for shape in kernel.bank.steered_average.pair_shapes():
            met = groups * shape.features * shape.out_size * shape.in_count
            products += 4 * met * taps * shape.in_size + 3 * met * shape.out_count / groups
            moved += 5 * met
        if kernel.strict is not None:
            products += 3 * kernel.strict.numel()
        return batch * (products + MOVED_VALUE * moved)

    def _factor_size(self) -> int:
        shapes = self._average.pair_shapes()
        return len(self._support) * sum(shape.features * shape.out_size * shape.in_size for shape in shapes)

    def _product_weights(self, features: Tensor) -> list[Tensor]:
        return [weights.to(features.dtype) for weights in self._average.plain_weights()]

    def factors(self, positions: Tensor, tensors: Tensors) -> list[Tensor]:
        """Steered features of each pair of blocks, (P, |A|·features, T·|B|)."""
        return [steered.flatten(3).flatten(1, 2) for steered in self._steered(positions, tensors)]

    def value(self, factors: Sequence[Tensor], tensors: Tensors, pixels: Tensor, workspace: Workspace | None) -> Tensor:
        """W (φ f), (P, C_out, batch)."""
        answers: dict[int, Tensor] = {}
        for (number, rows, columns), weights in zip(self._pairs, self._weights(tensors), strict=True):
            met = self._meet(factors[number], pixels[:, :, columns], weights, workspace)
            answer = torch.bmm(_matrix(weights).expand(len(met), -1, -1), met).view(len(pixels), -1, pixels.shape[-1])
            answers[rows.start] = answers[rows.start] + answer if rows.start in answers else answer
        return joined(answers)

    def gradients(
        self,
        factors: Sequence[Tensor],
        tensors: Tensors,
        pixels: Tensor,
        gradient: Tensor,
        workspace: Workspace,
        wants_pixels: bool,
    ) -> tuple[list[Tensor], dict[int, Tensor], Tensor | None]:
        """Gradients of the steered features, the weights and the pixels."""
        of_factors, of_weights = [], {}
        of_pixels = PixelGradient(pixels, workspace) if wants_pixels else None
        for (number, rows, columns), weights in zip(self._pairs, self._weights(tensors), strict=True):
            steered, read = factors[number], pixels[:, :, columns]
            met = self._meet(steered, read, weights, workspace)
            part = gradient[:, rows].reshape(len(met), len(weights), -1)
            matrix = _matrix(weights)
            # One product over all positions and the batch, not one for each position.
            of_matrix = met.transpose(0, 1).flatten(1) @ part.transpose(1, 2).flatten(0, 1)
            of_weights[1 + number] = of_matrix.view(weights.shape[2], weights.shape[1], -1).permute(2, 1, 0)
            of_met = _product("gradient", matrix.mT.expand(len(met), -1, -1), part, workspace)
            of_met = of_met.view(*steered.shape[:2], -1)
            of_factors.append(torch.bmm(of_met, rows_of(read, steered.shape[2]).mT))
            if of_pixels is not None:
                of_pixels.add(columns, steered.mT, of_met)
        return of_factors, of_weights, None if of_pixels is None else of_pixels.value

    def _meet(self, steered: Tensor, pixels: Tensor, weights: Tensor, workspace: Workspace | None) -> Tensor:
        """φ f: (P·|A|, features·fields_in, batch)."""
        met = _product("met", steered, rows_of(pixels, steered.shape[2]), workspace)
        return met.view(-1, weights.shape[2] * weights.shape[1], pixels.shape[-1])


def _matrix(weights: Tensor) -> Tensor:
    """Weights (fields_out, fields_in, features) as (fields_out, features·fields_in)."""
    return weights.transpose(1, 2).flatten(1)


def _product(name: str, left: Tensor, right: Tensor, workspace: Workspace | None) -> Tensor:
    """Left @ right, in the workspace if there is one."""
    if workspace is None:
        return torch.bmm(left, right)
    out = workspace.get(name, (len(left), left.shape[1], right.shape[2]), right)
    return torch.bmm(left, right, out=out)
