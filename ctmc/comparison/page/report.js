"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = id => document.getElementById(id);
  const size = bytes => {
    let unit = 0;
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    while (bytes >= 1024 && unit < 4) { bytes /= 1024; unit += 1; }
    return (bytes < 10 && unit ? bytes.toFixed(1) : bytes.toFixed(0)) + " " + units[unit];
  };
  const digits = value => value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6) ? value.toExponential(2) : String(Number(value.toPrecision(3)));
  const whole = value => value.toLocaleString("en");
  const small = value => value === 0 ? "0" : value.toExponential(2);
  const power = value => value.toExponential().replace("+", "");
  // name, head, value, how it is shown; without the last it is text
  const columns = [
    ["model", "Model", run => run.model],
    ["solver", "Solver", run => run.label],
    ["tolerance", "Tolerance", run => run.tolerance, power],
    ["status", "Status", run => run.disagrees ? run.status + " (disagrees)" : run.status],
    ["states", "States", run => (data.models[run.model] || {}).states, whole],
    ["iterations", "Iterations", run => run.iterations, whole],
    ["products", "Products", run => run.products, whole],
    ["seconds", "Seconds", run => run.seconds, digits],
    ["defect", "Defect", run => run.defect, small],
    ["distance", "Distance", run => run.distance, small],
    ["memory", "Memory", run => run.allocated_bytes, size],
  ];
  const asides = ["REFUSED", "NOT_INSTALLED"];
  const groups = {
    disagrees: ["any that disagrees", run => run.disagrees],
    failed: ["any failure", run => run.status !== "CONVERGED" && !asides.includes(run.status)],
  };
  const initial = {text: "", model: "", solver: "", status: "", tolerance: "", sort: "", order: "", open: ""};
  let state = {...initial};

  const make = (tag, text, attributes) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    for (const name in attributes) element.setAttribute(name, attributes[name]);
    return element;
  };

  // ---- one row, and what else is known of it; made when first shown
  const rows = new Map();
  const collator = new Intl.Collator("en", {numeric: true});
  data.runs.forEach((run, place) => {
    run.place = place;
    run.words = [run.model, run.label, run.status, run.reason, run.message, run.ran].join("\n").toLowerCase();
  });

  function rowOf(run) {
    let row = rows.get(run);
    if (row) return row;
    row = make("tr", undefined, {"data-run": run.place});
    columns.forEach(([name, , value, show]) => {
      const raw = value(run);
      let cell;
      if (name === "model") {
        cell = make("th", undefined, {scope: "row"});
        cell.append(make("button", raw, {type: "button", class: "open", "aria-expanded": "false"}));
      } else if (raw === undefined || raw === null) {
        cell = make("td", "", show ? {class: "n"} : {});
      } else {
        cell = make("td", show ? show(raw) : raw, show ? {class: "n", title: String(raw)} : {});
        if (name === "status") cell.className = run.disagrees || groups.failed[1](run) ? "bad" : run.status === "CONVERGED" ? "good" : "";
      }
      row.append(cell);
    });
    rows.set(run, row);
    return row;
  }

  function detailOf(run) {
    const row = make("tr", undefined, {class: "detail", id: "run-" + run.place});
    const cell = make("td", undefined, {colspan: columns.length});
    const within = make("div", undefined, {class: "within"});
    const list = make("dl", undefined, {class: "words"});
    const fact = (name, value) => {
      if (value === undefined || value === null || value === "") return;
      list.append(make("dt", name), value instanceof Node ? wrap(value) : make("dd", String(value)));
    };
    const wrap = node => { const dd = make("dd"); dd.append(node); return dd; };
    fact("message", run.message);
    fact("ended by", run.reason);
    if (run.command) {
      const line = make("div", undefined, {class: "command"});
      const code = make("code", run.command);
      const copy = make("button", "Copy", {type: "button", class: "copy", "aria-label": "Copy the command"});
      copy.addEventListener("click", () => copied(run.command, copy, code));
      line.append(code, copy);
      fact("command", line);
    }
    fact("ran as", run.ran);
    const model = data.models[run.model] || {};
    fact("family", model.family);
    fact("transitions", model.entries);
    for (const name of ["defect", "distance", "measure_difference", "truncated_mass", "iterations", "products"]) fact(name.replace("_", " "), run[name]);
    fact("seconds of each repeat", (run.repeats || []).join(", "));
    fact("spread of the repeats", run.spread);
    fact("seconds of the first solve", run.first_seconds);
    fact("seconds of the process, by the clock", run.wall_seconds);
    fact("seconds of the process, by the processor", run.cpu_seconds);
    fact("allocated bytes", run.allocated_bytes);
    fact("resident bytes at most", run.peak_bytes);
    for (const name in run.measures || {}) fact("measure " + name, run.measures[name]);
    if (run.history) fact("history", sparkline(run));
    fact("session", session(run));
    within.append(list);
    cell.append(within);
    row.append(cell);
    return row;
  }

  function session(run) {
    const link = make("a", "Session " + run.session, {href: "#sessions"});
    link.addEventListener("click", event => {
      const block = document.querySelectorAll("#sessions details")[run.session - 1];
      if (!block) return;
      event.preventDefault();
      block.open = true;
      block.scrollIntoView();
      block.querySelector("summary").focus();
    });
    return link;
  }

  async function copied(text, button, code) {
    let done = false;
    try {
      await navigator.clipboard.writeText(text);
      done = true;
    } catch {
      // files have no clipboard in some browsers: select, and try the old way
      getSelection().selectAllChildren(code);
      try { done = document.execCommand("copy"); } catch { done = false; }
    }
    button.textContent = done ? "Copied" : "Selected: press Ctrl+C";
    setTimeout(() => { button.textContent = "Copy"; }, 2500);
  }

  function sparkline(run) {
    const points = run.history, width = 400, height = 110, left = 52, right = 8, top = 10, bottom = 84;
    const drawn = (tag, attributes, text) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const name in attributes) element.setAttribute(name, attributes[name]);
      if (text !== undefined) element.textContent = text;
      return element;
    };
    const limit = Math.log10(run.tolerance), heights = points.map(point => point[1]);
    const low = Math.min(limit, ...heights), high = Math.max(limit, ...heights), most = points[points.length - 1][0], least = points[0][0];
    const x = products => left + (width - left - right) * (products - least) / ((most - least) || 1);
    const y = exponent => top + (bottom - top) * (high - exponent) / ((high - low) || 1);
    const label = exponent => (10 ** exponent).toExponential(0).replace("+", "");
    const svg = drawn("svg", {class: "spark", viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": `Defect from ${label(heights[0])} to ${label(heights[heights.length - 1])} over ${whole(most)} products; the dashed line is the tolerance`});
    svg.append(drawn("line", {class: "limit", x1: left, x2: width - right, y1: y(limit), y2: y(limit)}));
    svg.append(drawn("path", {class: "line c0", d: "M" + points.map(point => x(point[0]).toFixed(1) + " " + y(point[1]).toFixed(1)).join("L")}));
    svg.append(drawn("text", {x: left - 6, y: top + 5, "text-anchor": "end"}, label(high)), drawn("text", {x: left - 6, y: bottom + 4, "text-anchor": "end"}, label(low)));
    svg.append(drawn("text", {x: left, y: height - 6}, whole(least)), drawn("text", {x: width - right, y: height - 6, "text-anchor": "end"}, whole(most) + " products"));
    return svg;
  }

  // ---- which rows, in which order
  function chosen() {
    const words = state.text.toLowerCase().split(/\s+/).filter(Boolean);
    const group = groups[state.status];
    const found = data.runs.filter(run =>
      (!state.model || run.model === state.model) && (!state.solver || run.label === state.solver) &&
      (!state.status || (group ? group[1](run) : run.status === state.status)) &&
      (!state.tolerance || power(run.tolerance) === state.tolerance) && words.every(word => run.words.includes(word)));
    const column = columns.find(one => one[0] === state.sort);
    if (column) {
      const [, , value, number] = column, sign = state.order === "descending" ? -1 : 1;
      const missing = raw => raw === undefined || raw === null;
      found.sort((one, other) => {
        const a = value(one), b = value(other);
        if (missing(a) || missing(b)) return missing(a) - missing(b) || one.place - other.place;  // what is not known is always last
        return sign * (number ? a - b : collator.compare(a, b)) || one.place - other.place;
      });
    }
    return found;
  }

  const body = document.querySelector("#runs tbody");
  let left = [], turn = 0;
  const FIRST = 200, MORE = 1000;
  function more(number) {
    const fragment = document.createDocumentFragment();
    for (const run of left.splice(0, number)) {
      const row = rowOf(run), button = row.querySelector(".open");
      fragment.append(row);
      const isOpen = opened().includes(run.place);
      button.setAttribute("aria-expanded", String(isOpen));
      if (isOpen) fragment.append(detailOf(run));
    }
    body.append(fragment);
  }
  const opened = () => state.open.split(",").filter(Boolean).map(Number);

  function show() {
    const found = chosen();
    const column = columns.find(one => one[0] === state.sort);
    body.replaceChildren();
    left = [...found];
    more(FIRST);
    const mine = ++turn;
    const next = () => { if (mine === turn && left.length) { more(MORE); requestAnimationFrame(next); } };
    requestAnimationFrame(next);
    const total = data.runs.length;
    at("count").textContent = (found.length === total ? `All ${whole(total)} runs` : `${whole(found.length)} of ${whole(total)} runs`) +
      (column ? `, sorted by ${column[1].toLowerCase()}, ${state.order || "ascending"}` : "") + (found.length ? "." : ": none fits these filters.");
    document.querySelectorAll("#runs thead th").forEach((head, k) => {
      if (columns[k][0] === state.sort) head.setAttribute("aria-sort", state.order || "ascending"); else head.removeAttribute("aria-sort");
    });
    for (const name of ["text", "model", "solver", "status", "tolerance"]) if (at(name).value !== state[name]) at(name).value = state[name];
  }

  // ---- the state stands in the address
  function change(changes) {
    state = {...state, ...changes};
    const kept = new URLSearchParams(Object.entries(state).filter(([, value]) => value));
    try { history.replaceState(null, "", "#" + (String(kept) || "table")); } catch { /* an embedded page has no address */ }
    show();
  }
  function read() {
    const text = location.hash.slice(1);
    if (!text.includes("=")) return false;
    const given = new URLSearchParams(text);
    state = {...initial};
    for (const name in initial) if (given.has(name)) state[name] = given.get(name);
    if (!columns.some(one => one[0] === state.sort)) state.sort = "";
    if (!["ascending", "descending"].includes(state.order)) state.order = "";
    return true;
  }

  columns.forEach(([name, title, , number]) => {
    const head = make("th", undefined, {scope: "col", class: number ? "n" : ""});
    const button = make("button", title, {type: "button", "data-column": name});
    button.addEventListener("click", () =>
      change({sort: name, order: state.sort === name && state.order === "ascending" ? "descending" : "ascending"}));
    head.append(button);
    document.querySelector("#runs thead tr").append(head);
  });
  body.addEventListener("click", event => {
    const button = event.target.closest(".open");
    if (!button) return;
    const row = button.closest("tr"), place = Number(row.dataset.run), now = opened();
    const isOpen = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!isOpen));
    if (isOpen) row.nextElementSibling.remove(); else row.after(detailOf(data.runs[place]));
    state.open = (isOpen ? now.filter(one => one !== place) : [...now, place]).join(",");
    const kept = new URLSearchParams(Object.entries(state).filter(([, value]) => value));
    try { history.replaceState(null, "", "#" + (String(kept) || "table")); } catch { /* as above */ }
  });
  const fill = (id, values, titles = values) => values.forEach((value, k) => at(id).append(make("option", titles[k], {value})));
  const distinct = value => [...new Set(data.runs.map(value))];
  fill("model", distinct(run => run.model));
  fill("solver", distinct(run => run.label));
  const ends = Object.keys(groups).filter(name => data.runs.some(groups[name][1]));
  fill("status", [...ends, ...distinct(run => run.status)], [...ends.map(name => groups[name][0]), ...distinct(run => run.status)]);
  fill("tolerance", distinct(run => power(run.tolerance)));
  let waiting = 0;
  at("text").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => change({text: at("text").value}), 120); });
  for (const name of ["model", "solver", "status", "tolerance"]) at(name).addEventListener("change", () => change({[name]: at(name).value}));
  at("reset").addEventListener("click", () => { change({...initial}); at("text").focus(); });
  at("filters").addEventListener("submit", event => event.preventDefault());
  at("filters").hidden = at("box").hidden = false;
  const arrive = () => { if (read()) { show(); at("table").scrollIntoView(); at("table").focus({preventScroll: true}); } };
  addEventListener("hashchange", arrive);
  let closed = [];
  addEventListener("beforeprint", () => {
    more(left.length);
    closed = [...document.querySelectorAll("details:not([open])")];
    closed.forEach(one => { one.open = true; });
  });
  addEventListener("afterprint", () => closed.forEach(one => { one.open = false; }));
  show();
  arrive();
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
})();
