/** A new name that nobody else has; `crypto.randomUUID` is missing where the page comes over plain HTTP. */
export function newId(bytes = 16): string {
  const drawn = crypto.getRandomValues(new Uint8Array(bytes));
  return [...drawn].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
