// npm `ai` with `@ai-sdk/openai`: text, streams, a tool loop, a conversation by references. Prints one JSON object.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [baseURL, apiKey] = process.argv.slice(2);
const openai = createOpenAI({ baseURL, apiKey });

const first = await generateText({ model: openai("desk"), prompt: "plain", maxRetries: 0 });
const own = await generateText({ model: openai("desk"), prompt: "weather", maxRetries: 0 });
const messages = [{ role: "user", content: "plain" }, ...first.response.messages, { role: "user", content: "again" }];
const second = await generateText({ model: openai("desk"), messages, maxRetries: 0 });

const stream = streamText({ model: openai("desk"), prompt: "stream", maxRetries: 0 });
let streamed = "";
for await (const part of stream.textStream) streamed += part;

const pick = tool({ description: "Pick.", inputSchema: z.object({}), execute: async () => "seven" });
const looped = await generateText({
  model: openai("desk"),
  prompt: "call",
  tools: { pick },
  stopWhen: stepCountIs(3),
  maxRetries: 0,
});

const chat = await generateText({ model: openai.chat("desk"), prompt: "chat", maxRetries: 0 });

console.log(
  JSON.stringify({
    plain: first.text,
    own: own.text,
    continued: second.text,
    streamed,
    steps: looped.steps.length,
    answered: looped.text,
    chat: chat.text,
    tokens: first.usage.totalTokens,
  }),
);
