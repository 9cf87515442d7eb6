/* libFuzzer target: pairs codes with scales, and applies the loader rules.
 *
 * The input has config.json, the header of model.safetensors and the beginning of its data, each on a line. Weights
 * are paired or rejected. */
#include "formats/loaders/loaders.h"

#include "tests/robustness/fuzz/folder.h"
#include "tests/robustness/fuzz/lines.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_DATA = 1 << 20 };

static const char *const kFiles[] = {TSR_CONFIG_NAME, "model.safetensors", NULL};

/* Where the data ends that the header speaks of: the largest number that follows a comma and ends a list. */
static uint64_t end_of_data(const char *header, size_t size)
{
    uint64_t end = 0;
    for (size_t i = 0; i < size; i++) {
        if (header[i] != ',')
            continue;
        uint64_t x = 0;
        size_t k = i + 1;
        for (; k < size && header[k] >= '0' && header[k] <= '9' && x <= MOST_DATA; k++)
            x = 10 * x + (uint64_t)(header[k] - '0');
        if (k > i + 1 && k < size && header[k] == ']' && x <= MOST_DATA && x > end)
            end = x;
    }
    return end;
}

/* `values`: what the data begins with. It goes on with zeros, in a hole of the file: pairing looks at few. */
static void make_checkpoint(span config, span header, span values)
{
    const int text = create(TSR_CONFIG_NAME);
    put(text, config.data, config.size);
    close(text);
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)header.size >> (8 * i));
    const int fd = create("model.safetensors");
    put(fd, length, sizeof length);
    put(fd, header.data, header.size);
    put(fd, values.data, values.size);
    if (ftruncate(fd, (off_t)(sizeof length + header.size + end_of_data(header.data, header.size))) != 0)
        abort();
    close(fd);
}

static void count_problem(void *data, const tsr_tensor *tensor, tsr_status status, const char *message)
{
    (void)tensor;
    if (status == TSR_OK || message[0] == '\0')
        abort();
    ++*(size_t *)data;
}

/* Sizes of codes must be right, or a conversion would read past their scales. */
static void check_weight(const tsr_weight *w)
{
    const tsr_tensor *companions[TSR_MAX_COMPANIONS];
    if (tsr_weight_companions(w, companions, NULL) > TSR_MAX_COMPANIONS)
        abort();
    if (w->scale == NULL || w->coding == TSR_UNREAD)
        return;
    if (w->block.rows == 0 || w->block.cols == 0 || w->values == NULL)
        abort();
    const uint64_t rows = (w->rows + w->block.rows - 1) / w->block.rows,
                   cols = (w->cols + w->block.cols - 1) / w->block.cols;
    if (w->part == NULL && (w->grid_rows < rows || (!w->reordered && w->grid_cols < cols)))
        abort();
    uint64_t scales = 1;
    for (size_t i = 0; i < w->scale->rank; i++)
        scales *= w->scale->shape[i];
    if (!w->one_scale && w->part == NULL && scales < w->matrices * w->grid_rows * w->grid_cols)
        abort();
}

static void judge(const tsr_checkpoint *c, const tsr_weights *weights)
{
    const tsr_model model = tsr_model_read(c);
    const tsr_load_subject subject = {.checkpoint = c, .weights = weights, .model = &model};
    tsr_load_table table = {.n_loaders = TSR_LOADER_COUNT, .tp = {1, 2}, .n_tp = 2};
    tsr_issues issues = {0};
    for (int i = 0; i < TSR_LOADER_COUNT; i++)
        table.loaders[i] = (tsr_loader)i;
    if (tsr_loaders_check(&table, &subject, &issues, NULL) != TSR_OK)
        abort();
    tsr_issues_free(&issues);
}

static void pair(const tsr_checkpoint *c)
{
    tsr_weights paired = {0}, surveyed = {0};
    size_t problems = 0;
    const tsr_block unstated = {0};
    const tsr_status strict = tsr_weights_pair(&paired, c, unstated, NULL);
    if (tsr_weights_survey(&surveyed, c, unstated, count_problem, &problems, NULL) == TSR_OK) {
        if ((strict == TSR_OK) != (problems == 0))
            abort(); /* one of the two saw a fault that the other did not */
        for (size_t i = 0; i < surveyed.count; i++)
            check_weight(&surveyed.items[i]);
        judge(c, &surveyed);
    }
    if (strict == TSR_OK) {
        for (size_t i = 0; i < paired.count; i++)
            check_weight(&paired.items[i]);
        if (paired.n_scaled != surveyed.n_scaled)
            abort();
    }
    tsr_weights_free(&surveyed);
    tsr_weights_free(&paired);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool ready = false;
    if (!ready)
        make_folder(kFiles);
    ready = true;
    span rest = {(const char *)data, size};
    const span config = take_line(&rest), header = take_line(&rest);
    make_checkpoint(config, header, rest);
    tsr_checkpoint *c = NULL;
    if (tsr_checkpoint_open(&c, folder, NULL, 0, NULL) == TSR_OK)
        pair(c);
    tsr_checkpoint_close(c);
    return 0;
}
