"""Runs a random kernel's tree thread by thread in plain Python: what a GPU must compute.

Expressions become Python closures over a thread's dictionary of variables. Statements at which
threads meet run over all threads of a block; all others run one thread after another, in an order
that cannot matter since the kernels are free of races.
"""

import numpy as np
from kernelscope.differential.random_code.operations import bits_of_double, flush, wrap
from kernelscope.differential.random_code.tree import (
    ATOMIC_ROWS,
    MORE,
    NUMBERS,
    OWN,
    ROW,
    TABLE,
    VARIABLES,
    WORDS,
    Const,
)

MASK32 = 0xFFFFFFFF


class OracleBlock:
    """A block's shared state. `launch`: arrays and the kernel."""

    def __init__(self, launch, number: int):
        self.launch, self.number = launch, number
        kernel = launch.kernel
        self.tally = [int(x) for x in launch.first]
        self.threads = [
            first_values(launch, number, thread, number * kernel.threads + thread)
            for thread in range(kernel.threads)
        ]


class OracleLaunch:
    def __init__(self, kernel):
        self.kernel = kernel
        self.words, self.numbers, counters, self.tallies, self.out, packet = kernel.arguments()
        self.packet = [int(x) for x in packet["words"]]
        self.fields = {
            "packet.byte": int(packet["byte"]),
            "packet.short_": int(packet["short_"]),
            "packet.number": packet["number"],
            "packet.wide": int(packet["wide"]),
        }
        self.first, self.counters = counters.copy(), [int(x) for x in counters]
        self.word_list = [int(x) for x in self.words]
        self.helpers = [_helper(helper, self) for helper in kernel.helpers]


def run(kernel) -> list[np.ndarray]:
    """The kernel's arrays after a launch over its whole grid."""
    with np.errstate(all="ignore"):
        launch = OracleLaunch(kernel)
        code = [together(statement, launch) for statement in kernel.body]
        for number in range(int(np.prod(kernel.grid))):
            block = OracleBlock(launch, number)
            for step in code:
                step(block, block.threads)
            finish(block)
    counters = np.array(launch.counters, np.uint32)
    return [launch.words, launch.numbers, counters, launch.tallies, launch.out]


def first_values(launch, block: int, thread: int, place: int) -> dict:
    """A thread's variables by name at the kernel's start."""
    v = {"thread": thread, "block": block, "lane": thread & 31, "warp": thread >> 5, "place": place}
    for kind, count in VARIABLES.items():
        for i in range(count):
            word = launch.word_list[(place * 5 + i * 17) % WORDS]
            number = launch.numbers[(place * 3 + i * 7) % NUMBERS]
            v[f"{kind}_{i}"] = {"f32": number, "f64": float(number)}.get(kind, word)
            if kind == "i32":
                v[f"{kind}_{i}"] = wrap(kind, word)
            elif kind in ("u64", "i64"):
                v[f"{kind}_{i}"] = wrap(kind, word * 0x100000001)
    v["scratch"] = [launch.word_list[(place + i) % WORDS] for i in range(8)]
    v["own"], v["kept"] = list(range(OWN)), 0
    return v


def finish(block: OracleBlock) -> None:
    launch = block.launch
    for v in block.threads:
        row = list(v["own"])
        for kind, count in VARIABLES.items():
            row += [_bits(kind, v[f"{kind}_{i}"]) for i in range(count)]
        launch.out[v["place"]] = np.array([*row, *v["scratch"], v["kept"]], np.uint64)
    launch.tallies[block.number] = np.array(block.tally, np.uint32)


def _bits(kind: str, value) -> int:
    if kind == "f32":
        return 0x7FC00000 if value != value else int(flush(value).view(np.uint32))
    if kind == "f64":
        return bits_of_double(value)
    return value & (MASK32 if kind.endswith("32") else (1 << 64) - 1)


# --- expressions ----------------------------------------------------------------------------------


def expression(node, launch):
    """A function of a thread's variables."""
    return _EXPRESSIONS[type(node).__name__](node, launch)


def _const(node, launch):
    value = node.value
    return lambda v: value


def _var(node, launch):
    name = node.name
    if name in launch.fields:
        return _const(Const(node.type, launch.fields[name]), launch)
    return lambda v: v[name]


def _apply(node, launch):
    fn, args = node.operation.fn, [expression(arg, launch) for arg in node.args]
    if len(args) == 1:
        (a,) = args
        return lambda v: fn(a(v))
    if len(args) == 2:
        a, b = args
        return lambda v: fn(a(v), b(v))
    a, b, c = args
    return lambda v: fn(a(v), b(v), c(v))


def _load(node, launch):
    index, array = expression(node.index, launch), node.array
    if array in ("scratch", "own"):
        return lambda v: v[array][index(v) % 8]
    if array == "more":
        return lambda v: v[array][index(v) % MORE]
    values = {
        "words": launch.word_list,
        "numbers": launch.numbers,
        "table": TABLE,
        "packet": launch.packet,
    }[array]
    size = len(values)
    if node.vector:
        return lambda v: values[index(v) % size & ~3]
    return lambda v: values[index(v) % size]


def _call(node, launch):
    args = [expression(arg, launch) for arg in node.args]
    number = node.number
    return lambda v: launch.helpers[number](*(arg(v) for arg in args))


_EXPRESSIONS = {"Const": _const, "Var": _var, "Apply": _apply, "Load": _load, "Call": _call}


def _helper(helper, launch):
    """A function of (u32, i32, f32)."""
    body, result, _ = helper
    steps, answer = sequence(body, launch), expression(result, launch)

    def call(u32, i32, f32):
        v = dict.fromkeys(("thread", "block", "lane", "warp"), u32)
        for kind, count in VARIABLES.items():
            first = {"i32": i32, "f32": f32, "f64": float(flush(f32))}.get(kind, u32)
            v.update({f"{kind}_{i}": first for i in range(count)})
        v["more"] = [u32 * (i + 1) & MASK32 ^ i for i in range(MORE)]
        steps(v, None)
        return answer(v)

    return call


# --- statements of one thread: fn(variables, block) -> None, "break" or "continue" ----------------


def sequence(statements, launch):
    steps = [statement(s, launch) for s in statements]

    def fn(v, block):
        for step in steps:
            leave = step(v, block)
            if leave:
                return leave
        return None

    return fn


def statement(node, launch):
    return _STATEMENTS[type(node).__name__](node, launch)


def _assign(node, launch):
    name, value = node.target.name, expression(node.value, launch)

    def fn(v, block):
        v[name] = value(v)

    return fn


def _store(node, launch):
    index, value = expression(node.index, launch), expression(node.value, launch)
    array = node.array

    def fn(v, block):
        v[array][index(v) % 8] = value(v)

    return fn


def _if(node, launch):
    condition = expression(node.condition, launch)
    then, otherwise = sequence(node.then, launch), sequence(node.otherwise, launch)
    return lambda v, block: then(v, block) if condition(v) else otherwise(v, block)


def _for(node, launch):
    trips, body, counter = expression(node.trips, launch), sequence(node.body, launch), node.counter

    def fn(v, block):
        for k in range(trips(v) & 7):
            v[counter] = k
            if body(v, block) == "break":
                break

    return fn


def _while(node, launch):
    condition, body = expression(node.condition, launch), sequence(node.body, launch)
    counter, limit, last = node.counter, node.limit, node.last

    def fn(v, block):
        v[counter], turns = 0, 0

        def again():
            v[counter] += 1
            return v[counter] <= limit and condition(v)

        while last and turns == 0 or again():
            turns += 1
            if body(v, block) == "break":
                break

    return fn


def _switch(node, launch):
    value = expression(node.value, launch)
    cases = [(sequence(body, launch), falls) for body, falls in node.cases]

    def fn(v, block):
        for body, falls in cases[value(v) & 3 :]:
            leave = body(v, block)
            if leave:
                return leave
            if not falls:
                return None
        return None

    return fn


def _leave(node, launch):
    word = node.word
    return lambda v, block: word


def _signed(fn):
    return lambda old, x: fn(wrap("i32", old), wrap("i32", x)) & MASK32


def _add_float(old, x):
    total = np.uint32(old).view(np.float32) + np.float32(x & 15)
    return int(total.view(np.uint32))


_UPDATES = {
    "add": lambda old, x: (old + x) & MASK32,
    "or": lambda old, x: old | x,
    "and": lambda old, x: old & x,
    "xor": lambda old, x: old ^ x,
    "max": max,
    "min": min,
    "signed_max": _signed(max),
    "signed_min": _signed(min),
    "raise": max,
    "inc": lambda old, x: 0 if old >= 6 else old + 1,
    "float": _add_float,
}


def _atomic(node, launch):
    index, value = expression(node.index, launch), expression(node.value, launch)
    first, row, space = list(ATOMIC_ROWS).index(node.row) * ROW, node.row, node.space

    def fn(v, block):
        array = launch.counters if space == "counters" else block.tally
        at = first + (index(v) & 3)
        x = value(v)
        if row == "ticket":
            array[at + ROW] = (array[at + ROW] + array[at]) & MASK32
            array[at] = (array[at] + 1) & MASK32
        else:
            array[at] = _UPDATES[row](array[at], x)

    return fn


_STATEMENTS = {
    "Assign": _assign,
    "Store": _store,
    "If": _if,
    "For": _for,
    "While": _while,
    "Switch": _switch,
    "Leave": _leave,
    "Atomic": _atomic,
}


# --- statements at which threads meet: fn(block, threads) -----------------------------------------


def together(node, launch):
    name = type(node).__name__
    if name == "For" and node.uniform:
        return _uniform_for(node, launch)
    if name in _MEETINGS:
        return _MEETINGS[name](node, launch)
    step = statement(node, launch)

    def fn(block, threads):
        for v in threads:
            step(v, block)

    return fn


def _uniform_for(node, launch):
    body = [together(s, launch) for s in node.body]

    def fn(block, threads):
        for k in range(node.trips.value):
            for v in threads:
                v[node.counter] = k
            for step in body:
                step(block, threads)

    return fn


def _block_if(node, launch):
    body = [together(s, launch) for s in node.body]

    def fn(block, threads):
        if block.number & 1 == node.parity:
            for step in body:
                step(block, threads)

    return fn


def _assign_all(threads, target, values) -> None:
    for v, value in zip(threads, values, strict=True):
        v[target.name] = value


def _assign_and_keep(threads, target, values) -> None:
    """Assign, and let the values count in what the kernel writes."""
    _assign_all(threads, target, values)
    for v, value in zip(threads, values, strict=True):
        v["kept"] = (v["kept"] * 3 + value) & MASK32


def _exchange(node, launch):
    value, index = expression(node.value, launch), expression(node.index, launch)

    def fn(block, threads):
        values = [value(v) for v in threads]
        _assign_all(threads, node.target, [values[index(v) % len(values)] for v in threads])

    return fn


def _block_vote(node, launch):
    condition = expression(node.condition, launch)

    def fn(block, threads):
        votes = [bool(condition(v)) for v in threads]
        whole = {"count": sum, "and": all, "or": any}[node.mode](votes)
        _assign_all(threads, node.target, [int(whole)] * len(threads))

    return fn


def by_warp(run_warp):
    """fn(block, threads) that calls run_warp(threads of one warp) for each warp among `threads`."""

    def fn(block, threads):
        for warp in sorted({v["warp"] for v in threads}):
            run_warp([v for v in threads if v["warp"] == warp])

    return fn


def _shuffle(node, launch):
    value = expression(node.value, launch)
    operand = expression(node.operand, launch) if node.operand is not None else None

    def run_warp(threads):
        values = {v["lane"]: value(v) for v in threads}
        if node.mode == "first":
            return _assign_all(threads, node.target, [values[min(values)]] * len(values))
        sources = [_source(node, v["lane"], operand(v)) for v in threads]
        own = [values[v["lane"]] for v in threads]
        found = [values.get(s, mine) for s, mine in zip(sources, own, strict=True)]
        return _assign_all(threads, node.target, found)

    return by_warp(run_warp)


def _source(node, lane: int, operand: int) -> int:
    """The lane whose value `lane` asks for; its own where that is outside the segment."""
    by, start = operand & 15, lane - lane % node.width
    if node.mode == "idx":
        return start + operand % node.width
    source = {"up": lane - by, "down": lane + by, "xor": lane ^ by}[node.mode]
    outside = source < start if node.mode == "up" else source >= start + node.width
    return lane if outside else source


def _mask(threads) -> int:
    return sum(1 << v["lane"] for v in threads)


def _warp_vote(node, launch):
    value, mode = expression(node.value, launch), node.mode

    def run_warp(threads):
        values = [value(v) for v in threads]
        pairs = list(zip(threads, values, strict=True))
        if mode == "match_any":
            found = [_mask(v for v, y in pairs if x == y) for x in values]
        elif mode == "match_all":
            agree = all(x == values[0] for x in values)
            found = [(_mask(threads) + 1) & MASK32 if agree else 0] * len(values)
        else:
            voters = _mask(v for v, x in pairs if x)
            found = {"all": int(all(values)), "any": int(any(values))}.get(mode, voters)
            found = [found if mode != "guarded" or x else 7 for x in values]
        return _assign_and_keep(threads, node.target, found)

    return by_warp(run_warp)


def _reduce(node, launch):
    value, kind = expression(node.value, launch), node.target.type
    fold = {
        "add": lambda a, b: wrap(kind, a + b),
        "min": min,
        "max": max,
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
    }[node.mode]

    def run_warp(threads):
        values = [value(v) for v in threads]
        total = values[0]
        for x in values[1:]:
            total = fold(total, x)
        _assign_and_keep(threads, node.target, [total] * len(values))

    return by_warp(run_warp)


def _together(node, launch):
    condition = expression(node.condition, launch)
    body = [together(s, launch) for s in node.body]

    def fn(block, threads):
        inside = [v for v in threads if condition(v)]
        for step in body:
            if inside:
                step(block, inside)

    return fn


def _partition(node, launch):
    body = [together(s, launch) for s in node.body]
    value = expression(node.value, launch) if node.value is not None else None

    def run_warp(block, threads):
        labels = [v["lane"] // node.width if value is None else value(v) for v in threads]
        pairs = list(zip(labels, threads, strict=True))
        groups = [[v for mine, v in pairs if mine == label] for label in sorted(set(labels))]
        for group in groups:
            for step in body:
                step(block, group)

    def fn(block, threads):
        by_warp(lambda warp: run_warp(block, warp))(block, threads)

    return fn


def _group_for(node, launch):
    body, trips = [together(s, launch) for s in node.body], expression(node.trips, launch)

    def fn(block, threads):
        turns = trips(threads[0]) & 3
        for k in range(turns):
            for v in threads:
                v[node.counter] = k
            for step in body:
                step(block, threads)

    return fn


_MEETINGS = {
    "Partition": _partition,
    "GroupFor": _group_for,
    "BlockIf": _block_if,
    "Exchange": _exchange,
    "BlockVote": _block_vote,
    "Shuffle": _shuffle,
    "WarpVote": _warp_vote,
    "Reduce": _reduce,
    "Together": _together,
}
