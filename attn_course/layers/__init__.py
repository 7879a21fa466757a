"""The layers of a transformer: layer norm, MLP, the block, and a Swin stage of windows."""

from kernelscope.lazy import lazy

_NAMES = {
    "operations": "bias_gelu layer_norm mlp",
    "transformer": "TransformerBlock",
    "swin": "SwinStage",
    "launches": "LayerPlan",
    "products": "PRECISIONS tf32_high",
    "steps": "LAYERS",
}
__all__, __getattr__, __dir__ = lazy(__name__, _NAMES)
