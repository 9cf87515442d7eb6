/* Reads how inputs are quantized, and quantizes rows, independently of the code that writes checkpoints. */
#include "verify/forward/inputs.h"

#include "common/checked.h"
#include "common/float_bits.h"
#include "formats/checkpoint/config.h"
#include "verify/values/decode.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double kMaxE4m3 = 448, kMaxE2m1 = 6;

const char *tsr_input_choice_name(tsr_input_choice choice)
{
    static const char *const kNames[TSR_N_INPUT_CHOICES] = {"auto",      "none",       "fp8-block",
                                                            "fp8-token", "int8-token", "int8-azp"};
    return kNames[choice];
}

/* ---- rounding ---- */

double tsr_round_bf16(double x)
{
    return isfinite(x) ? (double)tsr_f32_from_bf16(tsr_bf16_from_f64(x)) : x;
}

/* Rounds to a float with `bits` fraction bits, no exponent below `least`, and no magnitude above `most`; NaN stays
 * NaN. */
static double round_to(double x, int bits, int least, double most)
{
    int exponent;
    if (!(fabs(x) <= most))
        return isnan(x) ? x : copysign(most, x);
    frexp(x, &exponent);
    const double step = ldexp(1, (exponent - 1 > least ? exponent - 1 : least) - bits);
    return rint(x / step) * step;
}

static double to_e4m3(double x)
{
    return round_to(x, 3, -6, kMaxE4m3);
}

static double to_e2m1(double x)
{
    return round_to(x, 1, 0, kMaxE2m1);
}

/* Returns the least power of two that is not below x. */
static double power_above(double x)
{
    int exponent;
    const double fraction = frexp(x, &exponent);
    return ldexp(1, fraction == 0.5 ? exponent - 1 : exponent);
}

/* ---- rows ---- */

static double largest(const double *x, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++)
        most = fabs(x[i]) > most ? fabs(x[i]) : most;
    return most;
}

static void quantize_fp8(const tsr_input_coding *c, double *x, size_t n)
{
    double scale = c->scale != 0 ? c->scale : (float)(fmax(largest(x, n), 1e-10) / kMaxE4m3);
    if (c->powers_of_two)
        scale = power_above(scale);
    for (size_t i = 0; i < n; i++)
        x[i] = to_e4m3((float)(x[i] / scale)) * scale;
}

static void quantize_fp4(const tsr_input_coding *c, double *x, size_t n)
{
    const double most = largest(x, n);
    const double scale = c->powers_of_two ? power_above(fmax(most, 0x1p-120) / kMaxE2m1)
                                          : to_e4m3((float)(most * c->scale / kMaxE2m1)) / c->scale;
    for (size_t i = 0; i < n; i++)
        x[i] = scale == 0 ? 0 : to_e2m1((float)(x[i] / scale)) * scale;
}

static void quantize_int8(const tsr_input_coding *c, double *x, size_t n)
{
    double scale = c->scale, zero = c->zero;
    if (scale == 0 && c->zero_points) {
        double least = 0, most = 0;
        for (size_t i = 0; i < n; i++) {
            least = i == 0 || x[i] < least ? x[i] : least;
            most = i == 0 || x[i] > most ? x[i] : most;
        }
        scale = (float)((most - least) / 255);
        zero = scale == 0 ? 0 : rint(-128 - least / scale);
    } else if (scale == 0) {
        scale = (float)(largest(x, n) / 127);
    }
    for (size_t i = 0; i < n && scale != 0; i++)
        x[i] = isnan(x[i]) ? x[i] : (fmin(fmax(rint((float)(x[i] / scale)) + zero, -128), 127) - zero) * scale;
}

void tsr_input_quantize(const tsr_input_coding *c, double *x, size_t n)
{
    static void (*const kTypes[])(const tsr_input_coding *, double *, size_t) = {
        [TSR_INPUT_FP8] = quantize_fp8, [TSR_INPUT_INT8] = quantize_int8, [TSR_INPUT_FP4] = quantize_fp4};
    const size_t group = c->group > 0 ? c->group : n;
    for (size_t i = 0; c->type != TSR_INPUT_PLAIN && i < n; i += group)
        kTypes[c->type](c, x + i, tsr_min_u64(group, n - i));
}

const char *tsr_input_coding_text(const tsr_input_coding *c, char *text, size_t size)
{
    static const char *const kTypes[] = {"not quantized", "fp8", "int8", "fp4"};
    if (c->type == TSR_INPUT_PLAIN)
        snprintf(text, size, "not quantized");
    else if (c->group > 0)
        snprintf(text, size, "%s, a scale for %zu columns", kTypes[c->type], c->group);
    else
        snprintf(text, size, "%s, %s%s", kTypes[c->type], c->scale != 0 ? "a static scale" : "a scale for each token",
                 c->zero_points ? ", with zero points" : "");
    return text;
}

/* ---- what is stated ---- */

typedef struct stating {
    const tsr_side *side;
    const tsr_weight *weight;
    tsr_input_coding *coding;
    tsr_err *err;
} stating;

static tsr_status refuse(const stating *s, const char *what)
{
    return tsr_fail(s->err, TSR_E_UNSUPPORTED,
                    "%s: '%s': %s; use --activations to state how its inputs are quantized, or none if they are not",
                    s->side->checkpoint->path, s->weight->values->name, what);
}

/* Reads the static scale of the inputs, and the zero point if there is one. */
static tsr_status read_static(const stating *s)
{
    const tsr_checkpoint *const c = s->side->checkpoint;
    const tsr_tensor *const scale = s->weight->input_scale, *const zero = s->weight->input_zero_point;
    double values[2] = {0, 0};
    if (scale == NULL)
        return refuse(s, "by " TSR_CONFIG_NAME " its inputs have a static scale, but there is none");
    if (tsr_tensor_elements(scale) != 1 || (zero != NULL && tsr_tensor_elements(zero) != 1))
        return refuse(s, "its input_scale is not a single number");
    TSR_TRY(tsr_decode_tensor(c, scale, &values[0], s->err));
    if (zero != NULL)
        TSR_TRY(tsr_decode_tensor(c, zero, &values[1], s->err));
    if (!(values[0] > 0) || !isfinite(values[0]))
        return refuse(s, "its input_scale is not a positive number");
    s->coding->scale = values[0];
    s->coding->zero = values[1];
    if (s->coding->type == TSR_INPUT_FP4 && !s->weight->global_divides)
        s->coding->scale = (float)(1 / values[0]);
    return TSR_OK;
}

/* Reads the object input_activations of compressed-tensors and ModelOpt. */
static tsr_status read_arguments(const stating *s, tsr_json_text inputs)
{
    tsr_json_text value;
    uint64_t bits = 8, group = 0;
    tsr_input_coding *const c = s->coding;
    if (tsr_json_is(inputs, "null"))
        return TSR_OK;
    if (!tsr_json_get(inputs, "num_bits", &value) || !tsr_json_find_u64(inputs.data, inputs.size, "num_bits", &bits))
        return refuse(s, "input_activations without num_bits");
    const bool integer = tsr_json_says(inputs, "type", "\"int\"");
    c->type = integer ? TSR_INPUT_INT8 : bits == 4 ? TSR_INPUT_FP4 : TSR_INPUT_FP8;
    if ((bits != 8 && bits != 4) || (integer && bits != 8))
        return refuse(s, "input_activations have a width other than 8 bits, or 4 for floating point");
    if (tsr_json_says(inputs, "type", "\"float\"") == integer)
        return refuse(s, "input_activations are neither int nor float");
    c->zero_points = integer && tsr_json_says(inputs, "symmetric", "false");
    (void)tsr_json_find_u64(inputs.data, inputs.size, "group_size", &group);
    const bool grouped = tsr_json_says(inputs, "strategy", "\"group\"") ||
                         tsr_json_says(inputs, "strategy", "\"tensor_group\"") || (group > 0 && bits == 4);
    c->group = grouped ? (size_t)tsr_min_u64(group, 1u << 20) : 0;
    if (grouped && group == 0)
        return refuse(s, "input_activations in groups without a size");
    c->powers_of_two = group == 32 && s->weight->scale_dtype == TSR_F8_E8M0;
    if (c->type == TSR_INPUT_FP4)
        return c->powers_of_two ? TSR_OK : read_static(s);
    return tsr_json_says(inputs, "dynamic", "true") ? TSR_OK : read_static(s);
}

/* Returns true if a group of config.json states weights of this kind. */
static bool is_of_group(const tsr_weight *w, tsr_json_text group)
{
    uint64_t bits = 8, size = 0;
    const bool integer = tsr_json_says(group, "weights.type", "\"int\"");
    const bool here = w->coding == TSR_CODED_INT8 || w->coding == TSR_CODED_PACKED;
    (void)tsr_json_find_u64(group.data, group.size, "weights.num_bits", &bits);
    (void)tsr_json_find_u64(group.data, group.size, "weights.group_size", &size);
    const bool blocks = tsr_json_says(group, "weights.strategy", "\"block\"");
    return integer == here && bits == w->bits &&
           (blocks      ? w->block.rows > 1 && !w->coarse
            : size == 0 ? w->coarse || w->block.rows == 1
                        : w->block.rows == 1 && w->block.cols == size);
}

/* Reads config_groups. All groups that may apply to this weight must agree on its inputs. */
static tsr_status read_groups(const stating *s, tsr_json_text groups)
{
    tsr_json_reader r = tsr_json_members(groups);
    tsr_json_text name, group, inputs, first = {.data = NULL};
    bool found = false;
    while (tsr_json_member(&r, &name, &group)) {
        if (!is_of_group(s->weight, group))
            continue;
        if (!tsr_json_get(group, "input_activations", &inputs))
            inputs = (tsr_json_text){.data = "null", .size = 4};
        if (found && (inputs.size != first.size || memcmp(inputs.data, first.data, first.size) != 0))
            return refuse(s, "several config_groups match such weights with different input_activations");
        first = inputs;
        found = true;
    }
    return found ? read_arguments(s, first) : refuse(s, "no group of config_groups matches such weights");
}

/* Reads quant_method fp8 and ModelOpt's FP8. Weights in blocks have inputs with a scale per group of columns; others
 * have a scale per token or a static scale. */
static tsr_status read_fp8(const stating *s, bool is_static)
{
    const tsr_weight *const w = s->weight;
    tsr_input_coding *const c = s->coding;
    if (w->coding == TSR_CODED_INT8 || w->coding == TSR_CODED_PACKED)
        return refuse(s, "integers under a quant_method of FP8");
    c->type = TSR_INPUT_FP8;
    if (w->coarse)
        return is_static ? read_static(s) : TSR_OK;
    const bool small = w->block.rows == 1;
    c->group = small && w->bits == 8 ? (size_t)w->block.cols : small ? 128 : (size_t)w->block.cols;
    c->powers_of_two = s->side->weights->ue8m0 || w->scale_dtype == TSR_F8_E8M0;
    return TSR_OK;
}

static tsr_status read_modelopt(const stating *s)
{
    const tsr_weight *const w = s->weight;
    if (w->bits == 8)
        return read_fp8(s, w->input_scale != NULL);
    if (w->input_scale == NULL) /* W4A16 */
        return TSR_OK;
    s->coding->type = TSR_INPUT_FP4;
    s->coding->group = (size_t)w->block.cols;
    return read_static(s);
}

static tsr_status read_stated(const stating *s)
{
    const tsr_checkpoint *const c = s->side->checkpoint;
    const char *const method = s->side->weights->method, *const at = tsr_quantization_path(c);
    tsr_json_text q = {.data = NULL}, value;
    if (s->weight->coding == TSR_CODED_AWQ || s->weight->coding == TSR_CODED_GPTQ)
        return TSR_OK;
    if (method == NULL)
        return refuse(s, TSR_CONFIG_NAME " does not state how it is quantized");
    if (at != NULL)
        (void)tsr_config_find(c, at, &q);
    if (strcmp(method, "compressed-tensors") == 0)
        return q.size > 0 && tsr_json_get(q, "config_groups", &value) ? read_groups(s, value)
                                                                      : refuse(s, "no config_groups");
    if (strcmp(method, "fp8") == 0)
        return read_fp8(s, q.size > 0 && tsr_json_says(q, "activation_scheme", "\"static\""));
    if (strcmp(method, "mxfp8") == 0)
        return read_fp8(s, false);
    if (strcmp(method, "modelopt") == 0)
        return read_modelopt(s);
    if (strcmp(method, "mxfp4") == 0) /* gpt-oss: activations stay in BF16 */
        return TSR_OK;
    return refuse(s, "how the inputs are quantized is not known for this quant_method");
}

tsr_status tsr_input_coding_of(tsr_input_coding *coding, tsr_input_choice choice, const tsr_side *side,
                               const tsr_weight *weight, tsr_err *err)
{
    static const tsr_input_coding kChoices[TSR_N_INPUT_CHOICES] = {
        [TSR_INPUTS_FP8_BLOCK] = {.type = TSR_INPUT_FP8, .group = 128},
        [TSR_INPUTS_FP8_TOKEN] = {.type = TSR_INPUT_FP8},
        [TSR_INPUTS_INT8_TOKEN] = {.type = TSR_INPUT_INT8},
        [TSR_INPUTS_INT8_AZP] = {.type = TSR_INPUT_INT8, .zero_points = true},
    };
    const stating s = {side, weight, coding, err};
    *coding = weight->coding == TSR_PLAIN ? (tsr_input_coding){.type = TSR_INPUT_PLAIN} : kChoices[choice];
    return weight->coding == TSR_PLAIN || choice != TSR_INPUTS_STATED ? TSR_OK : read_stated(&s);
}
