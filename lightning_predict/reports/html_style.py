"""The style sheet of the HTML report: one column, system fonts, light and dark as the reader's system asks."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #ffffff; --text: #1c2330; --dim: #5c6675; --line: #dfe3ea;
  --accent: #2f6db5; --good: #1f7a4d; --bad: #b3412f; --used: #b86a1d; --muted: #b4bcc8; }
@media (prefers-color-scheme: dark) { :root { --page: #12161d; --card: #1b212b; --text: #e6eaf0; --dim: #9aa5b4;
  --line: #303947; --accent: #6ea8ea; --good: #5cc492; --bad: #ee8572; --used: #e3a25b; --muted: #566173; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 36px 24px 56px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 17px; margin: 0 0 12px; }
p { margin: 0 0 8px; }
.sub, .dim, figcaption { color: var(--dim); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 20px 22px;
  margin-top: 18px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(240px, 1fr)); gap: 14px; margin-top: 22px; }
.card { background: var(--card); border: 1px solid var(--line); border-top: 3px solid var(--accent);
  border-radius: 10px; padding: 14px 18px 16px; }
.card.none { border-top-color: var(--muted); }
.card h2 { font-size: 12px; text-transform: uppercase; letter-spacing: 0.06em; color: var(--dim); margin: 0 0 6px; }
.card .gpu { font-size: 20px; font-weight: 650; margin: 0; overflow-wrap: anywhere; }
.card .what { font-size: 16px; margin: 2px 0 6px; }
.card .dim { font-size: 13px; margin: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { padding: 7px 10px; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { color: var(--dim); font-weight: 600; font-size: 12.5px; vertical-align: bottom; white-space: nowrap; }
tbody tr:last-child td { border-bottom: 0; }
td.right, th.right { text-align: right; white-space: nowrap; }
td:first-child { white-space: nowrap; font-weight: 600; }
tr.unfit td { color: var(--dim); }
.badge { display: inline-block; margin-left: 8px; padding: 0 7px; border-radius: 9px; font-size: 11.5px;
  font-weight: 600; line-height: 18px; border: 1px solid currentcolor; }
.badge.best { color: var(--good); } .badge.used { color: var(--used); }
.badge.unfit, .badge.tight { color: var(--bad); }
td.yes { color: var(--good); } tr td.no, td.tight { color: var(--bad); font-weight: 600; }
figure { margin: 0; } figcaption { font-size: 13.5px; margin-top: 6px; }
svg { width: 100%; height: auto; display: block; font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
svg .grid { stroke: var(--line); stroke-width: 1; fill: none; }
svg text { fill: var(--text); paint-order: stroke; stroke: var(--card); stroke-width: 3px; stroke-linejoin: round; }
svg .tick, svg .axis { fill: var(--dim); }
svg .name.used { fill: var(--used); font-weight: 600; } svg .name.unfit { fill: var(--dim); }
svg .bar { fill: var(--accent); } svg .bar.used { fill: var(--used); } svg .bar.unfit { fill: var(--muted); }
svg .p0 { fill: #4477aa; } svg .p1 { fill: #ee6677; } svg .p2 { fill: #228833; } svg .p3 { fill: #ccbb44; }
svg .p4 { fill: #66ccee; } svg .p5 { fill: #aa3377; } svg .p6 { fill: #997700; } svg .p7 { fill: #bbbbbb; }
svg .p8 { fill: #44aa99; } svg .p9 { fill: #882255; } svg .p10 { fill: #ddaa66; } svg .p11 { fill: #777777; }
svg .whisker { stroke: var(--text); stroke-width: 1.2; fill: none; opacity: 0.75; }
svg .point { fill: var(--accent); stroke: var(--card); stroke-width: 1.5; } svg .point.used { fill: var(--used); }
svg .point.unfit { fill: var(--muted); }
svg .frontier { stroke: var(--accent); stroke-width: 1.6; fill: none; opacity: 0.55; }
svg .limit { stroke: var(--bad); stroke-width: 1.2; stroke-dasharray: 5 4; fill: none; }
ul { margin: 0; padding-left: 20px; } li { margin: 4px 0; }
a { color: var(--accent); } footer { margin-top: 24px; color: var(--dim); font-size: 13px; }
@media print { body { background: none; } section, .card { break-inside: avoid; } }
"""
