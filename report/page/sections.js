/* The parts of the page that tell what was found, from the verdict down to the worst tensors. Each takes what it shows, and says
 * nothing where there is nothing. `open(result, row)` shows one row by itself. */

const LISTED = 10, MORE = 1000;

const rowButton = (result, row, open) => el("button", { class: "link", type: "button", click: () => open(result, row) }, ends(textOf(result, "name", row)),
    textOf(result, "what", row) ? el("span", { class: "quiet" }, textOf(result, "what", row)) : null);
const named = (result, row) => textOf(result, "name", row) + (textOf(result, "what", row) ? ` (${textOf(result, "what", row)})` : "");
const numberOrNot = (value) => (value === null ? NaN : toNumber(value));

/* ---- the first screen ---- */

/* Facts for the first screen, each with a note. The first result that has the fact counts: one that failed, then one that passed, then
 * one without a verdict. Figures that were measured on the files so go before those that the quantization report claims. */
const TILES = [
    ["Scheme", (r) => factOf(r, "scheme") || ((r.command || "").match(/--(?:scheme|to) (\S+)/) || [])[1], (r) => factOf(r, "dialect")],
    ["Size", (r) => sizeOf(r) || bitsOf(r), (r) => (sizeOf(r) ? bitsOf(r) : null)],
    ["Whole model, SQNR", (r) => wholeOf(r, "sqnr_db"), (r) => {
        const error = wholeOf(r, "relative_error");
        return error ? `relative error ${error}` : null;
    }],
    ["Lowest tensor", (r) => (r.charted === null || r.lowest.length === 0 ? null : shown("sqnr_db", figureOf(r, "sqnr_db", r.lowest[0]))),
        (r) => textOf(r, "name", r.lowest[0])],
    ["Worst block", (r) => (r.charted === null || r.blocks.length === 0 ? null : shown("worst_block_error", figureOf(r, "worst_block_error", r.blocks[0]))),
        (r) => textOf(r, "name", r.blocks[0])],
    ["Kernel error, of its bound", (r) => largest(r, "of_bound"), () => null],
    ["KL divergence, mean", (r) => ofLogits(r, "kl_mean_nats", " nats"), (r) => {
        const same = ofLogits(r, "agreement", "");
        return same ? `the likeliest token is the same in ${same} of all positions` : null;
    }],
    ["Perplexity", (r) => (factOf(r, "perplexity_source") ? short(Number(factOf(r, "perplexity"))) : null), (r) => `${short(Number(factOf(r, "perplexity_source")))} of the source`],
    ["Tensors quantized", (r) => (factOf(r, "tensors_quantized") ? whole.format(Number(factOf(r, "tensors_quantized"))) : null), (r) => (factOf(r, "tensors_kept") ? `${factOf(r, "tensors_kept")} kept` : null)],
];

function sizeOf(result) {
    const [before, after] = ["bytes_in", "bytes_out"].map((name) => Number(factOf(result, name)));
    if (before > 0 && after > 0) return `${bytes(before)} \u2192 ${bytes(after)}`;
    const held = Number(factOf(result, "tensor_bytes"));
    return held > 0 ? bytes(held) : null;
}

function bitsOf(result) {
    const bits = factOf(result, "bits_per_weight");
    return bits ? `${short(Number(bits))} bits a weight` : null;
}

function wholeOf(result, key) {
    const found = result.series.find((one) => one.whole[key] !== undefined);
    return found && result.series.length <= 2 ? shown(key, toNumber(found.whole[key])) : null;
}

function largest(result, key, unit = "") {
    const values = (result.rows.figures.get(key) || []).filter((value) => !Number.isNaN(value));
    return values.length ? shown(key, values.reduce((a, b) => Math.max(a, b))) + unit : null;
}

/* Layers have a divergence of their own where it was asked for; what the model says is behind the last one. */
const logitsRow = (result, key) => rowsOf(result).find((one) => Number.isNaN(numberOf(result, "layer", one)) && !Number.isNaN(figureOf(result, key, one)));

function ofLogits(result, key, unit) {
    const row = logitsRow(result, key);
    return row === undefined ? null : shown(key, figureOf(result, key, row)) + unit;
}

function divergenceOf(result) {
    const row = logitsRow(result, "kl_mean_nats");
    return row === undefined ? NaN : figureOf(result, "kl_mean_nats", row);
}

/* The first screen of one model; several outputs have a table instead. */
function tiles() {
    if (byOutput().size > 1) return null;
    const order = ["FAIL", "PASS", "INFO", "SKIP"];
    const results = [...page.results].sort((a, b) => order.indexOf(a.verdict) - order.indexOf(b.verdict));
    const made = TILES.map(([title, value, note]) => {
        const result = results.find((one) => value(one));
        if (!result) return null;
        const more = [note(result), results.length > 1 ? `from ${result.title}` : null].filter(Boolean).join("; ");
        return el("div", { class: "tile" }, el("dt", {}, title), el("dd", {}, value(result), more ? el("span", { class: "quiet" }, breakable(more)) : null));
    }).filter(Boolean);
    return made.length ? el("dl", { class: "tiles" }, made) : null;
}

/* ---- outputs of one model beside one another ---- */

/* The name of the output that a result is about: the folder of a quantization report, or the checkpoint that was verified. */
function outputOf(result) {
    const report = result.path.match(/([^/]+)\/+quantization_report\.json$/);
    const path = report ? report[1] : factOf(result, "checkpoint");
    return path ? path.replace(/\/+$/, "").split("/").pop() : null;
}

function numberFact(results, name) {
    const result = results.find((one) => factOf(one, name));
    return result ? Number(factOf(result, name)) : NaN;
}

/* The results about each output. */
function byOutput() {
    const found = new Map();
    for (const result of page.results) if (outputOf(result)) found.set(outputOf(result), [...(found.get(outputOf(result)) || []), result]);
    return found;
}

/* A row for each output, if there are several: scheme, size, error and divergence; and its place among all by size and error. */
function outputs() {
    const found = byOutput();
    if (found.size < 2) return null;
    const columns = TILES.filter(([title, value]) => title !== "Tensors quantized" && [...found.values()].some((results) => results.some((one) => value(one))));
    const cellOf = (results, value) => results.map(value).find(Boolean) || "\u2013";
    const rows = [...found].map(([name, results]) => [el("span", { class: "name" }, breakable(name)), ...columns.map(([, value]) => cellOf(results, value))]);
    const grid = el("div", { class: "grid" });
    const divergences = [...found].map(([name, results]) => ({ name, bytes: numberFact(results, "bits_per_weight"),
        error: results.map(divergenceOf).find((value) => value > 0) || NaN }));
    const errors = [...found].map(([name, results]) => ({ name, bytes: numberFact(results, "bits_per_weight"),
        error: results.map((one) => one.series.length === 1 ? toNumber(one.series[0].whole.relative_error) : NaN).find((value) => value > 0) || NaN }));
    const known = (points) => points.every((point) => point.bytes > 0 && point.error > 0);
    const [points, measure, key] = known(divergences) ? [divergences, "KL divergence", "kl_mean_nats"] : [errors, "relative error", "relative_error"];
    const section = el("section", { class: "card stack", id: "outputs", "aria-labelledby": "outputs-title" }, el("h2", { id: "outputs-title" }, "Outputs"),
        plainTable([["output", false], ...columns.map(([title]) => [title, title !== "Scheme"])], rows, "Outputs"), grid);
    if (known(points)) frontierChart(grid, { title: "Size and error of the outputs", pointTitle: "output", sizeTitle: "bits a weight", measure, key, points, says: ["The line joins the outputs that no smaller one beats."] });
    return section;
}

/* What was judged, by which limits: a line for each check of each result. */
function judged(result, at) {
    const limits = result.limits.map((limit) => `${limit[0]} ${limit[2]}`).join(", ");
    const checks = result.checks.map((check) => {
        const findings = check.findings;
        const verdict = findings > 0 ? "FAIL" : check.judged > 0 ? "PASS" : "SKIP";
        return el("span", { class: "check", style: "white-space:nowrap;margin-right:0.9rem" }, badge(verdict), ` ${check.check} `,
            el("span", { class: "quiet" }, findings > 0 ? plural(findings, "finding") : check.judged > 0 ? whole.format(check.judged) : "nothing to judge"));
    });
    return [badge(result.verdict), el("div", {}, el("a", { href: `#result-${at}` }, result.title), el("div", { class: "quiet name" }, breakable(result.path))),
        el("div", {}, el("div", {}, result.reason), checks.length ? el("div", { style: "margin-top:0.35rem;line-height:2" }, checks) : null,
            limits ? el("div", { class: "quiet" }, `Limits: ${limits}`) : null)];
}

function verdicts() {
    return el("section", { class: "card stack", "aria-labelledby": "judged-title" }, el("h2", { id: "judged-title" }, "What was judged"),
        plainTable([["verdict", false], ["result", false], ["why", false]], page.results.map(judged), "What was judged"));
}

/* ---- what got worse, what is wrong ---- */

function lossText(regression) {
    const parts = [];
    if (regression.fails_now) parts.push("passed before, fails now");
    if (regression.figure !== null) {
        const loss = numberOrNot(regression.loss_db);
        parts.push(`${FIGURES.get(regression.figure).title} ${shown(regression.figure, numberOrNot(regression.now))}, before ${shown(regression.figure, numberOrNot(regression.before))}`,
            Number.isFinite(loss) ? `${loss.toFixed(2)} dB lost` : "nothing was lost before");
    }
    return parts.join("; ");
}

/* The first items of a list, and the others when they are asked for. */
function longList(items, line) {
    const list = el("ul", { class: "plain" }, items.slice(0, LISTED).map(line));
    if (items.length <= LISTED) return [list];
    const more = el("button", { class: "link", type: "button", click: () => {
        list.append(...items.slice(LISTED, MORE).map(line));
        more.replaceWith(items.length > MORE ? el("p", { class: "quiet" }, `The first ${whole.format(MORE)}; ${WHERE_ALL}.`) : "");
    } }, `and ${whole.format(items.length - LISTED)} more`);
    return [list, more];
}

function regressions(open) {
    const baseline = page.baseline;
    if (!baseline) return null;
    const now = page.results[0];
    const moved = (which, words) => which.count === 0 ? null : el("details", {}, el("summary", {}, `${plural(which.count, "row")} ${words}`),
        el("p", { class: "name" }, which.first.map(([name, what]) => name + (what ? ` (${what})` : "")).join(", ") + (which.count > which.first.length ? ", ..." : "")));
    return el("section", { class: baseline.regressions.length ? "card wrong" : "card", id: "regressions", "aria-labelledby": "regressions-title" },
        el("h2", { id: "regressions-title" }, baseline.worse ? "What got worse" : "Nothing got worse"),
        el("p", { class: "quiet", style: "margin-bottom:1rem" }, `${whole.format(baseline.compared)} compared with `, el("code", {}, baseline.path),
            `: ${whole.format(baseline.worse)} worse, ${whole.format(baseline.better)} better by more than ${baseline.limit} dB.`),
        longList(baseline.regressions, (one) => el("li", {}, badge("FAIL", true, one.fails_now ? "FAILS NOW" : "WORSE"),
            one.row === undefined ? el("span", { class: "name" }, one.name || "the whole model") : rowButton(now, one.row, open),
            el("span", { class: "quiet" }, lossText(one)))),
        moved(baseline.disappeared, "gone"), moved(baseline.appeared, "new"),
        baseline.differences.length ? el("div", { style: "margin-top:1.2rem" }, el("h3", {}, "What else differs"),
            plainTable([["", false], ["before", false], ["now", false]], baseline.differences.map(({ name, before, now: after }) => [name, before || "\u2013", after || "\u2013"]), "What else differs")) : null);
}

function findings(open) {
    const all = page.results.flatMap((result) => result.findings.map((finding) => ({ result, ...finding })));
    if (all.length === 0) return null;
    all.sort((a, b) => isError(b) - isError(a));
    const wrong = all.filter(isError).length;
    const unlisted = page.results.reduce((sum, result) => sum + result.findings_left_out, 0);
    return el("section", { class: wrong ? "card wrong" : "card", id: "findings", "aria-labelledby": "findings-title" },
        el("h2", { id: "findings-title" }, wrong ? "What is wrong" : "What is worth a look"),
        longList(all, (finding) => el("li", {}, badge(isError(finding) ? "FAIL" : "NOTE"),
            finding.row === null ? el("span", { class: "name" }, finding.where) : rowButton(finding.result, finding.row, open),
            el("span", {}, el("strong", {}, finding.check), `: ${finding.what}`))),
        unlisted > 0 ? el("p", { class: "quiet" }, `${plural(unlisted, "finding")} more; tessera report --csv has all.`) : null);
}

/* ---- one result ---- */

const GROUPINGS = [["layer", "layer", true], ["module", "kind of module", false], ["expert", "expert, over all layers", true]];
const MEASURES = [
    { key: "relative_error", of: "relative", mark: "outlier", row: "row", title: "Largest relative error" },
    { key: "worst_block_error", of: "block", mark: "block_outlier", row: "block_row", title: "Error of the worst block" },
];

/* What stands out, in words. */
function outliers(result, groups, measure, grouping) {
    const marked = groups.filter((group) => group[measure.mark] && group[measure.row] !== null);
    const texts = marked.slice(0, 3).map((group) => `! ${grouping} ${group.label} is far ${measure.of === "relative" ? "below the others: " + shown("sqnr_db", numberOrNot(group.lowest)) :
        "above the others: " + shown(measure.key, numberOrNot(group.block))} in ${textOf(result, "name", group[measure.row])}.`);
    if (marked.length > 3) texts.push(`And ${marked.length - 3} more.`);
    return texts.length ? texts : [groups.length >= 4 ? `No ${grouping} stands out.` : ""].filter(Boolean);
}

function groupCharts(result, open) {
    const grid = el("div", { class: "grid" });
    for (const [key, title, numbered] of GROUPINGS) {
        for (const measure of MEASURES) {
            const groups = result.groups[key].filter((group) => group[measure.of] !== null);
            if (groups.length < 2) continue;
            const flat = numbered && groups.length > 12;
            const inLayer = (group) => (key === "layer" && flat && group.number === null ? "\u2013" : group.label);
            barChart(grid, { title: `${measure.title} by ${title}`, group: key, measure: FIGURES.get(measure.key).title, key: measure.key, flat, wide: flat && groups.length > 80,
                says: outliers(result, groups, measure, key),
                bars: groups.map((group) => ({ label: inLayer(group), value: numberOrNot(group[measure.of]), marked: group[measure.mark], row: group[measure.row],
                    tip: `${plural(group.count, "tensor")}; lowest SQNR ${shown("sqnr_db", numberOrNot(group.lowest))}` })),
                open: (bar) => bar.row !== null && open(result, bar.row) });
        }
    }
    return grid;
}

function spread(result, grid) {
    const series = result.series[result.charted];
    const values = rowsOf(result).filter((row) => numberOf(result, "series", row) === result.charted).map((row) => figureOf(result, "sqnr_db", row)).filter(Number.isFinite);
    const names = ["lowest", "1 %", "10 %", "median", "90 %", "highest"];
    const says = [series.quantiles.map((value, at) => `${names[at]} ${shown("sqnr_db", numberOrNot(value), false)}`).join(", ") + " dB."];
    if (series.lossless > 0) says.push(`${plural(series.lossless, "tensor")} lost nothing, and ${series.lossless === 1 ? "is" : "are"} not among them.`);
    if (values.length < 8) return; /* the worst are listed, and no shape is to be seen */
    histogram(grid, { title: "Distribution of SQNR", says, values });
}

/* The largest value of a figure for each key that `keyOf` gives, over the rows of one series. */
function largestBy(result, figureKey, keyOf, series) {
    const found = new Map();
    for (const row of rowsOf(result)) {
        const key = keyOf(row), value = figureOf(result, figureKey, row);
        if (key === null || Number.isNaN(value) || (series !== undefined && numberOf(result, "series", row) !== series)) continue;
        if (!found.has(key) || found.get(key) < value) found.set(key, value);
    }
    return found;
}

function twoErrors(result, grid) {
    const [quantization, kernel] = ["quantization", "kernel"].map((name) => result.series.findIndex((series) => series.name === name));
    if (quantization < 0 || kernel < 0) return;
    const name = (row) => textOf(result, "name", row);
    const [a, b] = [quantization, kernel].map((series) => largestBy(result, "relative_error", name, series));
    const labels = [...b.keys()].filter((label) => a.has(label)).sort((x, y) => b.get(y) - b.get(x)).slice(0, 16);
    if (labels.length === 0) return;
    comparedChart(grid, { type: "points", title: "Quantization error against kernel error", group: "subject", measure: "largest relative error", key: "relative_error", log: true, labels, wide: labels.length > 6,
        says: ["What the format costs, and what the implementation costs over the very same operands; by powers of ten."],
        series: [{ name: "quantization", values: labels.map((label) => a.get(label)) }, { name: "kernel", values: labels.map((label) => b.get(label)) }] });
}

function stages(result, grid, open) {
    const what = (row) => textOf(result, "what", row);
    const bars = (figureKey, series) => [...largestBy(result, figureKey, what, series)].map(([label, value]) => ({ label: label.replace(/^stage /, ""), value,
        row: rowsOf(result).find((row) => what(row) === label && figureOf(result, figureKey, row) === value) }));
    const show = (title, figureKey, list, says) => list.length > 1 && list.length <= 40 && barChart(grid, { title, group: "stage", measure: FIGURES.get(figureKey).title, key: figureKey, bars: list, says,
        open: (bar) => open(result, bar.row) });
    if (result.charted !== null && result.series[result.charted].name === "quantization")
        show("Quantization error by stage", "relative_error", bars("relative_error", result.charted), ["The largest over all subjects."]);
    show("Kernel error, of its bound", "of_bound", bars("of_bound"), ["1 is the bound; what is above it is wrong."]);
}

/* Lines over the layers of a forward pass. */
function byLayer(result, grid) {
    for (const [figureKey, title, log, says] of [["sqnr_db", "SQNR by layer", false, "How errors grow on their way through the model; more is better."],
        ["agreement", "Experts chosen alike, by layer", false, "The share of choices (token, expert) that are the same in both models; where the router decides otherwise, other weights are used."],
        ["token_agreement", "Tokens chosen alike, by layer", false, "The share of tokens that both models choose."],
        ["kl_mean_nats", "KL divergence by layer", true, "By powers of ten; less is better."]]) {
        const lines = result.series.map((one, at) => ({ name: one.name, found: largestBy(result, figureKey, (row) => {
            const layer = numberOf(result, "layer", row);
            return Number.isNaN(layer) ? null : layer;
        }, at) })).filter((line) => line.found.size > 1);
        const labels = [...new Set(lines.flatMap((line) => [...line.found.keys()]))].sort((a, b) => a - b);
        if (lines.length === 0 || !result.title.includes("forward")) continue;
        comparedChart(grid, { type: "line", title, group: "layer", measure: FIGURES.get(figureKey).title, key: figureKey, log, says: [says], labels: labels.map(String), wide: labels.length > 60,
            series: lines.map((line) => ({ name: line.name, values: labels.map((label) => line.found.get(label)) })) });
    }
}

/* Time and bytes: of the whole, of rows, where they are few, and of schemes. */
function costs(result, grid, open) {
    const rowBars = (figureKey, rows) => rows.map((row) => ({ label: named(result, row), value: figureOf(result, figureKey, row), row })).filter((bar) => bar.value > 0).sort((a, b) => b.value - a.value);
    const show = (title, figureKey, bars, group) => bars.length > 1 && barChart(grid, { title, group, measure: FIGURES.get(figureKey).title, key: figureKey, bars: bars.slice(0, 16),
        says: bars.length > 16 ? [`The 16 that take most, of ${whole.format(bars.length)}.`] : [], open: (bar) => bar.row !== undefined && open(result, bar.row) });
    const phases = result.phases.map(([label, seconds, text]) => ({ label, value: Number(seconds), tip: `${text} s` })).filter((bar) => bar.value > 0).sort((a, b) => b.value - a.value);
    const moved = [["read", "bytes_read"], ["of the source", "bytes_in"], ["of it, read twice", "bytes_in_twice"], ["of the output", "bytes_out"]]
        .map(([label, name]) => ({ label, value: Number(factOf(result, name)) })).filter((bar) => bar.value > 0);
    show("Time by phase, seconds of all threads", "kernel_seconds", phases, "phase");
    show("Bytes read and written", "bytes", moved, "what");
    show(result.title === "verify weights" ? "Time of reading and comparing, seconds of all threads" : "Time of kernels, seconds", "kernel_seconds", rowBars("kernel_seconds", rowsOf(result)), "judgement");
    const compared = result.series.filter((one) => one.whole.bytes !== undefined).length > 1;
    for (const [at, series] of result.series.entries()) {
        const rows = rowsOf(result).filter((row) => numberOf(result, "series", row) === at);
        if (!compared && series.name) show(`Bytes by ${series.name}`, "bytes", rowBars("bytes", rows), series.name);
    }
    frontier(result, grid);
}

/* Size against error: the plans of plan-schemes, or the schemes of compare-schemes. */
function frontier(result, grid) {
    const plans = result.plan.map((plan) => ({ name: plan.schemes, bytes: plan.bytes, error: toNumber(plan.error), alone: plan.alone }));
    const whole = result.series.filter((one) => one.whole.bytes !== undefined && toNumber(one.whole.relative_error) > 0);
    if (plans.length > 1)
        frontierChart(grid, { title: "Error of the best plan for each size", measure: "error", key: "error", line: plans.filter((plan) => !plan.alone), points: plans.filter((plan) => plan.alone),
            says: ["The line has the best choice for each budget; points are single schemes for all weights. Errors of weights do not say which layers matter to the model."] });
    else if (whole.length > 2)
        frontierChart(grid, { title: "Error and size of the schemes", measure: "relative error", key: "relative_error",
            points: whole.map((one) => ({ name: one.name, bytes: toNumber(one.whole.bytes), error: toNumber(one.whole.relative_error) })),
            says: ["The line joins the schemes that no smaller one beats."] });
}

function facts(result) {
    const all = [["version", result.version, result.version], ...(result.command ? [["command", result.command, result.command]] : []), ...result.facts];
    return el("details", {}, el("summary", {}, "Facts that the result states"),
        el("dl", { class: "facts" }, all.map(([name, , text]) => el("div", {}, el("dt", {}, name), el("dd", {}, text)))));
}

/* What is summed up is of all rows; what is drawn row by row is of those that the page has. */
function leftOutOf(result) {
    const { count, left_out } = result.rows;
    return el("p", { class: "quiet" }, `The page has ${whole.format(count)} of ${plural(count + left_out, "row")}: those that fell short, and those of the lowest SQNR. ` +
        "Figures and charts of layers, kinds of module and experts are of all rows, other charts of these. tessera report --csv has all.");
}

function resultSection(result, at, open) {
    const measured = measuredBy(result);
    const grid = measured ? el("div", { class: "grid" }) : groupCharts(result, open);
    const section = el("section", { class: "card", id: `result-${at}`, "aria-labelledby": `result-${at}-title` },
        el("div", { class: "head" }, badge(result.verdict), el("h2", { id: `result-${at}-title` }, result.title), el("span", { class: "quiet name" }, breakable(result.path))),
        facts(result), measured ? el("p", { class: "quiet" }, `${measured.title} measured the same tensors: its charts show them.`) : "",
        result.rows.left_out > 0 ? leftOutOf(result) : "");
    byLayer(result, grid);
    if (result.charted !== null && !measured) spread(result, grid);
    twoErrors(result, grid);
    stages(result, grid, open);
    costs(result, grid, open);
    if (grid.children.length > 0) section.append(grid);
    return section;
}

/* ---- the worst ---- */

function worst(open) {
    const charted = page.results.filter((result) => result.charted !== null && !measuredBy(result) && (result.lowest.length > 0 || result.blocks.length > 0));
    const list = (result, title, rows, all) => {
        const keys = all.filter((key) => rows.some((row) => !Number.isNaN(figureOf(result, key, row))));
        return rows.length === 0 ? null : el("div", {}, el("h3", {}, title), plainTable([["tensor", false], ...keys.map((key) => [FIGURES.get(key).title, true])],
            rows.map((row) => [rowButton(result, row, open), ...keys.map((key) => shown(key, figureOf(result, key, row)))]), title));
    };
    return el("section", { class: "card", id: "worst", "aria-labelledby": "worst-title" }, el("h2", { id: "worst-title" }, "The worst tensors"),
        charted.length === 0 ? el("p", { class: "quiet" }, "No result here measures tensors against one another.") :
            el("p", { class: "quiet" }, "A name opens all that is known of the tensor."),
        charted.map((result) => el("div", {}, charted.length > 1 ? el("p", { class: "head", style: "margin-top:1.4rem" }, el("strong", {}, result.title), el("span", { class: "quiet name" }, breakable(result.path))) : null,
            el("div", { class: "grid names", style: "margin-top:0.8rem" }, list(result, "Lowest SQNR", result.lowest, ["sqnr_db", "worst_block_error"]),
                list(result, "Worst blocks", result.blocks, ["worst_block_error", "sqnr_db"])))));
}
