"""`attn-course claims`: claims of other documents, tried by experiment, with their verdicts."""

from kernelscope.cli.arguments import printer, write_json
from kernelscope.errors import InputError, did_you_mean

from attn_course.lessons.claims import evidence_table, read, verdict_table
from attn_course.measure.records import RecordError

from .claim import record_of, try_all, write
from .trials import CLAIMS


def add(parsers) -> None:
    parser = parsers.add_parser(
        "claims",
        help="try the claims of lesson 14 again, and compare with results/claims.json",
        description="Runs the experiment of each claim: counts of the simulator, arithmetic, and "
        "records of a GPU. Its numbers give the verdict by a rule. Exit status 1 where a verdict "
        "is not the one of results/claims.json, or a record is missing.",
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="claims to try, and to show with their numbers"
    )
    parser.add_argument("--write", action="store_true", help="write results/claims.json")


def execute(arguments) -> int:
    """0 where every verdict is the stored one, or has been written; else 1.

    Raises:
        ValueError: an unknown claim, or --write with names.  RecordError: no results/claims.json.
    """
    chosen = {one.name: one for one in CLAIMS}
    unknown = [name for name in arguments.names if name not in chosen]
    if unknown:
        near = did_you_mean(unknown[0], chosen)
        raise InputError(f"no claim {unknown[0]!r}{near}; the claims are: {', '.join(chosen)}")
    if arguments.write and arguments.names:
        raise InputError("--write writes all claims: name none")
    names = arguments.names or list(chosen)
    tried, missing = try_all(chosen[name] for name in names)
    try:
        stored = read()
    except RecordError:
        if not arguments.write:  # which is the way out
            raise
        stored = {}
    changed = [one.name for one in tried if one.verdict != stored_verdict(stored, one.name)]
    path = write(tried) if arguments.write and not missing else None
    say = printer(arguments.json)
    if not arguments.names:
        say(verdict_table(tried))
    for one in tried if arguments.names else ():
        say(f"{one.name}: {one.said}\n{evidence_table(one.evidence)}")
        say(f"verdict: {one.verdict}. {one.why}\n")
    for name, reason in missing.items():
        say(f"{name}: not tried: {reason}")
    if not changed and not missing:
        say("every verdict is that of results/claims.json")
        if not arguments.names:
            say("attn-course claims NAME shows the numbers of a claim")
    verdicts = {one.name: one.verdict for one in tried}
    for name in changed:
        says = "said" if path else "says"
        before = stored_verdict(stored, name)
        say(f"{name}: results/claims.json {says} {before!r}, and now it is {verdicts[name]!r}")
    if arguments.write:
        say(f"written to {path}" if path else "not written: a claim could not be tried")
    write_json(arguments.json, {"claims": list(map(record_of, tried)), "missing": missing})
    return 1 if missing or changed and not path else 0


def stored_verdict(stored: dict, name: str) -> str:
    return stored[name].verdict if name in stored else "nothing"
