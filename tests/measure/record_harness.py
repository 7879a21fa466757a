"""Made-up records: the fields that every record has, and those of its kind."""


def stamped(kind: str, **fields) -> dict:
    """Return a record of a kind; `fields` replace the stamp's or follow it."""
    stamp = {"gpu": "NVIDIA H200", "driver": "1", "cuda": "12.9", "date": "2026-01-02"}
    return {"kind": kind, **stamp, "commit": "a", "kernels": {}} | fields
