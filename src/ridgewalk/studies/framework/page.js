"use strict";
/* Controls of the page's figures. Without this file they are complete still pictures. */
const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
const dataOf = figure => JSON.parse(figure.querySelector("script").textContent);

function walk(figure) {
  const { size: [width, height, halfX, halfY], stepSizes, paths } = dataOf(figure);
  const lines = [...figure.querySelectorAll(".path")], dots = [...figure.querySelectorAll(".now")];
  const sizes = [...figure.querySelectorAll(".size")], count = figure.querySelector(".count");
  const step = figure.querySelector(".step"), which = figure.querySelector(".which");
  const button = figure.querySelector("button");
  let pixels = [], playing = false, wanted = !still, seen = true, last = 0;

  function choose() {
    pixels = paths.map(path => {
      const flat = path[which.value], found = [];
      for (let i = 0; i < flat.length; i += 2)
        found.push([width * (flat[i] / 1000 / halfX + 1) / 2, height * (1 - flat[i + 1] / 1000 / halfY) / 2]);
      return found;
    });
    stepSizes.forEach((all, i) => { sizes[i].textContent = all[which.value]; });
    which.setAttribute("aria-valuetext", stepSizes.map(all => all[which.value]).join(" and "));
    draw();
  }
  function draw() {
    const steps = Number(step.value);
    pixels.forEach((path, i) => {
      lines[i].setAttribute("points", path.slice(0, steps).map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" "));
      const [x, y] = path[steps - 1];
      dots[i].setAttribute("cx", x);
      dots[i].setAttribute("cy", y);
    });
    count.textContent = steps;
  }
  function move(time) {
    if (!playing) return;
    if (time - last > 30) {
      last = time;
      step.value = Number(step.value) >= Number(step.max) ? 1 : Number(step.value) + 2;
      draw();
    }
    requestAnimationFrame(move);
  }
  function update() {
    button.textContent = wanted ? "Pause" : "Play";
    const now = wanted && seen;
    if (now && !playing) { playing = true; requestAnimationFrame(move); }
    playing = now;
  }
  button.addEventListener("click", () => { wanted = !wanted; update(); });
  step.addEventListener("input", () => { wanted = false; update(); draw(); });
  which.addEventListener("input", choose);
  new IntersectionObserver(entries => { seen = entries.at(-1).isIntersecting; update(); }).observe(figure);
  addEventListener("beforeprint", () => { wanted = false; step.value = step.max; update(); draw(); });
  figure.querySelector(".controls").hidden = false;
  choose();
  update();
}

function field(figure) {
  const { rows, columns, at, unit, level, truth, mean, lower, upper } = dataOf(figure);
  const panels = figure.querySelector(".panels"), crosses = [...figure.querySelectorAll(".cross")];
  const reading = figure.querySelector(".reading"), mark = figure.querySelector(".interval .truth");
  let [row, column] = at;
  const text = value => String(Number((value * unit).toPrecision(4)));

  function show() {
    const i = row * columns + column;
    const where = lower[i] <= truth[i] && truth[i] <= upper[i] ? "inside" : "outside";
    reading.textContent = `Row ${row + 1}, column ${column + 1}: predicted ${text(mean[i])}, ${level} interval ` +
      `${text(lower[i])} to ${text(upper[i])}, true ${text(truth[i])} (${where}).`;
    const place = 160 + 160 * (truth[i] - mean[i]) / Math.max(upper[i] - lower[i], 1);
    mark.setAttribute("transform", `translate(${Math.min(316, Math.max(4, place)).toFixed(1)} 17)`);
    crosses.forEach(cross => {
      cross.hidden = false;
      cross.style.left = `${100 * (column + 0.5) / columns}%`;
      cross.style.top = `${100 * (rows - row - 0.5) / rows}%`;
    });
  }
  const within = (value, size) => Math.min(size - 1, Math.max(0, value));
  figure.querySelectorAll(".map").forEach(map => map.addEventListener("pointermove", event => {
    const box = map.getBoundingClientRect();
    column = within(Math.floor(columns * (event.clientX - box.left) / box.width), columns);
    row = within(rows - 1 - Math.floor(rows * (event.clientY - box.top) / box.height), rows);
    show();
  }));
  const keys = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 0], ArrowDown: [-1, 0] };
  panels.addEventListener("keydown", event => {
    const by = keys[event.key];
    if (!by) return;
    event.preventDefault();
    row = within(row + by[0], rows);
    column = within(column + by[1], columns);
    show();
  });
  show();
}

document.querySelectorAll("figure.walk").forEach(walk);
document.querySelectorAll("figure.field").forEach(field);

/* A link to something in a folded section opens the section. */
function unfold() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", unfold);
unfold();

/* Paper cannot be unfolded: everything is printed. */
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  folded.forEach(part => { part.open = true; });
});
addEventListener("afterprint", () => folded.forEach(part => { part.open = false; }));
