/** A refusal of the server, or the lack of any answer (status 0). */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    detail: string,
    readonly retryAfterS: number | null = null,
  ) {
    super(detail);
  }

  /** Whether the same request may do better later. */
  get isPassing(): boolean {
    return this.status === 0 || this.status === 408 || this.status === 429 || this.status >= 500;
  }

  static async of(answer: Response): Promise<Problem> {
    const told = await parsed(answer);
    const after = Number(answer.headers.get("Retry-After"));
    return new Problem(
      answer.status,
      told?.code ?? `http_${answer.status}`,
      told?.detail ?? `the server answered with status ${answer.status}`,
      after > 0 ? after : null,
    );
  }
}

async function parsed(answer: Response): Promise<{ code?: string; detail?: string } | null> {
  if (!answer.headers.get("Content-Type")?.includes("json")) return null;
  try {
    return (await answer.json()) as { code?: string; detail?: string };
  } catch (error) {
    if (error instanceof SyntaxError) return null;
    throw error;
  }
}

/** What to tell a person. */
export function explain(error: unknown): string {
  if (error instanceof Problem) return error.status === 0 ? "The server cannot be reached." : error.message;
  return error instanceof Error ? error.message : String(error);
}
