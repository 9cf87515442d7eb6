/* Names the gates of MLPs and mixers. */
#pragma once

typedef enum tsr_gate {
    TSR_GATE_SILU,      /* silu(gate) * up */
    TSR_GATE_GELU_TANH, /* gelu(gate) * up, with the tanh approximation */
    TSR_GATE_CLAMPED,   /* gpt-oss: g sigmoid(1.702 g) (u + 1), g at most `limit`, |u| at most `limit` */
    TSR_GATE_RELU2,     /* max(gate, 0)^2; `up` has no effect */
    TSR_GATE_SIGMOID,   /* sigmoid(gate) * up */
    TSR_GATE_LIMITED,   /* silu(g) u, g at most `limit`, |u| at most `limit` */
} tsr_gate;
