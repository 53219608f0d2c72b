//! Token counts of an answer, read leniently from the names of several providers. A count is never made up.
use super::CallFormat;
use super::json_text::{count, each_member};

/// Tokens that an upstream said a call used. A field is absent if it is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenUsage {
    /// All tokens of the input, with those read from and written to a cache.
    pub input: Option<u64>,
    /// Tokens of the input that were read from a cache.
    pub cached_input: Option<u64>,
    /// Tokens of the input that were written to a cache.
    pub cache_write: Option<u64>,
    /// All tokens of the output, with those of the reasoning.
    pub output: Option<u64>,
    /// Tokens of the output that were reasoning.
    pub reasoning: Option<u64>,
}

/// The counts of all usage objects of an answer, under the names that providers gave them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UsageCounts {
    /// Counts named `prompt_tokens`, `completion_tokens`, and those in their details.
    prompt: TokenUsage,
    /// Counts named `input_tokens`, `output_tokens`, and those in their details.
    input: TokenUsage,
    total: Option<u64>,
    /// DeepSeek's name for cached tokens.
    cache_hit: Option<u64>,
    /// Anthropic's names for tokens of the cache.
    cache_read: Option<u64>,
    cache_creation: Option<u64>,
}

// === impl TokenUsage ===

impl TokenUsage {
    /// Returns these counts, with those of `other` where they are unknown.
    fn or(self, other: Self) -> Self {
        Self {
            input: self.input.or(other.input),
            cached_input: self.cached_input.or(other.cached_input),
            cache_write: self.cache_write.or(other.cache_write),
            output: self.output.or(other.output),
            reasoning: self.reasoning.or(other.reasoning),
        }
    }
}

// === impl UsageCounts ===

impl UsageCounts {
    /// Reads a usage object. Its counts replace earlier ones field by field; unknown ones replace nothing.
    pub(super) fn read(&mut self, usage: &str) {
        let mut found = Self::default();
        let read = each_member(usage, |name, value| match name {
            "prompt_tokens" => found.prompt.input = count(value),
            "completion_tokens" => found.prompt.output = count(value),
            "prompt_tokens_details" => read_input_details(value, &mut found.prompt),
            "completion_tokens_details" => read_output_details(value, &mut found.prompt),
            "input_tokens" => found.input.input = count(value),
            "output_tokens" => found.input.output = count(value),
            "input_tokens_details" => read_input_details(value, &mut found.input),
            "output_tokens_details" => read_output_details(value, &mut found.input),
            "total_tokens" => found.total = count(value),
            "prompt_cache_hit_tokens" => found.cache_hit = count(value),
            "cache_read_input_tokens" => found.cache_read = count(value),
            "cache_creation_input_tokens" => found.cache_creation = count(value),
            _ => {}
        });
        if read.is_ok() {
            *self = Self {
                prompt: found.prompt.or(self.prompt),
                input: found.input.or(self.input),
                total: found.total.or(self.total),
                cache_hit: found.cache_hit.or(self.cache_hit),
                cache_read: found.cache_read.or(self.cache_read),
                cache_creation: found.cache_creation.or(self.cache_creation),
            };
        }
    }

    /// Returns the totals. Some gateways write both families of names and zeros in the one that is not the format's, so
    /// the format's own names come first.
    pub(super) fn totals(&self, format: CallFormat) -> TokenUsage {
        match format {
            CallFormat::ChatCompletions => self.openai_totals(self.prompt.or(self.input)),
            CallFormat::Responses => self.openai_totals(self.input.or(self.prompt)),
            CallFormat::Embeddings => {
                let named = self.prompt.or(self.input);
                // Embeddings have no output, and some providers report only the total.
                TokenUsage { input: named.input.or(self.total), ..named }
            }
            CallFormat::Messages => self.anthropic_totals(),
        }
    }

    fn openai_totals(&self, named: TokenUsage) -> TokenUsage {
        let cached_input = named.cached_input.or(self.cache_hit).or(self.cache_read);
        let cache_write = named.cache_write.or(self.cache_creation);
        let usage = TokenUsage { cached_input, cache_write, ..named };
        let (Some(input), Some(output), Some(total)) = (usage.input, usage.output, self.total) else { return usage };
        let Some(rest) = total.checked_sub(input.saturating_add(output)).filter(|rest| *rest > 0) else { return usage };
        let cache = cached_input.unwrap_or(0).saturating_add(cache_write.unwrap_or(0));
        // Some providers count cached tokens in the total only; others reasoning, with or without details about it.
        if usage.reasoning != Some(rest) && cache == rest {
            TokenUsage { input: Some(input.saturating_add(rest)), ..usage }
        } else {
            TokenUsage { output: Some(output.saturating_add(rest)), ..usage }
        }
    }

    /// Returns the totals of Anthropic's counts, whose `input_tokens` are those after the last cached ones.
    fn anthropic_totals(&self) -> TokenUsage {
        let cached_input = self.cache_read.or(self.input.cached_input);
        let cache_write = self.cache_creation;
        let cache = cached_input.unwrap_or(0).saturating_add(cache_write.unwrap_or(0));
        let input = self.input.input.map(|rest| rest.saturating_add(cache));
        TokenUsage { input, cached_input, cache_write, ..self.input }.or(self.prompt)
    }
}

fn read_input_details(details: &str, counts: &mut TokenUsage) {
    // Details of another type are unknown.
    let _ = each_member(details, |name, value| match name {
        "cached_tokens" => counts.cached_input = count(value),
        "cache_write_tokens" => counts.cache_write = count(value),
        _ => {}
    });
}

fn read_output_details(details: &str, counts: &mut TokenUsage) {
    let _ = each_member(details, |name, value| {
        if name == "reasoning_tokens" {
            counts.reasoning = count(value);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(format: CallFormat, usages: &[&str]) -> [Option<u64>; 5] {
        let mut counts = UsageCounts::default();
        usages.iter().for_each(|usage| counts.read(usage));
        let TokenUsage { input, cached_input, cache_write, output, reasoning } = counts.totals(format);
        [input, cached_input, cache_write, output, reasoning]
    }

    /// Covers: PR-6.
    #[test]
    fn totals_include_cached_and_reasoning_tokens() {
        let chat = CallFormat::ChatCompletions;
        let reasoning_apart = r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":115,
            "completion_tokens_details":{"reasoning_tokens":100}}"#;
        assert_eq!(totals(chat, &[reasoning_apart]), [Some(10), None, None, Some(105), Some(100)]);
        let reasoning_within = r#"{"prompt_tokens":10,"completion_tokens":105,"total_tokens":115,
            "completion_tokens_details":{"reasoning_tokens":100}}"#;
        assert_eq!(totals(chat, &[reasoning_within]), [Some(10), None, None, Some(105), Some(100)]);
        let only_in_total = r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":40}"#;
        assert_eq!(totals(chat, &[only_in_total]), [Some(10), None, None, Some(30), None]);
        let cache_apart = r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":1015,
            "prompt_tokens_details":{"cached_tokens":1000}}"#;
        assert_eq!(totals(chat, &[cache_apart]), [Some(1010), Some(1000), None, Some(5), None]);
        let anthropic = r#"{"input_tokens":3,"cache_read_input_tokens":100,"cache_creation_input_tokens":20,
            "output_tokens":1}"#;
        let later = r#"{"output_tokens":9,"input_tokens":null}"#;
        assert_eq!(totals(CallFormat::Messages, &[anthropic, later]), [Some(123), Some(100), Some(20), Some(9), None]);
    }

    /// Covers: PR-6.
    #[test]
    fn unknown_counts_stay_absent() {
        let chat = CallFormat::ChatCompletions;
        for usage in ["{}", "null", "7", r#"{"prompt_tokens":null,"completion_tokens":-1}"#, r#"{"prompt_tokens":"#] {
            assert_eq!(totals(chat, &[usage]), [None; 5], "{usage}");
        }
        let partly = r#"{"prompt_tokens":"12","completion_tokens":"x","prompt_tokens_details":[]}"#;
        assert_eq!(totals(chat, &[partly]), [Some(12), None, None, None, None]);
        assert_eq!(totals(chat, &[r#"{"prompt_tokens":5}"#, partly, "{}"])[0], Some(12));
        assert_eq!(totals(CallFormat::Embeddings, &[r#"{"total_tokens":8}"#]), [Some(8), None, None, None, None]);
    }

    /// Covers: PR-6.
    #[test]
    fn names_of_the_format_come_first() {
        let both = r#"{"prompt_tokens":7,"completion_tokens":2,"input_tokens":0,"output_tokens":0}"#;
        assert_eq!(totals(CallFormat::ChatCompletions, &[both]), [Some(7), None, None, Some(2), None]);
        assert_eq!(totals(CallFormat::Responses, &[both]), [Some(0), None, None, Some(0), None]);
        let hit =
            r#"{"prompt_tokens":7,"completion_tokens":2,"prompt_cache_hit_tokens":4,"prompt_cache_miss_tokens":3}"#;
        assert_eq!(totals(CallFormat::ChatCompletions, &[hit]), [Some(7), Some(4), None, Some(2), None]);
    }
}
