/* Tests summaries of rows: quantiles, groups, outliers and the worst rows. */
#include "report/model/overview.h"
#include "report/read/read.h"

#include <criterion/criterion.h>

static tsr_result result_of(const char *tensors)
{
    tsr_text text = {0};
    tsr_result r;
    tsr_err err = {0};
    tsr_text_printf(
        &text,
        "{\"schema\": \"tessera-quantization-report/1\", \"version\": \"9\", \"command\": \"\", \"whole\": {}, "
        "\"tensors\": [%s]}",
        tensors);
    cr_assert_eq(tsr_result_read_text(&r, "r", text.data, text.size, &err), TSR_OK, "%s", err.msg);
    tsr_text_free(&text);
    return r;
}

static tsr_overview overview_of(const tsr_result *r)
{
    tsr_overview o;
    tsr_err err = {0};
    cr_assert_eq(tsr_overview_make(&o, r, &err), TSR_OK, "%s", err.msg);
    cr_assert(o.charted);
    return o;
}

/* Makes layers of two tensors with errors between 31 and 32 dB; layer `odd` has a larger one. */
static tsr_result layers(unsigned n, unsigned odd)
{
    tsr_text text = {0};
    for (unsigned i = 0; i < n; i++)
        tsr_text_printf(&text,
                        "%s{\"name\": \"m.layers.%u.q.weight\", \"sqnr_db\": %.2f, \"worst_block_error\": %g}, "
                        "{\"name\": \"m.layers.%u.k.weight\", \"sqnr_db\": 31.9, \"worst_block_error\": 0.03}",
                        i == 0 ? "" : ", ", n - 1 - i, n - 1 - i == odd ? 25.0 : 31.5 + 0.01 * (i % 3),
                        n - 1 - i == odd + 1 ? 0.5 : 0.03, n - 1 - i);
    const tsr_result r = result_of(text.data);
    tsr_text_free(&text);
    return r;
}

Test(overview, quantiles)
{
    tsr_text text = {0};
    for (unsigned i = 0; i <= 100; i++)
        tsr_text_printf(&text, "%s{\"name\": \"t%u\", \"sqnr_db\": %u}", i == 0 ? "" : ", ", i, 100 - i);
    tsr_text_printf(&text, ", {\"name\": \"zeros\", \"sqnr_db\": null, \"relative_error\": 0}, {\"name\": \"odd\"}");
    tsr_result r = result_of(text.data);
    tsr_overview o = overview_of(&r);
    static const double kWanted[] = {0, 1, 10, 50, 90, 100};
    for (size_t i = 0; i < TSR_N_QUANTILES; i++)
        cr_expect_eq(o.spreads[0].quantiles[i], kWanted[i], "%s", tsr_quantile_names[i]);
    cr_expect_eq(o.spreads[0].rows, 103);
    cr_expect_eq(o.spreads[0].measured, 102);
    cr_expect_eq(o.spreads[0].lossless, 1);
    cr_assert_eq(o.n_lowest, TSR_MOST_WORST);
    cr_expect_str_eq(r.rows[o.lowest[0]].name, "t100");
    cr_expect_eq(o.n_blocks, 0);
    tsr_overview_free(&o);
    tsr_result_free(&r);
    tsr_text_free(&text);
}

Test(overview, layers_in_order_and_the_one_that_stands_out)
{
    static const unsigned kLayers[] = {3, 61, 256};
    for (size_t k = 0; k < sizeof kLayers / sizeof *kLayers; k++) {
        tsr_result r = layers(kLayers[k], 1);
        tsr_overview o = overview_of(&r);
        const tsr_groups *const g = &o.groups[TSR_BY_LAYER];
        cr_assert_eq(g->count, kLayers[k]);
        cr_expect_eq(g->outliers, 2);
        for (uint32_t i = 0; i < g->count; i++) {
            cr_expect_eq(g->items[i].number, i);
            cr_expect_eq(g->items[i].count, 2);
            cr_expect_eq(g->items[i].outlier, i == 1, "layer %u of %u", i, kLayers[k]);
            cr_expect_eq(g->items[i].block_outlier, i == 2, "layer %u of %u", i, kLayers[k]);
        }
        cr_expect_str_eq(g->items[1].label, "1");
        cr_expect_eq(g->items[1].lowest, 25);
        cr_expect_str_eq(r.rows[g->order[g->items[1].first]].name, "m.layers.1.q.weight");
        cr_expect_str_eq(r.rows[g->items[2].block_row].name, "m.layers.2.q.weight");
        cr_expect_eq(o.groups[TSR_BY_MODULE].count, 2);
        cr_expect_eq(o.groups[TSR_BY_EXPERT].count, 0);
        tsr_overview_free(&o);
        tsr_result_free(&r);
    }
}

/* Returns a result of `verify forward` with 8 layers, the first with a much larger error than the others. */
static tsr_result forward(bool passed)
{
    static const char *const kWords[] = {"false", "true"};
    tsr_text text = {0};
    tsr_result r;
    tsr_err err = {0};
    tsr_text_printf(&text,
                    "{\"schema\": \"tessera-verify-forward/1\", \"version\": \"9\", \"passed\": %s, \"judgements\": [",
                    kWords[passed]);
    for (unsigned i = 0; i < 8; i++)
        tsr_text_printf(&text,
                        "%s{\"subject\": \"model.layers.%u\", \"kind\": \"quantization\", \"what\": \"layer alone\", "
                        "\"passed\": %s, \"sqnr_db\": %.2f, \"relative_error\": %g}",
                        i == 0 ? "" : ", ", i, kWords[passed || i > 0], i == 0 ? 20.0 : 30 + 0.01 * i,
                        i == 0 ? 0.1 : 0.03);
    tsr_text_printf(&text, "]}");
    cr_assert_eq(tsr_result_read_text(&r, "r", text.data, text.size, &err), TSR_OK, "%s", err.msg);
    tsr_text_free(&text);
    return r;
}

Test(overview, no_layer_stands_out_where_each_passed)
{
    for (int passed = 0; passed < 2; passed++) {
        tsr_result r = forward(passed != 0);
        tsr_overview o = overview_of(&r);
        const tsr_groups *const g = &o.groups[TSR_BY_LAYER];
        cr_assert_eq(g->count, 8);
        cr_expect_eq(g->items[0].outlier, passed == 0);
        cr_expect_eq(g->outliers, passed == 0);
        tsr_overview_free(&o);
        tsr_result_free(&r);
    }
}

Test(overview, sound_layers_do_not_stand_out)
{
    tsr_result r = layers(61, 1000);
    tsr_overview o = overview_of(&r);
    cr_expect_eq(o.groups[TSR_BY_LAYER].outliers, 0);
    cr_expect_eq(o.groups[TSR_BY_MODULE].outliers, 0);
    tsr_overview_free(&o);
    tsr_result_free(&r);
}

Test(overview, stacks_are_told_apart)
{
    tsr_result r = result_of(
        "{\"name\": \"visual.blocks.0.q.weight\", \"sqnr_db\": 30}, {\"name\": \"lm_head.weight\", \"sqnr_db\": 31}, "
        "{\"name\": \"model.layers.0.mlp.experts.5.up.weight\", \"sqnr_db\": 32}");
    tsr_overview o = overview_of(&r);
    const tsr_groups *const g = &o.groups[TSR_BY_LAYER];
    cr_assert_eq(g->count, 3);
    cr_expect_str_eq(g->items[0].label, "model.layers.0");
    cr_expect_str_eq(g->items[1].label, "visual.blocks.0");
    cr_expect_str_eq(g->items[2].label, "outside of layers");
    cr_assert_eq(o.groups[TSR_BY_EXPERT].count, 1);
    cr_expect_str_eq(o.groups[TSR_BY_EXPERT].items[0].label, "5");
    tsr_overview_free(&o);
    tsr_result_free(&r);
}
