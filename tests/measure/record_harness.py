"""Made-up records: the fields that every record has, and those of its kind."""

NOT_TIMED = {"refused": {}, "skipped": {}, "wrong": {}}
DEVICE = {"name": "H200", "capability": [9, 0], "sm_count": 132, "shared_bytes": 232448}


def stamped(kind: str, **fields) -> dict:
    """Return a record of a kind; `fields` replace the stamp's or follow it."""
    stamp = {"gpu": "NVIDIA H200", "driver": "1", "cuda": "12.9", "date": "2026-01-02"}
    return {"kind": kind, **stamp, "commit": "a", "kernels": {}} | fields


def timing(median_us: float, name: str = "one", **fields) -> dict:
    """Return the timing of one candidate."""
    spread = {"median_us": median_us, "p20_us": 0.9 * median_us, "p80_us": 1.1 * median_us}
    how = {"name": name, "how": "graph", "samples": 5, "calls_a_sample": 1}
    return {**how, **spread, "relative_error": 1e-7, "tflops": 2.0, **fields}
