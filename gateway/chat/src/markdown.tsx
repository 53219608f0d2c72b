// Renders the part of Markdown that agents use, as elements of Preact: text never becomes HTML. Links lead to http and
// https only. Files of the session are shown; pictures of other places are links, so that an answer cannot make the
// browser load anything from there.
import { Component, type ComponentChild, type VNode } from "preact";
import { blobRef } from "./blob";
import { BlobLink } from "./view/blob_view";

/** Characters of a text that are rendered; a longer text is shown as it is, because each delta renders again. */
const TEXT_MAX = 128 * 1024;
/** Characters between the ends of one span; bounds the search for the end. */
const SPAN_MAX = 1_000;
/** Depth of lists, quotes and spans within each other. */
const DEPTH_MAX = 6;

type Block =
  | { kind: "code"; text: string }
  | { kind: "heading"; level: number; text: string }
  | { kind: "rule" }
  | { kind: "quote"; text: string }
  | { kind: "list"; start: number | null; items: string[] }
  | { kind: "table"; rows: string[][] }
  | { kind: "paragraph"; text: string };

const FENCE = /^ {0,3}(`{3,}|~{3,})/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])\s+/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;

/** A text in Markdown. */
export function Markdown({ text }: { text: string }): VNode {
  if (text.length > TEXT_MAX) return <p class="plain">{text}</p>;
  return <div class="markdown">{blocks(text).map((block, n) => <MarkdownBlock key={n} block={block} depth={0} />)}</div>;
}

/** One block, which is rendered again only if it has changed. */
class MarkdownBlock extends Component<{ block: Block; depth: number }> {
  override shouldComponentUpdate(next: { block: Block }): boolean {
    return JSON.stringify(next.block) !== JSON.stringify(this.props.block);
  }

  override render(): ComponentChild {
    const { block, depth } = this.props;
    return rendered(block, depth);
  }
}

function rendered(block: Block, depth: number): ComponentChild {
  switch (block.kind) {
    case "code":
      // Long lines scroll, also by the keyboard.
      return <pre tabIndex={0}><code>{block.text}</code></pre>;
    case "heading": {
      // The page has the levels 1 and 2.
      const Tag = (["h3", "h4", "h5", "h6"] as const)[Math.min(block.level, 4) - 1] ?? "h6";
      return <Tag>{spans(block.text, 0)}</Tag>;
    }
    case "rule":
      return <hr />;
    case "quote":
      return <blockquote>{nested(block.text, depth)}</blockquote>;
    case "list": {
      const items = block.items.map((item, n) => <li key={n}>{nested(item, depth)}</li>);
      return block.start === null ? <ul>{items}</ul> : <ol start={block.start}>{items}</ol>;
    }
    case "table":
      return table(block.rows);
    case "paragraph":
      return <p>{spans(block.text, 0)}</p>;
  }
}

/** Renders the content of a quote or of an item; a single paragraph needs no element of its own. */
function nested(text: string, depth: number): ComponentChild {
  if (depth >= DEPTH_MAX) return text;
  const inner = blocks(text);
  const [first] = inner;
  if (inner.length === 1 && first?.kind === "paragraph") return spans(first.text, 0);
  return inner.map((block, n) => <MarkdownBlock key={n} block={block} depth={depth + 1} />);
}

function table(rows: string[][]): VNode {
  const [head, ...body] = rows;
  return (
    <div class="wide" tabIndex={0} role="group" aria-label="Table">
      <table>
        <thead>
          <tr>{(head ?? []).map((cell, n) => <th key={n} scope="col">{spans(cell, 0)}</th>)}</tr>
        </thead>
        <tbody>
          {body.map((row, n) => <tr key={n}>{row.map((cell, m) => <td key={m}>{spans(cell, 0)}</td>)}</tr>)}
        </tbody>
      </table>
    </div>
  );
}

/** Divides a text into blocks. */
function blocks(text: string): Block[] {
  const lines = text.split("\n");
  const found: Block[] = [];
  for (let at = 0; at < lines.length; ) {
    const [block, next] = blockAt(lines, at);
    if (block !== null) found.push(block);
    at = next;
  }
  return found;
}

/** Returns the block that begins in a line, and the line after it. */
function blockAt(lines: string[], at: number): [Block | null, number] {
  const line = lines[at] ?? "";
  if (line.trim() === "") return [null, at + 1];
  const fence = FENCE.exec(line)?.[1];
  if (fence !== undefined) return codeAt(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading !== null) return [{ kind: "heading", level: heading[1]?.length ?? 1, text: heading[2] ?? "" }, at + 1];
  if (RULE.test(line)) return [{ kind: "rule" }, at + 1];
  if (QUOTE.test(line)) {
    const end = endOf(lines, at, (next) => QUOTE.test(next));
    const text = lines.slice(at, end).map((quoted) => quoted.replace(QUOTE, "")).join("\n");
    return [{ kind: "quote", text }, end];
  }
  if (ITEM.test(line)) return listAt(lines, at);
  if (line.includes("|") && DIVIDER.test(lines[at + 1] ?? "") && (lines[at + 1] ?? "").includes("-")) {
    const end = endOf(lines, at + 2, (next) => next.includes("|"));
    const rows = [line, ...lines.slice(at + 2, end)].map(cells);
    return [{ kind: "table", rows }, end];
  }
  const end = endOf(lines, at + 1, (next) => !startsBlock(next));
  return [{ kind: "paragraph", text: lines.slice(at, end).join("\n") }, end];
}

function codeAt(lines: string[], at: number, fence: string): [Block, number] {
  const isEnd = (line: string) => line.trim().startsWith(fence) && line.trim().replaceAll(fence.charAt(0), "") === "";
  // A block that is still being written has no end yet.
  const end = endOf(lines, at + 1, (next) => !isEnd(next));
  return [{ kind: "code", text: lines.slice(at + 1, end).join("\n") }, end + 1];
}

function listAt(lines: string[], at: number): [Block, number] {
  const marker = ITEM.exec(lines[at] ?? "");
  const indent = marker?.[1]?.length ?? 0;
  const number = Number.parseInt(marker?.[2] ?? "", 10);
  const isOrdered = !Number.isNaN(number);
  const items: string[] = [];
  /** Spaces that lines of the present item begin with. */
  let inner = 0;
  let next = at;
  while (next < lines.length) {
    const line = lines[next] ?? "";
    const item = ITEM.exec(line);
    // An item that is indented further belongs to a list within this one.
    const isSibling = item !== null && (item[1]?.length ?? 0) < indent + 2;
    if (isSibling && /^\d/.test(item[2] ?? "") === isOrdered) {
      items.push(line.slice(item[0].length));
      inner = item[0].length;
    } else if (!isSibling && continuesItem(lines, next)) {
      const spaces = line.length - line.trimStart().length;
      items[items.length - 1] += `\n${line.slice(Math.min(spaces, inner))}`;
    } else {
      break;
    }
    next++;
  }
  return [{ kind: "list", start: isOrdered ? number : null, items }, next];
}

/** Returns whether a line belongs to the item above it: indented, or blank before such a line. */
function continuesItem(lines: string[], at: number): boolean {
  const isIndented = (line: string | undefined) => /^ {2,}\S/.test(line ?? "");
  const line = lines[at] ?? "";
  return isIndented(line) || (line.trim() === "" && (isIndented(lines[at + 1]) || ITEM.test(lines[at + 1] ?? "")));
}

function startsBlock(line: string): boolean {
  return line.trim() === "" || [FENCE, HEADING, RULE, QUOTE, ITEM].some((start) => start.test(line));
}

function endOf(lines: string[], from: number, belongs: (line: string) => boolean): number {
  let end = from;
  while (end < lines.length && belongs(lines[end] ?? "")) end++;
  return end;
}

function cells(line: string): string[] {
  const inner = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return inner.split("|").map((cell) => cell.trim());
}

/** Returns the text and the elements of a line of text. */
function spans(text: string, depth: number): ComponentChild[] {
  const out: ComponentChild[] = [];
  let plain = "";
  for (let at = 0; at < text.length; ) {
    const span = depth < DEPTH_MAX ? spanAt(text, at, depth) : null;
    if (span === null) {
      plain += text.charAt(at);
      at++;
    } else {
      if (plain !== "") out.push(plain);
      plain = "";
      out.push(span.node);
      at = span.end;
    }
  }
  if (plain !== "") out.push(plain);
  return out;
}

interface Span {
  node: ComponentChild;
  /** The position after the span. */
  end: number;
}

function spanAt(text: string, at: number, depth: number): Span | null {
  switch (text.charAt(at)) {
    case "\\":
      return /[!-/:-@[-`{-~]/.test(text.charAt(at + 1)) ? { node: text.charAt(at + 1), end: at + 2 } : null;
    case "`":
      return codeSpan(text, at);
    case "*":
    case "_":
    case "~":
      return emphasis(text, at, depth);
    case "!":
      return text.charAt(at + 1) === "[" ? link(text, at + 1, true) : null;
    case "[":
      return link(text, at, false);
    case "h":
      return /\w/.test(text.charAt(at - 1)) ? null : bareLink(text, at);
    default:
      return null;
  }
}

function codeSpan(text: string, at: number): Span | null {
  const ticks = /^`+/.exec(text.slice(at, at + SPAN_MAX))?.[0] ?? "`";
  const from = at + ticks.length;
  const end = find(text, ticks, from);
  if (end === null) return { node: ticks, end: from };
  return { node: <code>{text.slice(from, end).replace(/^ (.*) $/, "$1")}</code>, end: end + ticks.length };
}

function emphasis(text: string, at: number, depth: number): Span | null {
  const sign = text.charAt(at);
  const isDouble = text.charAt(at + 1) === sign;
  if (sign === "~" && !isDouble) return null;
  // Signs within a word are part of it: `snake_case`.
  if (sign === "_" && /\w/.test(text.charAt(at - 1))) return null;
  const mark = isDouble ? sign + sign : sign;
  const from = at + mark.length;
  if (!/\S/.test(text.charAt(from))) return null;
  let end = find(text, mark, from + 1);
  while (end !== null && /\s/.test(text.charAt(end - 1))) end = find(text, mark, end + 1);
  if (end === null || (sign === "_" && /\w/.test(text.charAt(end + mark.length)))) return null;
  const inner = spans(text.slice(from, end), depth + 1);
  const node = sign === "~" ? <del>{inner}</del> : isDouble ? <strong>{inner}</strong> : <em>{inner}</em>;
  return { node, end: end + mark.length };
}

/** Returns the link `[label](target)`, or the picture or file if the target is one of the session; another target that is
 * not http or https stays text. A label has no spans: a link within a link leads nowhere. */
function link(text: string, at: number, asPicture: boolean): Span | null {
  const labelEnd = find(text, "](", at + 1);
  const end = labelEnd === null ? null : find(text, ")", labelEnd + 2);
  if (labelEnd === null || end === null) return null;
  const target = text.slice(labelEnd + 2, end).trim().split(/\s/)[0] ?? "";
  const label = text.slice(at + 1, labelEnd);
  const href = label === "" ? null : safe(target);
  const foreign = href === null ? null : <Link href={href}>{label}</Link>;
  if (blobRef(target) === null) return foreign === null ? null : { node: foreign, end: end + 1 };
  const fallback = foreign ?? text.slice(asPicture ? at - 1 : at, end + 1);
  const node = <BlobLink target={target} label={label} asPicture={asPicture} fallback={fallback} />;
  return { node, end: end + 1 };
}

function bareLink(text: string, at: number): Span | null {
  const found = /^https?:\/\/[^\s<>"'`]+/.exec(text.slice(at, at + SPAN_MAX))?.[0];
  const target = found?.replace(/[.,:;!?*_)\]}]+$/, "") ?? "";
  const href = safe(target);
  return href === null ? null : { node: <Link href={href}>{target}</Link>, end: at + target.length };
}

function Link({ href, children }: { href: string; children: string }): VNode {
  // The title shows where a link leads whose label says something else.
  return <a href={href} title={href} target="_blank" rel="noopener noreferrer nofollow">{children}</a>;
}

/** Returns an address that may be followed, or null. */
function safe(target: string): string | null {
  if (!/^https?:\/\//i.test(target) || !URL.canParse(target)) return null;
  const { href, protocol } = new URL(target);
  return protocol === "https:" || protocol === "http:" ? href : null;
}

/** Returns the next position of a mark within the length of a span. */
function find(text: string, mark: string, from: number): number | null {
  const at = text.slice(from, from + SPAN_MAX).indexOf(mark);
  return at < 0 ? null : from + at;
}
