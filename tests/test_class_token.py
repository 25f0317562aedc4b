"""One learned token in front of the patch tokens."""

import pytest
import torch

from vitlib.class_token import ClassToken


@pytest.mark.parametrize("batch", [1, 7])
def test_the_token_comes_first_and_the_patches_stay(batch):
    """A token at the end, or one for each image of its own."""
    torch.manual_seed(0)
    layer = ClassToken(24)
    patches = torch.randn(batch, 5, 24)
    tokens = layer(patches)
    assert tokens.shape == (batch, 6, 24)
    assert torch.equal(tokens[:, 1:], patches)
    assert torch.equal(tokens[:, 0], layer.token[0].expand(batch, -1))


def test_one_parameter_that_starts_small_and_not_at_zero():
    torch.manual_seed(0)
    layer = ClassToken(4096)
    assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == {"token": (1, 1, 4096)}
    assert 0.018 < layer.token.std() < 0.022 and layer.token.abs().max() > 0.05


def test_every_image_teaches_the_token():
    """A token that was copied or detached: its gradient is the sum over the images."""
    layer = ClassToken(3)
    weight = torch.tensor([[1.0], [2.0], [4.0]])  # one for each image
    (layer(torch.zeros(3, 2, 3))[:, 0] * weight).sum().backward()
    assert layer.token.grad.flatten().tolist() == [7.0, 7.0, 7.0]


def test_images_do_not_share_memory():
    """The expanded token is one place in memory: writing to one image's tokens must not change another's."""
    layer = ClassToken(3)
    with torch.no_grad():
        tokens = layer(torch.zeros(2, 2, 3))
        tokens[0] += 1
        assert torch.equal(tokens[1, 0], layer.token[0, 0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tokens_in_another_type_than_the_parameter(dtype):
    """Under autocast the patch tokens are half precision: torch.cat would turn them back into float32."""
    assert ClassToken(3)(torch.zeros(2, 4, 3, dtype=dtype)).dtype == dtype
