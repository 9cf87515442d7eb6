/* What an error says, and where docs/errors.md tells more of it. tests/front_door/blocks.py holds both sides to this table: each part
 * stands in a message of the source, each anchor is a heading of the page. */
#include "cli/anchors.h"

#include <stddef.h>
#include <string.h>

static const struct {
    const char *part, *anchor;
} kAnchors[] = {
    {"it is truncated", "truncated"},
    {"the file is truncated or its header is wrong", "truncated"},
    {"a Git LFS pointer, not the file itself", "git-lfs"},
    {"the index is stale", "stale-index"},
    {"missing: a checkpoint directory needs its configuration", "no-configuration"},
    {"is the checkpoint quantized?", "quantized-already"},
    {" without a scale (looked for", "no-scale"},
    {"is left over: its weight", "scale-left-over"},
    {"which Tessera does not read, nor copy as if it were values", "unread"},
    {"the checkpoint is damaged", "damaged"},
    {"the source is damaged", "damaged"},
    {"nothing to quantize", "nothing-to-quantize"},
    {"not empty (", "taken"},
    {"begun with other options", "other-options"},
    {"begun from a source that has changed since", "changed-source"},
    {"changed while it was read", "changed-while-read"},
    {"another process is writing this output", "two-at-once"},
    {"that this job does not write; loaders would take", "foreign-files"},
    {"free space there, or raise the quota", "disk-full"},
    {"is too little for this job: one thread needs", "memory"},
    {"no GPU can be used", "no-gpu"},
    {"has too little memory: ", "gpu-memory"},
    {"and needs their ranges: --activations FILE", "activation-ranges"},
};

const char *tsr_error_anchor(const char *message)
{
    for (size_t i = 0; i < sizeof kAnchors / sizeof *kAnchors; i++) {
        if (strstr(message, kAnchors[i].part) != NULL)
            return kAnchors[i].anchor;
    }
    return NULL;
}
