"""The shapes of the sweep: matrices and attention of real models, with numbers of tokens that serving meets."""

# Weights [N, K] of layers, whole or divided over GPUs.
MATRICES = [
    (2112, 7168, "DeepSeek-V3, Kimi-K2: down projections of queries and cache"),
    (24576, 1536, "DeepSeek-V3: up projection of queries"),
    (12288, 1536, "Kimi-K2: the same"),
    (32768, 512, "DeepSeek-V3: up projection of keys and values"),
    (7168, 16384, "DeepSeek-V3: output of attention"),
    (7168, 8192, "Kimi-K2: the same"),
    (4096, 7168, "DeepSeek-V3, Kimi-K2: gate and up projection of the shared expert"),
    (7168, 2048, "DeepSeek-V3, Kimi-K2: its down projection"),
    (36864, 7168, "DeepSeek-V3: gate and up projection of a dense layer"),
    (7168, 18432, "DeepSeek-V3: its down projection"),
    (6144, 4096, "Llama-3.1-8B, Qwen3-8B: queries, keys, values"),
    (4096, 4096, "Llama-3.1-8B: output of attention"),
    (28672, 4096, "Llama-3.1-8B: gate and up projection"),
    (4096, 14336, "Llama-3.1-8B: down projection"),
    (10240, 8192, "Llama-3.1-70B: queries, keys, values"),
    (8192, 8192, "Llama-3.1-70B: output of attention"),
    (8192, 28672, "Llama-3.1-70B: down projection"),
    (14336, 8192, "Llama-3.1-70B, one of 4 GPUs: gate and up projection"),
    (10240, 5120, "Qwen3-32B: queries, keys, values"),
    (51200, 5120, "Qwen3-32B: gate and up projection"),
    (5120, 25600, "Qwen3-32B: down projection"),
    (9216, 4096, "Qwen3-235B: queries, keys, values"),
    (14336, 5120, "GLM-4.5: queries, keys, values"),
    (5120, 12288, "GLM-4.5: output of attention"),
    (5120, 2880, "gpt-oss-120b: queries, keys, values; K has a part of a block"),
]
TOKENS = [1, 4, 8, 16, 17, 32, 48, 64, 65, 96, 128, 160, 256, 257, 512, 1000, 2048, 4096, 8192]

# Weights in int4 with a scale for each 128 rows of K: [N, K], as above.
INT4_MATRICES = [(4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (8192, 8192), (10240, 8192), (8192, 28672), (18432, 7168),
                 (7168, 18432), (14336, 5120)]
INT4_TOKENS = [1, 5, 8, 16, 17, 32, 48, 64, 96, 128, 200, 256, 512]

# Experts: layout, groups, rows of a group (0.7 to 1.3 times as many; those below 20: 1 to twice as many), N, K.
EXPERT_MATRICES = [
    (4096, 7168, "DeepSeek-V3, Kimi-K2: gate and up projection"),
    (7168, 2048, "DeepSeek-V3, Kimi-K2: down projection"),
    (3072, 4096, "Qwen3-235B: gate and up projection"),
    (4096, 1536, "Qwen3-235B: down projection"),
    (3072, 5120, "GLM-4.5: gate and up projection"),
]
EXPERT_ROWS = [("masked", 8, 2), ("masked", 8, 24), ("masked", 8, 128), ("masked", 8, 600), ("masked", 32, 4), ("masked", 32, 16),
               ("masked", 32, 40), ("masked", 32, 96), ("masked", 32, 250), ("contiguous", 8, 500), ("contiguous", 8, 4096),
               ("contiguous", 32, 1024)]

# MLA decoding: sequences, queries, heads, tokens; "ragged": lengths are uniform in 1 to twice as many.
DECODING = [
    *((batch, 1, 128, 4096, spread) for batch in (1, 2, 8, 16, 32, 64, 128, 256) for spread in ("even", "ragged")),
    *((batch, 1, 16, 4096, spread) for batch in (1, 8, 32, 132, 256) for spread in ("even", "ragged")),
    *((batch, 1, 64, 3000, spread) for batch in (4, 24, 100) for spread in ("even", "ragged")),
    (1, 1, 128, 100, "even"), (8, 1, 128, 500, "ragged"), (64, 1, 128, 1000, "ragged"), (256, 1, 128, 1000, "ragged"),
    (1, 1, 128, 65536, "even"), (4, 1, 128, 32768, "even"), (64, 1, 128, 16384, "even"), (8, 1, 32, 16384, "ragged"),
    (128, 2, 128, 4096, "even"), (16, 2, 128, 3000, "ragged"), (128, 1, 128, 8192, "even"),
]

# Sparse attention, whose queries list 2048 rows: sequences, queries, heads, rows of each sequence.
SPARSE_DECODING = [
    *((batch, 1, 128, context) for batch in (1, 2, 8, 32, 64, 128, 256) for context in (4096, 32768)),
    *((batch, 1, 64, context) for batch in (1, 8, 64, 128, 256) for context in (8192, 131072)),
    (32, 1, 128, 131072), (128, 1, 128, 131072), (64, 2, 128, 32768), (32, 2, 64, 32768),
]
SPARSE_PREFILL = [(1, queries, heads, context) for heads in (128, 64) for queries, context in (
    (512, 4096), (1024, 8192), (2048, 32768), (4096, 32768), (8192, 131072))]

# Scores of an indexer: queries, keys, heads.
INDEX = [*((queries, keys, 64) for queries in (1, 2, 64, 512, 2048) for keys in (4096, 32768, 131072)),
         (4096, 4096, 64), (4096, 32768, 64), (8192, 8192, 64),
         *((queries, keys, 32) for queries in (1, 512, 2048) for keys in (8192, 65536))]

# MLA prefill of one sequence, causal: heads, tokens.
PREFILL = [
    *((128, tokens) for tokens in (100, 256, 512, 700, 1024, 1536, 2048, 3000, 4096, 6000, 8192, 12000, 20000)),
    *((64, tokens) for tokens in (512, 1536, 3000, 8192, 16384)),
    *((16, tokens) for tokens in (300, 1024, 2048, 3000, 8192, 16384)),
]
