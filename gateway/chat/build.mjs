// Builds the page into dist/, which is checked in and embedded in the node. With `--check` it writes nothing, and fails
// if dist/ is not what the sources give.
import { build } from "esbuild";
import { mkdir, readFile, readdir, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const sources = join(here, "src");
const dist = join(here, "dist");

// The licence asks for its text in every copy.
const license = await readFile(join(here, "node_modules/preact/LICENSE"), "utf8");
const bundled = await build({
  absWorkingDir: here,
  entryPoints: [
    { in: join(sources, "main.tsx"), out: "chat" },
    { in: join(sources, "chat.css"), out: "chat" },
  ],
  outdir: dist,
  banner: { js: `/* Contains Preact:\n${license} */` },
  bundle: true,
  minify: true,
  // Browsers fetch a module with its origin, which the node refuses where it is not listed; the page is to say so.
  format: "iife",
  target: ["es2022", "chrome120", "firefox120", "safari17"],
  charset: "utf8",
  legalComments: "none",
  write: false,
});
const files = new Map(bundled.outputFiles.map(({ path, contents }) => [path.slice(dist.length + 1), Buffer.from(contents)]));
for (const name of ["index.html", "icon.svg"]) files.set(name, await readFile(join(sources, name)));

if (process.argv.includes("--check")) {
  const kept = await readdir(dist);
  const stale = kept.filter((name) => !files.has(name));
  for (const [name, content] of files) {
    if (!kept.includes(name) || !content.equals(await readFile(join(dist, name)))) stale.push(name);
  }
  if (stale.length > 0) {
    console.error(`gateway/chat/dist is stale (${stale.join(", ")}): run \`npm ci && npm run build\` in gateway/chat`);
    process.exit(1);
  }
} else {
  await mkdir(dist, { recursive: true });
  for (const [name, content] of files) await writeFile(join(dist, name), content);
}
