// A form from a JSON Schema: which fields, of what sort, and what their text means. Pure.

export interface Field {
  name: string;
  label: string;
  about: string;
  sort: "text" | "number" | "integer" | "yes" | "choice" | "json";
  choices: readonly string[];
  required: boolean;
  first: string;
}

type Schema = Readonly<Record<string, unknown>>;

export function fieldsOf(schema: Schema | null): Field[] {
  const properties = (schema?.["properties"] ?? {}) as Record<string, Schema>;
  const required = new Set((schema?.["required"] ?? []) as string[]);
  return Object.entries(properties).map(([name, property]) => fieldOf(name, property, required.has(name)));
}

function fieldOf(name: string, property: Schema, required: boolean): Field {
  const kind = plainest(property);
  const choices = Array.isArray(kind["enum"]) ? kind["enum"].map(String) : [];
  const first = property["default"];
  return {
    name,
    label: name.replaceAll("_", " "),
    about: typeof property["description"] === "string" ? property["description"] : "",
    sort: choices.length > 0 ? "choice" : sortOf(kind["type"]),
    choices,
    required,
    first: first === undefined || first === null ? "" : typeof first === "string" ? first : JSON.stringify(first),
  };
}

/** What may also be null is asked for as what it is otherwise. */
function plainest(property: Schema): Schema {
  const ways = property["anyOf"] ?? property["oneOf"];
  if (!Array.isArray(ways)) return property;
  const others = (ways as Schema[]).filter((one) => one["type"] !== "null");
  return others.length === 1 ? (others[0] ?? property) : property;
}

function sortOf(type: unknown): Field["sort"] {
  if (type === "string") return "text";
  if (type === "number" || type === "integer") return type;
  return type === "boolean" ? "yes" : "json";
}

export type Texts = Readonly<Record<string, string>>;

/** The arguments that the texts stand for, or what is wrong, by field. What is left blank is left out. */
export function argumentsOf(fields: readonly Field[], texts: Texts): { args: Record<string, unknown>; wrong: Record<string, string> } {
  const args: Record<string, unknown> = {};
  const wrong: Record<string, string> = {};
  for (const field of fields) {
    const text = texts[field.name] ?? field.first;
    if (text === "" && field.sort !== "yes") {
      if (field.required) wrong[field.name] = "needed";
      continue;
    }
    const value = valueOf(field, text);
    if (value === undefined) wrong[field.name] = field.sort === "json" ? "not JSON" : "not a number";
    else args[field.name] = value;
  }
  return { args, wrong };
}

function valueOf(field: Field, text: string): unknown {
  if (field.sort === "text" || field.sort === "choice") return text;
  if (field.sort === "yes") return text === "true";
  if (field.sort === "json") return parsed(text);
  const number = Number(text);
  return Number.isNaN(number) || (field.sort === "integer" && !Number.isInteger(number)) ? undefined : number;
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}
