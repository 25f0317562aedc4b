"""Muon against PyTorch's, and against the singular values that it promises."""

import pytest
import torch

from vitlib.muon import Muon, orthogonalized


def some_matrices():
    """Square, wide and tall ones; several of one shape, and one shape alone."""
    rows, columns = torch.randint(3, 40, (2,)).tolist()
    shapes = [(rows, columns), (columns, rows), (rows, columns), (rows, rows), (3 * rows, columns), (1, rows)]
    return [torch.randn(shape) for shape in shapes]


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_same_numbers_as_torch(weight_decay):
    """Fails where matrices of one shape are mixed up, or momentum, decay or the step of tall ones differ."""
    start = some_matrices()
    ours, theirs = ([torch.nn.Parameter(matrix.clone()) for matrix in start] for _ in range(2))
    optimizers = [
        Muon(ours, lr=0.05, weight_decay=weight_decay),
        torch.optim.Muon(theirs, lr=0.05, weight_decay=weight_decay),
    ]
    for _ in range(4):
        for one, other in zip(ours, theirs):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for one, other, before in zip(ours, theirs, start):
        way = (other - before).norm()
        assert way > 0 and (one - other).norm() < 0.05 * way  # PyTorch's rounds to bfloat16: up to 0.03


def test_a_matrix_without_gradient_stays():
    first, second = (torch.nn.Parameter(torch.randn(4, 5)) for _ in range(2))
    first.grad = torch.randn(4, 5)
    before = first.detach().clone(), second.detach().clone()
    Muon([first, second], lr=0.1).step()
    assert not torch.equal(first, before[0]) and torch.equal(second, before[1])


def test_no_gradient_at_all_is_no_step():
    """0 / 0, and a weight of NaN: a part that the loss does not reach has a gradient of zeros."""
    weight = torch.nn.Parameter(torch.ones(4, 5))
    weight.grad = torch.zeros(4, 5)
    Muon([weight], lr=0.1).step()
    assert torch.equal(weight, torch.ones(4, 5))


def test_directions_stay_and_lengths_even_out():
    """Fails where the iteration is another one: singular vectors must stay, values come near 1."""
    left, _ = torch.linalg.qr(torch.randn(24, 24))
    right, _ = torch.linalg.qr(torch.randn(24, 24))
    values = torch.logspace(0, -1.5, 24)
    made = orthogonalized((left * values @ right.T)[None])[0]
    in_those_directions = left.T @ made @ right
    assert ((in_those_directions.diagonal() > 0.6) & (in_those_directions.diagonal() < 1.3)).all()
    assert (in_those_directions - in_those_directions.diagonal().diag()).abs().max() < 0.1


def test_a_vector_is_refused():
    with pytest.raises(ValueError, match=r"shape \(7,\)"):
        Muon([torch.nn.Parameter(torch.randn(7))], lr=0.1)
