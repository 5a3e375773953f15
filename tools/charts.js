// What Vega and Vega-Lite ask of a browser, for charts.py.
globalThis.structuredClone = (value) =>
  Array.isArray(value)
    ? value.map(structuredClone)
    : value && typeof value === "object"
      ? Object.fromEntries(
          Object.entries(value).map(([name, one]) => [
            name,
            structuredClone(one),
          ]),
        )
      : value;

// There is no screen to measure letters on.
vega.textMetrics.width = (item, text) =>
  [...String(text ?? "")].reduce(
    (sum, one) => sum + (one > "\u2e80" ? 1 : 0.58),
    0,
  ) * (item.fontSize || 11);

function compile(spec) {
  const heard = [];
  const hear = (...words) => heard.push(words.join(" "));
  const quiet = () => logger;
  const logger = {
    level: quiet, info: quiet, debug: quiet, error: hear, warn: hear,
  };
  const made = vegaLite.compile(JSON.parse(spec), { logger }).spec;
  return JSON.stringify([made, heard]);
}
