"""One suite on several GPUs: what another memory or another clock changes."""

from pathlib import Path

from attn_course.measure import records


def times_on_each_gpu(
    suite: str, contestant: str, root: Path = records.RESULTS_FOLDER
) -> dict[str, dict[str, float]]:
    """Return label of a row -> GPU -> microseconds of a contestant, from each GPU's newest record.

    A row has the GPUs on which the contestant ran; rows of fewer than two GPUs are left out.
    """
    times: dict[str, dict[str, float]] = {}
    for gpu, record in records.newest_of_each_gpu(f"bench_{suite}", root).items():
        for row in record["rows"]:
            if timing := row["timings"].get(contestant):
                times.setdefault(row["label"], {})[gpu] = timing["median_us"]
    return {label: found for label, found in times.items() if len(found) > 1}
