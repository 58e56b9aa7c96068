/* Opens a page in Chromium and prints, as JSON, what tests/studies/framework/test_browser.py compares.
   node browser.mjs CHROMIUM PAGE FOLDER: screenshots go into the folder, which has node_modules with puppeteer-core and
   axe-core beside it. */
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [chromium, page, folder] = process.argv.slice(2);
const require = createRequire(path.join(folder, "package.json"));
const puppeteer = require("puppeteer-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const address = pathToFileURL(page).href;

const browser = await puppeteer.launch({
  executablePath: chromium,
  userDataDir: path.join(folder, "profile"),
  args: ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"],
});

async function open(width, scheme) {
  const tab = await browser.newPage();
  const messages = [], requests = [];
  tab.on("console", message => messages.push(message.text()));
  tab.on("pageerror", error => messages.push(String(error)));
  tab.on("request", request => { if (!/^(data|file):/.test(request.url())) requests.push(request.url()); });
  await tab.setViewport({ width, height: 800 });
  await tab.emulateMediaFeatures([
    { name: "prefers-color-scheme", value: scheme }, { name: "prefers-reduced-motion", value: "reduce" },
  ]);
  await tab.goto(address, { waitUntil: "load" });
  return { tab, messages, requests };
}

/* How much of the verdict and of the first figure the first screen shows. */
const firstScreen = () => {
  const shown = element => {
    if (!element) return 0;
    const box = element.getBoundingClientRect();
    return Math.max(0, Math.min(innerHeight, box.bottom) - Math.max(0, box.top)) / box.height;
  };
  return {
    verdict: shown(document.querySelector(".verdict")),
    words: document.querySelector(".verdict")?.textContent ?? "",
    figure: shown(document.querySelector("figure svg, figure img")),
    wide: document.documentElement.scrollWidth - innerWidth,
  };
};

const focused = () => {
  const at = document.activeElement;
  return { tag: at.tagName, kind: at.className || at.type || "", text: (at.textContent || "").slice(0, 40) };
};

async function keyboard(tab) {
  const found = {};
  await tab.keyboard.press("Tab");
  found.first = await tab.evaluate(focused);
  await tab.keyboard.press("Enter");
  found.skipped = await tab.evaluate(() => location.hash);
  const slider = await tab.$(".walk .step");
  if (slider) {
    await slider.focus();
    const before = await tab.evaluate(() => document.querySelector(".walk .path").getAttribute("points"));
    await tab.keyboard.press("Home");
    const after = await tab.evaluate(() => document.querySelector(".walk .path").getAttribute("points"));
    found.slider = before !== after;
    await tab.keyboard.press("End");
  }
  const field = await tab.$(".field .panels");
  if (field) {
    await field.focus();
    const before = await tab.evaluate(() => document.querySelector(".reading").textContent);
    await tab.keyboard.press("ArrowRight");
    found.field = before !== await tab.evaluate(() => document.querySelector(".reading").textContent);
  }
  const summary = await tab.$("summary");
  await summary.focus();
  await tab.keyboard.press("Enter");
  found.unfolded = await tab.evaluate(() => document.querySelector("details").open);
  await tab.keyboard.press("Enter");
  found.folded = !await tab.evaluate(() => document.querySelector("details").open);
  /* Every stop of the Tab key is visible and marked. */
  await tab.goto("about:blank");
  await tab.goto(address, { waitUntil: "load" });
  let stops = 0, unmarked = [];
  for (; stops < 60; stops++) {
    await tab.keyboard.press("Tab");
    const stop = await tab.evaluate(() => {
      const at = document.activeElement, box = at.getBoundingClientRect(), style = getComputedStyle(at);
      if (at === document.body) return null;
      const marked = style.outlineStyle !== "none" || style.textDecorationLine.includes("underline");
      return { name: at.outerHTML.slice(0, 80), visible: box.width > 0 && box.height > 0, marked };
    });
    if (!stop) break;
    if (!stop.visible || !stop.marked) unmarked.push(stop.name);
  }
  return { ...found, stops, unmarked };
}

async function violations(tab) {
  await tab.evaluate(() => document.querySelectorAll("details").forEach(part => { part.open = true; }));
  await tab.evaluate(axe);
  return tab.evaluate(async () => {
    const found = await axe.run(document);
    return found.violations.map(rule => [rule.id, rule.nodes.length, rule.nodes[0].html.slice(0, 200)]);
  });
}

const seen = [];
for (const width of [1200, 390])
  for (const scheme of ["light", "dark"]) {
    const { tab, messages, requests } = await open(width, scheme);
    const first = await tab.evaluate(firstScreen);
    await tab.screenshot({ path: path.join(folder, `${width}-${scheme}.png`) });
    const keys = await keyboard(tab);
    await tab.evaluate(() => { document.activeElement.blur(); scrollTo(0, 0); });
    await tab.screenshot({ path: path.join(folder, `${width}-${scheme}-whole.png`), fullPage: true });
    seen.push({ width, scheme, ...first, keys, violations: await violations(tab), messages, requests });
    await tab.close();
  }
{
  const { tab, messages, requests } = await open(1200, "light");
  await tab.emulateMediaType("print");
  await tab.evaluate(() => dispatchEvent(new Event("beforeprint")));
  const printed = await tab.evaluate(() => ({
    folded: document.querySelectorAll("details:not([open])").length,
    controls: [...document.querySelectorAll("nav, .controls")].filter(part => part.getBoundingClientRect().height).length,
  }));
  await tab.setViewport({ width: 794, height: 1123 });
  printed.wide = await tab.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  await tab.screenshot({ path: path.join(folder, "print.png") });
  await tab.pdf({ path: path.join(folder, "page.pdf"), format: "A4" });
  seen.push({ print: printed, messages, requests });
  await tab.close();
}
await browser.close();
console.log(JSON.stringify(seen));
