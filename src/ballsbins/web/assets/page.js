// The exported page: everything it shows is in the file.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
data.curves.forEach((curve) => chart.put(curve, data.delta));
chart.draw(JSON.parse(document.getElementById("figure").textContent), document.getElementById("chart")).then(() => {
  document.documentElement.dataset.ready = "yes";
});
for (const article of document.querySelectorAll("[data-statement]")) {
  const statement = data.statements[Number(article.dataset.statement)];
  for (const button of article.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", () => copyText(statement[button.dataset.copy], button));
  }
}
