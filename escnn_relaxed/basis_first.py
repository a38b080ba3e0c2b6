"""W (Σ_d φ f): pixels meet the few features of κ = W φ before its many weights (docs/performance.md)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .contraction import (
    KernelContraction,
    joined,
    product,
    product_with_transposed,
    windows_of,
)
from .contraction_cost import MOVED_VALUE, PixelCost
from .positional_kernel import PositionalKernel
from .tiled_integral import Pixels, Tensors
from .workspace import Workspace

__all__ = ["BasisFirst"]


class BasisFirst(KernelContraction):
    """Pixels meet the steered features first, then the weights; the strict part is a convolution of its own."""

    @staticmethod
    def cost(kernel: PositionalKernel, batch: int) -> float:
        """Pixels meet features four times and then weights three times; both results are moved, pixels as they lie."""
        taps, groups = len(kernel.bank.grid.support_numbers), kernel.geometry.groups
        pixels = BasisFirst.pixel_cost(kernel, batch)
        products, moved = 0.0, 0.0
        for shape in kernel.bank.steered_average.pair_shapes():
            met = groups * shape.features * shape.out_size * shape.in_count
            products += 4 * met * taps * shape.in_size + 3 * met * shape.out_count / groups
            moved += 5 * met
        if kernel.strict is not None:
            products += 3 * kernel.strict.numel()
        return batch * (products + MOVED_VALUE * moved) + groups * (pixels.products + MOVED_VALUE * pixels.moved)

    @staticmethod
    def pixel_cost(kernel: PositionalKernel, batch: int) -> PixelCost:
        """Pixels meet features four times."""
        met = sum(
            shape.features * shape.out_size * shape.in_size * shape.in_count
            for shape in kernel.bank.steered_average.pair_shapes()
        )
        taps = len(kernel.bank.grid.support_numbers)
        return PixelCost.of(kernel, batch, taps, BasisFirst.factor_size_of(kernel), 4.0 * batch * met)

    @staticmethod
    def factor_size_of(kernel: PositionalKernel) -> int:
        """That of the steered features of all pairs of blocks."""
        shapes = kernel.bank.steered_average.pair_shapes()
        features = sum(shape.features * shape.out_size * shape.in_size for shape in shapes)
        return len(kernel.bank.grid.support_numbers) * features

    def _product_weights(self, features: Tensor) -> list[Tensor]:
        return [weights.to(features.dtype) for weights in self._average.plain_weights()]

    def factors(self, positions: Tensor, tensors: Tensors) -> list[Tensor]:
        """Steered features of each pair of blocks, (P, |A|·features, slots·|B|)."""
        steered = self._steered(positions, tensors)
        return [self._in_slots(values, self._support, dimension=3).flatten(3).flatten(1, 2) for values in steered]

    def value(self, factors: Sequence[Tensor], tensors: Tensors, pixels: Pixels, workspace: Workspace | None) -> Tensor:
        """W (φ f), (P, C_out, batch)."""
        answers: dict[int, Tensor] = {}
        for (number, rows, block), weights in zip(self._pairs, self._weights(tensors), strict=True):
            met = self._meet(factors[number], pixels[block], weights, workspace)
            answer = torch.bmm(_matrix(weights).expand(len(met), -1, -1), met).view(
                len(factors[number]), -1, met.shape[2]
            )
            answers[rows.start] = answers[rows.start] + answer if rows.start in answers else answer
        return joined(answers)

    def gradients(
        self,
        factors: Sequence[Tensor],
        tensors: Tensors,
        pixels: Pixels,
        gradient: Tensor,
        workspace: Workspace,
        of_copies: Sequence[Tensor] | None,
    ) -> tuple[list[Tensor], dict[int, Tensor]]:
        """Gradients of the steered features, the weights and the copies."""
        of_factors, of_weights = [], {}
        written: set[int] = set()
        for (number, rows, block), weights in zip(self._pairs, self._weights(tensors), strict=True):
            steered, matrix = factors[number], _matrix(weights)
            met = self._meet(steered, pixels[block], weights, workspace)
            part = gradient[:, rows].reshape(len(met), len(weights), -1)
            # One product over all positions and the batch, not one for each position.
            of_matrix = met.transpose(0, 1).flatten(1) @ part.transpose(1, 2).flatten(0, 1)
            of_weights[1 + number] = of_matrix.view(weights.shape[2], weights.shape[1], -1).permute(2, 1, 0)
            # What met holds is not needed any more.
            of_met = torch.bmm(matrix.mT.expand(len(met), -1, -1), part, out=met).view(*steered.shape[:2], -1)
            of_factors.append(product_with_transposed(of_met, windows_of(pixels[block], steered.shape[2])))
            if of_copies is not None:
                self.pixels.add_product(steered, of_met, of_copies[block], block not in written, workspace)
                written.add(block)
        return of_factors, of_weights

    def _meet(self, steered: Tensor, pixels: Sequence[Tensor], weights: Tensor, workspace: Workspace | None) -> Tensor:
        """φ f: (P·|A|, features·fields_in, batch)."""
        met = product("met", steered, windows_of(pixels, steered.shape[2]), workspace)
        return met.view(-1, weights.shape[2] * weights.shape[1], pixels[0].shape[-1])


def _matrix(weights: Tensor) -> Tensor:
    """Weights (fields_out, fields_in, features) as (fields_out, features·fields_in)."""
    return weights.transpose(1, 2).flatten(1)
