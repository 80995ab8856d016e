"use strict";
// Shared by the page of a server (page.js) and by the report of a load test (load.js).

const $ = (id) => document.getElementById(id);
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const family = () => getComputedStyle(document.body).fontFamily;

/** 1, 2 and 5 times powers of ten in [low, high], fewer where there is no room for all. */
function decades(low, high, most) {
  for (const steps of [[1, 2, 5], [1, 3], [1]]) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
      for (const step of steps) {
        const value = step * 10 ** power;
        if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
      }
    if (found.length <= most || steps.length === 1) return found.filter((_, i) => i % Math.ceil(found.length / most) === 0);
  }
  return [];
}
