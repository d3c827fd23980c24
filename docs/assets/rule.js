// The rule by which a submit judges a time: which spans quotas and quiet hours block, and where the
// next slot is. It answers as dispatcher/reservation/lua/rule.lua does, for one scope whose clocks
// show UTC; tests/docs/test_rule_of_the_site.py compares both. All times are integer milliseconds
// since 1970.
//
// A quota is {count, length} (rolling: `length` in ms) or {count, unit} (calendar). Quiet hours are
// {from, until} in minutes of the day; from > until goes over midnight. Both carry their text.
var QuotaRule = (function () {
  "use strict";

  var MINUTE = 60000;
  var DAY = 1440 * MINUTE;
  var LENGTHS = { second: 1000, minute: MINUTE, hour: 60 * MINUTE, day: DAY, week: 7 * DAY, year: 365 * DAY };
  var SHORT = { s: "second", sec: "second", min: "minute", h: "hour", d: "day" };
  var CALENDAR = ["minute", "hour", "day", "week", "month"];
  var MOST_COUNT = 10000000;
  var MOST_LENGTH = 366 * DAY;

  // Read "2/hour", "3/30 minute" or "5/day in UTC"; return null for anything else.
  function parseQuota(text) {
    var read = /^\s*(\d{1,9})(?:\s*\/\s*|\s+per\s+)(?:(\d{1,9})\s*)?([a-z]+)(\s+in\s+utc)?\s*$/i
      .exec(text);
    if (!read) return null;
    var count = Number(read[1]);
    var word = read[3].toLowerCase();
    var unit = SHORT[word] || word.replace(/s$/, "");
    if (count < 1 || count > MOST_COUNT) return null;
    if (read[4]) {
      var isUnit = !read[2] && CALENDAR.indexOf(unit) >= 0;
      return isUnit ? { count: count, unit: unit, text: count + "/" + unit + " in UTC" } : null;
    }
    var multiple = Number(read[2] || 1);
    var length = multiple * LENGTHS[unit];
    if (!(length >= 1 && length <= MOST_LENGTH)) return null;
    return { count: count, length: length, text: count + "/" + textOf(length) };
  }

  function textOf(length) {
    var unit = Object.keys(LENGTHS).filter(function (name) { return length % LENGTHS[name] === 0; }).pop();
    var multiple = length / LENGTHS[unit];
    return multiple === 1 ? unit : multiple + " " + unit;
  }

  // Read "21:00-08:00"; return null for anything else.
  function parseQuietHours(text) {
    var read = /^\s*(\d\d):(\d\d)\s*-\s*(\d\d):(\d\d)\s*$/.exec(text);
    if (!read) return null;
    var from = 60 * Number(read[1]) + Number(read[2]);
    var until = 60 * Number(read[3]) + Number(read[4]);
    var isClock = read[2] < 60 && read[4] < 60 && from < 1440 && until <= 1440;
    return isClock && from !== until % 1440 ? { from: from, until: until % 1440, text: text.trim() } : null;
  }

  // The calendar period of an instant: {from, until}.
  function periodOf(unit, t) {
    if (unit === "month") {
      var date = new Date(t);
      var year = date.getUTCFullYear();
      var month = date.getUTCMonth();
      return { from: Date.UTC(year, month), until: Date.UTC(year, month + 1) };
    }
    var length = LENGTHS[unit];
    var first = unit === "week" ? 4 * DAY : 0; // 5 January 1970 was a Monday
    var from = first + Math.floor((t - first) / length) * length;
    return { from: from, until: from + length };
  }

  // The quiet hours that hold an instant: {from, until}, or null.
  function quietAt(quiet, t) {
    if (!quiet) return null;
    var midnight = Math.floor(t / DAY) * DAY;
    var length = ((quiet.until - quiet.from + 1440) % 1440) * MINUTE;
    for (var from = midnight + quiet.from * MINUTE - DAY; from <= t; from += DAY) {
      if (t < from + length) return { from: from, until: from + length };
    }
    return null;
  }

  // What one quota blocks t by: {from, until, run}; null when the quota has room. A rolling quota of
  // N per W blocks t when N members s1 <= ... <= sN with sN - s1 < W satisfy sN - W < t < s1 + W.
  function blockOf(quota, members, t) {
    if (quota.unit) {
      var period = periodOf(quota.unit, t);
      var inside = members.filter(function (at) { return period.from <= at && at < period.until; });
      if (inside.length < quota.count) return null;
      return { from: period.from, until: period.until, run: inside.slice(0, quota.count) };
    }
    for (var first = members.length - quota.count; first >= 0; first--) {
      var span = spanOf(members[first], members[first + quota.count - 1], quota.length);
      if (span && span.from < t && t < span.until) {
        span.run = members.slice(first, first + quota.count);
        return span;
      }
    }
    return null;
  }

  // The open span that a run of N blocks, by its first and last member; null when it is not tight.
  function spanOf(s1, sN, length) {
    return sN - s1 < length ? { from: sN - length, until: s1 + length } : null;
  }

  // Why t does not fit: {quota, from, until, run} of the first quota that is full, rolling ones
  // before calendar ones; {quiet, from, until} in quiet hours; null when t fits.
  function judge(rules, members, t) {
    var quiet = quietAt(rules.quiet, t);
    if (quiet) return { quiet: rules.quiet, from: quiet.from, until: quiet.until, run: [] };
    var why = null;
    inOrder(rules.quotas).some(function (quota) {
      why = blockOf(quota, members, t);
      if (why) why.quota = quota;
      return why;
    });
    return why;
  }

  function inOrder(quotas) {
    var rolling = quotas.filter(function (quota) { return !quota.unit; });
    return rolling.concat(quotas.filter(function (quota) { return quota.unit; }));
  }

  // The first time at or after t that fits: from the end of one blocked span to the next.
  function nextSlot(rules, members, t) {
    for (var why = judge(rules, members, t); why; why = judge(rules, members, t)) t = why.until;
    return t;
  }

  // The spans that one quota blocks between two instants, joined where they overlap. Rolling spans
  // are open at both ends; calendar spans contain their start.
  function spansOf(quota, members, start, end) {
    var spans = [];
    if (quota.unit) {
      for (var t = start; t < end; t = periodOf(quota.unit, t).until) {
        var block = blockOf(quota, members, t);
        if (block) spans.push({ from: block.from, until: block.until });
      }
      return spans;
    }
    for (var first = 0; first + quota.count <= members.length; first++) {
      var span = spanOf(members[first], members[first + quota.count - 1], quota.length);
      var last = spans[spans.length - 1];
      if (!span) continue;
      if (last && span.from < last.until) last.until = span.until;
      else spans.push(span);
    }
    return spans.filter(function (span) { return span.until > start && span.from < end; });
  }

  // The quiet hours between two instants.
  function quietSpans(quiet, start, end) {
    var spans = [];
    for (var t = start - DAY; quiet && t < end; t += DAY) {
      var midnight = Math.floor(t / DAY) * DAY;
      var span = quietAt(quiet, midnight + quiet.from * MINUTE);
      if (span.until > start && span.from < end) spans.push(span);
    }
    return spans;
  }

  return {
    parseQuota: parseQuota,
    parseQuietHours: parseQuietHours,
    judge: judge,
    nextSlot: nextSlot,
    spansOf: spansOf,
    quietSpans: quietSpans,
    inOrder: inOrder,
  };
})();
