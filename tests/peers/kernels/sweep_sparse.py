"""Sparse attention in the sweep, beside FlashMLA, and the scores of its indexer, beside DeepGEMM."""
import ctypes
import math

from sweep_attention import FAST, LATENT, PAGE, ROPE, Decode, Keeper, random
from sweep_common import (BF16_RATE, COPY_RATE, FP8_RATE, Problem, call, launches_for, pointer, relative, some, stream, torch)

TOP_K, ROW_BYTES, ROWS, PREFILL_ROWS = 2048, 656, 1 << 21, 1 << 17
INDEX_WIDTH, INDEX_FAST = 128, 2  # TSR_INDEX_FAST


class FlashSparse(ctypes.Structure):
    """`sparse` of peers_flashmla.cu."""
    _fields_ = ([(name, ctypes.c_void_p) for name in ("q", "kv", "out", "indices", "lse", "largest", "plan", "splits", "lse_parts",
                                                      "out_parts")] +
                [(name, ctypes.c_int) for name in ("batch", "s_q", "heads", "pages", "top_k", "processors")] +
                [("scale", ctypes.c_float)])


class IndexScores(ctypes.Structure):
    """tsr_index_scores."""
    _fields_ = ([(name, ctypes.c_void_p) for name in ("q", "k", "k_scale", "weights", "seen", "logits")] +
                [(name, ctypes.c_size_t) for name in ("queries", "keys", "heads", "width")])


def random_codes(*shape):
    """Returns e4m3 codes, whose values are uniform in +-1, as bytes."""
    codes = torch.empty(*shape, device="cuda", dtype=torch.uint8)
    for part in codes.split(1 << 16):
        part.copy_((torch.rand(*part.shape, device="cuda") * 2 - 1).to(torch.float8_e4m3fn).view(torch.uint8))
    return codes


class CodedCache:
    """Rows of an FP8 cache: codes, a scale of 1/2 or 1 for each 128 of them, rope columns in BF16."""

    def __init__(self):
        self.bytes = torch.empty(ROWS, ROW_BYTES, device="cuda", dtype=torch.uint8)
        self.bytes[:, :LATENT] = random_codes(ROWS, LATENT)
        scales = torch.randint(1, 3, (ROWS, LATENT // 128), device="cuda").float() / 2
        self.bytes[:, LATENT:LATENT + 16] = scales.view(torch.uint8)
        for begin in range(0, ROWS, 1 << 16):
            self.bytes[begin:begin + (1 << 16), LATENT + 16:] = random(1 << 16, ROPE).view(torch.uint8)

    def in_double(self, rows):
        found = self.bytes[rows]
        scales = found[:, LATENT:LATENT + 16].contiguous().view(torch.float32).double().repeat_interleave(128, 1)
        codes = found[:, :LATENT].contiguous().view(torch.float8_e4m3fn).double()
        return torch.cat([codes * scales, found[:, LATENT + 16:].contiguous().view(torch.bfloat16).double()], -1)


class Cache:
    """Rows of a BF16 cache."""

    def __init__(self, rows):
        self.bytes = random(rows, LATENT + ROPE)

    def in_double(self, rows):
        return self.bytes[rows].double()


class Attention(Problem):
    """One batch whose queries list 2048 rows each. The launches of a graph have lists of their own."""
    tolerance = 6e-3

    def __init__(self, libraries, cache, shape):
        self.libraries, self.shape, self.cache, self.keeper = libraries, shape, cache, Keeper()
        self.batch, self.s_q, self.heads, context = shape
        self.label = "{} sequences x {} queries x {} heads, 2048 of {} rows".format(*shape)
        queries = self.batch * self.s_q
        self.operations = 2 * queries * self.heads * TOP_K * (2 * LATENT + ROPE)
        row = ROW_BYTES if self.coded else 2 * (LATENT + ROPE)
        read = row * min(queries * TOP_K, len(cache.bytes))
        moved = read + 2 * queries * self.heads * (2 * LATENT + ROPE)
        self.launches = launches_for(max(moved / COPY_RATE, self.operations / BF16_RATE, 10), moved)
        self.q = random(self.batch, self.s_q, self.heads, LATENT + ROPE)
        self.result = torch.empty(self.batch, self.s_q, self.heads, LATENT, device="cuda", dtype=torch.bfloat16)
        begin = torch.randint(0, len(cache.bytes) - context + 1, (self.launches, self.batch, 1, 1), device="cuda")
        self.indices = (begin + torch.randint(0, context, (self.launches, self.batch, self.s_q, TOP_K), device="cuda")).to(torch.int32)
        self.indices[..., ::97] = -1
        self.scale = 1 / math.sqrt(LATENT + ROPE)
        self.judged = some(queries, 6).tolist()
        self.exact = torch.stack([self.exact_of(query) for query in self.judged])

    def exact_of(self, query):
        listed = self.indices[0].view(-1, TOP_K)[query]
        rows = self.cache.in_double(listed[listed >= 0].long())
        return torch.softmax(self.q.view(-1, self.heads, LATENT + ROPE)[query].double() @ rows.t() * self.scale, -1) @ rows[:, :LATENT]

    def judge(self):
        found = self.result.view(-1, self.heads, LATENT)[self.judged]
        return relative(found, self.exact), bool(self.result.isfinite().all())

    def in_turn(self, struct, function):
        """Returns the launch of `function` with one struct for each launch of a graph, whose lists take turns."""
        structs = []
        for lists in self.indices:
            structs.append(type(struct).from_buffer_copy(struct))
            structs[-1].indices = lists.data_ptr()
        return lambda i: function(ctypes.byref(structs[i]))

    def ours(self):
        library, pages = self.libraries.tessera, len(self.cache.bytes) // PAGE
        lse = self.keeper.empty(self.batch, self.s_q, self.heads, dtype=torch.float32)
        args = Decode(pointer(self.q), pointer(self.cache.bytes), None, None, pointer(self.indices), pointer(self.result), pointer(lse), None,
                      self.batch, self.s_q, self.heads, pages, 0, TOP_K, LATENT, ROPE, PAGE, self.coded, self.scale, FAST)
        args.workspace = self.keeper.workspace(library.tsr_cuda_mla_workspace, args, self.libraries.device)
        call(library.tsr_cuda_mla_plan, ctypes.byref(args), stream())
        return self.in_turn(args, lambda held: call(library.tsr_cuda_mla_decode, held, stream()))

    def flash_args(self):
        args = FlashSparse(pointer(self.q), pointer(self.cache.bytes), pointer(self.result))
        args.batch, args.s_q, args.heads, args.scale, args.top_k = self.batch, self.s_q, self.heads, self.scale, TOP_K
        args.pages, args.processors = len(self.cache.bytes) // PAGE, self.libraries.device.processors
        args.lse = pointer(self.keeper.empty(self.batch, self.s_q, self.heads, dtype=torch.float32))
        return args

    def candidates(self):
        found = {"tessera": self.ours()}
        if self.libraries.flashmla:
            found["flashmla"] = self.flashmla()
        torch.cuda.synchronize()
        return found


class Decoding(Attention):
    """Decoding over an FP8 cache."""
    family, coded = "sparse", 1

    def flashmla(self):
        library, args, slots = self.libraries.flashmla, self.flash_args(), self.s_q * self.heads
        parts = library.flashmla_sparse_parts(ctypes.byref(args))
        args.plan = pointer(self.keeper.empty(parts, 8, dtype=torch.int32))
        args.splits = pointer(self.keeper.empty(self.batch + 1, dtype=torch.int32))
        args.lse_parts = pointer(self.keeper.empty(self.batch + parts, slots, dtype=torch.float32))
        args.out_parts = pointer(self.keeper.empty(self.batch + parts, slots, LATENT, dtype=torch.float32))
        library.flashmla_sparse_plan(ctypes.byref(args), stream())
        return self.in_turn(args, lambda held: library.flashmla_sparse_decode(held, stream()))


class Prefilling(Attention):
    """Prefill of one sequence over a BF16 cache."""
    family, coded = "sparse_prefill", 0

    def flashmla(self):
        library, args = self.libraries.flashmla, self.flash_args()
        args.largest = pointer(self.keeper.empty(self.s_q, self.heads, dtype=torch.float32))
        return self.in_turn(args, lambda held: library.flashmla_sparse_prefill(held, stream()))


class Index(Problem):
    """Scores of one sequence's keys: a query of each last token, which sees the keys up to itself."""
    family, tolerance = "index", 5e-3

    def __init__(self, libraries, shape):
        self.libraries, self.shape = libraries, shape
        self.queries, self.keys, self.heads = queries, keys, heads = shape
        self.label = "{} queries, {} keys, {} heads".format(*shape)
        self.operations = 2 * queries * heads * INDEX_WIDTH * (keys - queries // 2)
        moved = keys * (INDEX_WIDTH + 4) + 4 * queries * keys
        self.launches = launches_for(max(moved / COPY_RATE, self.operations / FP8_RATE, 10), moved)
        self.q, self.k = random_codes(queries, heads, INDEX_WIDTH), random_codes(keys, INDEX_WIDTH)
        self.k_scale = torch.rand(-(-keys // 4) * 4, device="cuda") + 0.5
        self.weights = torch.rand(queries, heads, device="cuda") - 0.5
        self.begin = torch.zeros(queries, device="cuda", dtype=torch.int32)
        self.seen = torch.arange(keys - queries + 1, keys + 1, device="cuda", dtype=torch.int32)
        self.room = -(-(keys + 256) // 256) * 256  # DeepGEMM writes whole blocks of keys
        self.memory = torch.empty(-(-queries // 4) * 4 * self.room, device="cuda")
        self.result = self.memory[:queries * keys].view(queries, keys)
        self.rows = some(queries, 8)
        decoded = [x.view(torch.float8_e4m3fn).double() for x in (self.q[self.rows], self.k)]
        heads_of = torch.relu(decoded[0] @ decoded[1].t()) * self.weights[self.rows].double()[..., None]
        self.exact = heads_of.sum(1) * self.k_scale[:keys].double()
        self.visible = torch.arange(keys, device="cuda")[None] < self.seen[self.rows][:, None]

    def judge(self):
        found = self.result[self.rows]
        written = found[self.visible].isfinite().all() and (found[~self.visible] == -math.inf).all()
        return relative(found[self.visible], self.exact[self.visible]), bool(written)

    def ours(self):
        args = IndexScores(*map(pointer, (self.q, self.k, self.k_scale, self.weights, self.seen, self.result)), self.queries, self.keys,
                           self.heads, INDEX_WIDTH)
        return lambda i: call(self.libraries.tessera.tsr_cuda_index_scores, ctypes.byref(args), INDEX_FAST, stream())

    def deepgemm(self):
        """Returns DeepGEMM's launch, which leaves the scores of keys that are not seen as they are, and has rows of its own length."""
        return lambda i: self.libraries.deepgemm.deepgemm_index(
            *map(pointer, (self.q, self.k, self.k_scale, self.weights, self.begin, self.seen, self.memory)), self.queries, self.keys, self.heads,
            self.room, stream())

    def candidates(self):
        found = {"tessera": self.ours()}
        if self.libraries.deepgemm:
            found["deepgemm"] = self.deepgemm()
        torch.cuda.synchronize()
        return found

    def faults(self, candidates):
        found = super().faults({"tessera": candidates["tessera"]})
        if "deepgemm" in candidates:
            self.memory.fill_(math.nan)
            candidates["deepgemm"](0)
            rows = self.memory.view(-1, self.room)[self.rows, :self.keys]
            error = relative(rows[self.visible], self.exact[self.visible])
            found += [] if error <= self.tolerance else [f"deepgemm: relative error {error:.2e}"]
        return found
