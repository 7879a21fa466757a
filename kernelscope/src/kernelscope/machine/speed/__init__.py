"""What makes a run faster and changes no result: loops that one lane runs alone."""

from .single import FEW, Single
