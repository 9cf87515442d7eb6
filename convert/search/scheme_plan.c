/* Groups weights, measures the error of each scheme for each group, and writes the rules of a choice. */
#include "convert/search/scheme_plan.h"

#include "formats/json/json_write.h"
#include "quantize/policy/policy_groups.h"

#include <stdlib.h>
#include <string.h>

typedef struct making {
    tsr_scheme_plan *plan;
    const tsr_checkpoint *c;
    const tsr_scheme_plan_options *o;
    uint64_t *taken; /* [tensors]: of tsr_schemes_decide */
    uint32_t *first; /* [tensors]: tsr_policy_together */
    uint32_t *next;  /* [tensors]: the next member of the same group, or 0 */
    const tsr_tensor **measured;
    uint64_t *measured_taken;
    tsr_scheme_cost *costs; /* [measured][TSR_SCHEMES] */
    tsr_err *err;
} making;

/* ---- groups ---- */

static bool may_take(const making *m, tsr_scheme scheme, size_t tensor)
{
    return scheme != TSR_SCHEME_KEEP && m->o->schemes[scheme] &&
           (m->taken[tensor] >> tsr_scheme_measured(scheme) & 1) != 0 &&
           tsr_mixed_scheme_takes(scheme, m->c, &m->c->tensors.items[tensor]);
}

/* Returns true if any scheme can quantize all members of the group that begins here. */
static bool is_open(const making *m, size_t first)
{
    for (size_t k = 0; tsr_scheme_mixed(k) != TSR_SCHEMES; k++) {
        const tsr_scheme scheme = tsr_scheme_mixed(k);
        bool all = may_take(m, scheme, first);
        for (size_t i = m->next[first]; i != 0 && all; i = m->next[i])
            all = may_take(m, scheme, i);
        if (all)
            return true;
    }
    return false;
}

/* Links the members of each group, in order. */
static void link_members(const making *m)
{
    for (size_t i = m->c->tensors.count; i-- > 1;) {
        const uint32_t first = m->first[i];
        if (first == i)
            continue;
        m->next[i] = m->next[first];
        m->next[first] = (uint32_t)i;
    }
}

static tsr_status make_group(const making *m, size_t first)
{
    tsr_scheme_plan *const plan = m->plan;
    tsr_scheme_group *const g = &plan->groups[plan->n++];
    g->tensors = &m->measured[plan->n_tensors];
    for (size_t i = first;; i = m->next[i]) {
        const tsr_tensor *const t = &m->c->tensors.items[i];
        m->measured_taken[plan->n_tensors] = m->taken[i];
        m->measured[plan->n_tensors++] = t;
        g->n++;
        g->weights += tsr_tensor_elements(t);
        if (m->next[i] == 0)
            break;
    }
    plan->weights += g->weights;
    return TSR_OK;
}

static tsr_status make_groups(const making *m)
{
    for (size_t i = 0; i < m->c->tensors.count; i++) {
        if (m->first[i] != i)
            continue;
        if (is_open(m, i)) {
            TSR_TRY(make_group(m, i));
            continue;
        }
        m->plan->fixed += m->c->tensors.items[i].bytes;
        for (size_t k = m->next[i]; k != 0; k = m->next[k])
            m->plan->fixed += m->c->tensors.items[k].bytes;
    }
    if (m->plan->n == 0)
        return tsr_fail(m->err, TSR_E_NOTHING,
                        "%s: none of the schemes applies to any of its tensors; 'tessera quantize --dry-run' gives the "
                        "reason for each",
                        m->c->path);
    return TSR_OK;
}

/* ---- costs ---- */

static double weight_of(const making *m, const tsr_tensor *t)
{
    const tsr_rules_item *const item = m->o->sensitivities[t - m->c->tensors.items];
    return item == NULL ? 1 : item->weight;
}

static void add_option(tsr_scheme_group *g, tsr_scheme scheme, tsr_choice_option option)
{
    g->schemes[g->n_options] = scheme;
    g->options[g->n_options++] = option;
}

static void cost_group(const making *m, tsr_scheme_group *g)
{
    const size_t at = (size_t)(g->tensors - m->measured);
    tsr_choice_option kept = {0, 0};
    for (size_t i = 0; i < g->n; i++)
        kept.bytes += g->tensors[i]->bytes;
    for (size_t k = 1; tsr_scheme_mixed(k) != TSR_SCHEMES; k++) {
        const tsr_scheme scheme = tsr_scheme_mixed(k);
        tsr_choice_option o = {0, 0};
        bool all = m->o->schemes[scheme];
        for (size_t i = 0; i < g->n && all; i++) {
            const tsr_scheme_cost *const c = &m->costs[(at + i) * TSR_SCHEMES + tsr_scheme_measured(scheme)];
            all = c->taken && tsr_mixed_scheme_takes(scheme, m->c, g->tensors[i]);
            o.bytes += c->bytes + tsr_scheme_companion_bytes(scheme);
            o.error += weight_of(m, g->tensors[i]) * tsr_scheme_cost_error(c);
        }
        if (all)
            add_option(g, scheme, o);
    }
    if (m->o->schemes[TSR_SCHEME_KEEP] || g->n_options == 0)
        add_option(g, TSR_SCHEME_KEEP, kept);
}

static tsr_status measure(making *m)
{
    tsr_compare_schemes_options options = {
        .run = m->o->run, .taken = m->measured_taken, .importance = m->o->importance, .cpu_flags = m->o->cpu_flags};
    for (tsr_scheme scheme = TSR_SCHEME_KEEP + 1; scheme < TSR_SCHEMES; scheme++)
        options.schemes |= (uint64_t)m->o->schemes[scheme] << tsr_scheme_measured(scheme);
    m->costs = calloc(m->plan->n_tensors * TSR_SCHEMES, sizeof *m->costs);
    if (m->costs == NULL)
        return tsr_out_of_memory(m->err, "for the costs of schemes");
    TSR_TRY(tsr_compare_schemes(m->c, m->measured, m->plan->n_tensors, &options, m->costs, m->err));
    for (size_t i = 0; i < m->plan->n; i++) {
        cost_group(m, &m->plan->groups[i]);
        m->plan->choices[i] = (tsr_choice_group){m->plan->groups[i].options, m->plan->groups[i].n_options};
    }
    return TSR_OK;
}

tsr_status tsr_scheme_plan_make(tsr_scheme_plan *plan, const tsr_checkpoint *checkpoint, const char *model_type,
                                const tsr_scheme_plan_options *options, tsr_err *err)
{
    const size_t n = checkpoint->tensors.count + 1;
    *plan = (tsr_scheme_plan){.n = 0};
    tsr_arena *const arena = &plan->arena;
    making m = {.plan = plan,
                .c = checkpoint,
                .o = options,
                .taken = tsr_arena_alloc(arena, n * sizeof *m.taken),
                .first = tsr_arena_alloc(arena, n * sizeof *m.first),
                .next = tsr_arena_alloc(arena, n * sizeof *m.next),
                .measured = tsr_arena_alloc(arena, n * sizeof *m.measured),
                .measured_taken = tsr_arena_alloc(arena, n * sizeof *m.measured_taken),
                .err = err};
    plan->groups = tsr_arena_alloc(arena, n * sizeof *plan->groups);
    plan->choices = tsr_arena_alloc(arena, n * sizeof *plan->choices);
    tsr_status status = tsr_arena_status(arena, TSR_OK, err);
    if (status == TSR_OK)
        status = tsr_schemes_decide(checkpoint, model_type, m.taken, arena, err);
    if (status == TSR_OK)
        status = tsr_policy_together(checkpoint, m.first, err);
    if (status == TSR_OK) {
        link_members(&m);
        status = make_groups(&m);
    }
    if (status == TSR_OK)
        status = measure(&m);
    free(m.costs);
    if (status != TSR_OK)
        tsr_scheme_plan_free(plan);
    return status;
}

/* ---- choosing ---- */

tsr_status tsr_scheme_plan_choose(const tsr_scheme_plan *plan, uint64_t budget, size_t *picked, tsr_choice *choice,
                                  tsr_err *err)
{
    TSR_TRY(tsr_scheme_choice(plan->choices, plan->n, budget < plan->fixed ? 0 : budget - plan->fixed, picked, choice,
                              err));
    choice->fits = choice->fits && budget >= plan->fixed;
    choice->least += plan->fixed;
    choice->bytes += plan->fixed;
    return TSR_OK;
}

tsr_choice tsr_scheme_plan_alone(const tsr_scheme_plan *plan, tsr_scheme scheme)
{
    tsr_choice c = {.fits = true, .bytes = plan->fixed};
    for (size_t i = 0; i < plan->n; i++) {
        const tsr_scheme_group *const g = &plan->groups[i];
        size_t k = 0;
        while (k < g->n_options && g->schemes[k] != scheme)
            k++;
        c.error += k < g->n_options ? g->options[k].error : 0;
        c.bytes += k < g->n_options ? g->options[k].bytes : 0;
        for (size_t t = 0; t < g->n && k == g->n_options; t++)
            c.bytes += g->tensors[t]->bytes;
    }
    c.bound = c.error;
    return c;
}

uint64_t tsr_scheme_plan_most(const tsr_scheme_plan *plan)
{
    uint64_t bytes = plan->fixed;
    for (size_t i = 0; i < plan->n; i++) {
        const tsr_scheme_group *const g = &plan->groups[i];
        size_t best = 0;
        for (size_t k = 1; k < g->n_options; k++) {
            if (g->options[k].error < g->options[best].error)
                best = k;
        }
        bytes += g->options[best].bytes;
    }
    return bytes;
}

double tsr_scheme_plan_bits(const tsr_scheme_plan *plan, uint64_t bytes)
{
    return 8 * (double)(bytes - plan->fixed) / (double)plan->weights;
}

uint64_t tsr_scheme_plan_bytes(const tsr_scheme_plan *plan, double bits)
{
    return plan->fixed + (uint64_t)(bits * (double)plan->weights / 8);
}

/* ---- rules ---- */

/* Returns the length of the name up to an expert's number, for the pattern "….experts.*"; else 0. */
static size_t set_length(const char *name)
{
    size_t digits;
    const size_t number = tsr_experts_length(name, &digits);
    return digits > 0 ? number : 0;
}

void tsr_scheme_patterns(const tsr_tensor *const *tensors, size_t n, tsr_text *t)
{
    for (size_t i = 0; i < n; i++) {
        const char *const name = tensors[i]->name;
        const size_t set = set_length(name), length = set != 0 ? set : tsr_module_length(name);
        if (set != 0 && i > 0 && set_length(tensors[i - 1]->name) == set)
            continue;
        tsr_text pattern = {0};
        tsr_text_printf(&pattern, "%.*s%s", (int)length, name, set != 0 ? "*" : "");
        tsr_json_string(t, pattern.failed ? "" : pattern.data);
        t->failed = t->failed || pattern.failed;
        tsr_text_free(&pattern);
    }
}

void tsr_scheme_plan_rules(const tsr_scheme_plan *plan, const size_t *picked, const char *note, tsr_text *t)
{
    tsr_json_begin_object(t, false);
    tsr_json_member_string(t, "schema", "tessera-rules/1");
    tsr_json_member_string(t, "note", note);
    tsr_json_member_string(t, "dialect", "compressed-tensors");
    tsr_json_member_array(t, "rules", false);
    for (size_t k = 0; tsr_scheme_mixed(k) != TSR_SCHEMES; k++) {
        const tsr_scheme scheme = tsr_scheme_mixed(k);
        size_t n = 0;
        for (size_t i = 0; i < plan->n; i++)
            n += plan->groups[i].schemes[picked[i]] == scheme;
        if (n == 0)
            continue;
        tsr_json_begin_object(t, false);
        tsr_json_member_array(t, "match", false);
        for (size_t i = 0; i < plan->n; i++) {
            if (plan->groups[i].schemes[picked[i]] == scheme)
                tsr_scheme_patterns(plan->groups[i].tensors, plan->groups[i].n, t);
        }
        tsr_json_end_array(t);
        tsr_json_member_string(t, "scheme", tsr_scheme_spelling(scheme));
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
    tsr_json_end_document(t);
}

void tsr_scheme_plan_free(tsr_scheme_plan *plan)
{
    tsr_arena_free(&plan->arena);
    *plan = (tsr_scheme_plan){.n = 0};
}
