// The exported page: everything it shows is in the file.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
chart.mount(document.getElementById("chart"));
data.curves.forEach((curve) => chart.put(curve, data.delta));
for (const article of document.querySelectorAll("[data-statement]")) {
  const statement = data.statements[Number(article.dataset.statement)];
  for (const button of article.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", () => copyText(statement[button.dataset.copy], button));
  }
}
document.documentElement.dataset.ready = "yes";
