/* Tests which weights a pass asks the kernel for, and when. */
#include "verify/forward/forward_parts.h"

#include "tests/unit/fixture.h"

#include <pthread.h>

/* Two layers of 1 KiB and four experts of 4 KiB each; layer 1 has its experts in a stack. */
enum { SMALL = 1 << 10, EXPERT = 4 << 10, EXPERTS = 4, LAYERS = 2, MOST = 1 << 8, PATIENCE_MS = 10000, PAUSE_MS = 100 };

static const fixture_tensor kTensors[] = {
    {"model.embed_tokens.weight", {64, 16}, "U8"},
    {"model.layers.0.mlp.experts.0.up_proj.weight", {64, 64}, "U8"},
    {"model.layers.0.mlp.experts.1.up_proj.weight", {64, 64}, "U8"},
    {"model.layers.0.mlp.experts.2.up_proj.weight", {64, 64}, "U8"},
    {"model.layers.0.mlp.experts.3.up_proj.weight", {64, 64}, "U8"},
    {"model.layers.0.self_attn.q_proj.weight", {64, 16}, "U8"},
    {"model.layers.1.mlp.experts.up_proj.weight", {EXPERTS, 64, 64}, "U8"},
    {"model.layers.1.self_attn.q_proj.weight", {64, 16}, "U8"},
};

/* The offsets of the calls, in their order. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t asked[MOST];
static size_t n_asked;

int posix_fadvise64(int fd, off_t offset, off_t size, int advice); /* takes the place of the library's */
int posix_fadvise64(int fd, off_t offset, off_t size, int advice)
{
    (void)fd, (void)size, (void)advice;
    pthread_mutex_lock(&lock);
    if (n_asked < MOST)
        asked[n_asked++] = (uint64_t)offset;
    pthread_mutex_unlock(&lock);
    return 0;
}

static size_t calls(void)
{
    pthread_mutex_lock(&lock);
    const size_t n = n_asked;
    pthread_mutex_unlock(&lock);
    return n;
}

/* Waits until there are `n` calls, and checks that no more follow. */
static void expect(size_t n)
{
    for (int ms = 0; calls() < n && ms < PATIENCE_MS; ms++)
        usleep(1000);
    usleep(1000 * PAUSE_MS);
    cr_assert_eq(calls(), n, "%zu, %zu expected", calls(), n);
}

static tsr_checkpoint *checkpoint;
static tsr_side side;
static tsr_ops ops;
static tsr_forward f;

static void begin(void)
{
    tsr_err err;
    fixture_make();
    fixture_shard("model.safetensors", kTensors, sizeof kTensors / sizeof *kTensors);
    cr_assert_eq(tsr_checkpoint_open(&checkpoint, fixture_path("model.safetensors"), NULL, 0, &err), TSR_OK);
    side = (tsr_side){.checkpoint = checkpoint};
    ops = tsr_ops_of_cpu(1, NULL);
    f = (tsr_forward){.side = &side, .root = "model.", .layers = LAYERS, .ops = &ops, .router.chosen = 1};
    n_asked = 0;
}

static void end(void)
{
    tsr_ahead_end(&f);
    tsr_checkpoint_close(checkpoint);
    fixture_remove();
}

/* Returns the offset of a tensor in the file, plus `more`. */
static uint64_t place(const char *name, uint64_t more)
{
    return tsr_checkpoint_find(checkpoint, name)->offset + more;
}

#define ATTENTION(layer) place("model.layers." #layer ".self_attn.q_proj.weight", 0)
#define ONE(expert)      place("model.layers.0.mlp.experts." #expert ".up_proj.weight", 0)
#define STACKED(expert)  place("model.layers.1.mlp.experts.up_proj.weight", (uint64_t)(expert)*EXPERT)

Test(forward_ahead, asks_for_chosen_experts, .init = begin, .fini = end)
{
    static const uint32_t kFirst[] = {3, 1, 3}, kSecond[] = {2};
    tsr_ahead_begin(&f, 0, 3);
    expect(1);
    tsr_ahead_choose(&f, EXPERTS, kFirst, 3);
    expect(4);
    cr_assert_eq(asked[0], ATTENTION(0));
    cr_assert_eq(asked[1], ONE(1));
    cr_assert_eq(asked[2], ONE(3));
    cr_assert_eq(asked[3], ATTENTION(1));
    tsr_ahead_begin(&f, 1, 3);
    expect(4);
    tsr_ahead_choose(&f, EXPERTS, kSecond, 1);
    expect(5);
    cr_assert_eq(asked[4], STACKED(2));
}

/* Tests that many tokens make the thread ask for experts before the choice, and that a layer is not repeated. */
Test(forward_ahead, asks_for_all_experts_of_many_tokens, .init = begin, .fini = end)
{
    enum { TOKENS = 8 * EXPERTS };
    static const uint32_t kAll[] = {0, 1, 2, 3};
    tsr_ahead_begin(&f, 0, TOKENS);
    tsr_ahead_choose(&f, EXPERTS, kAll, EXPERTS);
    tsr_ahead_begin(&f, 0, TOKENS);
    expect(2 + 2 * EXPERTS);
    cr_assert_eq(asked[1 + EXPERTS], ATTENTION(1));
    for (size_t e = 0; e < EXPERTS; e++)
        cr_assert_eq(asked[2 + EXPERTS + e], STACKED(e));
    tsr_ahead_begin(&f, 1, TOKENS);
    expect(2 + 2 * EXPERTS);
    tsr_ahead_begin(&f, 0, TOKENS); /* an earlier layer */
    expect(4 + 4 * EXPERTS);
}

/* Tests that the thread stays within the limit, and goes on when the pass has read. */
Test(forward_ahead, stays_within_the_limit, .init = begin, .fini = end)
{
    static const uint32_t kAll[] = {0, 1, 2, 3};
    ops.room = SMALL + EXPERT;
    tsr_ahead_begin(&f, 0, 4);
    tsr_ahead_choose(&f, EXPERTS, kAll, EXPERTS);
    expect(2);
    f.bytes_read += SMALL;
    tsr_ahead_move(&f);
    expect(3);
    f.bytes_read += 2 * EXPERT;
    tsr_ahead_move(&f);
    expect(5);
}
