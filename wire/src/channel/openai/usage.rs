//! Conversion of an agent's token counts into OpenAI's usage object.
use serde_json::{Map, Value};
use turnway_core::protocol::json::Json;

/// Returns the usage of an answer. Only counts from the agent are reported, because a zero for an uncounted value
/// would be wrong. `prompt_tokens` and `completion_tokens` (or `input_tokens` and `output_tokens`) are required;
/// the sum is computed if absent, and further details are copied unchanged.
pub(super) fn openai_usage(usage: Option<&Json>) -> Option<Json> {
    let Json(Value::Object(reported)) = usage? else { return None };
    let count = |names: [&str; 2]| names.iter().find_map(|name| reported.get(*name)).and_then(Value::as_u64);
    let prompt = count(["prompt_tokens", "input_tokens"])?;
    let completion = count(["completion_tokens", "output_tokens"])?;
    let total = reported.get("total_tokens").and_then(Value::as_u64);
    let mut usage = Map::new();
    for (name, count) in [
        ("prompt_tokens", prompt),
        ("completion_tokens", completion),
        ("total_tokens", total.unwrap_or_else(|| prompt.saturating_add(completion))),
    ] {
        usage.insert(name.to_owned(), count.into());
    }
    for details in ["prompt_tokens_details", "completion_tokens_details"] {
        if let Some(Value::Object(of)) = reported.get(details) {
            usage.insert(details.to_owned(), Value::Object(of.clone()));
        }
    }
    Some(Json(Value::Object(usage)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Covers: ST-41.
    #[test]
    fn only_known_usage_counts_are_reported() {
        let usage_of = |usage: Value| openai_usage(Some(&Json(usage))).map(|counted| counted.0);
        let full = json!({ "prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7,
            "completion_tokens_details": { "reasoning_tokens": 1 } });
        assert_eq!(usage_of(full.clone()), Some(full));
        let sum = json!({ "prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7 });
        assert_eq!(usage_of(json!({ "input_tokens": 3, "output_tokens": 4, "cost": 1.5 })), Some(sum));
        for unknown in [json!({ "tokens": 7 }), json!({ "prompt_tokens": 3 }), json!(7), json!({}), json!(null)] {
            assert_eq!(usage_of(unknown), None);
        }
        assert_eq!(usage_of(json!({ "prompt_tokens": -3, "completion_tokens": 1.5 })), None);
        assert_eq!(openai_usage(None), None);
    }
}
