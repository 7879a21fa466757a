"""The claims of lesson 14, each with its experiment: `attn-course claims` tries them again."""

from .claim import Claim, NotMeasured, try_all, write
from .trials import CLAIMS
