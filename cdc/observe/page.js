// Takes the parts of the page that have changed, as they were rendered by the process; asks for nothing else.
"use strict";
const SILENT_MS = 4000; // the process says something every second, changed or not
const lost = document.getElementById("lost");
let heard = Date.now();

function take(parts) {
  for (const [id, html] of Object.entries(parts)) {
    const part = document.getElementById(id);
    const chosen = getSelection();
    if (!part || (!chosen.isCollapsed && part.contains(chosen.anchorNode))) continue; // somebody is copying from it
    const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
    part.innerHTML = html;
    if (focused) document.getElementById(focused)?.focus();
  }
  const state = document.getElementById("state-word");
  document.title = `${document.body.dataset.pipeline}: ${state.textContent.trim()}`;
  document.getElementById("icon").href = state.dataset.icon;
}

function connect() {
  const events = new EventSource("events");
  events.onmessage = (event) => {
    heard = Date.now();
    lost.hidden = true;
    document.body.dataset.live = "yes";
    take(JSON.parse(event.data));
  };
  events.onerror = () => {
    if (events.readyState === EventSource.CLOSED) setTimeout(connect, 1000);
  };
}

setInterval(() => {
  if (Date.now() - heard < SILENT_MS || !lost.hidden) return;
  lost.hidden = false;
  document.body.dataset.live = "no";
  document.title = `${document.body.dataset.pipeline}: no answer`;
}, 500);

connect();
