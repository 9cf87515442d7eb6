"""MLA decoding in the sweep, beside FlashMLA, and MLA prefill, beside FlashAttention-3 and cuDNN."""
import ctypes
import math

from torch.nn.attention import SDPBackend, sdpa_kernel

from sweep_common import BF16_RATE, COLD, COPY_RATE, MOST_LAUNCHES, Problem, call, launches_for, pointer, relative, some, stream, torch

LATENT, ROPE, PAGE, PAGES = 512, 64, 64, 256 * 128
NOPE, VALUE = 128, 128
FAST = 2  # TSR_MLA_FAST


class Decode(ctypes.Structure):
    """Is tsr_mla_decode."""
    _fields_ = ([(name, ctypes.c_void_p) for name in ("q", "cache", "block_table", "seqlens", "indices", "out", "lse", "workspace")] +
                [(name, ctypes.c_int64) for name in ("batch", "s_q", "heads", "pages", "max_pages", "top_k")] +
                [(name, ctypes.c_int32) for name in ("latent", "rope", "page", "fp8")] +
                [("scale", ctypes.c_float), ("kind", ctypes.c_int)])


class FlashDecode(ctypes.Structure):
    """Is `decode` of peers_flashmla.cu."""
    _fields_ = ([(name, ctypes.c_void_p) for name in ("q", "cache", "out", "block_table", "seqlens", "lse", "plan", "splits", "lse_parts",
                                                      "out_parts")] +
                [(name, ctypes.c_int) for name in ("batch", "s_q", "heads", "pages", "max_pages", "processors")] +
                [("scale", ctypes.c_float)])


class Prefill(ctypes.Structure):
    """Is tsr_prefill."""
    _fields_ = ([(name, ctypes.c_void_p) for name in ("q", "kv", "k_rope", "cu_seqlens_q", "cu_seqlens_k", "out", "out_f32", "lse",
                                                      "workspace")] +
                [(name, ctypes.c_int64) for name in ("batch", "heads", "kv_heads", "tokens_q", "tokens_k")] +
                [(name, ctypes.c_int32) for name in ("nope", "rope", "value")] + [("scale", ctypes.c_float), ("kind", ctypes.c_int)])


def random(*shape):
    """Returns BF16 values, uniform in +-1."""
    return (torch.rand(*shape, device="cuda") * 2 - 1).bfloat16()


class Keeper:
    """Keeps memory on the GPU as long as this object exists."""

    def __init__(self):
        self.kept = []

    def empty(self, *sizes, dtype):
        self.kept.append(torch.zeros(*sizes, device="cuda", dtype=dtype))
        return self.kept[-1]

    def workspace(self, function, args, device):
        """Returns the address of a workspace of the size that `function` returns, at a multiple of 256."""
        function.restype = ctypes.c_size_t
        made = self.empty(function(ctypes.byref(args), ctypes.byref(device)) + 256, dtype=torch.uint8)
        return (made.data_ptr() + 255) // 256 * 256


class Decoding(Problem):
    """Is one batch. The launches of a graph read different pages of the cache, if there are enough."""
    family, tolerance = "decode", 6e-3

    def __init__(self, libraries, cache, shape):
        self.libraries, self.shape, self.cache, self.keeper = libraries, shape, cache, Keeper()
        self.batch, self.s_q, self.heads, tokens, spread = shape
        self.label = "{} sequences x {} queries x {} heads, {} tokens {}".format(*shape)
        lengths = torch.randint(1, 2 * tokens, (self.batch,)) if spread == "ragged" else torch.full((self.batch,), tokens)
        self.lengths, rows, all_tokens = lengths.tolist(), self.heads * self.s_q, int(lengths.sum())
        self.seqlens = lengths.to(device="cuda", dtype=torch.int32)
        self.max_pages = -(-max(self.lengths) // PAGE)
        self.operations = 2 * rows * all_tokens * (2 * LATENT + ROPE)
        moved = 2 * (all_tokens * (LATENT + ROPE) + self.batch * rows * (2 * LATENT + ROPE))
        self.launches = launches_for(max(moved / COPY_RATE, self.operations / BF16_RATE, 10), moved)
        self.q = random(self.batch, self.s_q, self.heads, LATENT + ROPE)
        self.result = torch.empty(self.batch, self.s_q, self.heads, LATENT, device="cuda", dtype=torch.bfloat16)
        used = self.batch * self.max_pages
        self.tables = torch.randperm(PAGES, device="cuda").to(torch.int32)[:PAGES // used * used].view(-1, self.batch, self.max_pages)
        self.scale = 1 / math.sqrt(LATENT + ROPE)
        self.judged = some(self.batch, 4).tolist()
        self.exact = torch.stack([self.exact_of(b) for b in self.judged])

    def exact_of(self, b):
        """Returns the last query of a sequence in FP64."""
        rows = self.cache[self.tables[0, b].long()].view(-1, LATENT + ROPE)[:self.lengths[b]].double()
        return torch.softmax(self.q[b, -1].double() @ rows.t() * self.scale, -1) @ rows[:, :LATENT]

    def judge(self):
        return relative(self.result[self.judged, -1], self.exact), bool(self.result.isfinite().all())

    def in_turn(self, struct, function):
        """Returns the launch of `function` with one struct for each launch of a graph, whose tables alternate."""
        structs = []
        for i in range(self.launches):
            structs.append(type(struct).from_buffer_copy(struct))
            structs[-1].block_table = self.tables[i % len(self.tables)].data_ptr()
        return lambda i: function(ctypes.byref(structs[i]))

    def ours(self, library):
        lse = self.keeper.empty(self.batch, self.s_q, self.heads, dtype=torch.float32)
        args = Decode(pointer(self.q), pointer(self.cache), None, pointer(self.seqlens), None, pointer(self.result), pointer(lse), None,
                      self.batch, self.s_q, self.heads, PAGES, self.max_pages, 0, LATENT, ROPE, PAGE, 0, self.scale, FAST)
        args.workspace = self.keeper.workspace(library.tsr_cuda_mla_workspace, args, self.libraries.device)
        call(library.tsr_cuda_mla_plan, ctypes.byref(args), stream())
        return self.in_turn(args, lambda held: call(library.tsr_cuda_mla_decode, held, stream()))

    def flashmla(self):
        library, rows = self.libraries.flashmla, self.s_q * self.heads
        args = FlashDecode(pointer(self.q), pointer(self.cache), pointer(self.result), None, pointer(self.seqlens))
        args.batch, args.s_q, args.heads, args.scale = self.batch, self.s_q, self.heads, self.scale
        args.pages, args.max_pages, args.processors = PAGES, self.max_pages, self.libraries.device.processors
        parts = library.flashmla_parts(ctypes.byref(args))
        args.lse = pointer(self.keeper.empty(self.batch, rows, dtype=torch.float32))
        args.plan = pointer(self.keeper.empty(parts, 8, dtype=torch.int32))
        args.splits = pointer(self.keeper.empty(self.batch + 1, dtype=torch.int32))
        args.lse_parts = pointer(self.keeper.empty(self.batch + parts, rows, dtype=torch.float32))
        args.out_parts = pointer(self.keeper.empty(self.batch + parts, rows, LATENT, dtype=torch.float32))
        library.flashmla_plan(ctypes.byref(args), stream())
        return self.in_turn(args, lambda held: library.flashmla_decode(held, stream()))

    def candidates(self):
        found = self.with_former(self.ours)
        if self.libraries.flashmla:
            found["flashmla"] = self.flashmla()
        torch.cuda.synchronize()
        return found


class Prefilling(Problem):
    """Is one sequence. The launches of a graph have different operands, if these are small."""
    family, tolerance, uncompared = "prefill", 8e-3, ("cudnn",)

    def __init__(self, libraries, shape):
        self.libraries, self.shape, self.keeper = libraries, shape, Keeper()
        self.heads, self.tokens = heads, tokens = shape
        self.label = f"{heads} heads, {tokens} tokens"
        self.operations = heads * tokens * tokens * (NOPE + ROPE + VALUE)  # a causal product counts half
        moved = 2 * heads * tokens * (NOPE + ROPE + NOPE + 2 * VALUE)
        self.launches = launches_for(max(moved / COPY_RATE, self.operations / BF16_RATE, 10), moved)
        copies = min(self.launches, MOST_LAUNCHES, -(-COLD // moved))
        self.q, self.kv = random(copies, tokens, heads, NOPE + ROPE), random(copies, tokens, heads, NOPE + VALUE)
        self.k_rope = random(copies, tokens, ROPE)
        rope = self.k_rope[:, :, None].expand(copies, tokens, heads, ROPE)
        self.k, self.v = torch.cat([self.kv[..., :NOPE], rope], -1).contiguous(), self.kv[..., NOPE:].contiguous()
        self.result = torch.empty(tokens, heads, VALUE, device="cuda", dtype=torch.bfloat16)
        self.scale, self.copies = 1 / math.sqrt(NOPE + ROPE), copies
        self.ends = torch.tensor([0, tokens], device="cuda", dtype=torch.int32)
        self.rows, self.judged_heads = some(tokens, 8).tolist(), some(heads, 4).tolist()
        self.exact = torch.stack([self.exact_of(row, head) for row in self.rows for head in self.judged_heads])

    def exact_of(self, row, head):
        scores = self.k[0, :row + 1, head].double() @ self.q[0, row, head].double() * self.scale
        return torch.softmax(scores, 0) @ self.v[0, :row + 1, head].double()

    def judge(self):
        found = torch.stack([self.result[row, head] for row in self.rows for head in self.judged_heads])
        return relative(found, self.exact), bool(self.result.isfinite().all())

    def ours(self, library):
        lse = self.keeper.empty(self.tokens * self.heads, dtype=torch.float32)
        problems = [Prefill(self.q[c].data_ptr(), self.kv[c].data_ptr(), self.k_rope[c].data_ptr(), pointer(self.ends), pointer(self.ends),
                            pointer(self.result), None, pointer(lse), None, 1, self.heads, self.heads, self.tokens, self.tokens, NOPE, ROPE, VALUE,
                            self.scale, FAST) for c in range(self.copies)]
        workspace = self.keeper.workspace(library.tsr_cuda_prefill_workspace, problems[0], self.libraries.device)
        for problem in problems:
            problem.workspace = workspace
        call(library.tsr_cuda_prefill_plan, ctypes.byref(problems[0]), stream())
        return lambda i: call(library.tsr_cuda_prefill, ctypes.byref(problems[i % self.copies]), stream())

    def flash_attention(self):
        lse, semaphore = self.keeper.empty(self.heads * self.tokens, dtype=torch.float32), self.keeper.empty(16, dtype=torch.int32)

        def launch(i):
            q, k, v = (x[i % self.copies] for x in (self.q, self.k, self.v))
            self.libraries.fa3.fa3_run(self.heads, self.tokens, ctypes.c_float(self.scale), pointer(q), pointer(k), pointer(v),
                                       pointer(self.result), pointer(lse), pointer(semaphore), self.libraries.device.processors, stream())
        return launch

    def cudnn(self):
        """Returns a launch of cuDNN by PyTorch. Its result has memory of its own and is not compared."""
        def launch(i):
            with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
                torch.nn.functional.scaled_dot_product_attention(*(x[i % self.copies].transpose(0, 1)[None]
                                                                   for x in (self.q, self.k, self.v)), is_causal=True)
        return launch

    def candidates(self):
        found = self.with_former(self.ours)
        if self.libraries.fa3:
            found["fa3"] = self.flash_attention()
        found["cudnn"] = self.cudnn()
        torch.cuda.synchronize()
        return found


def random_cache():
    """Returns the pages of all tokens."""
    cache = torch.empty(PAGES, PAGE, LATENT + ROPE, device="cuda", dtype=torch.bfloat16)
    for part in cache.split(1024):
        part.copy_(random(*part.shape))
    return cache
