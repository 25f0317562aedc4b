"""One learned token that collects what the patches say (lesson 02; paper section 3.1)."""

import torch
from torch import nn


class ClassToken(nn.Module):
    """Put one learned vector, the same for every image, in front of the patch tokens.

    Shapes: (B, N, D) -> (B, N + 1, D); the class token is at index 0.
    Source: paper equation 1, x_class; BERT's [CLS] token; lesson 02.
    """

    def __init__(self, embed_dim):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        nn.init.trunc_normal_(self.token, std=0.02)

    def forward(self, tokens):
        batch_size = tokens.shape[0]
        class_token = self.token.expand(batch_size, -1, -1).to(tokens.dtype)  # (B, 1, D), copies nothing
        return torch.cat([class_token, tokens], dim=1)
