// npm `openai`: create, stream, background and resume, a tool of the client, chat completions. Prints one JSON object.
import OpenAI from "openai";

const [baseURL, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const model = "desk";

const first = await client.responses.create({ model, input: "plain" });
const second = await client.responses.create({ model, input: "again", previous_response_id: first.id });

let streamed = "";
const stream = client.responses.stream({ model, input: "stream" });
stream.on("response.output_text.delta", (event) => (streamed += event.delta));
const final = await stream.finalResponse();

const background = await client.responses.create({ model, input: "background", background: true, stream: true });
let last = 0;
let resumed = "";
let id = "";
for await (const event of background) {
  if (event.type === "response.created") id = event.response.id;
  last = event.sequence_number;
  if (event.type === "response.output_text.delta") {
    resumed += event.delta;
    break;
  }
}
for await (const event of await client.responses.retrieve(id, { stream: true, starting_after: last })) {
  if (event.type === "response.output_text.delta") resumed += event.delta;
}

const tools = [{ type: "function", name: "pick", parameters: { type: "object", properties: {} }, strict: false }];
const asked = await client.responses.create({ model, input: "call", tools });
const call = asked.output.find((item) => item.type === "function_call");
const answered = await client.responses.create({
  previous_response_id: asked.id,
  input: [{ type: "function_call_output", call_id: call.call_id, output: "seven" }],
});

const chat = await client.chat.completions.create({ model, messages: [{ role: "user", content: "chat" }] });
const chatStream = client.chat.completions.stream({ model, messages: [{ role: "user", content: "chat stream" }] });

let refused = "";
await client.responses.create({ model, input: "x", truncation: "auto" }).catch((error) => (refused = error.param));

console.log(
  JSON.stringify({
    plain: first.output_text,
    continued: second.output_text,
    streamed,
    final: final.output_text,
    resumed,
    call: call.name,
    answered: answered.output_text,
    chat: chat.choices[0].message.content,
    chatStreamed: await chatStream.finalContent(),
    refused,
  }),
);
