// Colours for code. A chunk of its own: most conversations need none.
import { common, createLowlight } from "lowlight";
import { Fragment, type ReactNode } from "react";

const lowlight = createLowlight(common);

type Node = ReturnType<typeof lowlight.highlight>["children"][number];

export default function Coloured({ code, language }: { code: string; language: string }): ReactNode {
  if (!lowlight.registered(language)) return code;
  return shown(lowlight.highlight(language, code).children);
}

function shown(nodes: readonly Node[]): ReactNode {
  return nodes.map((node, place) => {
    if (node.type === "text") return <Fragment key={place}>{node.value}</Fragment>;
    if (node.type !== "element") return null;
    const names = node.properties["className"];
    return (
      <span key={place} className={Array.isArray(names) ? names.join(" ") : ""}>
        {shown(node.children as Node[])}
      </span>
    );
  });
}
