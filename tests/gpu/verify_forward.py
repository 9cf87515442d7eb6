#!/usr/bin/env python3
"""`tessera verify forward` on a GPU against the CPU, for a small random model of each family and its quantized copy: every figure of
every judgement is the CPU's, within 1e-9 where both passes are in double, and within 1 % as served, where a value near a tie may be
rounded to the other side. Where there are two GPUs, both together give the figures of one: each with a model, and both with the
weights of one model (--reference) divided between them. The statistics of `tessera calibrate` are the CPU's within 1e-6, as FP32 stores
them. In BF16 the mean squares of what attention computes in the first layer are within 3 %. Products in FP32 and BF16 give nearly the same figures, and little memory the same. Stdlib only.

    python3 tests/gpu/verify_forward.py --tessera build/cli/tessera --make build/tests/make/make_checkpoint
"""

import array
import json
import pathlib
import random
import re
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import harness

HIDDEN, INNER, EXPERT, HEADS, KV, DIM, VOCABULARY, LAYERS, EXPERTS = 256, 384, 128, 4, 2, 64, 160, 2, 8
BASE = {"hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": DIM,
        "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "num_experts_per_tok": 2,
        "moe_intermediate_size": EXPERT, "torch_dtype": "bfloat16"}
LATENT = {"q_lora_rank": 128, "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "n_group": 4,
          "topk_group": 2, "routed_scaling_factor": 2.5, "n_routed_experts": EXPERTS, "n_shared_experts": 1}
BLOCKS = {"sparse_num_index_heads": 2, "sparse_index_dim": 64, "sparse_block_size": 4, "sparse_topk_blocks": 4, "sparse_local_block": 1,
          "sparse_attention_freq": [0, 1]}
INDEXER = {"index_topk": 12, "index_n_heads": 16, "index_head_dim": 64}
GLM = {"partial_rotary_factor": 0.5, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "n_routed_experts": EXPERTS}
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "sliding_window": 9, "query_pre_attn_scalar": 48, "tie_word_embeddings": True}
YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 64}
TYPES = ["sliding_attention", "full_attention"]
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 64,
         "linear_conv_kernel_dim": 4, "full_attention_interval": 2, "partial_rotary_factor": 0.25, "norm_topk_prob": True}
GRANITE = {"embedding_multiplier": 12.0, "attention_multiplier": 0.1, "residual_multiplier": 0.22, "logits_scaling": 8.0}
KIMI = {"kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "linear_num_heads": 4, "linear_head_dim": 32,
        "linear_conv_kernel_dim": 4, "layer_types": ["linear_attention", "full_attention"]}
MAMBA = {"mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 32, "mamba_d_head": 64, "mamba_d_conv": 4, "mamba_expand": 1,
         "layer_types": ["mamba", "attention"], "position_embedding_type": "rope"}
V4 = {"head_dim": 64, "num_key_value_heads": 1, "q_lora_rank": 128, "qk_rope_head_dim": 16, "o_groups": 2, "o_lora_rank": 64, "n_routed_experts": EXPERTS,
      "n_shared_experts": 1, "scoring_func": "sqrtsoftplus", "norm_topk_prob": True, "hc_mult": 4, "sliding_window": 9, "index_n_heads": 16,
      "index_head_dim": 32, "index_topk": 3, "num_hash_layers": 1, "layer_types": ["compressed_sparse_attention", "heavily_compressed_attention"],
      "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8}}
# Members of each family's config.json besides BASE, and its tensors.
FAMILIES = {
    "llama": ({}, set()),
    "mistral": ({"sliding_window": 7}, set()),
    "mixtral": ({"num_local_experts": EXPERTS, "intermediate_size": EXPERT}, {"experts", "w"}),
    "qwen2": ({"tie_word_embeddings": True}, {"bias", "tied"}),
    "qwen2_moe": ({}, {"bias", "experts", "shared gate"}),
    "qwen3": ({"head_dim": 128}, {"head norms"}),
    "qwen3_moe": ({"norm_topk_prob": True}, {"head norms", "experts"}),
    "deepseek_v2": ({**LATENT, "topk_method": "group_limited_greedy"}, {"latent", "experts", "shared"}),
    "deepseek_v3": ({**LATENT, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "norm_topk_prob": True}, {"latent", "experts", "shared", "sigmoid"}),
    "deepseek_v32": ({**LATENT, **INDEXER, "norm_topk_prob": True}, {"latent", "indexer", "experts", "shared", "sigmoid"}),
    "deepseek_v4": (V4, {"v4"}),
    "glm_moe_dsa": ({**LATENT, **INDEXER, "indexer_types": ["full", "shared"], "norm_topk_prob": True},
                    {"latent", "indexer", "experts", "shared", "sigmoid"}),
    "glm4_moe": (GLM, {"bias", "head norms", "experts", "shared", "sigmoid"}),
    "gemma2": ({**GEMMA, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}, {"four norms", "tied"}),
    "gemma3_text": ({**GEMMA, "layer_types": TYPES}, {"four norms", "head norms", "tied"}),
    "gpt_oss": ({"sliding_window": 9, "layer_types": TYPES, "rope_scaling": YARN, "intermediate_size": EXPERT, "attention_bias": True},
                {"bias", "stacks"}),
    "minimax_m3_vl": ({"hidden_act": "swigluoai", "rotary_dim": 32, "scoring_func": "sigmoid", "routed_scaling_factor": 2.0,
                       "sparse_attention_config": BLOCKS},
                      {"gain from 1", "head norms", "experts", "w", "sigmoid", "blocks"}),
    "mimo_v2_flash": ({"sliding_window": 9, "hybrid_layer_pattern": [0, 1], "v_head_dim": 32, "n_routed_experts": EXPERTS,
                       "partial_rotary_factor": 0.5, "norm_topk_prob": True}, {"experts", "sigmoid", "window heads"}),
    "minimax_m2": ({"rotary_dim": 32, "scoring_func": "sigmoid"}, {"wide norms", "experts", "w", "sigmoid"}),
    "cohere": ({"layer_norm_eps": 1e-5}, {"bias", "parallel"}),
    "arcee": ({"hidden_act": "relu2"}, {"ungated"}),
    "granitemoeshared": (GRANITE, {"halves"}),
    "granitemoehybrid": ({**GRANITE, **MAMBA}, {"halves", "mamba"}),
    "kimi_linear": (KIMI, {"kimi", "latent", "experts", "w", "sigmoid"}),
    "qwen3_next": (DELTA, {"delta", "gain from 1", "output gate", "head norms", "experts", "shared gate"}),
}


def bf16(rng, n, scale, shift=0.0):
    wide = array.array("f", (rng.gauss(shift, scale) for _ in range(n))).tobytes()
    narrow = bytearray(2 * n)
    narrow[0::2], narrow[1::2] = wide[2::4], wide[3::4]
    return bytes(narrow)


class Model:
    def __init__(self, family):
        config, self.traits = FAMILIES[family]
        self.config = {**BASE, "model_type": family, **config}
        self.rng, self.tensors = random.Random(family), {}
        if "v4" in self.traits:
            self.v4()
            return
        self.add("model.embed_tokens.weight", (VOCABULARY, HIDDEN), 1)
        self.norm("model.norm", HIDDEN)
        if "tied" not in self.traits:
            self.add("lm_head.weight", (VOCABULARY, HIDDEN))
        for n in range(LAYERS):
            self.layer(f"model.layers.{n}.")

    def add(self, name, shape, scale=None):
        n = 1
        for d in shape:
            n *= d
        self.tensors[name] = ("BF16", shape, bf16(self.rng, n, scale or 0.8 * shape[-1] ** -0.5))

    def norm(self, name, n):
        from_one = self.traits & {"four norms", "gain from 1"}
        self.tensors[f"{name}.weight"] = ("BF16", (n,), bf16(self.rng, n, 0.2, 0.0 if from_one else 1.0))

    def linear(self, name, rows, cols, bias=False):
        self.add(f"{name}.weight", (rows, cols))
        if bias:
            self.add(f"{name}.bias", (rows,), 0.3)

    def fp32(self, name, *shape):
        n = 1
        for d in shape:
            n *= d
        self.tensors[name] = ("F32", shape, array.array("f", (self.rng.gauss(0, 0.3) for _ in range(n))).tobytes())

    def v4(self):
        """Makes DeepSeek-V4 with the names of its release."""
        self.add("embed.weight", (VOCABULARY, HIDDEN), 1)
        self.add("head.weight", (VOCABULARY, HIDDEN))
        self.norm("norm", HIDDEN)
        for name, *shape in (("fn", 4, 4 * HIDDEN), ("base", 4), ("scale", 1)):
            self.fp32(f"hc_head_{name}", *shape)
        for n in range(LAYERS):
            self.v4_layer(f"layers.{n}.", hashed=n == 0)

    def compressor(self, at, rate, width, dim):
        for name in ("wkv", "wgate"):
            self.linear(f"{at}.{name}", width, HIDDEN)
        self.fp32(f"{at}.ape", rate, width)
        self.norm(f"{at}.norm", dim)

    def v4_layer(self, at, hashed):
        dim, rank = V4["head_dim"], V4["q_lora_rank"]
        for name, rows, cols in (("wq_a", rank, HIDDEN), ("wq_b", HEADS * dim, rank), ("wkv", dim, HIDDEN), ("wo_a", 128, HEADS * dim // 2), ("wo_b", HIDDEN, 128)):
            self.linear(f"{at}attn.{name}", rows, cols)
        for name, size in (("attn_norm", HIDDEN), ("ffn_norm", HIDDEN), ("attn.q_norm", rank), ("attn.kv_norm", dim)):
            self.norm(at + name, size)
        self.fp32(f"{at}attn.attn_sink", HEADS)
        self.compressor(f"{at}attn.compressor", 4 if hashed else 8, dim * (1 + hashed), dim)
        if hashed:
            self.linear(f"{at}attn.indexer.wq_b", 16 * 32, rank)
            self.linear(f"{at}attn.indexer.weights_proj", 16, HIDDEN)
            self.compressor(f"{at}attn.indexer.compressor", 4, 64, 32)
            table = array.array("q", (i % EXPERTS for i in range(2 * VOCABULARY)))
            self.tensors[f"{at}ffn.gate.tid2eid"] = ("I64", (VOCABULARY, 2), table.tobytes())
        else:
            self.fp32(f"{at}ffn.gate.bias", EXPERTS)
        self.linear(f"{at}ffn.gate", EXPERTS, HIDDEN)
        for part in ("attn", "ffn"):
            for name, *shape in (("fn", 24, 4 * HIDDEN), ("base", 24), ("scale", 3)):
                self.fp32(f"{at}hc_{part}_{name}", *shape)
        for module in (*(f"experts.{e}" for e in range(EXPERTS)), "shared_experts"):
            self.mlp(f"{at}ffn.{module}", EXPERT, ("w1", "w3", "w2"))

    def mlp(self, name, inner, words=("gate_proj", "up_proj", "down_proj")):
        if "ungated" not in self.traits:
            self.linear(f"{name}.{words[0]}", inner, HIDDEN)
        self.linear(f"{name}.{words[1]}", inner, HIDDEN)
        self.linear(f"{name}.{words[2]}", HIDDEN, inner)

    def layer(self, at):
        norms = ["input_layernorm", "post_attention_layernorm"][: 1 if "parallel" in self.traits else 2]
        if "four norms" in self.traits:
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        for name in norms:
            self.norm(at + name, HIDDEN)
        if "delta" in self.traits and at == "model.layers.0.":
            self.delta(f"{at}linear_attn.")
        elif "kimi" in self.traits and at == "model.layers.0.":
            self.kimi(f"{at}self_attn.")
        elif "mamba" in self.traits and at == "model.layers.0.":
            self.mamba(f"{at}mamba.")
        else:
            (self.latent if "latent" in self.traits else self.grouped)(f"{at}self_attn.")
        if "stacks" in self.traits:
            self.linear(f"{at}mlp.router", EXPERTS, HIDDEN, True)
            for name, shape in (("gate_up_proj", (EXPERTS, HIDDEN, 2 * EXPERT)), ("down_proj", (EXPERTS, EXPERT, HIDDEN))):
                self.add(f"{at}mlp.experts.{name}", shape, shape[1] ** -0.5)
                self.add(f"{at}mlp.experts.{name}_bias", (EXPERTS, shape[2]), 0.3)
        elif "halves" in self.traits:
            self.linear(f"{at}block_sparse_moe.router.layer", EXPERTS, HIDDEN)
            self.add(f"{at}block_sparse_moe.input_linear.weight", (EXPERTS, 2 * EXPERT, HIDDEN))
            self.add(f"{at}block_sparse_moe.output_linear.weight", (EXPERTS, HIDDEN, EXPERT))
            self.linear(f"{at}shared_mlp.input_linear", 2 * EXPERT, HIDDEN)
            self.linear(f"{at}shared_mlp.output_linear", HIDDEN, EXPERT)
        elif "experts" in self.traits:
            mlp = at + ("block_sparse_moe" if "w" in self.traits else "mlp")
            self.linear(f"{mlp}.gate", EXPERTS, HIDDEN)
            if "sigmoid" in self.traits:
                bias = array.array("f", (self.rng.uniform(0, 0.5) for _ in range(EXPERTS)))
                self.tensors[f"{mlp}.{'gate.' if self.traits.isdisjoint({'w'}) or 'kimi' in self.traits else ''}e_score_correction_bias"] = ("F32", (EXPERTS,), bias.tobytes())
            for e in range(EXPERTS):
                self.mlp(f"{mlp}.experts.{e}", EXPERT, *([("w1", "w3", "w2")] if "w" in self.traits else []))
            if "shared" in self.traits:
                self.mlp(f"{mlp}.shared_experts", EXPERT)
            if "shared gate" in self.traits:
                self.mlp(f"{mlp}.shared_expert", EXPERT)
                self.linear(f"{mlp}.shared_expert_gate", 1, HIDDEN)
        else:
            self.mlp(f"{at}mlp", INNER)

    def grouped(self, at):
        bias, second = "bias" in self.traits, at.startswith("model.layers.1.")
        dim = self.config["head_dim"]
        kv, v_dim = (KV * (1 + second), dim // 2) if "window heads" in self.traits else (KV, dim)
        if "window heads" in self.traits and second:
            self.add(f"{at}attention_sink_bias", (HEADS,), 1)
        if "blocks" in self.traits and second:
            width = BLOCKS["sparse_index_dim"]
            for name, rows in (("q", BLOCKS["sparse_num_index_heads"] * width), ("k", width)):
                self.linear(f"{at}index_{name}_proj", rows, HIDDEN)
                self.norm(f"{at}index_{name}_norm", width)
        for name, rows in (("q", HEADS * dim), ("k", kv * dim), ("v", kv * v_dim)):
            self.linear(f"{at}{name}_proj", rows * (1 + ("output gate" in self.traits and name == "q")), HIDDEN, bias)
        self.linear(f"{at}o_proj", HIDDEN, HEADS * v_dim, "stacks" in self.traits)
        if "head norms" in self.traits:
            self.norm(f"{at}q_norm", dim)
            self.norm(f"{at}k_norm", dim)
        if "wide norms" in self.traits:
            self.norm(f"{at}q_norm", HEADS * dim)
            self.norm(f"{at}k_norm", KV * dim)
        if "stacks" in self.traits:
            self.add(f"{at}sinks", (HEADS,), 1)

    def delta(self, at):
        c = self.config
        heads, keys = c["linear_num_value_heads"], c["linear_num_key_heads"] * c["linear_key_head_dim"]
        values = heads * c["linear_value_head_dim"]
        self.linear(f"{at}in_proj_qkvz", 2 * keys + 2 * values, HIDDEN)
        self.linear(f"{at}in_proj_ba", 2 * heads, HIDDEN)
        self.linear(f"{at}out_proj", HIDDEN, values)
        self.add(f"{at}conv1d.weight", (2 * keys + values, 1, c["linear_conv_kernel_dim"]), 0.5)
        self.add(f"{at}A_log", (heads,), 1)
        self.add(f"{at}dt_bias", (heads,), 1)
        self.tensors[f"{at}norm.weight"] = ("BF16", (c["linear_value_head_dim"],), bf16(self.rng, c["linear_value_head_dim"], 0.2, 1.0))

    def kimi(self, at):
        heads, dim = self.config["linear_num_heads"], self.config["linear_head_dim"]
        for name in ("q", "k", "v"):
            self.linear(f"{at}{name}_proj", heads * dim, HIDDEN)
            self.add(f"{at}{name}_conv1d.weight", (heads * dim, 1, self.config["linear_conv_kernel_dim"]), 0.5)
        for name in ("f", "g"):
            self.linear(f"{at}{name}_a_proj", dim, HIDDEN)
            self.linear(f"{at}{name}_b_proj", heads * dim, dim)
        self.linear(f"{at}b_proj", heads, HIDDEN)
        self.linear(f"{at}o_proj", HIDDEN, heads * dim)
        self.add(f"{at}A_log", (1, 1, heads, 1), 1)
        self.add(f"{at}dt_bias", (heads * dim,), 1)
        self.norm(f"{at}o_norm", dim)

    def mamba(self, at):
        c = self.config
        heads, inner = c["mamba_n_heads"], c["mamba_n_heads"] * c["mamba_d_head"]
        channels = inner + 2 * c["mamba_n_groups"] * c["mamba_d_state"]
        self.linear(f"{at}in_proj", inner + channels + heads, HIDDEN)
        self.linear(f"{at}out_proj", HIDDEN, inner)
        self.add(f"{at}conv1d.weight", (channels, 1, c["mamba_d_conv"]), 0.5)
        self.add(f"{at}conv1d.bias", (channels,), 0.3)
        for name in ("A_log", "dt_bias", "D"):
            self.add(f"{at}{name}", (heads,), 1)
        self.norm(f"{at}norm", inner)

    def latent(self, at):
        c = self.config
        queries = HEADS * (c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
        if "q_lora_rank" in c:
            self.linear(f"{at}q_a_proj", c["q_lora_rank"], HIDDEN)
            self.norm(f"{at}q_a_layernorm", c["q_lora_rank"])
            self.linear(f"{at}q_b_proj", queries, c["q_lora_rank"])
        else:
            self.linear(f"{at}q_proj", queries, HIDDEN)
        if "indexer" in self.traits and not (at.startswith("model.layers.1.") and "shared" in c.get("indexer_types", [])):
            self.indexer(f"{at}indexer.")
        self.linear(f"{at}kv_a_proj_with_mqa", c["kv_lora_rank"] + c["qk_rope_head_dim"], HIDDEN)
        self.norm(f"{at}kv_a_layernorm", c["kv_lora_rank"])
        self.linear(f"{at}kv_b_proj", HEADS * (c["qk_nope_head_dim"] + c["v_head_dim"]), c["kv_lora_rank"])
        self.linear(f"{at}o_proj", HIDDEN, HEADS * c["v_head_dim"])

    def indexer(self, at):
        c = self.config
        heads, dim = c["index_n_heads"], c["index_head_dim"]
        self.linear(f"{at}wq_b", heads * dim, c["q_lora_rank"])
        self.linear(f"{at}wk", dim, HIDDEN)
        self.linear(f"{at}weights_proj", heads, HIDDEN)
        self.norm(f"{at}k_norm", dim)
        self.add(f"{at}k_norm.bias", (dim,), 0.3)

    def write(self, path):
        path.mkdir()
        harness.write_safetensors(path / "model.safetensors", self.tensors)
        (path / "config.json").write_text(json.dumps(self.config))
        return path


def run(tessera, *words):
    code, out, err = harness.run(tessera, ["verify", "forward", *words, "--json", "-"])
    if "--devices:" not in err:  # fewer GPUs than asked for is no lack of one
        harness.skip_without_gpu(code, err)
    return json.loads(out) if code in (0, 1) else {"error": err}


def make_reference(path, width):
    """Writes random states and logits. Only the figures of both devices are compared."""
    rng, (sequences, length) = random.Random(1), (2, 40)
    shapes = {**{f"hidden_states.{n}": (sequences, length, width) for n in range(LAYERS + 1)}, "logits": (sequences, length, VOCABULARY)}
    tensors = {"input_ids": ("I32", (sequences, length), array.array("i", (rng.randrange(VOCABULARY) for _ in range(sequences * length))).tobytes())}
    for name, shape in shapes.items():
        tensors[name] = ("F32", shape, array.array("f", (rng.gauss(0, 1) for _ in range(shape[0] * shape[1] * shape[2]))).tobytes())
    harness.write_safetensors(path, tensors)
    return path


def check_two(checks, tessera, family, words, on_one):
    """Two GPUs have the figures of one, except for cuBLAS' order of summation."""
    on_two = run(tessera, *words, "--device", "cuda", "--devices", 2)
    if "--devices:" in on_two.get("error", ""):
        print(f"{family:12} left out: two GPUs: {on_two['error'].strip()}")
        return
    apart = distance(on_one, on_two)
    checks.check(f"{family}: two GPUs give the figures of one", apart <= (1e-2 if "--against" in words else 1e-9), on_two.get("error", apart))
    between = on_two.get("bytes_between_devices", 0)
    checks.check(f"{family}: bytes between GPUs", (between > 0) == ("--reference" in words), between)


def check_precisions(checks, tessera, family, both, in_double):
    """Products in FP32 and BF16 change the figures little, because both passes have the same noise. Routers of random models
    have many nearly equal scores, so BF16 chooses some other experts."""
    for precision, most, figures in (("fp32", 1e-4, FIGURES), ("bf16", 0.5, ("sqnr_db", "agreement"))):
        result = run(tessera, *both, "--exact", "--device", "cuda", "--precision", precision)
        apart = distance(in_double, result, figures)
        print(f"{family:12} {precision}: figures at most {apart:.3g} apart", flush=True)
        checks.check(f"{family}, {precision}", apart <= most and precision.upper() in result.get("device", ""), result.get("error", apart))


def check_groups(checks, tessera, family, both, whole):
    """Sequences that run one after another, with the smallest accepted memory, have the same figures. Models with an indexer
    run all tokens at once."""
    words = [*both, "--exact", "--device", "cuda", "--memory"]
    least = re.search(r"need (\d+) MB", run(tessera, *words, "1MB").get("error", ""))
    if not least:
        checks.check(f"{family}: too little memory is refused", False)
        return
    result = run(tessera, *words, f"{least[1]}MB")
    checks.check(f"{family}: with little memory", distance(whole, result) <= 1e-9, result.get("error", distance(whole, result)))
    if all(j.get("token_agreement") is None for j in whole["judgements"]):
        checks.check(f"{family}: weights are read again", result.get("weight_bytes_read", 0) > whole["weight_bytes_read"], result.get("weight_bytes_read"))


def statistics(tessera, src, tokens, device, work, precision="fp64"):
    """Returns the tensors of calibrate --hessians as FP32 numbers, or the error."""
    out = pathlib.Path(work, "statistics.safetensors")
    out.unlink(missing_ok=True)
    code, _, err = harness.run(tessera, ["calibrate", src, "--tokens", tokens, "--hessians", "--device", device, "--precision", precision,
                                         "-o", out, "--quiet"])
    if code != 0:
        return err
    _, tensors = harness.read_safetensors(out)
    return {name: array.array("f", data) for name, (dtype, _, data) in tensors.items() if dtype == "F32"}


MIXED = r"(model\.)?layers\.0\..*\.(o_proj|out_proj|wo_a)\.input_mean_square"  # outputs of attention, before any router


def difference(a, b):
    """Returns the largest difference relative to the largest number of a."""
    return max(abs(x - y) for x, y in zip(a, b)) / (max(map(abs, a)) or 1)


def check_statistics(checks, tessera, family, src, work):
    """Compares sums of both devices, which differ only in the order of summation, relative to the largest value of their
    tensor."""
    rng, tokens = random.Random(2), pathlib.Path(work, "tokens.txt")
    tokens.write_text("\n".join(" ".join(str(rng.randrange(VOCABULARY)) for _ in range(70)) for _ in range(5)))
    on_cpu, on_gpu = (statistics(tessera, src, tokens, device, work) for device in ("cpu", "cuda"))
    in_bf16 = statistics(tessera, src, tokens, "cuda", work, "bf16")
    failed = next((found for found in (on_cpu, on_gpu, in_bf16) if isinstance(found, str)), None)
    if failed is not None:
        checks.check(f"{family}: calibrate", False, failed)
        return
    apart = max(difference(a, on_gpu[name]) for name, a in on_cpu.items())
    mixed = max((difference(a, in_bf16[name]) for name, a in on_cpu.items() if re.fullmatch(MIXED, name)), default=0)
    print(f"{family:12} calibrate: the first layer's mixed tokens in BF16 at most {mixed:.3g} apart")
    checks.check(f"{family}: attention in BF16", mixed <= 0.03, mixed)
    products = sum("input_products" in name for name in on_cpu)
    print(f"{family:12} calibrate: statistics at most {apart:.3g} apart, {products} matrices of products")
    checks.check(f"{family}: statistics", on_cpu.keys() == on_gpu.keys() and products >= 3 * LAYERS and apart <= 1e-6, apart)


FIGURES = ("sqnr_db", "relative_error", "kl_mean_nats", "agreement", "token_agreement")


def distance(a, b, figures=FIGURES):
    """Returns the largest relative difference of two results' figures; infinity if anything else differs."""
    if "error" in a or "error" in b or len(a["judgements"]) != len(b["judgements"]):
        return float("inf")
    most = 0.0
    for j, k in zip(a["judgements"], b["judgements"]):
        for key in figures:
            x, y = j.get(key), k.get(key)
            if (x is None) != (y is None):
                return float("inf")
            least = 1e-2 if key == "kl_mean_nats" else 1e-12  # a small divergence is the sum of terms that cancel
            most = max(most, abs(x - y) / max(abs(x), least)) if x is not None else most
    return most


def main():
    options = harness.argument_parser(__doc__.splitlines()[0]).parse_args()
    with harness.checks_in(options.directory) as (checks, work):
        for family in FAMILIES:
            src, dst = Model(family).write(pathlib.Path(work, family)), pathlib.Path(work, f"{family}-coded")
            scheme = ["mxfp4-weight-only", "--dialect", "gpt-oss"] if family == "gpt_oss" else ["fp8-block"]
            checks.ends(f"{family}: quantized", options.tessera, ["quantize", src, "-o", dst, "--quiet", "--scheme", *scheme])
            both = (dst, "--against", src, "--batch", 3, "--count", 50)
            for name, words, most in (("in double", ["--exact"], 1e-9), ("as served", [], 1e-2)):
                on_cpu, on_gpu = (run(options.tessera, *both, "--device", device, *words) for device in ("cpu", "cuda"))
                apart = distance(on_cpu, on_gpu)
                print(f"{family:12} {name}: figures at most {apart:.3g} apart, {on_gpu.get('device', on_gpu)}", flush=True)
                checks.check(f"{family}, {name}", apart <= most and "FP64" in on_gpu.get("device", ""), apart)
                if "--exact" in words and "error" not in on_gpu:
                    check_precisions(checks, options.tessera, family, both, on_cpu)
                    check_groups(checks, options.tessera, family, both, on_gpu)
            check_statistics(checks, options.tessera, family, src, work)
            check_two(checks, options.tessera, family, both, on_gpu)  # as served, as the last one was
            alone = (src, "--reference", make_reference(pathlib.Path(work, f"{family}.safetensors"), HIDDEN * (V4["hc_mult"] if family == "deepseek_v4" else 1)))
            check_two(checks, options.tessera, family, alone, run(options.tessera, *alone, "--device", "cuda"))


if __name__ == "__main__":
    main()
