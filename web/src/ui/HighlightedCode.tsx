// Syntax highlighting. It is a chunk of its own because most conversations do not need it.
import { common, createLowlight } from "lowlight";
import { Fragment, type ReactNode } from "react";

const lowlight = createLowlight(common);
const DEPTH_MAX = 32; // levels of spans; code such as nested template strings can have thousands

type Node = ReturnType<typeof lowlight.highlight>["children"][number];

export default function HighlightedCode({ code, language }: { code: string; language: string }): ReactNode {
  if (!lowlight.registered(language)) return code;
  return render(lowlight.highlight(language, code).children, DEPTH_MAX);
}

function render(nodes: readonly Node[], levels: number): ReactNode {
  if (levels === 0) return textOf(nodes);
  return nodes.map((node, index) => {
    if (node.type === "text") return <Fragment key={index}>{node.value}</Fragment>;
    if (node.type !== "element") return null;
    const names = node.properties["className"];
    return (
      <span key={index} className={Array.isArray(names) ? names.join(" ") : ""}>
        {render(node.children as Node[], levels - 1)}
      </span>
    );
  });
}

/** The text of all levels, without recursion. */
function textOf(nodes: readonly Node[]): string {
  const texts: string[] = [];
  const rest = [...nodes].reverse();
  for (let node = rest.pop(); node !== undefined; node = rest.pop()) {
    if (node.type === "text") texts.push(node.value);
    else if (node.type === "element") rest.push(...([...node.children].reverse() as Node[]));
  }
  return texts.join("");
}
