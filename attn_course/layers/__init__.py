"""The layers of a transformer: layer norm, MLP, their gradients, the block, a Swin stage."""

from kernelscope.lazy import lazy

_NAMES = {
    "operations": "bias_gelu layer_norm mlp",
    "gradients": "bias_gelu_backward layer_norm_backward mlp_backward",
    "transformer": "TransformerBlock",
    "swin": "SwinStage",
    "launches": "LayerPlan",
    "products": "PRECISIONS tf32_high",
    "steps": "FORWARD LAYERS",
}
__all__, __getattr__, __dir__ = lazy(__name__, _NAMES)
