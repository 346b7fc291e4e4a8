"use strict";
// Sorts, filters and rescales the table of the report. The state is in the fragment of the address.
(() => {
  const table = document.querySelector("table.all");
  const form = document.getElementById("controls");
  if (!table || !form) return;

  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const titles = heads.map((head, place) => (place ? rows[0]?.cells[place]?.dataset.label : "GPU") || head.textContent);
  const texts = rows.map((row) => [...row.cells].map((cell) => cell.textContent));
  const steps = Number(form.dataset.steps);
  const field = (name) => form.elements.namedItem(name);
  const shownBeside = (name) => field(name).parentElement.querySelector("output");
  const number = (row, name) => (name in row.dataset ? Number(row.dataset[name]) : NaN);
  const distinct = (name) => [...new Set(rows.map((row) => row.dataset[name]).filter((value) => value !== undefined))];

  // Values behind the controls: steps from a hundredth to a hundredfold, deadlines from 6 minutes to a year.
  const prices = distinct("price").map(Number).sort((one, other) => one - other);
  const DEADLINES = 100; // the last position of the slider: none
  const hoursAt = (position) => 0.1 * 87600 ** (position / DEADLINES);
  const rounded = (value) => Number(value.toPrecision(2));
  const stepsNow = () => (Number(field("steps").value) ? rounded(steps * 10 ** (field("steps").value / 20)) : steps);
  const deadlineNow = () =>
    Number(field("deadline").value) < DEADLINES ? rounded(hoursAt(field("deadline").value)) : Infinity;
  const priceNow = () => prices[field("price").value] ?? Infinity;

  const dollars = (amount) => {
    if (amount > 0 && amount < 0.01) return "<$0.01";
    const digits = amount < 999.5 ? 2 : 0;
    return `$${amount.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
  };
  const UNITS = [["d", 86400, "h", 3600], ["h", 3600, "min", 60], ["min", 60, "s", 1]];
  const duration = (seconds) => {
    if (seconds < 1) return `${Number((seconds * 1000).toPrecision(3))} ms`;
    if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
    for (const [large, size, small, part] of UNITS) {
      const whole = Math.round(seconds / part) * part;
      if (whole >= size) {
        const rest = Math.round((whole % size) / part);
        return `${Math.floor(whole / size).toLocaleString("en-US")} ${large}${rest ? ` ${rest} ${small}` : ""}`;
      }
    }
    return `${Math.round(seconds)} s`;
  };

  // Time and cost of a row. Validation and checkpoints grow with the steps; setup and storage do not.
  const secondsOf = (row) => (steps ? (number(row, "total") * stepsNow()) / steps : number(row, "step") * number(row, "shown"));
  const costOf = (row) => (secondsOf(row) / 3600) * number(row, "price") + (number(row, "fixed") || 0);

  const sortValue = (row, title) => {
    const place = titles.indexOf(title);
    const text = texts[rows.indexOf(row)][place] ?? "";
    const known = { total: secondsOf(row), cost: costOf(row), step: number(row, "step"), "$/h": number(row, "price") };
    if (title in known && !Number.isNaN(known[title])) return known[title];
    const found = parseFloat(text.replace(/^[^\d.-]*/, "").replaceAll(",", ""));
    return title === "GPU" || Number.isNaN(found) ? text : found;
  };
  const compare = (one, other) => {
    if (typeof one === typeof other) return typeof one === "number" ? one - other : one.localeCompare(other);
    return typeof one === "number" ? -1 : 1; // unknown values come last
  };

  const rescale = (row, index) => {
    const isBase = !steps || stepsNow() === steps;
    const ratio = isBase ? 1 : stepsNow() / steps;
    titles.forEach((title, place) => {
      const cell = row.cells[place];
      const text = texts[index][place];
      if (!cell || isBase || !text.trim()) {
        if (cell && place && cell.textContent !== text) cell.textContent = text;
      } else if (title === "total" && !Number.isNaN(secondsOf(row))) cell.textContent = duration(secondsOf(row));
      else if (title === "cost" && !Number.isNaN(costOf(row))) cell.textContent = dollars(costOf(row));
      else if (/\((kWh|kg)\)/.test(title)) cell.textContent = Number((parseFloat(text) * ratio).toPrecision(3));
    });
  };

  const isShown = (row) =>
    (!field("provider").value || row.dataset.provider === field("provider").value) &&
    (!field("memory").value || number(row, "memory") >= Number(field("memory").value)) &&
    !(number(row, "price") > priceNow());

  const summary = (shown) => {
    const fitting = shown.filter((row) => row.dataset.fits === "1" && secondsOf(row) / 3600 <= deadlineNow());
    const best = (value) => {
      const known = fitting.filter((row) => !Number.isNaN(value(row)));
      return known.sort((one, other) => value(one) - value(other))[0];
    };
    const name = (row) => row.cells[0].querySelector("span").firstChild.textContent.trim();
    const described = (word, row) =>
      row ? ` ${word}: ${name(row)}, ${duration(secondsOf(row))}${
        Number.isNaN(costOf(row)) ? "" : `, ${dollars(costOf(row))}`}${steps ? "" : " for 1,000 steps"}.` : "";
    const base = steps && stepsNow() !== steps ? ` Charts and texts are for ${steps.toLocaleString("en-US")} steps.` : "";
    const none = fitting.length ? "" : " None of them fits and meets the deadline.";
    return `${shown.length} of ${rows.length} rows.${described("Cheapest", best(costOf))}${
      described("Fastest", best(secondsOf))}${none}${base}`;
  };

  const update = () => {
    const sort = field("sort").value;
    const order = sort ? [...rows].sort((a, b) => compare(sortValue(a, sort), sortValue(b, sort))) : rows;
    rows.forEach((row, index) => {
      row.hidden = !isShown(row);
      row.style.display = row.hidden ? "none" : "";
      row.classList.toggle("late", secondsOf(row) / 3600 > deadlineNow());
      rescale(row, index);
    });
    body.append(...order);
    heads.forEach((head, place) => {
      if (titles[place] === sort) head.setAttribute("aria-sort", "ascending");
      else head.removeAttribute("aria-sort");
    });
    shownBeside("steps").textContent = steps ? stepsNow().toLocaleString("en-US") : "";
    shownBeside("deadline").textContent = Number.isFinite(deadlineNow()) ? duration(deadlineNow() * 3600) : "none";
    shownBeside("price").textContent = Number.isFinite(priceNow()) ? `${dollars(priceNow())}/h` : "any";
    form.querySelector(".found").textContent = summary(rows.filter((row) => !row.hidden));
  };

  // The link: only what differs from the page as it was made.
  const NAMES = ["sort", "provider", "memory", "steps", "deadline", "price"];
  const defaultOf = (name) => (field(name).type === "range" ? field(name).defaultValue : "");
  const keep = () => {
    const changed = NAMES.filter((name) => field(name).value !== defaultOf(name));
    const state = new URLSearchParams(changed.map((name) => [name, field(name).value])).toString();
    history.replaceState(null, "", state ? `#${state}` : location.pathname + location.search);
  };
  const restore = () => {
    const state = new URLSearchParams(location.hash.slice(1));
    NAMES.forEach((name) => {
      field(name).value = state.get(name) ?? defaultOf(name);
      if (field(name).selectedIndex === -1) field(name).value = "";
    });
    update();
  };

  const fill = (name, first, options) =>
    field(name).append(...[["", first], ...options].map(([value, text]) => new Option(text, value)));
  fill("sort", "as made", titles.map((title) => [title, title]));
  fill("provider", "all", distinct("provider").sort().map((name) => [name, name]));
  const sizes = distinct("memory").map(Number).sort((one, other) => one - other);
  fill("memory", "any", sizes.map((size) => [String(size), `at least ${size} GiB`]));
  Object.assign(field("price"), { max: prices.length, defaultValue: String(prices.length) });
  if (!prices.length) field("price").parentElement.hidden = true;
  if (!steps) field("steps").parentElement.hidden = true;
  heads.forEach((head, place) => {
    head.classList.add("sortable");
    head.addEventListener("click", () => {
      field("sort").value = field("sort").value === titles[place] ? "" : titles[place];
      keep();
      update();
    });
  });
  form.addEventListener("input", () => (keep(), update()));
  form.addEventListener("reset", () => setTimeout(() => (keep(), update())));
  form.addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", restore);
  form.hidden = false;
  restore();
})();
