"""Muon, the optimizer of the blocks' matrices (lesson 07)."""

import torch


class Muon(torch.optim.Optimizer):
    """Steps along the momentum with all its directions made about equally long.

    The gradient of a matrix is mostly a few strong directions. Muon keeps the directions and evens out their
    strength, so that the rare ones are learned as well. `torch.optim.Muon` takes the matrices one by one, in
    bfloat16, which many CPUs only emulate, slowly. Here all of one shape, one from each block, are multiplied
    at once, in the precision of the gradient. But for that rounding the numbers are the same.
    `params` are matrices, (rows, columns); ValueError for others.
    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks".
    """

    def __init__(self, params, lr, weight_decay=0.0, momentum=0.95):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.ndim != 2:
                    raise ValueError(
                        f"Muon is for matrices; got a parameter of shape {tuple(parameter.shape)}."
                    )

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            by_shape = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for (rows, columns), parameters in by_shape.items():
                directions = orthogonalized(torch.stack([self.update_of(p, group) for p in parameters]))
                # Tall matrices take longer steps: their columns, in which the layer writes, are longer.
                size = group["lr"] * max(1, rows / columns) ** 0.5
                for parameter, direction in zip(parameters, directions):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(direction, alpha=-size)

    def update_of(self, parameter, group):
        """The gradient, averaged over the last steps, with a look ahead (Nesterov's momentum)."""
        state, gradient = self.state[parameter], parameter.grad
        if not state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        average = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
        return gradient.lerp(average, group["momentum"])


def orthogonalized(matrices):
    """Matrices with the same singular vectors, and all singular values near 1 (mostly 0.7 to 1.2).

    Newton-Schulz iteration: an odd polynomial of a matrix is that polynomial of its singular values. This
    one, applied five times, brings every number from 0.01 to 1 near 1, with nothing but matrix products.
    Shapes: (B, rows, columns) -> the same.
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)  # no singular value above 1
    for _ in range(5):
        gram = x @ x.mT
        gram = torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315)  # -4.775 gram + 2.0315 gram²
        x = torch.baddbmm(x, gram, x, beta=3.4445)  # 3.4445 x + gram x
    return x.mT if tall else x
