// Keeps the numbers of a page up to date. Without it, a reload does.
const place = document.querySelector("[data-live]");
if (place) {
  const source = new EventSource(place.dataset.live);
  source.addEventListener("numbers", (event) => {
    for (const [name, text] of Object.entries(JSON.parse(event.data))) {
      for (const each of place.querySelectorAll(`[data-number="${CSS.escape(name)}"]`)) {
        if (each.textContent !== text) each.textContent = text;
      }
    }
  });
  source.addEventListener("ended", () => location.reload());
  addEventListener("pagehide", () => source.close());
}
