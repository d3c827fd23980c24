// Keeps the numbers of a page up to date: it reads the page again. Without it, a reload does.
const numbers = document.querySelectorAll("[data-live] [data-number]");

async function look() {
  const answer = await fetch(location);
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (!page.querySelector("[data-live]")) location.reload();
  for (const each of numbers) {
    const now = page.querySelector(`[data-number="${CSS.escape(each.dataset.number)}"]`);
    if (now && each.textContent !== now.textContent) each.textContent = now.textContent;
  }
}

async function again() {
  if (!document.hidden) await look().catch(() => {});
  setTimeout(again, 2000);
}

setTimeout(again, 2000);
