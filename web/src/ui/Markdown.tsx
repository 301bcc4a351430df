// Markdown of a model as React elements, never as HTML: HTML in the text is shown as text.
import type { Token, Tokens } from "marked";
import { Fragment, memo, type ReactElement, type ReactNode, useRef } from "react";
import { CodeBlock } from "./CodeBlock";
import { LongText } from "./common";
import { EMPTY_MARKDOWN, type ParsedMarkdown, parseMarkdown, safeHref } from "./markdownParser";

export const Markdown = memo(function Markdown({ text, growing }: { text: string; growing: boolean }): ReactElement {
  const parsed = useRef<ParsedMarkdown>(EMPTY_MARKDOWN);
  parsed.current = parseMarkdown(text, growing ? parsed.current : parsed.current.text === text ? parsed.current : EMPTY_MARKDOWN);
  const { blocks, isPlain } = parsed.current;
  if (isPlain) {
    return (
      <div className="prose-answer">
        <p className="text-xs text-muted">Shown without formatting: the text is too long or too deeply nested.</p>
        <p className="whitespace-pre-wrap"><LongText text={text} /></p>
      </div>
    );
  }
  return (
    <div className="prose-answer">
      {blocks.map((block, index) => (
        <Block key={index} block={block} growing={growing && index === blocks.length - 1} />
      ))}
    </div>
  );
});

const Block = memo(
  function Block({ block, growing }: { block: Token; growing: boolean }): ReactNode {
    return renderBlock(block, growing);
  },
  (before, after) => before.block.raw === after.block.raw && before.block.type === after.block.type && before.growing === after.growing,
);

function renderBlock(token: Token, growing: boolean): ReactNode {
  switch (token.type) {
    case "space":
    case "def": return null;
    case "paragraph": return <p>{renderInline(token.tokens)}</p>;
    case "heading": return renderHeading(token as Tokens.Heading);
    case "code": return <CodeBlock code={(token as Tokens.Code).text} language={(token as Tokens.Code).lang ?? ""} growing={growing} />;
    case "blockquote": return <blockquote>{renderBlocks(token.tokens)}</blockquote>;
    case "list": return renderList(token as Tokens.List);
    case "table": return renderTable(token as Tokens.Table);
    case "hr": return <hr />;
    case "text": return token.tokens ? <p>{renderInline(token.tokens)}</p> : <p>{token.text}</p>;
    default: return <p className="whitespace-pre-wrap">{token.raw.trimEnd()}</p>;
  }
}

function renderBlocks(tokens: readonly Token[] | undefined): ReactNode {
  return tokens?.map((token, index) => <Fragment key={index}>{renderBlock(token, false)}</Fragment>);
}

/** The page itself uses h1 and h2. */
function renderHeading(token: Tokens.Heading): ReactElement {
  const Level = `h${Math.min(6, token.depth + 2)}` as "h3" | "h4" | "h5" | "h6";
  return <Level>{renderInline(token.tokens)}</Level>;
}

function renderList(token: Tokens.List): ReactElement {
  const items = token.items.map((item, index) => <li key={index}>{renderListItem(item)}</li>);
  return token.ordered ? <ol start={token.start === "" ? 1 : token.start}>{items}</ol> : <ul>{items}</ul>;
}

function renderListItem(item: Tokens.ListItem): ReactNode {
  const box = item.task ? <span aria-label={item.checked ? "done" : "to do"} role="img">{item.checked ? "☑ " : "☐ "}</span> : null;
  const inner = item.tokens.filter((token) => token.type !== "checkbox").map((token, index) => (
    <Fragment key={index}>{token.type === "text" && token.tokens ? renderInline(token.tokens) : renderBlock(token, false)}</Fragment>
  ));
  return <>{box}{inner}</>;
}

function renderTable(token: Tokens.Table): ReactElement {
  return (
    <div className="table-frame" tabIndex={0} role="region" aria-label="Table">
      <table>
        <thead><tr>{token.header.map((cell, index) => <th key={index} scope="col">{renderInline(cell.tokens)}</th>)}</tr></thead>
        <tbody>
          {token.rows.map((row, line) => (
            <tr key={line}>{row.map((cell, index) => <td key={index}>{renderInline(cell.tokens)}</td>)}</tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function renderInline(tokens: readonly Token[] | undefined): ReactNode {
  return tokens?.map((token, index) => <Fragment key={index}>{renderSpan(token)}</Fragment>);
}

function renderSpan(token: Token): ReactNode {
  switch (token.type) {
    case "text":
    case "escape": return "tokens" in token && token.tokens ? renderInline(token.tokens) : decodeEntities(token.text as string);
    case "strong": return <strong>{renderInline(token.tokens)}</strong>;
    case "em": return <em>{renderInline(token.tokens)}</em>;
    case "del": return <del>{renderInline(token.tokens)}</del>;
    case "codespan": return <code>{token.text as string}</code>;
    case "br": return <br />;
    case "link": return renderLink(token as Tokens.Link);
    case "image": return renderLink({ ...(token as Tokens.Image), tokens: [] } as unknown as Tokens.Link, `image: ${(token as Tokens.Image).text || "unnamed"}`);
    default: return token.raw;
  }
}

function renderLink(token: Tokens.Link, label?: string): ReactNode {
  const href = safeHref(token.href);
  const inner = label ?? renderInline(token.tokens);
  if (href === null) return <span>{inner} <span className="text-muted">({token.href})</span></span>;
  return <a href={href} target="_blank" rel="noopener noreferrer nofollow" title={href}>{inner}</a>;
}

const ENTITIES: Readonly<Record<string, string>> = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'" };

/** Markdown text may contain HTML entities; code may not. */
function decodeEntities(text: string): string {
  return text.replace(/&(?:amp|lt|gt|quot|#39);/g, (entity) => ENTITIES[entity] ?? entity);
}
