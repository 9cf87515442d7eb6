/* The model card of an output: README.md, with YAML in front, which hubs show as the page of a model. */
#pragma once

#include "convert/plan/plan.h"

/* Makes a finished plan write a card. The card of the first source is copied as README.source.md, and README.source.md
 * as README.source.source.md. Takes license, language, library and task from its front matter. Does nothing if the
 * source has no config.json or no README.md. `scheme` and `dialect` are named if plan->made has none; NULL: not known.
 * Static strings. */
tsr_status tsr_plan_model_card(tsr_plan *plan, const char *scheme, const char *dialect, tsr_err *err);
