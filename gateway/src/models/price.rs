//! The price of a call, in whole millionths of the operator's currency.
use crate::config::model::ModelPrice;
use turnway_wire::model::TokenUsage;

/// Tokens that a price is for.
const TOKENS: u128 = 1_000_000;

/// Returns the price of a call, rounded up; none if a count or a price is not known.
pub(super) fn cost(price: ModelPrice, usage: &TokenUsage) -> Option<u64> {
    let input = usage.input?;
    let cached = usage.cached_input.unwrap_or(0).min(input);
    let of_input = price.input?;
    let parts = [
        (input - cached, of_input),
        (cached, price.cached.unwrap_or(of_input)),
        // Embeddings have no output.
        (usage.output.unwrap_or(0), if usage.output.unwrap_or(0) == 0 { 0 } else { price.output? }),
    ];
    let sum: u128 = parts.into_iter().map(|(tokens, price)| u128::from(tokens) * u128::from(price)).sum();
    u64::try_from(sum.div_ceil(TOKENS)).ok()
}

/// Returns the price of the most expensive call with so many tokens; none if a price is not known.
pub(super) fn most_cost(price: ModelPrice, input: u64, output: u64) -> Option<u64> {
    let of_input = price.input?.max(price.cached.unwrap_or(0));
    let dearest = ModelPrice { input: Some(of_input), cached: None, output: price.output };
    cost(dearest, &TokenUsage { input: Some(input), output: Some(output), ..TokenUsage::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(input: u64, cached: Option<u64>, output: Option<u64>) -> TokenUsage {
        TokenUsage { input: Some(input), cached_input: cached, output, ..TokenUsage::default() }
    }

    #[test]
    fn price_counts_each_token_once_and_rounds_up() {
        let price = ModelPrice { input: Some(2_000_000), cached: Some(500_000), output: Some(8_000_000) };
        assert_eq!(cost(price, &usage(100, None, Some(10))), Some(280));
        assert_eq!(cost(price, &usage(100, Some(60), Some(10))), Some(80 + 30 + 80));
        assert_eq!(cost(ModelPrice { input: Some(1), ..price }, &usage(1, None, Some(0))), Some(1), "rounded up");
        assert_eq!(cost(price, &usage(7, None, None)), Some(14), "an embedding");
        let huge = ModelPrice { input: Some(u64::MAX), cached: None, output: None };
        assert_eq!(cost(huge, &usage(u64::MAX, None, None)), None, "beyond what can be counted");
    }

    #[test]
    fn unknown_counts_or_prices_give_no_price() {
        let price = ModelPrice { input: Some(1), cached: None, output: None };
        assert_eq!(cost(price, &usage(5, None, Some(1))), None, "the output has no price");
        assert_eq!(cost(ModelPrice::default(), &usage(5, None, None)), None);
        assert_eq!(cost(price, &TokenUsage::default()), None);
        assert_eq!(cost(price, &usage(5_000_000, Some(1), None)), Some(5), "cached tokens cost as others");
    }
}
