/* Charts, all of them by Chart.js. Each has a sentence for those who do not see it, and its figures as a table. */

const charts = [];
/* What is drawn by hand on a canvas, of which it is an image: { element, draw: (paper) }. */
const drawers = [];
const styleOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
/* A canvas keeps its colours: on paper it needs those of a light page, whatever the screen has. */
const PAPER = { ink: "#000", quiet: "#444", line: "#ddd", accent: "#0b6170", bar: "#8fb9bf", second: "#b98a3e", bad: "#b3261e", card: "#fff" };
const palette = (paper) => (paper ? PAPER : Object.fromEntries(Object.keys(PAPER).map((name) => [name, styleOf(`--${name}`)])));

Chart.defaults.animation = false;
Chart.defaults.responsive = true;
Chart.defaults.maintainAspectRatio = false;
Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
Chart.defaults.font.size = 12;

/* Signs and names at what stands out, so that no colour has to be told from another. */
const marks = {
    id: "marks",
    afterDatasetsDraw(chart, _, options) {
        const context = chart.ctx;
        const upright = chart.options.indexAxis !== "y";
        context.save();
        context.fillStyle = options.colour;
        context.font = `600 12px ${Chart.defaults.font.family}`;
        for (const mark of options.list || []) {
            const bar = chart.getDatasetMeta(0).data[mark.at];
            if (!bar) continue;
            const half = context.measureText(mark.text).width / 2;
            const x = Math.min(Math.max(bar.x, chart.chartArea.left + half), chart.chartArea.right - half);
            context.textAlign = upright ? "center" : "left";
            context.textBaseline = upright ? "bottom" : "middle";
            context.fillText(mark.text, upright ? x : bar.x + 5, upright ? bar.y - 4 : bar.y);
        }
        context.restore();
    },
};

function draw(entry, paper) {
    if (entry.chart) entry.chart.destroy();
    const colours = palette(paper);
    Chart.defaults.color = colours.quiet;
    Chart.defaults.borderColor = colours.line;
    entry.chart = new Chart(entry.canvas, { plugins: [marks], ...entry.config(colours) });
}

function redraw(paper) {
    for (const entry of charts) draw(entry, paper);
    for (const entry of drawers) entry.draw(paper);
}

/* After elements came and went: forgets what is gone, and draws what is new. */
function drawChanged() {
    for (const entry of charts) if (!entry.canvas.isConnected && entry.chart) entry.chart.destroy();
    charts.splice(0, charts.length, ...charts.filter((entry) => entry.canvas.isConnected));
    drawers.splice(0, drawers.length, ...drawers.filter((entry) => entry.element.isConnected));
    for (const entry of charts) if (!entry.chart) draw(entry, false);
    for (const entry of drawers) entry.draw(false);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw(false));
addEventListener("beforeprint", () => redraw(true));
addEventListener("afterprint", () => redraw(false));

/* A figure: { title, says: sentences, height, wide, config: (colours) => Chart.js's, columns, rows: its figures }. */
function figure(parent, spec) {
    const canvas = el("canvas", { role: "img", "aria-label": [spec.title, ...spec.says].join(". ") });
    parent.append(el("figure", { class: spec.wide ? "wide" : null },
        el("h3", {}, spec.title),
        el("div", { class: "canvas", style: `height:${spec.height || 220}px` }, canvas),
        el("figcaption", {}, spec.says.map((sentence) => el("p", {}, sentence)),
            el("details", {}, el("summary", {}, "The figures"), plainTable(spec.columns, spec.rows, spec.title)))));
    charts.push({ canvas, config: spec.config }); /* drawn when the page stands: before, a canvas has no size */
}

const axis = (title, colours, more) => ({
    title: { display: Boolean(title), text: title, color: colours.quiet }, grid: { color: colours.line, drawBorder: false },
    beginAtZero: true, ...more });

/* A label that leaves room for the chart; its end tells names apart. */
function cutLabel(label) {
    const most = innerWidth < 640 ? 20 : 34;
    return label.length > most ? "\u2026" + label.slice(1 - most) : label;
}

/* Bars of one measure: bars: [{ label, value, marked, tip }]. Flat ones stand side by side, for many that have numbers. */
function barChart(parent, spec) {
    const { bars, key, flat } = spec;
    const marked = bars.map((bar, at) => ({ bar, at })).filter(({ bar }) => bar.marked);
    figure(parent, {
        title: spec.title, says: spec.says, wide: spec.wide, height: flat ? 230 : 46 + 25 * bars.length,
        columns: [[spec.group, false], [spec.measure, true]],
        rows: bars.map((bar) => [el("span", { class: "name" }, bar.label), shown(key, bar.value) + (bar.marked ? " !" : "")]),
        config: (colours) => {
            const value = axis(spec.measure, colours, { grace: marked.length ? "8%" : 0, type: spec.log ? "logarithmic" : "linear",
                ticks: { maxTicksLimit: 6, callback: (tick) => shown(key, tick) } });
            const label = axis(flat ? spec.group : "", colours, { grid: { display: false }, ticks: { autoSkip: flat, maxRotation: 0, ...(flat ? { maxTicksLimit: spec.wide ? 32 : 16 } : {}) } });
            return {
                type: "bar",
                data: { labels: bars.map((bar) => cutLabel(bar.label)), datasets: [{
                    data: bars.map((bar) => bar.value), maxBarThickness: 22, minBarLength: 1, borderRadius: 2, categoryPercentage: flat ? 0.94 : 0.8,
                    backgroundColor: bars.map((bar) => (bar.marked ? colours.bad : colours.bar)) }] },
                options: {
                    indexAxis: flat ? "x" : "y", layout: { padding: flat ? { top: 18 } : { right: 34 } },
                    scales: flat ? { x: label, y: value } : { x: value, y: label },
                    plugins: { legend: { display: false },
                        marks: { colour: colours.bad, list: marked.map(({ bar, at }) => ({ at, text: flat ? `! ${spec.group} ${bar.label}` : "!" })) },
                        tooltip: { callbacks: { title: (items) => bars[items[0].dataIndex].label,
                            label: (item) => [shown(key, bars[item.dataIndex].value), bars[item.dataIndex].tip].filter(Boolean) } } },
                    onClick: (_, hit) => hit.length && spec.open && spec.open(bars[hit[0].index]) },
            };
        } });
}

/* How many values lie where. Its axis goes by powers of ten: one tensor among 90,000 is seen. */
function histogram(parent, spec) {
    const { values } = spec;
    let low = Infinity, high = -Infinity;
    for (const value of values) {
        low = Math.min(low, value);
        high = Math.max(high, value);
    }
    const width = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50].find((step) => (high - low) / step <= 40) || (high - low) / 40;
    const first = Math.floor(low / width);
    const counts = new Array(Math.floor(high / width) - first + 1).fill(0);
    for (const value of values) counts[Math.floor(value / width) - first]++;
    const digits = Math.max(0, Math.ceil(-Math.log10(width)));
    const labels = counts.map((_, at) => ((first + at) * width).toFixed(digits));
    const rows = counts.map((count, at) => [`${labels[at]} to ${((first + at + 1) * width).toFixed(digits)}`, whole.format(count)]);
    figure(parent, {
        title: spec.title, says: spec.says, height: 210, wide: true, columns: [["SQNR, dB", false], ["tensors", true]], rows: rows.filter((_, at) => counts[at] > 0),
        config: (colours) => ({
            type: "bar",
            data: { labels, datasets: [{ data: counts.map((count) => count || null), backgroundColor: colours.bar, categoryPercentage: 1, barPercentage: 0.94, minBarLength: 3 }] },
            options: {
                layout: { padding: { top: 18 } },
                scales: { x: axis("SQNR, dB", colours, { grid: { display: false }, ticks: { maxRotation: 0, maxTicksLimit: 14 } }),
                    y: axis("tensors, by powers of ten", colours, { type: "logarithmic", min: 0.8,
                        ticks: { callback: (tick) => (Number.isInteger(Math.log10(tick)) ? whole.format(tick) : null) } }) },
                plugins: { legend: { display: false }, tooltip: { callbacks: { title: (items) => `${rows[items[0].dataIndex][0]} dB`,
                    label: (item) => plural(counts[item.dataIndex], "tensor") } } } } }) });
}

/* Two or more measures of the same things: series: [{ name, values }], as lines or as points. Both differ by stroke and shape, not by
 * colour alone. Bars would begin nowhere on an axis that goes by powers of ten. */
function comparedChart(parent, spec) {
    const line = spec.type === "line";
    figure(parent, {
        title: spec.title, says: spec.says, wide: spec.wide, height: line ? 260 : 100 + 30 * spec.labels.length,
        columns: [[spec.group, false], ...spec.series.map((one) => [one.name, true])],
        rows: spec.labels.map((label, at) => [el("span", { class: "name" }, label), ...spec.series.map((one) => shown(spec.key, one.values[at]))]),
        config: (colours) => {
            const value = axis(spec.measure, colours, { beginAtZero: !line, type: spec.log ? "logarithmic" : "linear",
                ticks: { maxTicksLimit: 7, callback: (tick) => (!spec.log || Number.isInteger(Math.round(Math.log10(tick) * 1e9) / 1e9) ? shown(spec.key, tick, false) : null) } });
            const label = axis(line ? spec.group : "", colours, { grid: { display: !line, color: colours.line, drawBorder: false }, offset: !line, ticks: { autoSkip: line, maxRotation: 0 } });
            return {
                type: "line",
                data: { labels: spec.labels.map(cutLabel), datasets: spec.series.map((one, at) => {
                    const colour = [colours.accent, colours.second, colours.quiet, colours.bad][at % 4];
                    return { label: one.name, data: one.values.map((v) => (Number.isFinite(v) && !(spec.log && v <= 0) ? v : null)), borderColor: colour, backgroundColor: colour,
                        pointStyle: ["circle", "rectRot", "triangle", "rect"][at % 4], pointRadius: line ? 4 : 6, showLine: line, borderDash: [[], [6, 4], [2, 3], [9, 3, 2, 3]][at % 4],
                        borderWidth: 2, spanGaps: true };
                }) },
                options: { indexAxis: line ? "x" : "y", scales: line ? { x: label, y: value } : { x: value, y: label },
                    plugins: { legend: { display: spec.series.length > 1, align: "start", labels: { usePointStyle: true, boxWidth: 8, boxHeight: 8, padding: 16, color: colours.ink } },
                        tooltip: { callbacks: { label: (item) => `${item.dataset.label}: ${shown(spec.key, item.raw)}` } } } },
            };
        } });
}

/* Size against error: points: [{ name, bytes, error, sign }]. Those that no other beats in both are joined by a line, or those of
 * `line`. Errors go by powers of ten. */
function frontierChart(parent, spec) {
    const points = spec.points.filter((point) => point.error > 0).sort((a, b) => a.bytes - b.bytes || a.error - b.error);
    const best = spec.line ? spec.line.filter((point) => point.error > 0) : points.filter((point, at) => points.slice(0, at).every((before) => before.error > point.error));
    const place = (point) => ({ x: point.bytes, y: point.error, point });
    const sizeTitle = spec.sizeTitle || "bytes", sizeShown = spec.sizeTitle ? short : (value) => shown("bytes", value);
    figure(parent, {
        title: spec.title, says: spec.says, wide: true, height: 340, columns: [[spec.pointTitle || "scheme", false], [sizeTitle, true], [spec.measure, true]],
        rows: [...points, ...(spec.line ? best : [])].map((point) => [el("span", { class: "name" }, point.name || ""), sizeShown(point.bytes), shown(spec.key, point.error)]),
        config: (colours) => ({
            type: "scatter",
            data: { datasets: [
                { label: spec.line ? "plans" : "no other is better in both", data: best.map(place), showLine: true, borderColor: colours.accent, backgroundColor: colours.accent,
                    borderWidth: 2, pointRadius: spec.line ? 3 : 0, pointStyle: "rect" },
                { label: spec.line ? "one scheme for all" : spec.pointTitle ? `${spec.pointTitle}s` : "schemes", data: points.map(place), borderColor: colours.second, backgroundColor: colours.second, pointRadius: 5 },
            ] },
            options: {
                scales: { x: axis(sizeTitle, colours, { beginAtZero: false, ticks: { maxTicksLimit: 8, callback: sizeShown } }),
                    y: axis(spec.measure, colours, { beginAtZero: false, type: "logarithmic", ticks: { maxTicksLimit: 8, callback: (tick) => shown(spec.key, tick, false) } }) },
                plugins: { legend: { align: "start", labels: { usePointStyle: true, color: colours.ink } },
                    tooltip: { callbacks: { label: (item) => `${item.raw.point.name || ""} ${sizeShown(item.raw.x)}, ${shown(spec.key, item.raw.y)}` } } } },
        }) });
}
