// The official JavaScript client of OpenAI against the models route of a node, with a scripted model behind it.
//
//     node model_client.js ORIGIN API_KEY    `holds: SCENARIO` for each, exit 0 if all did
const assert = require("node:assert/strict");
const { OpenAI, APIError, PermissionDeniedError } = require("openai");

const [origin, key] = process.argv.slice(2);
const client = (apiKey = key) => new OpenAI({ baseURL: `${origin}/v1`, apiKey, maxRetries: 0 });
const messages = [{ role: "user", content: "hi" }];

const scenarios = {
  async chat() {
    const answer = await client().chat.completions.create({ model: "gpt", messages });
    assert.equal(answer.choices[0].message.content, "grüß dich");
    assert.equal(answer.usage.total_tokens, 42);
  },
  async chatStreamed() {
    const stream = await client().chat.completions.create({ model: "gpt", messages, stream: true });
    let text = "";
    for await (const chunk of stream) {
      // The usage event is the gateway's own.
      assert.equal(chunk.choices.length, 1);
      text += chunk.choices[0].delta.content ?? "";
    }
    assert.equal(text, "grüß dich 語𝄞");
  },
  async chatStreamedWithUsage() {
    const stream = await client().chat.completions.create({
      model: "gpt", messages, stream: true, stream_options: { include_usage: true },
    });
    let usage = null;
    for await (const chunk of stream) usage = chunk.usage ?? usage;
    assert.ok(usage.prompt_tokens > 0);
  },
  async responsesStreamed() {
    const stream = await client().responses.create({ model: "gpt", input: "hi", stream: true });
    const types = [];
    for await (const event of stream) types.push(event.type);
    assert.equal(types.at(-1), "response.completed");
  },
  async embeddings() {
    const answer = await client().embeddings.create({ model: "gpt", input: ["hi"], encoding_format: "float" });
    assert.ok(answer.data[0].embedding.length > 0);
  },
  async models() {
    const names = [];
    for await (const model of await client().models.list()) names.push(model.id);
    assert.ok(names.includes("gpt") && names.includes("agent/echo"), names);
  },
  async cutStreamIsAnError() {
    const asked = [{ role: "user", content: "please-cut" }];
    const stream = await client().chat.completions.create({ model: "gpt", messages: asked, stream: true });
    await assert.rejects(async () => {
      for await (const chunk of stream) assert.ok(chunk);
    }, (error) => error instanceof APIError && error.code === "upstream_truncated");
  },
  async refusalIsTheUpstreams() {
    const asked = [{ role: "user", content: "please-refuse" }];
    await assert.rejects(client().chat.completions.create({ model: "gpt", messages: asked }), { status: 400, code: "bad_words" });
  },
  async unknownModelIsNotFound() {
    await assert.rejects(client().chat.completions.create({ model: "unknown", messages }), { status: 404, code: "model_not_found" });
  },
  async secretOfTheProviderIsHidden() {
    const asked = [{ role: "user", content: "please-unauthorized" }];
    await assert.rejects(client().chat.completions.create({ model: "gpt", messages: asked }), (error) => {
      assert.ok(!(error instanceof PermissionDeniedError));
      return error.status === 502 && error.code === "upstream_unauthorized";
    });
  },
};

(async () => {
  for (const [name, scenario] of Object.entries(scenarios)) {
    await scenario();
    console.log(`holds: ${name}`);
  }
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
