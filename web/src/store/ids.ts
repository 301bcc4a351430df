/** A random id. `crypto.randomUUID` is not available to pages that are served over plain HTTP. */
export function newId(bytes = 16): string {
  const values = crypto.getRandomValues(new Uint8Array(bytes));
  return [...values].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
