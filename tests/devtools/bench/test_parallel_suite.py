"""The suite `parallel` with threads on the simulator in the place of processes and GPUs."""

import queue
import threading
import types

import numpy as np
import pytest
from kernelscope.contest import TimingError
from kernelscope.ranks import run_ranks
from record_harness import stamped

from attn_course.cli import main
from attn_course.measure import candidates, records
from attn_course.measure.candidates import BaselineRefuses
from attn_devtools.bench import (
    PARALLEL_SUITES,
    command,
    parallel,
    parallel_trials,
    parallel_workers,
    problems,
    suite,
)
from attn_devtools.bench.parallel import ParallelRow, ParallelSuite, RankWork
from attn_devtools.bench.parallel_workers import TeamFailed
from attn_devtools.record import command as record
from attn_devtools.record import schema

SUITE = PARALLEL_SUITES["parallel"]
ROW = ParallelRow((1, 4, 12, 8), False, "float32", 2)


MILLISECONDS = {"one_gpu": 8, "ring": 6, "heads": 7, "ring_compute": 5, "ring_exchange": 4}


class FixedClock:
    """Runs a launch; it takes what MILLISECONDS says of `name`, whether of one call or of two."""

    name = ""

    def time_us(self, launch):
        launch()
        return 1000.0 * MILLISECONDS[self.name]

    def synchronize(self):
        pass


class ThreadTeam(parallel_workers.RankTeam):
    """The same questions, answered by ranks that are threads."""

    def __init__(self, kind, size):
        self.asked, self.answers = ([queue.Queue() for _ in range(size)] for _ in range(2))
        self.thread = threading.Thread(target=run_ranks, args=(self.work, size, "simulator"))
        self.thread.start()

    def work(self, rank):
        worker = parallel_workers.Ours(rank, FixedClock())
        while asked := self.asked[rank.rank].get():
            if asked[0] == "time_us":
                worker.clock.name = asked[1][0]
            self.answers[rank.rank].put(getattr(worker, asked[0])(*asked[1]))

    def ask(self, name, *arguments, timeout_s=0):
        for one in self.asked:
            one.put((name, arguments))
        return [one.get(timeout=60) for one in self.answers]

    def end(self):
        for one in self.asked:
            one.put(None)
        self.thread.join()


@pytest.fixture
def threads(monkeypatch):
    monkeypatch.setattr(parallel, "RankTeam", ThreadTeam)
    monkeypatch.setattr(parallel, "TURNS", 1)
    monkeypatch.setattr(parallel, "MOST_CALLS", 2)
    return ParallelSuite("parallel", "small ones", (ROW,))


@pytest.mark.turns(79)
@pytest.mark.system
def test_a_row_and_its_record(threads, tmp_path, capsys):
    with threads.started():
        found = threads.run_row(ROW, parallel.OURS, iterations=1, warmup=0)
    assert found["wrong"] == found["refused"] == {} and set(found["timings"]) == set(parallel.OURS)
    assert set(found["ratios"]) == {"ring", "heads"} and not threads.teams
    assert {one["calls_a_sample"] for one in found["timings"].values()} == {2}
    medians = {name: one["median_us"] for name, one in found["timings"].items()}
    assert medians == {"one_gpu": 4000.0, "ring": 3000.0, "heads": 3500.0}
    side = found["exchange"]
    assert side["bytes"] == 2 * 2 * 6 * 8 * 4 and side["waited_us"] == 0.0  # the simulator's
    assert [side[f"{of}_us"] for of in ("both", "compute", "exchange")] == [3000.0, 2500.0, 2000.0]
    assert side["hidden"] == 0.75
    fields = {"suite": "parallel", "about": "all", "torch": "", "clocks": {}, "ranks": 2}
    fields |= {"nccl": 22807, "link": [{"bytes": 1 << 26, "gb_s": 268.0}]}
    fields["checked"] = parallel_trials.checked((ROW,), 2, ThreadTeam)
    sides = {"ring_us": 1100.0, "ring_compute_us": 1000.0, "ring_exchange_us": 600.0}
    row = {"label": ROW.label, "nccl_blocks": 8, "grid": "a block a tile", "link_gb_s": 201.0}
    fields |= {
        "by_blocks": [row | sides],
        "lost_rank": {"seconds": 0.3, "said": "rank 1 has ended"},
    }
    taken = stamped("bench_parallel", rows=[found], **fields)
    assert problems(taken) == []
    schema.write(taken, "bench_parallel", tmp_path)
    assert main.main(["bench", "parallel", "--recorded", "--results", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "268 at 64 MiB" in said and "1,4,12,8 float32 kv_heads 2" in said
    assert "0 3.000 2.500 2.000 0.000 100 % 75 %" in said
    assert "8 a block a tile 1.100 1.000 0.600 201" in said
    assert "0.3 s after the last rank was killed: rank 1 has ended" in said
    wrong = [{"label": "x", "name": "ring", "relative_error": 1.0, "agrees": False}]
    assert problems(taken | {"checked": wrong}) == ["x: ring is wrong"]
    assert problems(taken | {"checked": "Ours 1 has ended"}) == ["checked: Ours 1 has ended"]


@pytest.mark.turns(29)
@pytest.mark.system
def test_a_wrong_output_is_no_candidate(threads, monkeypatch):
    monkeypatch.setattr(parallel_workers.Ours, "expected", lambda one: np.zeros((1, 3, 12, 8)))
    with threads.started(), pytest.raises(TimingError, match="no candidate is left"):
        threads.run_row(ROW, parallel.OURS, iterations=1, warmup=0)


@pytest.mark.turns(23)
@pytest.mark.system
def test_rows_of_ranks_come_in_the_order_of_the_sequence(threads):
    with threads.started():
        team = threads.teams[0]
        team.ask("prepare", *ROW.arguments)
        outputs = []
        for name in parallel.OURS:
            work = RankWork(name, team, ROW)
            work.try_call()
            outputs.append(work.output())
            work.poison()
            assert np.isnan(work.output()).all()
    for one in outputs[1:]:
        assert np.abs(one - outputs[0]).max() < 1e-5


def test_a_whole_run_names_its_kernels_and_has_the_trials(threads, monkeypatch):
    def lost(row, ranks):
        raise TeamFailed("Mortal 0: no answer\nand its trace")

    long = ParallelRow((1, 4, parallel.LONG, 8))
    longer = ParallelRow((1, 4, 4 * parallel.LONG, 8))  # too long for trials
    run = ParallelSuite("parallel", "small ones", (ROW, long, longer), checks=(ROW,))
    monkeypatch.setattr(parallel, "gpu_count", lambda: 2)
    monkeypatch.setattr(suite, "require_gpu", lambda: None)
    monkeypatch.setattr(parallel, "pick", lambda *_: "flash_mma")
    monkeypatch.setattr(parallel_workers.Ours, "facts", lambda one: {"nccl": 22807, "link": []})
    monkeypatch.setattr(parallel, "checked", lambda rows, ranks: [*rows, ranks])
    monkeypatch.setattr(parallel, "by_blocks", lambda rows, ranks: iter([*rows, ranks]))
    monkeypatch.setattr(parallel, "lost_rank", lost)
    monkeypatch.setattr(ParallelSuite, "run_row", lambda *_, **how: {"label": ROW.label})
    monkeypatch.setattr(records, "new_record", lambda kind, files, **of: {"files": files, **of})
    found = run.run(parallel.OURS)
    assert found["files"] == ["14_flash_mma", "31_join_parts"] and not run.teams
    assert (found["ranks"], found["nccl"], len(found["rows"])) == (2, 22807, 3)
    assert found["checked"] == [ROW, 2] and found["by_blocks"] == [ROW, long, 2]
    assert found["lost_rank"] == "Mortal 0: no answer"
    assert "checked" not in run.run(parallel.OURS, quick=True)


class Timed:
    """A team of two ranks that says how long each call and wait of theirs takes."""

    broken = False

    def __init__(self, us=None):
        self.us, self.asked = us or {}, []

    def ask(self, name, *arguments):
        self.asked.append((name, *arguments))
        if name == "time_us":
            return [self.us[arguments[0]], self.us[arguments[0]] / 2]
        return {"waited_us": [140.0, 2000.0], "facts": [{"link": [{"gb_s": 7.0}]}]}.get(name)

    def end(self):
        self.asked.append(("end",))


def test_what_of_an_exchange_is_hidden_and_what_is_waited_for():
    ours = Timed({"ring": 30000.0, "ring_compute": 26000.0, "ring_exchange": 8000.0})
    found = ParallelSuite("parallel", "a small one", (ROW,), teams=[ours]).hidden(ROW, 30000.0)
    assert found == {
        "bytes": 2 * 2 * 6 * 8 * 4,
        "both_us": 30000.0,
        "compute_us": 26000.0,
        "exchange_us": 8000.0,
        "waited_us": 2000.0,  # of the rank that waits longest
        "hidden": 0.5,
        "turns": parallel.TURNS,
    }
    assert ours.asked[-1] == ("waited_us", parallel.TURNS)
    row = {"label": "a row", "timings": {}, "ratios": {}, "exchange": found}
    record = {"ranks": 2, "nccl": 22807, "link": [], "rows": [row]}
    said = " ".join("\n".join(command.parallel_tables(record)).split())
    assert "a row 0 30.000 26.000 8.000 2.000 75 % 50 %" in said


@pytest.mark.parametrize(
    ("us", "asked", "calls"), [(30000.0, 1, 1), (7000.0, 1, 2), (7000.0, 5, 5), (100.0, 1, 20)]
)
def test_a_sample_has_more_calls_of_a_short_one(us, asked, calls):
    team = Timed({"ring": us})
    sample = RankWork("ring", team, ROW).capture(asked)
    assert sample.calls == calls and sample.launch() == calls * us
    assert team.asked == [("time_us", "ring", 1), ("time_us", "ring", calls)]


class Waiting:
    """A ring: of a turn's first call the wait is long, since another rank has not started."""

    def __init__(self):
        self.marks, self.turn, self.calls = types.SimpleNamespace(timed=False), 0, 0

    def gather(self, value, what):
        self.turn, self.calls = self.turn + 1, 0

    def __call__(self):
        assert self.marks.timed
        self.calls += 1

    def waited_us(self):
        return (0.0, 30.0, 10.0, 20.0)[self.turn] if self.calls > 1 else 5000.0


def test_waits_are_those_of_the_last_call_of_each_turn():
    plan = Waiting()
    worker = parallel_workers.Ours(types.SimpleNamespace(gather=plan.gather), FixedClock())
    worker.plans = {"ring": plan}
    assert worker.waited_us(3) == 20.0
    assert plan.turn == 3 and not plan.marks.timed


def test_trials_by_blocks_are_medians_of_turns(monkeypatch):
    teams = []

    class Drifting(Timed):
        """The first turn takes ten times as long as the others."""

        def __init__(self, kind, ranks, environment):
            super().__init__({"ring": 90.0, "ring_compute": 60.0, "ring_exchange": 40.0})
            self.kind, self.environment, self.seen = kind, environment, set()
            teams.append(self)

        def ask(self, name, *arguments):
            found = super().ask(name, *arguments)
            if name != "time_us" or arguments[0] in self.seen:
                return found
            self.seen.add(arguments[0])
            return [10 * one for one in found]

    monkeypatch.setattr(parallel_trials, "RankTeam", Drifting)
    found = list(parallel_trials.by_blocks((ROW,), 2))
    times = {"ring_us": 90.0, "ring_compute_us": 60.0, "ring_exchange_us": 40.0}
    said = [(one["nccl_blocks"], one["grid"]) for one in found]
    tiles = [(blocks, "a block a tile") for blocks in parallel_trials.NCCL_BLOCKS]
    assert said == [(32, "a block an SM"), *tiles]
    for one, team in zip(found, teams, strict=True):
        assert one | times == one and one["link_gb_s"] == 7.0 and one["label"] == ROW.label
        assert team.environment == {"NCCL_MAX_P2P_NCHANNELS": str(one["nccl_blocks"])}
        order = [asked[1] for asked in team.asked if asked[0] == "time_us"]
        assert order == parallel_trials.TURNS * ["ring", "ring_compute", "ring_exchange"]
        assert team.asked[-1] == ("end",)


class Pipe:
    """A link to a rank that has given some answers."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def send(self, asked):
        pass

    def poll(self, timeout_s):
        return bool(self.answers)

    def recv(self):
        if self.answers[0] is EOFError:
            raise EOFError
        return self.answers.pop(0)


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (((False, "wrong"), (False, "lost")), "Ours 0: wrong"),
        (((True, 1), (False, "wrong")), "Ours 1: wrong"),
        ((EOFError, (True, 2)), "Ours 0 has ended"),
        (((None, "no such mask"), (True, 2)), "no such mask"),
    ],
)
def test_an_answer_counts_for_its_own_question(answers, words):
    team = object.__new__(parallel_workers.RankTeam)
    team.kind, team.links = "Ours", [Pipe(one, (True, 7)) for one in answers]
    with pytest.raises((TeamFailed, BaselineRefuses), match=words):
        team.ask("make", "heads")
    assert team.broken == (answers[0] is EOFError)
    left = [link.answers for link in team.links]
    assert left == [[one, (True, 7)] if one is EOFError else [(True, 7)] for one in answers]


class Team:
    """A team that answers nothing, or raises."""

    broken = False

    def __init__(self, error=None):
        self.error, self.ended = error, False

    def ask(self, *_):
        if self.error:
            raise self.error

    def end(self):
        self.ended = True


@pytest.mark.parametrize("error", [BaselineRefuses("no mask"), TeamFailed("no mask\ntrace")])
def test_a_peer_that_prepares_nothing_is_refused_alone(error):
    names = (parallel.RING, parallel.TORCH)
    one = ParallelSuite("parallel", "a small one", (ROW,), teams=[Team(), Team(error)])
    makers = one.benchmark(ROW, names)["makers"]
    assert makers[parallel.RING]().name == parallel.RING
    with pytest.raises(BaselineRefuses, match="^no mask$"):
        makers[parallel.TORCH]()
    broken = ParallelSuite("parallel", "a small one", (ROW,), teams=[Team(error), Team()])
    with pytest.raises(type(error)):
        broken.benchmark(ROW, names)


def test_a_row_goes_on_without_a_peer_that_fails_while_timed(monkeypatch):
    ours, peer, other = Team(), Team(), Team()

    def run_row(one, row, names, refused=None, **how):
        failing = peer if parallel.TORCH in names else ours if names == () else None
        if failing:
            raise TeamFailed("TorchPeer 1 has ended\nand its trace", failing)
        return {"refused": {"heads": "no"}, "names": names}

    monkeypatch.setattr(suite.Suite, "run_row", run_row)
    monkeypatch.setattr(parallel, "RankTeam", lambda kind, size: other)
    one = ParallelSuite("parallel", "a small one", (ROW,), teams=[ours, peer])
    found = one.run_row(ROW, (parallel.RING, parallel.TORCH))
    assert found["refused"] == {"heads": "no", parallel.TORCH: "TorchPeer 1 has ended"}
    assert found["names"] == [parallel.RING]
    assert one.peers_team() is other and peer.ended and one.teams == [ours, other]
    with pytest.raises(TeamFailed):
        one.run_row(ROW, ())


def test_a_peer_that_does_not_start_is_tried_once(monkeypatch):
    tried = []

    def start(kind, size):
        tried.append(kind)
        raise TeamFailed("TorchPeer 0: no gloo\ntrace")

    monkeypatch.setattr(parallel, "RankTeam", start)
    one = ParallelSuite("parallel", "a small one", (ROW,), teams=[Team()])
    for _ in range(2):
        with pytest.raises(BaselineRefuses, match="^TorchPeer 0: no gloo$"):
            one.benchmark(ROW, (parallel.TORCH,))["makers"][parallel.TORCH]()
    assert len(tried) == 1


def test_a_team_of_ours_that_is_broken_is_no_refusal():
    team = Team(TeamFailed("Ours 1: InputError: 3 heads"))
    work = RankWork("heads", team, ROW)
    with pytest.raises(BaselineRefuses, match="3 heads"):
        work.try_call()
    team.broken = True
    with pytest.raises(TeamFailed):
        work.try_call()


def test_names(monkeypatch):
    monkeypatch.setattr(candidates, "available", lambda: True)
    assert SUITE.candidates() == ("one_gpu", "ring", "heads", "torch_context_parallel")
    assert SUITE.candidates(["ring", "ring"]) == ("ring",)
    with pytest.raises(ValueError, match="no candidate 'rign' .did you mean 'ring'"):
        SUITE.candidates(["rign"])
    monkeypatch.setattr(parallel, "pick", lambda *_: "flash_wgmma")
    assert SUITE.files(SUITE.candidates()) == ["18_flash_wgmma", "31_join_parts"]
    lengths = [row.shape[2] for row in SUITE.rows]
    assert lengths == sorted(2 * [2048, 4096, 8192, 32768, 131072])


def test_it_needs_two_gpus():
    assert record.KINDS["parallel"].needs == "2 GPUs" and "parallel" not in record.ON_A_GPU
    with pytest.raises(TimingError, match="needs 2 GPUs, here are 0"):
        SUITE.run(["ring"])
