// Requests of the AI SDK with each of its providers; prints one JSON object.
// node ai_sdk.mjs PACKAGES URL MODEL tools|text
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [packages, url, model, mode] = process.argv.slice(2);
const require = createRequire(packages + "/");
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { generateText, jsonSchema, Output, stepCountIs, streamText, tool } = await load("ai");
const { createOpenAI } = await load("@ai-sdk/openai");
const { createAnthropic } = await load("@ai-sdk/anthropic");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");

const baseURL = url + "/v1";
const providers = {
  openai: createOpenAI({ baseURL, apiKey: "none" }),
  anthropic: createAnthropic({ baseURL, apiKey: "none" }),
  compatible: createOpenAICompatible({ name: "llmkube", baseURL, supportsStructuredOutputs: true }),
};
const schema = {
  type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"], additionalProperties: false,
};
const weather = tool({
  description: "Tell the weather",
  inputSchema: jsonSchema({ type: "object", properties: { city: { type: "string" } }, required: ["city"] }),
  execute: async ({ city }) => `sunny in ${city}`,
});
const system = "You know the weather. ".repeat(100);
const found = {};
for (const [name, provider] of Object.entries(providers)) {
  const asked = { model: provider(model), maxRetries: 0, system };
  const messages = [{ role: "user", content: "Hello" }];
  if (mode === "tools") {
    const tools = { weather };
    const first = await generateText({ ...asked, messages, tools, stopWhen: stepCountIs(3) });
    const again = [...messages, ...first.response.messages, { role: "user", content: "And now?" }];
    const streamed = streamText({ ...asked, messages: again, tools, stopWhen: stepCountIs(3) });
    const picture = { type: "file", mediaType: "image/png", data: process.env.PICTURE };
    const seen = [{ role: "user", content: [{ type: "text", text: "What is this?" }, picture] }];
    found[name] = {
      first: first.text, second: await streamed.text, picture: (await generateText({ ...asked, messages: seen })).text,
    };
    continue;
  }
  const first = await generateText({ ...asked, messages });
  const again = [...messages, ...first.response.messages, { role: "user", content: "And now?" }];
  const second = streamText({ ...asked, messages: again });
  found[name] = { first: first.text, second: await second.text };
  if (name === "anthropic") continue; // for models it does not know, it forces a tool: the tests' model calls none
  const output = Output.object({ schema: jsonSchema(schema) });
  found[name].object = typeof (await generateText({ ...asked, messages, output })).output.ok;
}
console.log(JSON.stringify(found));
