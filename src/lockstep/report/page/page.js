"use strict";
// Three comforts; the page is whole without them: a switch of theme, rows that fold, and words at the pointer.
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const keep = (value) => { try { localStorage.setItem("lockstep-theme", value); } catch { /* not allowed here */ } };
  try {
    const kept = localStorage.getItem("lockstep-theme");
    if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  } catch { /* not allowed here */ }

  const theme = () => {
    const button = document.getElementById("theme");
    const isDark = () => (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
    const show = () => button.setAttribute("aria-pressed", String(isDark()));
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      keep(root.dataset.theme);
      show();
    });
    dark.addEventListener("change", show);
    button.hidden = false;
    show();
  };

  const folds = () => {
    for (const button of document.querySelectorAll(".more")) {
      const row = document.getElementById(button.getAttribute("aria-controls"));
      const set = (open) => { row.hidden = !open; button.setAttribute("aria-expanded", String(open)); };
      button.addEventListener("click", () => set(row.hidden));
      button.disabled = false;
      set(false);
    }
  };

  const tips = () => {
    const tip = document.getElementById("tip");
    const show = (event) => {
      const mark = event.target.closest ? event.target.closest("[data-tip]") : null;
      tip.hidden = !mark;
      if (!mark) return;
      tip.textContent = mark.dataset.tip;
      const box = tip.getBoundingClientRect();
      const left = Math.min(event.clientX + 12, innerWidth - box.width - 8);
      const top = event.clientY + 16 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 16;
      tip.style.left = `${Math.max(8, left)}px`;
      tip.style.top = `${Math.max(8, top)}px`;
    };
    for (const kind of ["pointermove", "pointerdown"]) document.addEventListener(kind, show, { passive: true });
    document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
    document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
  };

  document.addEventListener("DOMContentLoaded", () => { theme(); folds(); tips(); });
})();
