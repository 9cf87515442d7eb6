/* Rules about model classes of one loader: layers that a class cannot load, or loads wrong. */
#pragma once

#include "formats/loaders/load_query.h"

/* A condition on the configuration and one on a layer. */
typedef bool tsr_when_fn(const tsr_load_query *q);
typedef bool tsr_layer_fn(const tsr_load_query *q, const tsr_linear *l);

/* A layer for which all conditions hold breaks the rule. Of rows with the same two conditions, the first that names the
 * loader and the model_type is used. */
typedef struct tsr_class_rule {
    unsigned loaders;     /* bit 1 << tsr_loader */
    const char *families; /* model types, each between two spaces, of the whole model or its text part; NULL: any */
    tsr_when_fn *when;    /* NULL: always */
    tsr_layer_fn *layer;
    const char *rule;   /* its name in a finding */
    const char *what;   /* the layer and the condition on the configuration, in words */
    const char *why;    /* the loader's behaviour; NULL: it loads such layers */
    const char *advice; /* commands in backquotes; NULL if `why` is NULL */
} tsr_class_rule;

/* Returns the table. */
const tsr_class_rule *tsr_class_rules(size_t *count);

/* Returns true if a row concerns this loader and model_type, and no earlier row is used in its place. */
bool tsr_class_rule_applies(const tsr_class_rule *rule, tsr_loader loader, const char *model_type);
