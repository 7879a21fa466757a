"""One suite on several GPUs: what another memory or another clock changes."""

from pathlib import Path

from attn_course.measure import records


def times_on_each_gpu(
    suite: str, contestant: str, root: Path = records.RESULTS_FOLDER
) -> dict[str, dict[str, float]]:
    """Return label of a row -> GPU -> microseconds of a contestant, from each GPU's newest record.

    Rows that a GPU's record lacks, or in which the contestant did not run, are left out; so are
    suites that only one GPU has.
    """
    of_gpus = records.newest_of_each_gpu(f"bench_{suite}", root)
    if len(of_gpus) < 2:
        return {}
    times: dict[str, dict[str, float]] = {}
    for gpu, record in of_gpus.items():
        for row in record["rows"]:
            if timing := row["timings"].get(contestant):
                times.setdefault(row["label"], {})[gpu] = timing["median_us"]
    return {label: found for label, found in times.items() if len(found) == len(of_gpus)}
