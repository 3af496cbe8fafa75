// Makes viewer.html, the page that lamina fills with data, from the sources in this folder and three.js:
//
//     npm ci && npm run build          (or `make viewer` in the root of the repository)
//
// esbuild bundles and shakes; the script and the style go into the page itself. The page carries the hash of
// its sources, which a test compares with the files, so that a change here without a build does not go unseen.

import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const read = (name) => readFileSync(join(here, name), "utf8");

const sources = readdirSync(here)
  .filter((name) => /\.(js|mjs|css)$/.test(name) || name === "page.html" || name === "package.json")
  .sort();
const hash = createHash("sha256");
for (const name of sources) hash.update(`${name}\0${read(name)}\0`);

const bundled = await build({
  entryPoints: [join(here, "main.js")],
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  legalComments: "none",
  write: false,
});
// A script ends at the first "</script", wherever it stands.
const script = bundled.outputFiles[0].text.replaceAll("</script", "<\\/script");
const style = await build({ entryPoints: [join(here, "style.css")], minify: true, write: false });
const licence = readFileSync(join(here, "node_modules/three/LICENSE"), "utf8").trim();
writeFileSync(join(here, "LICENSE-three.txt"), licence + "\n");

const parts = {
  __SOURCES__: hash.digest("hex"),
  __STYLE__: style.outputFiles[0].text.trim(),
  __SCRIPT__: script.trim(),
  __LICENCE__: licence.replaceAll("--", "- -"),
};
// A function as replacement: a string would have its dollar signs read as patterns.
const page = read("page.html").replace(/__(SOURCES|STYLE|SCRIPT|LICENCE)__/g, (name) => parts[name]);
writeFileSync(join(here, "viewer.html"), page);
console.log(`viewer.html: ${(page.length / 1e6).toFixed(2)} MB from ${sources.join(", ")}`);
