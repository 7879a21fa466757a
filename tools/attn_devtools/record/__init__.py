"""Records of a GPU: `attn-course record NAME` takes one and keeps it under results/."""
