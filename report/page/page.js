/* Puts the page together. */

const dialog = document.getElementById("details");

/* What is shown of one row, a panel each: (result, row) -> elements. */
const PANELS = [verdictOf, blockPanel, placesOf, figuresOf, neighboursOf, otherRowsOf];

function verdictOf(result, row) {
    const found = result.findings.filter((finding) => finding.row === row);
    const outcome = numberOf(result, "outcome", row);
    const word = ["INFO", "PASS", "FAIL", "SKIP"][outcome];
    return [el("p", { class: "head" }, badge(word), el("span", {}, [result.title, whatOf(result, row)].filter(Boolean).join(": "))),
        found.length ? el("ul", { class: "plain" }, found.map((finding) => el("li", {}, badge(isError(finding) ? "FAIL" : "NOTE"), el("span", {}, el("strong", {}, finding.check), `: ${finding.what}`)))) : null];
}

function pairs(list) {
    return el("dl", { class: "facts" }, list.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

function placesOf(result, row) {
    const said = [["worst block at", "block_at"], ["largest error at", "error_at"], ["shape", "shape"], ["dtype", "dtype"], ["file", "file"], ["note", "note"], ["kind of module", "module"]]
        .map(([name, key]) => [name, textOf(result, key, row)]).filter(([, value]) => value);
    for (const key of ["layer", "expert"]) if (!Number.isNaN(numberOf(result, key, row))) said.push([key, String(numberOf(result, key, row))]);
    return said.length ? [el("h3", {}, "Where"), pairs(said)] : [];
}

function figuresOf(result, row) {
    const said = [...result.rows.figures.keys()].filter((key) => !Number.isNaN(figureOf(result, key, row))).map((key) => [FIGURES.get(key).title, shown(key, figureOf(result, key, row))]);
    const loss = numberOf(result, "loss_db", row);
    if (!Number.isNaN(loss)) said.push(["lost against the baseline", shown("loss_db", loss)]);
    return said.length ? [el("h3", {}, "Figures"), pairs(said)] : [];
}

/* The row among those of its layer and its kind. */
function neighboursOf(result, row) {
    const said = [["layer", "in_layer"], ["module", "in_module"]].map(([key, at]) => [key, result.groups[key][numberOf(result, at, row)]])
        .filter(([, group]) => group && group.count > 1 && group.median !== null)
        .map(([key, group]) => [`${key} ${group.label}`, `median ${shown("sqnr_db", toNumber(group.median))}, lowest ${shown("sqnr_db", toNumber(group.lowest))}, of ${group.count}`]);
    return said.length ? [el("h3", {}, "Among its kind, SQNR"), pairs(said)] : [];
}

/* What else was judged of the same tensor, in any result. */
function otherRowsOf(result, row) {
    const name = textOf(result, "name", row);
    const others = table.rows.filter((other) => textOf(other.result, "name", other.row) === name && !(other.result === result && other.row === row)).slice(0, 40);
    return others.length ? [el("h3", {}, "The same name elsewhere"), el("ul", { class: "plain" }, others.map((other) => el("li", {}, badge(["INFO", "PASS", "FAIL", "SKIP"][numberOf(other.result, "outcome", other.row)]),
        el("button", { class: "link", type: "button", click: () => open(other.result, other.row) }, `${[other.result.title, whatOf(other.result, other.row)].filter(Boolean).join(": ")}, ${shown("sqnr_db", figureOf(other.result, "sqnr_db", other.row))}`))))] : [];
}

function open(result, row) {
    dialog.replaceChildren(el("button", { type: "button", class: "close", click: () => dialog.close() }, "Close"),
        el("h2", { id: "details-title", class: "name" }, breakable(textOf(result, "name", row))), ...PANELS.flatMap((panel) => panel(result, row)).filter(Boolean));
    if (!dialog.open) dialog.showModal();
    drawChanged();
    dialog.scrollTop = 0;
}

dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
});

document.getElementById("summary").append(tiles() || "");
const sections = document.getElementById("main");
sections.append(...[regressions(open), outputs(), verdicts(), findings(open)].filter(Boolean));
page.results.forEach((result, at) => sections.append(resultSection(result, at, open)));
sections.append(worst(open));
const table = new Table(document.getElementById("table"), open);
redraw(false);
document.documentElement.dataset.ready = String(Math.round(performance.now()));
