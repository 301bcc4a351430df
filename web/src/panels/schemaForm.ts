// A form for a JSON Schema: its fields, and the arguments that their texts stand for.

export interface FormField {
  name: string;
  label: string;
  description: string;
  type: "text" | "number" | "integer" | "boolean" | "choice" | "json";
  choices: readonly string[];
  required: boolean;
  defaultText: string;
}

type Schema = Readonly<Record<string, unknown>>;

export function formFields(schema: Schema | null): FormField[] {
  const properties = (schema?.["properties"] ?? {}) as Record<string, Schema>;
  const required = new Set((schema?.["required"] ?? []) as string[]);
  return Object.entries(properties).map(([name, property]) => formField(name, property, required.has(name)));
}

function formField(name: string, property: Schema, required: boolean): FormField {
  const kind = withoutNull(property);
  const choices = Array.isArray(kind["enum"]) ? kind["enum"].map(String) : [];
  const first = property["default"];
  return {
    name,
    label: name.replaceAll("_", " "),
    description: typeof property["description"] === "string" ? property["description"] : "",
    type: choices.length > 0 ? "choice" : fieldType(kind["type"]),
    choices,
    required,
    defaultText: first === undefined || first === null ? "" : typeof first === "string" ? first : JSON.stringify(first),
  };
}

/** The schema of an optional value without its null alternative. */
function withoutNull(property: Schema): Schema {
  const ways = property["anyOf"] ?? property["oneOf"];
  if (!Array.isArray(ways)) return property;
  const others = (ways as Schema[]).filter((one) => one["type"] !== "null");
  return others.length === 1 ? (others[0] ?? property) : property;
}

function fieldType(type: unknown): FormField["type"] {
  if (type === "string") return "text";
  if (type === "number" || type === "integer") return type;
  return type === "boolean" ? "boolean" : "json";
}


export type FieldTexts = Readonly<Record<string, string>>;

/** Parse the texts into arguments, or errors by field. Blank fields are left out. */
export function parseArguments(fields: readonly FormField[], texts: FieldTexts): { args: Record<string, unknown>; errors: Record<string, string> } {
  const args: Record<string, unknown> = {};
  const errors: Record<string, string> = {};
  for (const field of fields) {
    const text = texts[field.name] ?? field.defaultText;
    if (text === "" && field.type !== "boolean") {
      if (field.required) errors[field.name] = "Required";
      continue;
    }
    const value = parseValue(field, text);
    if (value !== undefined) args[field.name] = value;
    else errors[field.name] = field.type === "json" ? "Not valid JSON" : field.type === "integer" ? "Not a whole number" : "Not a number";
  }
  return { args, errors };
}

function parseValue(field: FormField, text: string): unknown {
  if (field.type === "text" || field.type === "choice") return text;
  if (field.type === "boolean") return text === "true";
  if (field.type === "json") return parseJson(text);
  const number = Number(text);
  return Number.isNaN(number) || (field.type === "integer" && !Number.isInteger(number)) ? undefined : number;
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}
