// Syntax highlighting. It is a chunk of its own because most conversations do not need it.
import { common, createLowlight } from "lowlight";
import { Fragment, type ReactNode } from "react";

const lowlight = createLowlight(common);

type Node = ReturnType<typeof lowlight.highlight>["children"][number];

export default function HighlightedCode({ code, language }: { code: string; language: string }): ReactNode {
  if (!lowlight.registered(language)) return code;
  return render(lowlight.highlight(language, code).children);
}

function render(nodes: readonly Node[]): ReactNode {
  return nodes.map((node, index) => {
    if (node.type === "text") return <Fragment key={index}>{node.value}</Fragment>;
    if (node.type !== "element") return null;
    const names = node.properties["className"];
    return (
      <span key={index} className={Array.isArray(names) ? names.join(" ") : ""}>
        {render(node.children as Node[])}
      </span>
    );
  });
}
