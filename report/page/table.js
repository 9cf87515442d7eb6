/* The table of all rows of all results. Only the rows in sight are elements, so that 90,000 are no more work than 30. */

const ROW_HEIGHT = 34, MOST_HEIGHT = 12e6 /* pixels, beyond which browsers lose rows */, PRINTED = 60;

/* Columns, in this order, where any row has something in them; of figures, those that tell most. */
const FIGURE_COLUMNS = ["sqnr_db", "relative_error", "worst_block_error", "max_abs_error", "of_bound", "kl_mean_nats", "misrounded", "saturated", "flushed", "bytes", "kernel_seconds"];

const narrow = () => innerWidth < 640;

function allRows() {
    const rows = [];
    for (const result of page.results) for (let row = 0; row < result.rows.count; row++) rows.push({ result, row });
    return rows;
}

function columnsOf(rows) {
    const some = (test) => rows.some(test);
    const number = (key, title, width, value) => ({ key, title, width, value, text: (r) => shown(key, value(r), false), number: true });
    const text = (key, title, width, value) => ({ key, title, width, value: (r) => value(r) || "", text: (r) => value(r) || "" });
    const columns = [{ ...text("name", "Tensor", 0, (r) => textOf(r.result, "name", r.row)), cell: (r) => ends(textOf(r.result, "name", r.row)) }];
    if (some((r) => numberOf(r.result, "outcome", r.row) > 0)) {
        columns.push({ ...text("outcome", "Verdict", 105, (r) => OUTCOMES[numberOf(r.result, "outcome", r.row)]),
            text: (r) => `${SIGNS[numberOf(r.result, "outcome", r.row)]} ${OUTCOMES[numberOf(r.result, "outcome", r.row)]}` });
    }
    if (some((r) => whatOf(r.result, r.row))) columns.push(text("what", "Judged", 190, (r) => whatOf(r.result, r.row)));
    if (page.results.length > 1) columns.push(text("result", "Result", 150, (r) => r.result.title));
    if (page.baseline) columns.push(number("loss_db", "Lost, dB", 100, (r) => numberOf(r.result, "loss_db", r.row)));
    if (some((r) => !Number.isNaN(numberOf(r.result, "layer", r.row)))) columns.push(number("layer", "Layer", 80, (r) => numberOf(r.result, "layer", r.row)));
    for (const key of FIGURE_COLUMNS) {
        if (!page.results.some((result) => result.rows.figures.has(key))) continue;
        columns.push(number(key, key === "sqnr_db" ? "SQNR, dB" : FIGURES.get(key).title, key === "sqnr_db" ? 110 : 115, (r) => figureOf(r.result, key, r.row)));
    }
    const sqnr = columns.findIndex((column) => column.key === "sqnr_db");
    if (narrow() && sqnr > 0) columns.splice(1, 0, ...columns.splice(sqnr, 1)); /* beside the name, in sight */
    return columns;
}

class Table {
    constructor(parent, open) {
        this.rows = allRows();
        this.columns = columnsOf(this.rows);
        this.open = open;
        this.view = this.rows;
        this.active = 0;
        this.sorted = { column: this.columns.find((column) => column.key === (page.baseline ? "loss_db" : "sqnr_db")) || this.columns[0], up: !page.baseline };
        if (leftOut > 0) parent.append(el("p", { class: "quiet" }, `The worst ${plural(this.rows.length, "row")} of ${whole.format(this.rows.length + leftOut)}; tessera report --csv has all.`));
        this.build(parent);
        this.refresh();
    }

    build(parent) {
        const width = this.columns.reduce((sum, column) => sum + column.width, 0);
        const modules = [...new Set(page.results.flatMap((result) => result.rows.module || []).filter(Boolean))].sort();
        this.words = el("input", { type: "search", placeholder: "layers.3. down_proj", spellcheck: "false", autocomplete: "off", input: () => this.later() });
        this.module = this.choice("Module", modules);
        this.outcome = this.choice("Verdict", OUTCOMES.filter((_, at) => page.results.some((result) => (result.rows.outcome || []).includes(at))));
        this.result = this.choice("Result", page.results.map((result, at) => `${at + 1}: ${result.title}`));
        this.count = el("span", { class: "count", role: "status" });
        this.head = el("tr", { role: "row", "aria-rowindex": "1" }, this.columns.map((column) => el("th", { role: "columnheader", scope: "col", class: column.number ? "number" : null },
            el("button", { type: "button", class: column.number ? "number" : null, title: column.title, style: column.number ? "text-align:right" : null, click: () => this.sortBy(column) }, column.title))));
        this.body = el("tbody", { role: "rowgroup" });
        this.viewport = el("div", { class: "viewport", role: "grid", tabindex: "0", "aria-label": "All tensors and judgements. Arrow keys move, Enter opens.", keydown: (event) => this.key(event), scroll: () => this.soon() },
            el("table", { role: "presentation", style: `min-width:${width + (narrow() ? 225 : 330)}px` }, el("colgroup", {}, this.columns.map((column) => el("col", { style: column.width ? `width:${column.width}px` : null }))),
                el("thead", { role: "rowgroup" }, this.head), this.body));
        this.note = el("p", { class: "quiet" });
        parent.append(el("div", { class: "controls" }, el("label", {}, "Filter by words", this.words), this.module.label, this.outcome.label, this.result.label, this.count), this.viewport, this.note);
        this.body.addEventListener("click", (event) => {
            const row = event.target.closest("tr.row");
            if (row) this.go(Number(row.dataset.at), true);
        });
        addEventListener("resize", () => this.soon());
        addEventListener("beforeprint", () => this.render(true));
        addEventListener("afterprint", () => this.render());
    }

    choice(title, options) {
        const select = el("select", { change: () => this.refresh() }, el("option", { value: "" }, "all"), options.map((option, at) => el("option", { value: String(at) }, option)));
        return { select, options, label: options.length > 1 ? el("label", {}, title, select) : null, get chosen() { return select.value === "" ? null : Number(select.value); } };
    }

    later() {
        clearTimeout(this.waiting);
        this.waiting = setTimeout(() => this.refresh(), 90);
    }

    soon() {
        if (!this.frame) this.frame = requestAnimationFrame(() => this.render());
    }

    /* Filters and sorts anew. */
    refresh() {
        const words = this.words.value.toLowerCase().split(/\s+/).filter(Boolean);
        const { chosen: module } = this.module, { chosen: outcome } = this.outcome, { chosen: result } = this.result;
        const outcomeAt = outcome === null ? null : OUTCOMES.indexOf(this.outcome.options[outcome]);
        const text = (r) => (r.text === undefined ? (r.text = `${textOf(r.result, "name", r.row)} ${whatOf(r.result, r.row)}`.toLowerCase()) : r.text);
        this.view = this.rows.filter((r) => (module === null || textOf(r.result, "module", r.row) === this.module.options[module]) && (outcomeAt === null || numberOf(r.result, "outcome", r.row) === outcomeAt) &&
            (result === null || r.result === page.results[result]) && words.every((word) => text(r).includes(word)));
        this.sort();
        this.count.textContent = this.view.length === this.rows.length ? plural(this.rows.length, "row") : `${whole.format(this.view.length)} of ${plural(this.rows.length, "row")}`;
        this.viewport.setAttribute("aria-rowcount", String(this.view.length + 1));
        this.active = 0;
        this.viewport.scrollTop = 0;
        this.render();
    }

    /* What is not known stands last, whichever way. */
    sort() {
        const { column, up } = this.sorted;
        const keyed = this.view.map((r, at) => ({ r, at, value: column.value(r) }));
        const unknown = (value) => (column.number ? Number.isNaN(value) : value === "");
        keyed.sort((a, b) => {
            const x = unknown(a.value), y = unknown(b.value);
            if (x || y) return x - y || a.at - b.at;
            return a.value === b.value ? a.at - b.at : (a.value < b.value) === up ? -1 : 1;
        });
        this.view = keyed.map(({ r }) => r);
        [...this.head.children].forEach((cell, at) => cell.setAttribute("aria-sort", this.columns[at] === column ? (up ? "ascending" : "descending") : "none"));
    }

    /* Errors begin with the largest, SQNR with the lowest, names with a. */
    sortBy(column) {
        const first = !column.number || column.key === "sqnr_db" || column.key === "layer";
        this.sorted = { column, up: this.sorted.column === column ? !this.sorted.up : first };
        this.refresh();
    }

    /* The first row in sight, and how high what stands above it is. */
    window() {
        const full = this.view.length * ROW_HEIGHT, height = Math.min(full, MOST_HEIGHT), seen = this.viewport.clientHeight - 38;
        const share = full <= MOST_HEIGHT ? this.viewport.scrollTop / ROW_HEIGHT : (this.viewport.scrollTop / (height - seen)) * (this.view.length - seen / ROW_HEIGHT);
        const first = Math.max(0, Math.min(Math.floor(share) - 4, this.view.length - 1));
        const last = Math.min(this.view.length, first + Math.ceil(seen / ROW_HEIGHT) + 10);
        const above = full <= MOST_HEIGHT ? first * ROW_HEIGHT : Math.max(0, Math.min(this.viewport.scrollTop - 4 * ROW_HEIGHT, height - (last - first) * ROW_HEIGHT));
        return { first, last, above, below: Math.max(0, height - above - (last - first) * ROW_HEIGHT) };
    }

    render(printed = false) {
        this.frame = null;
        const { first, last, above, below } = printed ? { first: 0, last: Math.min(PRINTED, this.view.length), above: 0, below: 0 } : this.window();
        const space = (height) => (height > 0 ? [el("tr", { class: "space", role: "presentation", style: `height:${height}px` }, el("td", { colspan: String(this.columns.length), role: "presentation" }))] : []);
        const rows = [];
        for (let at = first; at < last; at++) {
            const r = this.view[at];
            rows.push(el("tr", { class: at === this.active ? "row active" : "row", role: "row", id: `row-${at}`, "data-at": String(at), "aria-rowindex": String(at + 2), "aria-selected": String(at === this.active) },
                this.columns.map((column) => el("td", { role: "gridcell", class: column.number ? "number" : null, title: column.number ? null : column.text(r) }, column.cell ? column.cell(r) : column.text(r)))));
        }
        this.body.replaceChildren(...space(above), ...rows, ...space(below));
        if (this.active >= first && this.active < last && this.view.length > 0) this.viewport.setAttribute("aria-activedescendant", `row-${this.active}`);
        else this.viewport.removeAttribute("aria-activedescendant");
        this.note.textContent = this.view.length === 0 ? "Nothing fits this filter." : printed && this.view.length > PRINTED ? `The first ${PRINTED} of ${plural(this.view.length, "row")}.` : "";
    }

    /* Makes a row the active one and brings it into sight. */
    go(at, open = false) {
        this.active = Math.max(0, Math.min(at, this.view.length - 1));
        const full = this.view.length * ROW_HEIGHT, scale = Math.min(1, MOST_HEIGHT / full), seen = this.viewport.clientHeight - 38;
        const top = this.active * ROW_HEIGHT * scale;
        if (top < this.viewport.scrollTop) this.viewport.scrollTop = top;
        else if (top + ROW_HEIGHT > this.viewport.scrollTop + seen) this.viewport.scrollTop = top + ROW_HEIGHT - seen;
        this.render();
        if (open && this.view[this.active]) this.open(this.view[this.active].result, this.view[this.active].row);
    }

    key(event) {
        if (event.target !== this.viewport || event.ctrlKey || event.altKey || event.metaKey) return;
        const pageful = Math.max(1, Math.floor((this.viewport.clientHeight - 38) / ROW_HEIGHT) - 1);
        const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: pageful, PageUp: -pageful, Home: -Infinity, End: Infinity };
        if (event.key in steps) this.go(this.active + steps[event.key]);
        else if (event.key === "Enter" || event.key === " ") this.go(this.active, true);
        else return;
        event.preventDefault();
    }
}
