// Keeps the page as it is now: each event is the whole body of the page, and only what has changed
// is changed in the document, so that focus, selection and scrolling stay.
"use strict";
const page = document.getElementById("page");
const lost = document.createElement("p");
lost.id = "lost";
lost.setAttribute("role", "status");
document.body.append(lost);
let stream = null;

function follow(to, from) {
  for (const { name } of [...to.attributes]) if (!from.hasAttribute(name)) to.removeAttribute(name);
  for (const { name, value } of from.attributes) if (to.getAttribute(name) !== value) to.setAttribute(name, value);
  children(to, from);
}

function children(to, from) {
  const wanted = [...from.childNodes], have = [...to.childNodes];
  wanted.forEach((next, at) => {
    const old = have[at];
    if (!old) to.append(next);
    else if (old.nodeName !== next.nodeName) old.replaceWith(next);
    else if (old.nodeType === Node.ELEMENT_NODE) follow(old, next);
    else if (old.data !== next.data) old.data = next.data;
  });
  have.slice(wanted.length).forEach((old) => old.remove());
}

function show(event) {
  // In an element with line ends as in the page: the body of a document loses its first line end,
  // each node would be compared with its neighbour, and the whole page be replaced.
  const next = new DOMParser().parseFromString(`<div>\n${event.data}\n</div>`, "text/html").body.firstChild;
  const noscript = next.querySelector("noscript");
  if (noscript) noscript.remove();
  children(page, next);
  const count = page.querySelector("main").dataset.act;
  document.title = (count === "0" ? "" : `(${count}) `) + document.title.replace(/^\(\d+\) /, "");
  lost.textContent = "";
}

function open() {
  if (stream) stream.close();
  stream = new EventSource(page.dataset.events);
  stream.onmessage = show;
  stream.onerror = () => {
    lost.textContent = "The console does not answer: the page is not up to date.";
    if (stream.readyState === EventSource.CLOSED) setTimeout(open, 3000);
  };
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) stream.close();
  else open();
});
document.querySelector("noscript")?.remove();
open();
