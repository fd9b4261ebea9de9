"""The style sheet of the page: light and dark, narrow screens, paper."""

STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1f2933; --soft: #52606d;
  --line: #d9e2ec; --track: #e9eef3; --valid: #166a3e; --invalid: #b3261e; --unknown: #8a5300;
  --native: #b3261e; --coordinated: #2f6690; --open: #c47f00; --lag: #2f6690; --code: #f3f6f9; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14181d; --ink: #e4e9ee; --soft: #a3b1bf; --line: #343d47; --track: #262d35;
    --valid: #6fd39b; --invalid: #ff8a80; --unknown: #f2b555; --native: #ff8a80;
    --coordinated: #7db8e8; --open: #f2b555; --lag: #7db8e8; --code: #20262d; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 0 auto; padding: 1.5rem 1rem;
  background: var(--page); color: var(--ink); overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; } h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; }
p { margin: .4rem 0; } .soft, .unit { color: var(--soft); }
.proved { font-size: 1.1rem; border-left: 4px solid var(--line); padding-left: .8rem; }
.wide { overflow-x: auto; margin: .5rem 0 1.5rem; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { color: var(--soft); font-weight: 600; } td { unicode-bidi: isolate; }
.wide th, .wide td { overflow-wrap: normal; } .wide td.t { min-width: 8rem;
  overflow-wrap: anywhere; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th.n { white-space: normal; }
.verdict { font-weight: 600; } .valid { color: var(--valid); } .invalid { color: var(--invalid); }
.unknown, .empty { color: var(--unknown); }
pre { background: var(--code); padding: .5rem .8rem; margin: .5rem 0; white-space: pre-wrap;
  border-radius: 4px; font-size: 13px; }
.row { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 1rem;
  font-size: 13px; margin-top: .35rem; break-inside: avoid; }
.row .label { unicode-bidi: isolate; white-space: pre-wrap; } .row .figure { color: var(--soft);
  font-variant-numeric: tabular-nums; }
.row svg { flex: 0 0 100%; width: 100%; display: block; }
svg.bar { height: 10px; } svg.steps { height: 34px; }
.axis { display: flex; justify-content: space-between; border-top: 1px solid var(--line);
  margin-top: .5rem; font-size: 12px; color: var(--soft); } .unit { font-size: 12px; margin: 0; }
.track { fill: var(--track); } .native { fill: var(--native); }
.coordinated { fill: var(--coordinated); } .open { fill: var(--open); } .lag { fill: var(--lag); }
@media (max-width: 34rem) { body { padding: 1rem .75rem; font-size: 14px; }
  h1 { font-size: 1.3rem; } .checks thead { display: none; } .checks tr { display: block;
    border-bottom: 1px solid var(--line); padding: .4rem 0; }
  .checks td { display: block; border: 0; padding: .1rem 0; }
  .checks td:nth-child(-n+2) { display: inline-block; margin-right: .75rem; } }
@media print {
  :root { --page: #ffffff; --ink: #000000; --soft: #404040; --line: #b0b8c0; --track: #e9eef3;
    --valid: #166a3e; --invalid: #b3261e; --unknown: #8a5300; --native: #b3261e;
    --coordinated: #2f6690; --open: #c47f00; --lag: #2f6690; --code: #f3f6f9; }
  body { max-width: none; padding: 0; font-size: 10pt; } .wide { overflow: visible; }
  table { font-size: 8pt; } .wide th, .wide td { overflow-wrap: anywhere; padding: .2rem .3rem; }
  svg, pre { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  tr, pre, .row { break-inside: avoid; } h2, h3 { break-after: avoid; } }
"""
"""CSS without any resource of its own; colours are variables, which the dark page and paper set."""
