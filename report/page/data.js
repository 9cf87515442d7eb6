/* What the page knows: the report as report/write/write_html.c wrote it, decoded; and how figures are written. */

const page = JSON.parse(document.getElementById("data").textContent);
const FIGURES = new Map(page.figures.map((figure) => [figure.key, figure]));
const OUTCOMES = ["measured", "passed", "failed", "skipped"];
const SIGNS = ["", "\u2713", "\u2717", "\u2013"];
const TEXTS = ["name", "what", "note", "file", "shape", "dtype", "error_at", "block_at", "module"];
const NUMBERS = ["layer", "expert", "series", "outcome", "in_layer", "in_module", "loss_db"];

/* "inf" and "-inf" are numbers that JSON has no words for; null is an unknown one. */
const toNumber = (value) => (value === null || value === undefined ? NaN : value === "inf" ? Infinity : value === "-inf" ? -Infinity : value);
const toNumbers = (column) => Float64Array.from(column, toNumber);

/* 0 in a column of texts: the last text above. */
function toTexts(column) {
    let above = null;
    return column.map((value) => (value === null ? null : (above = value === 0 ? above : value)));
}

/* Columns of a result, each with a value for every row; a column that no row has is missing. */
function decode(rows) {
    const columns = { count: rows.count, left_out: rows.left_out, figures: new Map() };
    for (const key of TEXTS) if (rows[key]) columns[key] = toTexts(rows[key]);
    for (const key of NUMBERS) if (rows[key]) columns[key] = toNumbers(rows[key]);
    for (const [key, column] of Object.entries(rows.figures)) columns.figures.set(key, toNumbers(column));
    return columns;
}

for (const result of page.results) result.rows = decode(result.rows);

const textOf = (result, key, row) => (result.rows[key] ? result.rows[key][row] : null);
const numberOf = (result, key, row) => (result.rows[key] ? result.rows[key][row] : NaN);
const figureOf = (result, key, row) => (result.rows.figures.has(key) ? result.rows.figures.get(key)[row] : NaN);
const seriesOf = (result, row) => result.series[numberOf(result, "series", row)];
/* What was judged of a tensor: in words, or by the series that the row is in. */
const whatOf = (result, row) => textOf(result, "what", row) || seriesOf(result, row).name || textOf(result, "note", row) || "";
const factOf = (result, name) => (result.facts.find((fact) => fact[0] === name) || [])[1];
const isError = (finding) => finding.severity === "error";
const rowsOf = (result) => Array.from({ length: result.rows.count }, (_, row) => row);

/* The result with a verdict that measured every tensor of one without, such as verify weights those of a quantization report. */
function measuredBy(result) {
    if (result.verdict !== "INFO" || result.charted === null) return undefined;
    const names = new Set(rowsOf(result).map((row) => textOf(result, "name", row)));
    return page.results.find((other) => other.verdict !== "INFO" && other.charted !== null && result.rows.left_out === 0 &&
        rowsOf(other).reduce((missing, row) => (missing.delete(textOf(other, "name", row)), missing), new Set(names)).size === 0);
}

/* A large model has more rows than a browser opens with ease: the page then has the worst of them, and says so. */
const leftOut = page.results.reduce((sum, result) => sum + result.rows.left_out, 0);
const WHERE_ALL = leftOut > 0 ? "tessera report --csv has all" : "all are in the table";

/* ---- for people ---- */

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/* Few digits; counts as they are. */
function shown(key, value, unit = true) {
    if (value === undefined || Number.isNaN(value)) return "\u2013";
    if (key === "sqnr_db" && !Number.isFinite(value)) return value > 0 ? "nothing lost" : "all lost";
    if (!Number.isFinite(value)) return value > 0 ? "\u221e" : "\u2212\u221e";
    if (key === "sqnr_db" || key === "loss_db") return value.toFixed(2) + (unit ? " dB" : "");
    if (key === "bytes") return bytes(value);
    if ((FIGURES.get(key) || {}).count || key === "layer" || key === "expert") return whole.format(value);
    return short(value);
}

/* Three digits, in powers of ten where it is far from 1. */
function short(value) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replace(/\.?0+e/, "e");
    return size >= 1000 ? whole.format(value) : String(Number(value.toPrecision(3)));
}

function bytes(value) {
    const units = ["bytes", "kB", "MB", "GB", "TB"];
    let at = 0;
    while (value >= 1000 && at < units.length - 1) {
        value /= 1000;
        at++;
    }
    return (at === 0 ? whole.format(value) : String(Number(value.toPrecision(value >= 100 ? 4 : 3)))) + "\u00a0" + units[at];
}

const plural = (count, word) => `${whole.format(count)} ${word}${count === 1 ? "" : "s"}`;

/* An element. Texts become text nodes: nothing that a file says is ever read as HTML. */
function el(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes || {})) {
        if (typeof value === "function") made.addEventListener(key, value);
        else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
    }
    made.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return made;
}

const badge = (verdict, small = true, word = verdict) => el("span", { class: small ? "badge small" : "badge", "data-verdict": verdict }, word);

/* columns: [title, is a number]; rows: of texts and elements. */
function plainTable(columns, rows, caption) {
    const cell = (tag, [, number], child, more) => el(tag, { class: number ? "number" : null, ...more }, child);
    return el("div", { class: "scroll" }, el("table", { "aria-label": caption },
        el("thead", {}, el("tr", {}, columns.map((column) => cell("th", column, column[0], { scope: "col" })))),
        el("tbody", {}, rows.map((row) => el("tr", {}, row.map((child, at) => cell("td", columns[at], child)))))));
}

/* A name or path that may break behind its dots and slashes, and not within a word. */
const breakable = (name) => name.split(/(?<=[./])/).flatMap((part) => [part, el("wbr")]);

/* A name whose end stays to be seen where there is little room: the end tells tensors apart. */
function ends(name) {
    const cut = Math.max(0, name.length - 26);
    return el("span", { class: "ends name", title: name }, el("span", {}, name.slice(0, cut)), el("span", {}, name.slice(cut)));
}
