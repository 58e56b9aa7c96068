"""How the page looks: one column that fits a phone, light or dark as the reader's system is."""

CSS = """
:root { color-scheme: light dark; --ink: #1c2126; --paper: #ffffff; --faint: #5b6570; --line: #d5dae0;
  --panel: #f5f7f9; --link: #0b5cad; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ec; --paper: #14181c; --faint: #9aa5b1; --line: #38414a; --panel: #1d2329; --link: #7db8f5; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.55;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; }
h2 { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); }
h3 { margin-top: 2rem; } p { max-width: 46rem; }
a { color: var(--link); } code { font-size: 0.92em; overflow-wrap: anywhere; }
.faint, figcaption, td small { color: var(--faint); }
.faint, figcaption { font-size: 0.92rem; }
.scroll { overflow-x: auto; margin: 0.4rem 0 0.3rem; border: 1px solid var(--line); border-radius: 6px; }
.scroll:focus-visible { outline: 2px solid var(--link); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 0.95rem; }
p.caption { margin: 1.6rem 0 0; font-weight: 600; }
th, td { padding: 0.35rem 0.7rem; text-align: right; vertical-align: top; }
tbody tr { border-top: 1px solid var(--line); }
td { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } thead th { background: var(--panel); vertical-align: bottom; }
tbody th { font-weight: 500; min-width: 8rem; position: sticky; left: 0; background: var(--paper); }
td small { display: block; }
.mark { font-weight: 600; color: var(--ink); }
figure { margin: 1.5rem 0; }
figure img { display: block; width: 100%; height: auto; background: #fff;
  border: 1px solid var(--line); border-radius: 6px; }
details { margin: 0.6rem 0; } summary { cursor: pointer; }
@media print { .scroll { overflow: visible; border: 0; } }
"""
