// Reads the data in the page and shows them.

import { readData } from "./data.js";
import { picture } from "./picture.js";
import { Viewer } from "./viewer.js";

try {
  window.lamina = new Viewer(readData());
  window.lamina.picture = () => picture(window.lamina);
} catch (error) {
  const failure = document.getElementById("failure");
  failure.hidden = false;
  failure.textContent = `This browser could not show the surface: ${error.message}`;
  throw error;
}
