//! The answers of the demo model: rules over the messages of a call. Must not depend on anything but the call.
use serde::Deserialize;
use serde_json::{Value, json};

/// The line that connects a real model, as the README has it.
const PROVIDER_LINE: &str =
    "turnway serve --model gpt=https://api.openai.com/v1,api_key_env=OPENAI_API_KEY --agent gpt=model:gpt";

/// Ways to ask for the earlier messages.
const MEMORY_QUESTIONS: [&str; 4] = ["did i say", "said before", "do you remember", "what was my"];
/// Ways to ask about the model.
const IDENTITY_QUESTIONS: [&str; 6] =
    ["who are you", "what are you", "are you real", "real model", "provider", "language model"];
const GREETINGS: [&str; 6] = ["hello", "hi", "hey", "hallo", "moin", "good"];

/// The parts of a call that the demo model reads.
#[derive(Debug, Deserialize)]
pub(super) struct DemoRequest {
    messages: Vec<DemoMessage>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
    #[serde(default, alias = "max_tokens")]
    max_completion_tokens: Option<usize>,
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

#[derive(Debug, Deserialize)]
struct DemoMessage {
    role: String,
    #[serde(default)]
    content: Value,
}

/// An answer in words; a word counts as a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DemoReply {
    reasoning: Vec<String>,
    /// Words with the white space after them.
    words: Vec<String>,
    is_cut: bool,
    prompt_words: usize,
}

// === impl DemoRequest ===

impl DemoRequest {
    pub(super) fn is_stream(&self) -> bool {
        self.stream == Some(true)
    }

    pub(super) fn includes_usage(&self) -> bool {
        self.stream_options.as_ref().is_some_and(|options| options.include_usage)
    }

    /// Returns the answer to the last message of the user.
    pub(super) fn reply(&self) -> DemoReply {
        let said: Vec<String> = self.messages.iter().filter(|one| one.role == "user").map(DemoMessage::text).collect();
        let (last, earlier) = match said.split_last() {
            Some((last, earlier)) => (last.as_str(), earlier),
            None => ("", &[][..]),
        };
        let mut words = words(&answer(last, earlier));
        let most = self.max_completion_tokens.unwrap_or(usize::MAX);
        let is_cut = words.len() > most;
        words.truncate(most);
        let thinks = last.to_lowercase().contains("think");
        let reasoning = format!("The message has {}. A rule of the demo answers it.", counted(last, "word"));
        DemoReply {
            reasoning: if thinks { self::words(&reasoning) } else { Vec::new() },
            words,
            is_cut,
            prompt_words: self.messages.iter().map(|message| message.text().split_whitespace().count()).sum(),
        }
    }
}

// === impl DemoMessage ===

impl DemoMessage {
    /// Returns the text, or the joined texts of the parts.
    fn text(&self) -> String {
        match &self.content {
            Value::String(text) => text.clone(),
            Value::Array(parts) => parts.iter().filter_map(|part| part.get("text")?.as_str()).collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => String::new(),
        }
    }
}

// === impl DemoReply ===

impl DemoReply {
    pub(super) fn text(&self) -> String {
        self.words.concat()
    }

    pub(super) fn reasoning(&self) -> Option<String> {
        (!self.reasoning.is_empty()).then(|| self.reasoning.concat())
    }

    pub(super) fn finish_reason(&self) -> &'static str {
        if self.is_cut { "length" } else { "stop" }
    }

    /// Returns the deltas of a stream: a word each.
    pub(super) fn deltas(&self) -> impl Iterator<Item = Value> {
        let reasoning = self.reasoning.iter().map(|word| json!({ "reasoning_content": word }));
        reasoning.chain(self.words.iter().map(|word| json!({ "content": word })))
    }

    pub(super) fn usage(&self) -> Value {
        let reasoning = self.reasoning.len();
        let output = self.words.len() + reasoning;
        json!({
            "prompt_tokens": self.prompt_words,
            "completion_tokens": output,
            "total_tokens": self.prompt_words + output,
            "completion_tokens_details": { "reasoning_tokens": reasoning },
        })
    }
}

/// Returns the answer to the last message after some earlier ones.
fn answer(last: &str, earlier: &[String]) -> String {
    let asked = last.to_lowercase();
    let has_any = |phrases: &[&str]| phrases.iter().any(|phrase| asked.contains(phrase));
    let first_word = asked.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
    if has_any(&MEMORY_QUESTIONS) {
        return match earlier {
            [] => "This is the first message that I see of this conversation.".to_owned(),
            [only] => format!("Before this you said: \"{only}\""),
            [.., newest] => {
                format!(
                    "You have sent {} before this. The last one was: \"{newest}\"",
                    plural(earlier.len(), "message")
                )
            }
        };
    }
    if asked.contains("how many") {
        let total: usize = earlier.iter().map(|text| text.split_whitespace().count()).sum();
        let messages = plural(earlier.len(), "message");
        let words = plural(total, "word");
        return format!("Before this you have sent {messages} with {words}; this one has {}.", counted(last, "word"));
    }
    if has_any(&IDENTITY_QUESTIONS) {
        return format!(
            "I am the demo model of Turnway: a few rules in the gateway, and no language model. \
             To put a real one in my place: {PROVIDER_LINE}"
        );
    }
    if GREETINGS.contains(&first_word) && earlier.is_empty() {
        return "Hello! I am the demo model: a few rules, and no language model. Ask me what you said before, how many \
                words you have sent, or how to connect a real model."
            .to_owned();
    }
    format!("You said: \"{last}\" That is message {} of our conversation.", earlier.len() + 1)
}

/// Returns the number of words of a text, with the noun.
fn counted(text: &str, noun: &str) -> String {
    plural(text.split_whitespace().count(), noun)
}

fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

fn words(text: &str) -> Vec<String> {
    text.split_inclusive(' ').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(call: Value) -> DemoReply {
        serde_json::from_value::<DemoRequest>(call).expect("a call").reply()
    }

    fn conversation(said: &[&str]) -> Value {
        let turns = said.iter().flat_map(|text| {
            [json!({ "role": "user", "content": text }), json!({ "role": "assistant", "content": "ok" })]
        });
        let mut messages: Vec<Value> = turns.collect();
        messages.pop();
        json!({ "model": "demo", "messages": messages })
    }

    #[test]
    fn demo_answers_from_the_messages_of_the_call() {
        for (said, answer) in [
            (&["hello"][..], "Hello! I am the demo model"),
            (&["my cat is Tom", "What did I say?"], "Before this you said: \"my cat is Tom\""),
            (&["What did I say?"], "This is the first message"),
            (&["a", "b c", "do you remember?"], "You have sent 2 messages before this. The last one was: \"b c\""),
            (
                &["a", "b c", "How many words?"],
                "Before this you have sent 2 messages with 3 words; this one has 3 words.",
            ),
            (&["Which provider?"], "I am the demo model of Turnway"),
            (&["a", "hello again"], "You said: \"hello again\" That is message 2"),
        ] {
            let text = reply(conversation(said)).text();
            assert!(text.starts_with(answer), "{said:?}: {text}");
        }
    }

    #[test]
    fn demo_counts_tokens_and_obeys_the_output_limit() {
        let mut call = conversation(&["a b"]);
        call["max_tokens"] = json!(3);
        let cut = reply(call);
        assert_eq!((cut.text().as_str(), cut.finish_reason()), ("You said: \"a ", "length"));
        let thinking = reply(conversation(&["please think"]));
        assert_eq!(thinking.reasoning().as_deref(), Some("The message has 2 words. A rule of the demo answers it."));
        let usage = thinking.usage();
        assert_eq!(
            (&usage["prompt_tokens"], &usage["completion_tokens_details"]["reasoning_tokens"]),
            (&json!(2), &json!(12))
        );
        assert_eq!(thinking.deltas().count() as u64, usage["completion_tokens"].as_u64().expect("a number"));
        assert_eq!(thinking, reply(conversation(&["please think"])), "equal calls get equal answers");
    }
}
