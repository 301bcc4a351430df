/** An error response of the server (RFC 9457 problem details), or no response at all (status 0). */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    detail: string,
    readonly retryAfterS: number | null = null,
  ) {
    super(detail);
  }

  /** Whether the same request may succeed later. */
  get isTransient(): boolean {
    return this.status === 0 || this.status === 408 || this.status === 429 || this.status >= 500;
  }

  static async fromResponse(response: Response): Promise<ApiError> {
    const problem = await parseProblem(response);
    const retryAfterS = Number(response.headers.get("Retry-After"));
    return new ApiError(
      response.status,
      problem?.code ?? `http_${response.status}`,
      problem?.detail ?? `The server returned status ${response.status}.`,
      retryAfterS > 0 ? retryAfterS : null,
    );
  }
}

async function parseProblem(response: Response): Promise<{ code?: string; detail?: string } | null> {
  if (!response.headers.get("Content-Type")?.includes("json")) return null;
  try {
    return (await response.json()) as { code?: string; detail?: string };
  } catch (error) {
    if (error instanceof SyntaxError) return null;
    throw error;
  }
}

/** The text to show to the user. */
export function errorMessage(error: unknown): string {
  if (error instanceof ApiError) return error.status === 0 ? "The server cannot be reached." : error.message;
  return error instanceof Error ? error.message : String(error);
}
