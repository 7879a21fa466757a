"""Matrix instructions of a warp: fragment layouts, and how tensor cores add.

`forms` decodes mma and wmma opcodes, `layouts` says which lane holds which element, `tensor_core`
computes the products. `warpgroup` decodes wgmma, whose operands `descriptors` finds in shared
memory, and `blocks` computes its products.
"""

from .forms import Multiplication, Transfer, multiplication, transfer
from .layouts import Layout
from .tensor_core import SM_80, SM_90, Accumulation
from .warpgroup import GroupMultiplication, GroupProduct, group_multiplication
