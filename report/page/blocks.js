/* Inside a tensor: maps of its blocks, how its codes are used, its largest errors. Chart.js has no chart of cells, so that maps are
 * images: a canvas of one pixel a cell, which the browser enlarges without smoothing. */

const blocksOf = (result, row) => (result.maps ? result.maps.tensors.find((one) => one.row === row) : null);

/* What the bytes of a plane stand for (docs/blocks.md). */
const bitsToFloat = (() => {
    const bits = new Uint32Array(1), float = new Float32Array(bits.buffer);
    return (value) => { bits[0] = value; return float[0]; };
})();
const cellValue = (base, code) => (code === 0 ? 0 : code === 254 ? Infinity : code === 255 ? NaN : bitsToFloat((base + code) << 19));
const planeOf = ({ base, codes }) => Array.from({ length: codes.length / 2 }, (_, at) => cellValue(base, parseInt(codes.slice(2 * at, 2 * at + 2), 16)));

/* "[128, 640]": where a cell begins. */
function cellPlace(b, at) {
    const row = Math.floor(at / b.cols) * b.cell_rows, col = (at % b.cols) * b.cell_cols;
    return b.matrices > 1 ? `[${Math.floor(row / b.matrix_rows)}, ${row % b.matrix_rows}, ${col}]` : `[${row}, ${col}]`;
}

/* From the colour of little to that of much: one hue, that only gets stronger. */
function ramp(colours, share) {
    const hex = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
    const [from, to] = [hex(colours.low), hex(colours.high)];
    return from.map((part, at) => Math.round(part + (to[at] - part) * share));
}

const mapColours = (paper) => (paper ? { low: "#eef3f3", high: "#082f36", none: "#ffffff" } : Object.fromEntries(["low", "high", "none"].map((name) => [name, styleOf(`--map-${name}`)])));

function paintMap(canvas, values, share, paper) {
    const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height), colours = mapColours(paper);
    values.forEach((value, at) => image.data.set([...(value > 0 ? ramp(colours, share(value)) : ramp({ low: colours.none, high: colours.none }, 0)), 255], 4 * at));
    context.putImageData(image, 0, 0);
}

/* Colours reach this far down from the largest: one cell of next to nothing does not take all others their differences. */
const MOST_RANGE = 64;

/* A map with its legend, what it says in words, and a cell that arrow keys move and a pointer finds. */
function heatMap(b, title, values, unit) {
    const order = values.map((_, at) => at).filter((at) => values[at] > 0).sort((x, y) => values[y] - values[x] || x - y);
    if (order.length === 0) return null;
    const high = values[order[0]], low = values[order[order.length - 1]];
    const lightest = Math.max(low, high / MOST_RANGE), span = Math.log(high / lightest);
    const share = (value) => (span > 0 ? Math.max(0, Math.log(value / lightest) / span) : 1);
    const worst = `The largest: ${order.slice(0, 3).map((at) => `${short(values[at])} at ${cellPlace(b, at)}`).join(", ")}.`;
    const zeros = values.length - order.length;
    const says = [worst, zeros > 0 ? `${plural(zeros, "cell")} of zero.` : ""].filter(Boolean);
    const canvas = el("canvas", { width: b.cols, height: b.rows, class: "map", role: "img", tabindex: "0", "data-worst": cellPlace(b, order[0]), "data-high": high, "data-low": low,
        "aria-label": `${title}, ${b.rows} by ${b.cols} cells, from ${short(low)} to ${short(high)}. ${says.join(" ")} Arrow keys tell the cells.` });
    const told = el("output", { class: "quiet", "aria-live": "polite" });
    const frame = el("div", { class: "frame" });
    let active = order[0];
    const tell = (at) => {
        active = at;
        told.textContent = `${cellPlace(b, at)}: ${short(values[at])}${unit}`;
        frame.style.cssText = `left:${100 * (at % b.cols) / b.cols}%;top:${100 * Math.floor(at / b.cols) / b.rows}%;width:${100 / b.cols}%;height:${100 / b.rows}%`;
    };
    canvas.addEventListener("keydown", (event) => {
        const steps = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
        if (!steps) return;
        const [row, col] = [Math.floor(active / b.cols) + steps[0], (active % b.cols) + steps[1]];
        if (row >= 0 && row < b.rows && col >= 0 && col < b.cols) tell(row * b.cols + col);
        event.preventDefault();
    });
    canvas.addEventListener("mousemove", (event) => {
        const box = canvas.getBoundingClientRect();
        const [row, col] = [Math.floor((event.clientY - box.top) / box.height * b.rows), Math.floor((event.clientX - box.left) / box.width * b.cols)];
        if (row >= 0 && row < b.rows && col >= 0 && col < b.cols) tell(row * b.cols + col);
    });
    tell(active);
    const wide = b.cols >= b.rows;
    const [width, height] = wide ? [20, Math.max(20 * b.rows / b.cols, 1.2)] : [Math.max(20 * b.cols / b.rows, 1.2), 20];
    drawers.push({ element: canvas, draw: (paper) => paintMap(canvas, values, share, paper) });
    return el("figure", { class: "mapped" }, el("h3", {}, title),
        el("div", { class: "box", style: `width:min(100%,${width}rem);height:${height}rem` }, canvas, frame),
        el("div", { class: "legend" }, el("span", {}, (low < lightest ? "\u2264 " : "") + short(lightest)), el("span", { class: "bar" }), el("span", {}, short(high))),
        told, el("figcaption", {}, says.map((sentence) => el("p", {}, sentence))));
}

/* What a code is worth before it is scaled; NaN where it has no value. */
function codeValue(kind, code) {
    if (kind === "int8" || kind === "int4") return code >= (kind === "int8" ? 128 : 8) ? code - (kind === "int8" ? 256 : 16) : code;
    const [exponents, mantissas, bias] = kind === "e4m3" ? [15, 3, 7] : [3, 1, 1];
    const exponent = (code >> mantissas) & exponents, mantissa = code & ((1 << mantissas) - 1), half = 1 << (mantissas + (kind === "e4m3" ? 4 : 2));
    if (kind === "e4m3" && (code & 0x7f) === 0x7f) return NaN;
    const size = exponent === 0 ? mantissa * 2 ** (1 - bias - mantissas) : (1 + mantissa / (1 << mantissas)) * 2 ** (exponent - bias);
    return code & half ? -size : size;
}

/* Bars by the value of the codes, so that neighbours are neighbours. */
function codeChart(parent, b) {
    const bins = b.counts.map((count, code) => ({ count, code, value: codeValue(b.kind, code) })).sort((x, y) => x.value - y.value || (Object.is(x.value, -0) ? -1 : 1));
    const all = b.counts.reduce((sum, count) => sum + count, 0), used = b.counts.filter((count) => count > 0).length;
    const name = (bin) => (Object.is(bin.value, -0) ? "\u22120" : Number.isNaN(bin.value) ? "NaN" : short(bin.value).replace("-", "\u2212"));
    const most = bins.reduce((x, y) => (y.count > x.count ? y : x));
    figure(parent, { title: `How the ${b.counts.length} codes of ${b.kind} are used`, height: 190,
        says: [`${used} of them are; ${name(most)} most often, ${(100 * most.count / all).toPrecision(3)} %.`,
            b.counted_rows > 1 ? `Counted in every ${b.counted_rows}nd row: ${whole.format(all)} codes.` : `Of all ${whole.format(all)} codes.`],
        columns: [["value of the code", true], ["times", true]], rows: bins.filter((bin) => bin.count > 0).map((bin) => [name(bin), whole.format(bin.count)]),
        config: (colours) => ({ type: "bar",
            data: { labels: bins.map(name), datasets: [{ data: bins.map((bin) => bin.count), backgroundColor: colours.bar, categoryPercentage: 1, barPercentage: 0.94, minBarLength: 0 }] },
            options: { scales: { x: axis("value of the code, before its scale", colours, { grid: { display: false }, ticks: { maxRotation: 0, maxTicksLimit: 8 } }), y: axis("times", colours, { ticks: { maxTicksLimit: 5 } }) },
                plugins: { legend: { display: false }, tooltip: { callbacks: { label: (item) => whole.format(bins[item.dataIndex].count) } } } } }) });
}

function blockPanel(result, row) {
    const b = blocksOf(result, row);
    if (!b) {
        const why = result.maps && result.maps.why_not;
        return why ? [el("h3", {}, "Blocks"), el("p", { class: "quiet" }, why)] : [];
    }
    const maps = el("div", { class: "maps" }, heatMap(b, "Error of blocks", planeOf(b.error), ""), heatMap(b, "Scale of blocks", planeOf(b.scale), ""));
    const charted = el("div", {});
    codeChart(charted, b);
    const cell = `A cell is ${whole.format(b.cell_rows)} \u00d7 ${whole.format(b.cell_cols)} elements${b.folded ? `, the worst of its blocks of ${b.block_rows} \u00d7 ${b.block_cols}` : ", a block"}; places are those of its first element. ` +
        "Colours go by powers. Errors are root mean squares, over the mean of the root mean squares of all blocks.";
    return [maps, el("p", { class: "quiet" }, cell), charted, b.peaks.length === 0 ? null : el("h3", {}, "Largest errors"),
        b.peaks.length === 0 ? null : plainTable([["at", false], ["was", true], ["became", true], ["error", true]],
            b.peaks.map(([at, x, y]) => [at, short(x), short(y), short(Math.abs(x - y))]), "Largest errors")];
}
