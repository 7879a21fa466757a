// What the tracer recorded, at any step; and what an access costs.

const SECTOR = 32,
  BANKS = 32,
  WORD = 4,
  CHECKPOINT = 64,
  TEXT_COLUMNS = 16,
  MAX_SECTORS = 128,
  MAX_GLOBAL = 64,
  MAX_FILLED = 4096, // as many elements as are recorded when a copy lands
  MBARRIER = 8;
const NARROW = { bfloat16: 2, float8_e4m3fn: 1, float8_e5m2: 1 };
const ITEM = (dtype) => NARROW[dtype] ?? (Number(dtype.slice(1)) || 1);

// -- data ---------------------------------------------------------------------------------------
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// The arrays that have a picture: those in shared memory, and small ones in global memory.
// Mbarriers have a table instead, and large arrays that bulk copies fill their tiles' timeline.
const drawnArrays = (recording) =>
  Object.entries(recording.arrays).filter(([, array]) => {
    const count = Math.floor(array.size / ITEM(array.dtype));
    if (array.space !== "shared") return array.space === "global" && count <= MAX_GLOBAL;
    const inside = ({ start }) => start >= array.start && start < array.start + array.size;
    const words = new Set((recording.mbarriers ?? []).filter(inside).map(({ start }) => start));
    const filled = (recording.destinations ?? []).some(inside);
    return words.size * MBARRIER < array.size && !(filled && count > MAX_FILLED);
  });

// The values of variables and arrays after any step, from the changes of the frames. Of an array in
// global memory only the elements are known that the block has read or written.
class History {
  constructor(recording) {
    this.recording = recording;
    this.threads = recording.block_shape.reduce((a, b) => a * b, 1);
    this.checkpoints = new Map();
    this.step = -1;
    this.reset();
  }

  reset() {
    this.variables = new Map();
    this.elements = new Map();
    for (const [name, array] of drawnArrays(this.recording)) {
      this.elements.set(name, new Array(Math.floor(array.size / ITEM(array.dtype))).fill(null));
    }
    this.step = -1;
  }

  go(step) {
    if (step < this.step) {
      let start = Math.floor(step / CHECKPOINT) * CHECKPOINT;
      while (start > 0 && !this.checkpoints.has(start)) start -= CHECKPOINT;
      if (this.checkpoints.has(start)) this.restore(start);
      else this.reset();
    }
    while (this.step < step) this.apply(this.recording.frames[++this.step]);
  }

  restore(start) {
    const copy = (map) => new Map([...map].map(([name, row]) => [name, row.slice()]));
    const { variables, elements } = this.checkpoints.get(start);
    this.variables = copy(variables);
    this.elements = copy(elements);
    this.step = start;
  }

  apply(frame) {
    for (const [name, change] of Object.entries(frame.variables)) {
      if (!this.variables.has(name)) this.variables.set(name, new Array(this.threads).fill(null));
      const row = this.variables.get(name);
      change.threads.forEach((thread, i) => {
        row[thread] = change.values[i];
      });
    }
    for (const access of [...frame.shared, ...frame.global]) {
      const shared = this.recording.arrays[access.array]?.space === "shared";
      if ((shared && access.kind === "read") || !this.elements.has(access.array)) continue;
      const cells = this.elements.get(access.array);
      access.index.forEach((index, i) => {
        cells[index] = access.values[i];
      });
    }
    if (frame.step % CHECKPOINT === 0 && !this.checkpoints.has(frame.step)) {
      const copy = (map) => new Map([...map].map(([name, row]) => [name, row.slice()]));
      this.checkpoints.set(frame.step, {
        variables: copy(this.variables),
        elements: copy(this.elements),
      });
    }
  }
}

// -- counting -----------------------------------------------------------------------------------
// A lane's first byte address; arrays start where the recording says, as sectors and banks see it.
function requests(access, array) {
  const item = ITEM(array.dtype);
  const each = Math.max(1, access.index.length / access.threads.length);
  return access.threads.map((thread, i) => ({
    thread,
    lane: thread % 32,
    index: access.index[i * each],
    address: array.start + access.index[i * each] * item,
  }));
}

// Distinct 32-byte pieces with the bytes that are wanted of each; sector 0 holds address 0.
function sectors(lanes, size) {
  const found = new Map();
  for (const lane of lanes) {
    for (let byte = lane.address; byte < lane.address + size; byte++) {
      const number = Math.floor(byte / SECTOR);
      if (!found.has(number)) found.set(number, { bytes: new Set(), lanes: new Set() });
      found.get(number).bytes.add(byte % SECTOR);
      found.get(number).lanes.add(lane.lane);
    }
  }
  return new Map([...found].sort((a, b) => a[0] - b[0]));
}

// Passes over the banks by one warp's lanes: all together at 4 bytes a lane, half a warp at 8, a
// quarter at 16. A wide load ("read") takes two halves, or two quarters, in one go where neighbours
// want the same. Each group holds the distinct words asked of every bank.
function wavefronts(lanes, size, kind) {
  const words = Math.max(1, size / WORD),
    width = 32 / words;
  const groups = [];
  for (const pair of neighbours(lanes, 2 * width)) {
    const together = words > 1 && kind === "read" && neighboursAgree(pair);
    const parts = together ? [pair] : neighbours(pair, width);
    for (const part of parts) groups.push(bankWords(part, words));
  }
  let passes = 0;
  for (const banks of groups) passes += Math.max(...banks.map((bank) => bank.size));
  return { passes, least: groups.length, groups };
}

// The lanes in groups of `width` neighbouring places of the warp; no group is empty.
function neighbours(lanes, width) {
  const groups = new Map();
  for (const lane of lanes) {
    const group = Math.floor(lane.lane / width);
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(lane);
  }
  return [...groups.values()];
}

// Do lanes t and t^1 throughout, or t and t^2, want the same? Inactive lanes agree with any.
function neighboursAgree(lanes) {
  const wanted = new Map(lanes.map(({ lane, address }) => [lane, address]));
  return [1, 2].some((step) =>
    lanes.every(({ lane, address }) => (wanted.get(lane ^ step) ?? address) === address),
  );
}

function bankWords(lanes, words) {
  const banks = Array.from({ length: BANKS }, () => new Set());
  for (const { address } of lanes) {
    for (let word = 0; word < words; word++) {
      const number = Math.floor(address / WORD) + word;
      banks[number % BANKS].add(number);
    }
  }
  return banks;
}

// -- text ---------------------------------------------------------------------------------------
function shown(value, digits = 6) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value))
    return value.map((v) => shown(v, 4)).join(value.some(Array.isArray) ? " | " : " ");
  if (typeof value === "number" && !Number.isInteger(value))
    return String(Number(value.toPrecision(digits)));
  return String(value);
}

const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
const PAST = { read: "reads", write: "writes", update: "updates" };

function place(index, shape) {
  const parts = [];
  for (const extent of [...shape].reverse()) {
    parts.unshift(index % extent);
    index = Math.floor(index / extent);
  }
  return parts.map((part) => `[${part}]`).join("");
}

const KEYWORDS = new RegExp(
  "\\b(?:__global__|__device__|__shared__|__launch_bounds__|__restrict__|" +
    "__forceinline__|__syncthreads|__syncwarp|extern|const|constexpr|float[24]?|double|int|void|" +
    "bool|unsigned|size_t|char|short|long|half2?|struct|template|for|if|else|while|do|return|" +
    "break|continue|static|true|false)\\b",
);
const TOKEN = new RegExp(
  `(//.*$|/\\*.*?\\*/)|(^\\s*#\\s*\\w+)|(${KEYWORDS.source})|("[^"]*")`,
  "g",
);

const PYTHON_TOKEN = new RegExp(
  "(#.*$)|(^\\s*@[\\w.]+)|(\\b(?:def|for|in|if|elif|else|while|return|and|or|not|is|None|True|" +
    "False|pass|break|continue|lambda|with|import|from|as)\\b)|(\"[^\"]*\"|'[^']*')",
  "g",
);

function highlight(text, file) {
  const parts = [];
  let last = 0;
  for (const match of text.matchAll(file.endsWith(".py") ? PYTHON_TOKEN : TOKEN)) {
    parts.push(text.slice(last, match.index));
    const kind = match[1] ? "comment" : match[2] ? "directive" : match[3] ? "keyword" : "string";
    parts.push(make("span", `acs-${kind}`, match[0]));
    last = match.index + match[0].length;
  }
  parts.push(text.slice(last));
  return parts;
}
