/* The options of `tessera quantize` and the plan that follows from them. */
#pragma once

#include "convert/jobs/job_source.h"
#include "convert/jobs/recipe.h"
#include "convert/jobs/scheme_options.h"
#include "convert/plans/views/decoded_view.h"
#include "convert/search/rules_plan.h"

/* The options, and the inputs that stay open as long as the plan. Must not move once there is a plan. */
typedef struct tsr_quantize_job {
    int word; /* index of the word of --scheme (tsr_scheme_named); tsr_quantize_job_check sets `of.scheme` from it */
    tsr_scheme_arguments of;
    const char *rules;       /* a rules file, used instead of a scheme; NULL: none */
    const char *recipe;      /* the name or path of a recipe; once it is read, its path; NULL: none */
    const char *scales_from; /* the original that scales are taken from; NULL: scales are computed */
    int experts;             /* -1: as needed */
    bool no_card;            /* the output gets no model card */
    bool plain;              /* made by tsr_quantize_job_make_plain */

    bool by_scheme; /* else by rules */
    tsr_recipe recipe_read;
    tsr_scheme_options scheme; /* its dialect is set once the source is known */
    tsr_scheme_rules rules_read;
    tsr_calibration calibration, kv_ranges; /* for rules, as `importance` */
    tsr_importance importance;
    tsr_rules_options by_rules;
    const tsr_checkpoint *sources[2]; /* the source and the original; a checkpoint that is passed in is not opened
                                       * again */
    tsr_checkpoint *opened[2];        /* those that were */
    tsr_decoded_view view;
    tsr_arena words; /* for the manifest */
} tsr_quantize_job;

/* Returns the default options. */
tsr_quantize_job tsr_quantize_job_defaults(void);

/* Appends the option table entries that fill *job, which must not move. */
void tsr_quantize_job_options(tsr_quantize_job *job, tsr_option *options);

/* Checks the options after parsing: TSR_E_USAGE for those that contradict each other. `given`: bits of the options that
 * are present. */
tsr_status tsr_quantize_job_check(tsr_quantize_job *job, const tsr_option *options, uint64_t given, tsr_err *err);

/* Opens the sources and makes the plan. *job must outlive the plan, and the option words must outlive both. */
tsr_status tsr_quantize_job_plan(tsr_quantize_job *job, const tsr_job_source *from, tsr_plan *plan, tsr_err *err);

/* Returns true if a planned job takes the nearest codes under scales that follow from the largest values. */
bool tsr_quantize_job_is_plain(const tsr_quantize_job *job);

/* Sets *plain to a job with the scheme, rules and layers of `job` that takes the nearest codes under scales that follow
 * from the largest values. `job` is planned and stays open as long as *plain, which shares its sources. The command of
 * its plan differs from that of any other job, so that no other run resumes its output. */
tsr_status tsr_quantize_job_make_plain(tsr_quantize_job *plain, const tsr_quantize_job *job, tsr_err *err);

void tsr_quantize_job_free(tsr_quantize_job *job);
