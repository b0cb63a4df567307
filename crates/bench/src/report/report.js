"use strict";

const CURVES = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5"];
const BAR_LINE = 1.05, BAR_GAP = 0.8, BAR_AXIS = 3.5; // rem
const TONES = { own: "--c0", other: "--other", good: "--good", bad: "--bad" };

const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const number = value => value.toLocaleString("en", { maximumSignificantDigits: 5 });
const axis = (title, more) => ({
  title: { display: title !== "", text: title, color: colour("--soft") },
  grid: { color: colour("--grid") },
  border: { color: colour("--grid") },
  ...more,
  ticks: { color: colour("--soft"), maxRotation: 0, autoSkipPadding: 12, ...more?.ticks },
});

function linesConfig(chart) {
  let drawn = 0;
  const datasets = chart.curves.map(({ name, points, faint }) => {
    const line = colour(faint ? "--faint" : CURVES[drawn++ % CURVES.length]);
    return {
      label: name,
      data: points.map(([x, y]) => ({ x, y })),
      borderColor: line,
      backgroundColor: line,
      borderWidth: faint ? 1 : 2,
      order: faint ? 1 : 0,
      pointRadius: chart.marks || points.length === 1 ? 3 : 0,
      pointHitRadius: 8,
    };
  });
  return {
    type: "line",
    data: { datasets },
    options: {
      parsing: false,
      interaction: { mode: "nearest", axis: "x", intersect: false },
      scales: {
        x: axis(chart.x, { type: "linear", bounds: "data", beginAtZero: true, ticks: { maxTicksLimit: 8, includeBounds: false } }),
        y: axis("", { beginAtZero: chart.from_zero, ticks: { maxTicksLimit: 7 } }),
      },
      plugins: {
        tooltip: {
          callbacks: {
            title: items => items.length === 0 ? "" : `${chart.x} ${number(items[0].parsed.x)}`,
            label: ({ dataset, parsed }) => (dataset.label ? `${dataset.label}: ` : "") + number(parsed.y),
          },
        },
        zoom: {
          limits: { x: { min: "original", max: "original" } },
          zoom: {
            mode: "x",
            wheel: { enabled: true, modifierKey: "ctrl" },
            drag: { enabled: true, backgroundColor: colour("--faint") + "80" },
          },
        },
      },
    },
  };
}

function barsConfig(chart) {
  const datasets = [{
    data: chart.bars.map(bar => bar.value),
    base: chart.base,
    backgroundColor: chart.bars.map(bar => colour(TONES[bar.tone])),
    borderRadius: 3,
    maxBarThickness: 26,
    order: 1,
  }];
  if (chart.bars.some(bar => bar.range)) {
    datasets.push({
      data: chart.bars.map(bar => bar.range),
      backgroundColor: colour("--ink"),
      grouped: false,
      barThickness: 2,
      order: 0,
    });
  }
  return {
    type: "bar",
    data: { labels: chart.bars.map(bar => [bar.name, ...bar.details]), datasets },
    options: {
      indexAxis: "y",
      interaction: { mode: "index", axis: "y", intersect: false },
      scales: {
        x: axis(chart.unit === "x" ? "" : chart.unit, { beginAtZero: true, ticks: { maxTicksLimit: 7 } }),
        y: axis("", { grid: { display: false }, afterFit: fitNames, ticks: { color: colour("--ink"), autoSkip: false } }),
      },
      plugins: {
        tooltip: {
          callbacks: {
            title: items => items.length === 0 ? "" : chart.bars[items[0].dataIndex].name,
            label: ({ datasetIndex, dataIndex }) => {
              const { value, range } = chart.bars[dataIndex];
              if (datasetIndex === 0) return `${number(value)} ${chart.unit}`;
              return range ? `rounds: ${number(range[0])} to ${number(range[1])} ${chart.unit}` : "";
            },
          },
        },
      },
    },
  };
}

/** Gives the names of bars the width they need, where the chart has it. */
function fitNames(scale) {
  scale.ctx.save();
  scale.ctx.font = Chart.helpers.toFont(scale.options.ticks.font).string;
  const widths = scale.chart.data.labels.flat().map(line => scale.ctx.measureText(line).width);
  scale.ctx.restore();
  scale.width = Math.min(Math.max(...widths) + 16, 0.7 * scale.chart.width);
}

/** Buttons below a chart, one for each curve, which hide and show it. */
function addLegend(figure, chart) {
  const legend = document.createElement("div");
  legend.className = "legend";
  chart.data.datasets.forEach(({ label, borderColor }, index) => {
    const [button, line] = [document.createElement("button"), document.createElement("i")];
    line.style.background = borderColor;
    button.type = "button";
    button.append(line, label);
    button.setAttribute("aria-pressed", String(chart.isDatasetVisible(index)));
    button.addEventListener("click", () => {
      chart.setDatasetVisibility(index, !chart.isDatasetVisible(index));
      chart.update();
      button.setAttribute("aria-pressed", String(chart.isDatasetVisible(index)));
    });
    legend.append(button);
  });
  figure.append(legend);
}

const drawn = new Map();

function draw(figure) {
  const data = JSON.parse(figure.querySelector("script[type='application/json']").textContent);
  const plot = figure.querySelector(".plot");
  if (data.kind === "bars") {
    const lines = Math.max(...data.bars.map(bar => 1 + bar.details.length));
    plot.style.height = `${(BAR_LINE * lines + BAR_GAP) * data.bars.length + BAR_AXIS}rem`;
  }
  const config = data.kind === "bars" ? barsConfig(data) : linesConfig(data);
  Object.assign(config.options, { animation: false, responsive: true, maintainAspectRatio: false, locale: "en" });
  config.options.plugins.legend = { display: false };
  const canvas = plot.querySelector("canvas");
  const chart = new Chart(canvas, config);
  canvas.ondblclick = () => chart.resetZoom("none");
  figure.querySelector(".legend")?.remove();
  if (data.kind === "lines" && data.curves.some(curve => curve.name !== "") && data.curves.length > 1) addLegend(figure, chart);
  drawn.set(figure, chart);
}

/** Draws what can be seen and was not drawn yet. */
function drawAll() {
  for (const figure of document.querySelectorAll("figure.chart")) {
    if (!drawn.has(figure) && !figure.closest("details:not([open])")) draw(figure);
  }
}

Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
drawAll();
for (const fold of document.querySelectorAll("details")) fold.addEventListener("toggle", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  drawn.forEach(chart => chart.destroy());
  drawn.clear();
  drawAll();
});

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const value = (row, column) => {
    const text = row.cells[column]?.textContent.trim() ?? "", number = parseFloat(text);
    return isNaN(number) ? text : number;
  };
  heads.forEach((head, column) => head.addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending" ? 1 : -1;
    const order = (a, b) => {
      const [x, y] = [value(a, column), value(b, column)];
      return up * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y)));
    };
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up > 0 ? "ascending" : "descending");
    body.append(...[...body.rows].sort(order));
  }));
}
