"""Claims of five documents about attention kernels: their experiments, numbers and verdicts."""

from kernelscope.lazy import lazy

_NAMES = {
    "claim": "FAILS HOLDS HOLDS_WHEN SOURCES VERDICTS Claim Evidence NotMeasured Tried",
    "trials": "CLAIMS",
    "book": "CHOICE ask evidence_table read show try_all verdict_table write",
}
__all__, __getattr__, __dir__ = lazy(__name__, _NAMES)
