// The page "Why refused?": draws bookings, and what quotas and quiet hours block, and books by
// QuotaRule (rule.js). The clocks of the page show UTC, so it is the same for every reader.
(function () {
  "use strict";

  var MINUTE = 60000;
  var HOUR = 60 * MINUTE;
  var MONDAY = Date.UTC(2030, 0, 7);
  var DAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
  var MOST_BOOKED = 100;
  var MOST_QUOTAS = 5;
  var LABELS = 112; // px left of the plot
  var RIGHT = 34;
  var LANE = 30;
  var TOP = 46;
  var LINES = ["M0 8L8 0", "M0 0L8 8", "M0 4H8", "M4 0V8", "M0 8L8 0M0 0L8 8", "M2 4H6"];

  // Hours count from Monday 00:00.
  var SCENES = {
    "Two an hour": { quotas: "2/hour", quiet: "", hours: [8.5, 13.5], booked: [10, 10 + 1 / 3, 11.5], asked: 10 + 2 / 3 },
    "Several quotas": { quotas: "1/15 minute, 3/2 hour, 6/day", quiet: "", hours: [8, 20], booked: [9, 9.5, 12, 12.5, 13], asked: 12 + 1 / 6 },
    "Quiet hours": { quotas: "1/30 minute, 3/4 hour", quiet: "21:00-08:00", hours: [18, 36], booked: [20.5, 32, 32.5], asked: 22 },
    "A day or 24 hours": { quotas: "3/day, 3/day in UTC", quiet: "", hours: [12, 48], booked: [20, 21, 22], asked: 24.5 },
  };

  var root = document.getElementById("playground");
  if (!root) return;
  var state = {};

  root.innerHTML =
    '<div class="pg-controls">' +
    '<label>Scene <select id="pg-scene"></select></label>' +
    '<label>Quotas <input id="pg-quotas" type="text" spellcheck="false" autocomplete="off" aria-describedby="pg-problem"></label>' +
    '<label>Quiet hours <input id="pg-quiet" type="text" spellcheck="false" autocomplete="off" placeholder="none" aria-describedby="pg-problem"></label>' +
    '</div><p id="pg-problem" role="alert"></p>' +
    '<div id="pg-chart"></div>' +
    '<label class="pg-slider"><span>Time to ask for</span><input id="pg-asked" type="range"></label>' +
    '<div id="pg-verdict" aria-live="polite"></div>' +
    '<div class="pg-buttons"><button type="button" id="pg-book" class="pg-main"></button>' +
    '<button type="button" id="pg-shift"></button>' +
    '<button type="button" id="pg-again">Start again</button></div>' +
    '<div id="pg-booked" role="group" aria-label="Booked messages"></div>' +
    '<details><summary>The picture in words</summary><ul id="pg-words"></ul></details>';

  function at(id) { return document.getElementById("pg-" + id); }

  Object.keys(SCENES).forEach(function (name) { at("scene").add(new Option(name, name)); });

  function play(name) {
    var scene = SCENES[name];
    state = {
      start: MONDAY + scene.hours[0] * HOUR,
      end: MONDAY + scene.hours[1] * HOUR,
      booked: scene.booked.map(function (hour) { return MONDAY + Math.round(hour * 60) * MINUTE; }),
      asked: MONDAY + Math.round(scene.asked * 60) * MINUTE,
      note: "",
    };
    state.step = (state.end - state.start > 12 * HOUR ? 10 : 5) * MINUTE;
    at("quotas").value = scene.quotas;
    at("quiet").value = scene.quiet;
    readRules();
  }

  // Read both fields; what cannot be read changes nothing and is told beside them.
  function readRules() {
    var texts = at("quotas").value.split(",").map(function (text) { return text.trim(); });
    texts = texts.filter(Boolean);
    var quotas = texts.map(QuotaRule.parseQuota);
    var quiet = at("quiet").value.trim();
    var hours = quiet ? QuotaRule.parseQuietHours(quiet) : null;
    var bad = quotas.indexOf(null);
    var problem = "";
    if (bad >= 0) problem = "Quotas: cannot read “" + texts[bad] + "”. Accepted: 2/hour, 3/30 minute, 5/day in UTC.";
    else if (quotas.length > MOST_QUOTAS) problem = "Quotas: at most " + MOST_QUOTAS + " here.";
    else if (quiet && !hours) problem = "Quiet hours: cannot read “" + quiet + "”. Accepted: 21:00-08:00.";
    at("problem").textContent = problem;
    at("quotas").setAttribute("aria-invalid", String(problem.indexOf("Quotas") === 0));
    at("quiet").setAttribute("aria-invalid", String(problem.indexOf("Quiet") === 0));
    if (!problem) state.rules = { quotas: quotas, quiet: hours };
    show();
  }

  function clock(t) {
    var day = Math.floor((t - MONDAY) / (24 * HOUR));
    var text = new Date(t).toISOString();
    if (day === 0) return text.slice(11, 16);
    var name = Math.abs(day) < 7 ? DAYS[new Date(t).getUTCDay()] : text.slice(0, 10);
    return name + " " + text.slice(11, 16);
  }

  function lasting(ms) {
    var minutes = Math.round(ms / MINUTE);
    var hours = Math.floor(minutes / 60);
    var parts = [];
    if (hours) parts.push(hours + (hours === 1 ? " hour" : " hours"));
    if (minutes % 60 || !hours) parts.push((minutes % 60) + (minutes % 60 === 1 ? " minute" : " minutes"));
    return parts.join(" ");
  }

  function listed(texts) {
    return texts.length < 2 ? texts.join("") : texts.slice(0, -1).join(", ") + " and " + texts[texts.length - 1];
  }

  function book(t) {
    state.asked = t;
    state.note = "";
    if (QuotaRule.judge(state.rules, state.booked, t)) return show();
    if (state.booked.length >= MOST_BOOKED) state.note = "This page holds " + MOST_BOOKED + " messages.";
    else {
      state.booked = state.booked.concat([t]).sort(function (one, other) { return one - other; });
      state.note = clock(t) + " is booked.";
      if (t >= state.end) state.note += " It lies beyond the right edge.";
    }
    show();
  }

  function cancel(t) {
    state.booked.splice(state.booked.indexOf(t), 1);
    state.note = clock(t) + " is cancelled. What it blocked is free at once.";
    show();
  }

  // What the page says of the time asked for. A member that is named is a time.
  function verdict(why, slot) {
    if (!why) return ["ok", clock(state.asked) + " fits.", ["No quota and no quiet hours block it."]];
    var later = QuotaRule.judge(state.rules, state.booked, why.until);
    var then = later ? " " + clock(why.until) + " is blocked by " + (later.quota || later.quiet).text + "." : "";
    if (why.quiet) {
      return ["no", clock(state.asked) + " is refused by quiet hours.", [
        "They last from " + clock(why.from) + " to " + clock(why.until) + "." + then,
        "`submit` raises `QuietHours`, with the next slot " + clock(slot) + ".",
      ]];
    }
    var quota = why.quota;
    var reason;
    if (quota.unit) {
      reason = "The calendar " + quota.unit + " from " + clock(why.from) + " to " + clock(why.until) +
        " has its " + quota.count + " already: " + listed(why.run.map(clock)) + ".";
    } else {
      var all = why.run.concat([state.asked]).sort(function (one, other) { return one - other; });
      var span = all[all.length - 1] - all[0];
      reason = listed(all.map(clock)) + " would be " + all.length + " messages within " + lasting(span) +
        "; " + quota.text + " allows " + quota.count + " in any span shorter than " + lasting(quota.length) + ". " +
        "So " + (quota.count === 1 ? "that message blocks" : "these messages block") +
        " every time between " + clock(why.from) + " and " + clock(why.until) + ".";
    }
    reason += then;
    var next = "`submit` raises `QuotaExceeded`, with this quota, the messages in the way and the next slot " + clock(slot) + ".";
    return ["no", clock(state.asked) + " is refused by " + quota.text + ".", [reason, next]];
  }

  function element(name, attributes, children) {
    var made = document.createElementNS("http://www.w3.org/2000/svg", name);
    Object.keys(attributes).forEach(function (key) { made.setAttribute(key, attributes[key]); });
    (children || []).forEach(function (child) {
      made.append(child);
    });
    return made;
  }

  function lanes() {
    var made = QuotaRule.inOrder(state.rules.quotas).map(function (quota) {
      return { name: quota.text, spans: QuotaRule.spansOf(quota, state.booked, state.start, state.end) };
    });
    if (state.rules.quiet) {
      made.push({ name: "quiet hours", spans: QuotaRule.quietSpans(state.rules.quiet, state.start, state.end) });
    }
    return made;
  }

  // The spans in which nothing blocks. Rolling spans are open: where two meet, one instant is free.
  function freeSpans(blocking) {
    var edge = state.start;
    var free = [];
    [].concat.apply([], blocking.map(function (lane) { return lane.spans; }))
      .sort(function (one, other) { return one.from - other.from; })
      .forEach(function (span) {
        var isFree = span.from >= edge && !QuotaRule.judge(state.rules, state.booked, edge);
        if (isFree) free.push({ from: edge, until: span.from });
        edge = Math.max(edge, span.until);
      });
    if (edge < state.end) free.push({ from: edge, until: state.end });
    return free;
  }

  function draw(blocking, why, slot) {
    var width = Math.max(320, at("chart").clientWidth);
    var labels = width < 520 ? 84 : LABELS;
    var plot = width - labels - RIGHT;
    var height = TOP + LANE * (blocking.length + 2) + 30;
    function x(t) {
      return labels + plot * Math.min(1, Math.max(0, (t - state.start) / (state.end - state.start)));
    }
    function laneAt(row) { return TOP + LANE * row; }
    function label(row, text) {
      return element("text", { x: labels - 10, y: laneAt(row) + 20, "text-anchor": "end" }, [text]);
    }
    var parts = [element("defs", {}, LINES.map(function (path, index) {
      return element("pattern", { id: "pg-pattern-" + index, width: 8, height: 8, patternUnits: "userSpaceOnUse" }, [
        element("rect", { width: 8, height: 8, class: "pg-ground pg-colour-" + index }),
        element("path", { d: path, class: "pg-line pg-colour-" + index }),
      ]);
    }))];
    var hours = (state.end - state.start) / HOUR;
    var most = Math.max(2, Math.floor(plot / 62));
    var every = [0.5, 1, 2, 3, 6, 12].find(function (each) { return hours / each <= most; }) || 24;
    for (var t = Math.ceil(state.start / (every * HOUR)) * every * HOUR; t <= state.end; t += every * HOUR) {
      parts.push(element("line", { x1: x(t), x2: x(t), y1: TOP - 4, y2: height - 30, class: "pg-tick" }));
      parts.push(element("text", { x: x(t), y: height - 12, "text-anchor": "middle" }, [clock(t)]));
    }
    parts.push(label(0, "booked"));
    parts.push(element("line", { x1: labels, x2: labels + plot, y1: laneAt(0) + 15, y2: laneAt(0) + 15, class: "pg-axis" }));
    blocking.forEach(function (lane, index) {
      parts.push(label(index + 1, lane.name));
      lane.spans.forEach(function (span) {
        parts.push(element("rect", {
          x: x(span.from), y: laneAt(index + 1) + 4, width: Math.max(1, x(span.until) - x(span.from)), height: LANE - 8,
          fill: "url(#pg-pattern-" + (index % LINES.length) + ")", class: "pg-span pg-colour-" + (index % LINES.length),
        }, [element("title", {}, [lane.name + " blocks " + clock(span.from) + " to " + clock(span.until)])]));
      });
    });
    parts.push(label(blocking.length + 1, "free"));
    freeSpans(blocking).forEach(function (span) {
      parts.push(element("rect", {
        x: x(span.from), y: laneAt(blocking.length + 1) + 10, width: Math.max(2, x(span.until) - x(span.from)), height: LANE - 20, class: "pg-free",
      }));
    });
    if (why && slot < state.end) {
      parts.push(element("line", { x1: x(slot), x2: x(slot), y1: TOP - 8, y2: height - 30, class: "pg-slot" }));
      parts.push(element("text", { x: Math.min(x(slot), width - 60), y: 18, "text-anchor": "middle", class: "pg-strong" }, ["next " + clock(slot)]));
    }
    parts.push(element("line", { x1: x(state.asked), x2: x(state.asked), y1: TOP - 8, y2: height - 30, class: why ? "pg-asked pg-no" : "pg-asked" }));
    parts.push(element("text", { x: Math.min(x(state.asked), width - 40), y: 36, "text-anchor": "middle", class: "pg-strong" }, [(why ? "✗ " : "✓ ") + clock(state.asked)]));
    state.booked.forEach(function (each) {
      if (each < state.start || each > state.end) return;
      var isInTheWay = why && why.run.indexOf(each) >= 0;
      if (isInTheWay) parts.push(element("circle", { cx: x(each), cy: laneAt(0) + 15, r: 11, class: "pg-ring" }));
      parts.push(element("circle", { cx: x(each), cy: laneAt(0) + 15, r: 6, class: "pg-dot", "data-at": each }, [
        element("title", {}, [clock(each) + (isInTheWay ? ", in the way" : "")]),
      ]));
    });
    var summary = "Booked: " + (listed(state.booked.map(clock)) || "nothing") + ". " + at("verdict").textContent;
    var svg = element("svg", { viewBox: "0 0 " + width + " " + height, width: width, height: height, role: "img", "aria-label": summary }, parts);
    svg.addEventListener("click", function (event) {
      var dot = event.target.closest("[data-at]");
      if (dot) return cancel(Number(dot.getAttribute("data-at")));
      var share = (event.clientX - svg.getBoundingClientRect().left - labels) / plot;
      if (share < 0 || share > 1) return undefined;
      var exact = state.start + share * (state.end - state.start);
      return book(Math.round(exact / state.step) * state.step);
    });
    at("chart").replaceChildren(svg);
    at("asked").style.marginLeft = labels - 8 + "px";
    at("asked").style.width = plot + 16 + "px";
  }

  // A paragraph of text, with code between backticks.
  function paragraph(text, name) {
    var made = document.createElement("p");
    text.split("`").forEach(function (part, index) {
      var piece = index % 2 ? document.createElement("code") : document.createElement("span");
      piece.textContent = part;
      made.append(piece);
    });
    if (name) made.className = name;
    return made;
  }

  function show() {
    var why = QuotaRule.judge(state.rules, state.booked, state.asked);
    var slot = QuotaRule.nextSlot(state.rules, state.booked, state.asked);
    var said = verdict(why, slot);
    var told = [paragraph((said[0] === "no" ? "✗ " : "✓ ") + said[1], "pg-head")].concat(said[2].map(function (text) { return paragraph(text); }));
    if (state.note) told.unshift(paragraph(state.note, "pg-note"));
    at("verdict").className = "pg-" + said[0];
    at("verdict").replaceChildren.apply(at("verdict"), told);
    at("book").textContent = "Book " + clock(state.asked);
    at("book").disabled = Boolean(why);
    at("shift").textContent = why ? "Shift: book the next slot, " + clock(slot) : "Shift";
    at("shift").hidden = !why;
    at("shift").onclick = function () { book(slot); };
    at("asked").min = state.start;
    at("asked").max = state.end;
    at("asked").step = state.step;
    at("asked").value = state.asked;
    at("asked").setAttribute("aria-valuetext", clock(state.asked) + (why ? ", refused" : ", fits"));
    var blocking = lanes();
    draw(blocking, why, slot);
    at("booked").replaceChildren.apply(at("booked"), ["Booked, press to cancel:"].concat(state.booked.map(function (each) {
      var made = document.createElement("button");
      made.type = "button";
      made.textContent = clock(each) + " ✕";
      made.setAttribute("aria-label", "Cancel " + clock(each));
      made.onclick = function () { cancel(each); };
      return made;
    })));
    at("words").replaceChildren.apply(at("words"), blocking.map(function (lane) {
      var made = document.createElement("li");
      made.textContent = lane.name + " blocks " + (listed(lane.spans.map(function (span) { return clock(span.from) + " to " + clock(span.until); })) || "nothing") + ".";
      return made;
    }));
  }

  at("scene").addEventListener("change", function () { play(at("scene").value); });
  at("again").addEventListener("click", function () { play(at("scene").value); });
  at("quotas").addEventListener("input", readRules);
  at("quiet").addEventListener("input", readRules);
  at("book").addEventListener("click", function () { book(state.asked); });
  at("asked").addEventListener("input", function () {
    state.asked = Number(at("asked").value);
    state.note = "";
    show();
  });
  window.addEventListener("resize", show);
  play("Two an hour");
})();
