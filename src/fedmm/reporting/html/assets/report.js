(function () {
  "use strict";
  var report = JSON.parse(document.getElementById("report-data").textContent);
  var root = document.documentElement;
  var dark = window.matchMedia("(prefers-color-scheme: dark)");
  var boxes = Array.prototype.slice.call(document.querySelectorAll("[data-chart]"));
  var drawn = new Set();
  var scales = {};
  var hidden = new Set();
  var printing = false;

  function theme() {
    if (printing) return "light";
    return root.dataset.theme || (dark.matches ? "dark" : "light");
  }

  // Words such as "$line0" in a figure stand for colours of the theme.
  function coloured(value, colours) {
    if (typeof value === "string") {
      return value.charAt(0) === "$" && value.slice(1) in colours ? colours[value.slice(1)] : value;
    }
    if (Array.isArray(value)) return value.map(function (each) { return coloured(each, colours); });
    if (value && typeof value === "object") {
      var copy = {};
      Object.keys(value).forEach(function (name) { copy[name] = coloured(value[name], colours); });
      return copy;
    }
    return value;
  }

  function key(box) {
    var section = box.closest("[data-section]").dataset.section;
    var figures = report.charts[box.dataset.chart];
    if ("" in figures) return "";
    var chosen = document.querySelectorAll('[data-control="' + section + '"]');
    return Array.prototype.map.call(chosen, function (each) { return each.value; }).join("|");
  }

  function axis(given, colours) {
    var base = {
      gridcolor: colours.rule, zerolinecolor: colours.rule, linecolor: colours.rule, automargin: true,
      tickfont: { color: colours.faint }, fixedrange: narrow(),
    };
    var merged = Object.assign(base, given || {});
    if (merged.title) merged.title = { text: merged.title.text, font: { color: colours.faint, size: 12 }, standoff: 8 };
    return merged;
  }

  function spans(data) {
    var values = [].concat.apply([], data.map(function (trace) { return trace.y || []; })).filter(function (y) { return y > 0; });
    return values.length ? Math.max.apply(null, values) / Math.min.apply(null, values) : 1;
  }

  function narrow() { return window.innerWidth < 700 || window.matchMedia("(pointer: coarse)").matches; }

  function draw(box) {
    var name = box.dataset.chart;
    var figure = report.charts[name][key(box)];
    if (!figure) return;
    var colours = report.themes[theme()];
    var given = coloured(figure, colours);
    var layout = Object.assign({}, given.layout);
    layout.xaxis = axis(layout.xaxis, colours);
    layout.yaxis = axis(layout.yaxis, colours);
    if (name in scales) {
      layout.yaxis.type = scales[name];
      if (scales[name] === "log") delete layout.yaxis.rangemode;
    }
    if (layout.yaxis.type === "log") { layout.yaxis.exponentformat = "power"; layout.yaxis.dtick = spans(given.data) > 30 ? 1 : "D2"; }
    Object.assign(layout, {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: narrow() ? false : "zoom",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12.5, color: colours.ink },
      margin: { l: 46, r: 14, t: 8, b: 40 }, showlegend: !!layout.showlegend,
      legend: { orientation: "h", y: layout.xaxis.visible === false ? -0.02 : -0.2, yanchor: "top", x: 0, font: { size: 11.5 }, itemsizing: "constant" },
      hoverlabel: { bgcolor: colours.back, bordercolor: colours.rule, font: { color: colours.ink, size: 12 }, namelength: 24 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colours.faint, activecolor: colours.ink },
      separators: ".,",
    });
    if (layout.xaxis.visible === false) layout.margin = { l: 6, r: 6, t: 4, b: 6 };
    var data = given.data.map(function (trace) {
      if (typeof trace.meta === "number") trace.visible = !hidden.has(trace.meta);
      return trace;
    });
    drawn.add(box);
    layout.width = box.clientWidth;
    layout.height = box.clientHeight;
    Plotly.react(box, data, layout, { displaylogo: false, displayModeBar: narrow() ? false : "hover",
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] });
  }

  function redraw() { drawn.forEach(draw); }
  function redrawAll() { boxes.forEach(draw); }

  var sized = new ResizeObserver(function (entries) {
    entries.forEach(function (entry) {
      var box = entry.target;
      if (drawn.has(box) && box.layout && box.clientWidth && box.layout.width !== box.clientWidth) draw(box);
    });
  });
  boxes.forEach(function (box) { sized.observe(box); });

  if ("IntersectionObserver" in window) {
    var seen = new IntersectionObserver(function (entries) {
      entries.forEach(function (entry) {
        if (entry.isIntersecting && !drawn.has(entry.target)) { draw(entry.target); seen.unobserve(entry.target); }
      });
    }, { rootMargin: "400px 0px" });
    boxes.forEach(function (box) { seen.observe(box); });
  } else {
    redrawAll();
  }

  document.getElementById("theme").addEventListener("click", function () {
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    try { localStorage.setItem("fedmm-theme", root.dataset.theme); } catch (problem) { /* a file may have no storage */ }
    redraw();
  });
  dark.addEventListener("change", redraw);
  window.addEventListener("beforeprint", function () { printing = true; redrawAll(); });
  window.addEventListener("afterprint", function () { printing = false; redraw(); });

  // Methods that are shown or hidden everywhere.
  var methods = document.querySelectorAll("button.method");
  if (methods.length < 2) document.querySelector(".legend").classList.add("single");
  methods.forEach(function (button) {
    button.addEventListener("click", function () {
      var number = Number(button.dataset.method);
      if (hidden.has(number)) hidden.delete(number); else hidden.add(number);
      button.setAttribute("aria-pressed", String(!hidden.has(number)));
      document.querySelectorAll(".verdict[data-method='" + number + "']").forEach(function (line) {
        line.classList.toggle("hidden", hidden.has(number));
      });
      redraw();
    });
  });

  document.querySelectorAll("select[data-control]").forEach(function (select) {
    select.addEventListener("change", function () {
      boxes.forEach(function (box) {
        if (box.closest("[data-section]").dataset.section === select.dataset.control && drawn.has(box)) draw(box);
      });
    });
  });

  document.querySelectorAll("[data-scale]").forEach(function (button) {
    var name = button.dataset.scale;
    var given = report.charts[name][""].layout.yaxis.type;
    scales[name] = given;
    button.setAttribute("aria-pressed", String(given === "log"));
    button.addEventListener("click", function () {
      scales[name] = scales[name] === "log" ? "linear" : "log";
      button.setAttribute("aria-pressed", String(scales[name] === "log"));
      draw(document.querySelector('[data-chart="' + name + '"]'));
    });
  });

  // What an accuracy cost: the first time that each seed measured it.
  var level = document.getElementById("level");
  function mean(values) { return values.reduce(function (sum, each) { return sum + each; }, 0) / values.length; }
  function short(value) { return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toPrecision(3); }
  function ask() {
    var wanted = Number(level.value);
    document.getElementById("level-value").textContent = wanted + "%";
    var rows = document.querySelectorAll("#ask tbody tr");
    report.costs.forEach(function (seeds, number) {
      var reached = [];
      seeds.forEach(function (seed) {
        var at = seed.accuracy.findIndex(function (value) { return value >= wanted; });
        if (at >= 0) reached.push([seed.round[at], seed.bytes_up[at], seed.bytes_down[at], seed.seconds[at]]);
      });
      var cells = rows[number].querySelectorAll("td");
      for (var column = 0; column < 4; column++) {
        var values = reached.map(function (each) { return each[column]; });
        cells[column].textContent = !values.length ? (column ? "-" : "never") : column ? short(mean(values)) : mean(values).toFixed(0);
      }
      cells[4].textContent = reached.length + " of " + seeds.length;
    });
  }
  if (level) { level.addEventListener("input", ask); ask(); }

  // Where the reader is, in the contents.
  var links = {};
  document.querySelectorAll("nav a").forEach(function (link) { links[link.getAttribute("href").slice(1)] = link; });
  if (window.innerWidth < 992) document.getElementById("contents").removeAttribute("open");
  function here() {
    var current = null;
    document.querySelectorAll("[data-section]").forEach(function (section) {
      if (current === null || section.getBoundingClientRect().top < 140) current = section.dataset.section;
    });
    Object.keys(links).forEach(function (name) {
      if (name === current) links[name].setAttribute("aria-current", "true"); else links[name].removeAttribute("aria-current");
    });
  }
  window.addEventListener("scroll", here, { passive: true });
  here();
})();
