"""Observers of a simulated launch: counters, the sanitizer, the tracer, and small observers.

They read the events of `events` with their view of the machine, and parsed PTX.
"""

from ..lazy import lazy

_NAMES = {
    "counters.atomics": "is_loop",
    "counters.counters": "Counters DESCRIPTIONS NAMES",
    "counters.traffic": "Lanes count_wavefronts",
    "sanitizer.sanitizer": "Sanitizer",
    "sanitizer.findings": "Finding",
    "tracer.tracer": "Tracer",
    "tracer.recording": "Recording",
    "tracer.stepper": "fragment packed_fragment",
    "footprints": "Footprints LineLookups",
    "reads": "ReadCounts",
    "warp_streams": "InFlight WarpWork",
}
__all__, __getattr__, __dir__ = lazy(__name__, _NAMES)
